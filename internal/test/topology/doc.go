// Package topology has no code. Its tests ask what locks do on Sentinel, on a cluster and over TLS.
package topology
