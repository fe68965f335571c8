// Package leader has one process of many lead: the one that has a lock of package relock.
//
//	leaders := locks.NewLock("leader:reports") // locks is a relock.Client
//	candidate := leader.Campaign(ctx, leaders) // in the background
//	if candidate.IsLeader() { … }
//
// [Campaign] is for programs that ask whether they lead, [Run] for a function that runs while its
// process leads, and [Follow] for processes that want to know who does.
//
// At most one process leads, on the conditions of every section of a lock: a process that stands
// still past its lease may believe for a moment that it leads still. What a leader writes takes the
// fencing token of its section, see [relock.Lock.Token].
package leader
