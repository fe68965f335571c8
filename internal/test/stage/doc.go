// Package stage is the vocabulary of the tests that use relock through its API.
//
// A test plays on a [Stage]. In fake time that is a [World]: a store in memory and a clock that
// only the test moves. On real servers it is an [Arena], or a [ClusterArena]. The words are the
// same on all of them: [Stage.Enter] and [Stage.Leave] a lock, [Stage.Start] a call that waits, ask
// the [Attempt] for its section, look into the store with [Stage.Owner] or [Stage.RequireFree].
//
// Clients are processes of their own. [World.NewClient] gives a [Member], whose [Link] to the store
// can fail: [Link.Cut], [Link.On], [Link.Once]. On a [Tape] commands run late. [Arena.Peer] gives a
// [Peer], whose connections to Redis can fail. What a lock guards is a [Witness]: it notices two
// that are in at once. A [Recorder] keeps events, a [Logbook] log lines.
//
// A file of tests is a chapter, and begins with its question. A chapter uses the words of this
// package and its own. What two chapters need is a word here.
package stage
