//go:build redis

package main

// others is empty: the build tag redis leaves out all stores but Redis.
var others = map[string]*backend{}
