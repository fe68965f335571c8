// Package redis has no code. Its tests ask what locks do on a real Redis server, through the API
// alone.
package redis
