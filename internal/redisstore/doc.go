// Package redisstore keeps locks in Redis, in relock's own layout and in Redisson's. Redisstore
// knows package store and the ways to a server (packages wire and subs), and nothing of the clients
// and locks of package relock.
//
// Each file has the name of the file of package relock that it serves: lock, kinds, all, lend,
// eval, deadlock, new. Wait serves pubsub. Store is what both layouts share.
package redisstore
