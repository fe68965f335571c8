//go:build race

package soak

// The client library of ZooKeeper has a race of its own when it connects again.
func init() { delete(worlds, "zookeeper") }
