// Package redistest gives tests real Redis servers and faults on the wire.
//
// # Servers
//
// [Start] runs one redis-server for one test, [Shared] one for the whole test binary,
// [StartSentinel] a master with a replica and three sentinels, [StartCluster] three masters with a
// replica each. [StartWithClock] runs a server with a clock for the test to turn. Every process
// listens on loopback only, leaves nothing on disk, and is killed when its test ends. On Linux, a
// process is also killed with the test binary.
//
// The redis-server of the environment variable REDIS_SERVER is used, or the redis-server in PATH.
// Without a redis-server the tests are skipped, or fail if RELOCK_REQUIRE_REDIS is 1.
//
// # Faults
//
// [Faults] is a Dialer for go-redis whose connections misbehave on demand: a reply is lost, a
// command runs late or twice, a link goes silent without a FIN. Faults works inside the test
// process, on whole RESP commands:
//
//	faults := redistest.NewFaults()
//	defer faults.Close()
//	rdb := server.Client(func(o *redis.Options) { o.Dialer = faults.Dialer(nil) })
//	faults.Once(redistest.Named("EVALSHA"), redistest.DropReply(redistest.EOF))
//
// # Processes
//
// [Child] runs a registered function in a process of its own, for tests that stop or kill the
// holder of a lock. Child needs [Main] in TestMain.
//
// Every wait is a poll with a limit, and a wait over its limit fails the test with the unmet
// condition.
package redistest
