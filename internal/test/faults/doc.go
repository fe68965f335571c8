// Package faults has no code. Its tests ask what locks do on a Redis server when replies,
// connections, processes or the server break, through the API alone.
package faults
