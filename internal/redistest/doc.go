// Package redistest gives tests real Redis servers and faults on the wire.
//
// # Servers
//
// [Start] runs one redis-server for one test, [Shared] one for the whole test
// binary, [StartSentinel] a master with a replica and three sentinels,
// [StartCluster] three masters with a replica each. Every process listens on
// loopback only, keeps nothing on disk that outlives it, and is killed when its
// test ends; on Linux also when the test binary itself is killed.
// [StartWithClock] runs one whose clock the test can turn.
//
// The redis-server in PATH is used, or the one that the environment variable
// REDIS_SERVER names. Without one the tests are skipped, or fail if
// RELOCK_REQUIRE_REDIS is 1.
//
// # Faults
//
// [Faults] is a Dialer for go-redis whose connections misbehave on demand: a
// reply is lost, a command runs late or twice, a link goes silent without a
// FIN. It works inside the test process, on whole RESP commands:
//
//	faults := redistest.NewFaults()
//	defer faults.Close()
//	rdb := server.Client(func(o *redis.Options) { o.Dialer = faults.Dialer(nil) })
//	faults.Once(redistest.Named("EVALSHA"), redistest.DropReply(redistest.EOF))
//
// # Processes
//
// [Child] runs a registered function in a process of its own, so that a test
// can stop or kill the holder of a lock. It needs [Main] in TestMain.
//
// Every wait is a poll with a limit: a test that hangs fails with what it
// waited for.
package redistest
