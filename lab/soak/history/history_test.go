package history

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// limit bounds each check: it takes milliseconds.
const limit = time.Minute

func check(t testing.TB, ops []Op) *Report {
	t.Helper()
	r := Check(ops, limit)
	require.NotEqual(t, Undecided, r.Verdict)
	return r
}

// The histories are written by hand: one promise each.

const ms = time.Millisecond

// at is a call on the lock "a".
func at(call, until int, op Op) Op {
	op.Lock, op.Call, op.Return = "a", time.Duration(call)*ms, time.Duration(until)*ms
	return op
}

func lock(holder string, hold int) Op  { return Op{Kind: Lock, Holder: holder, Hold: hold} }
func again(holder string, hold int) Op { return in(Lock, OK, holder, hold) }
func local(holder string, hold int) Op {
	return Op{Kind: Lock, Holder: holder, Hold: hold, Mode: Mode{Local: true}}
}
func passing(holder string, hold int) Op {
	return Op{Kind: Lock, Holder: holder, Hold: hold, Mode: Mode{Passing: true}}
}
func redisson(holder string, hold int) Op {
	return Op{Kind: Lock, Holder: holder, Hold: hold, Mode: Mode{Redisson: true}}
}
func draw(holder string, hold int, token int64) Op {
	return Op{Kind: Draw, Holder: holder, Hold: hold, Token: token}
}
func refused(holder, owner string) Op {
	return Op{Kind: Lock, Outcome: Refused, Holder: holder, Owner: owner}
}
func in(kind Kind, outcome Outcome, holder string, hold int) Op {
	return Op{Kind: kind, Outcome: outcome, Holder: holder, Hold: hold, Nested: kind == Lock}
}
func unlock(holder string, hold int) Op { return in(Unlock, OK, holder, hold) }
func count(holder string, hold, n int) Op {
	op := in(Look, OK, holder, hold)
	op.Count = n
	return op
}
func remaining(holder string, hold, d int) Op {
	op := in(Look, OK, holder, hold)
	op.Remaining = time.Duration(d) * ms
	return op
}
func redis(owner string, count int) Op { return Op{Kind: State, Owner: owner, Count: count} }

// late is an answer that comes after a late command.
func late(op Op) Op {
	op.Late = 10 * ms
	return op
}
func redisToken(owner string, token int64) Op {
	return Op{Kind: State, Owner: owner, Count: 1, Token: token}
}

var (
	wipe = Op{Kind: Wipe}
	// wipeOld is where data came back that is older.
	wipeOld = Op{Kind: Wipe, Old: true}
	force   = Op{Kind: Force}
	// forceAlone is where no other trouble was made, and no lease is longer than 100 ms.
	forceAlone = Op{Kind: Force, Within: 100 * ms}
)

func TestHistoriesThatKeepThePromises(t *testing.T) {
	for name, ops := range map[string][]Op{
		"nothing": {},
		"one after the other": {
			at(0, 1, lock("A", 1)), at(2, 3, unlock("A", 1)), at(4, 5, lock("B", 2)), at(6, 7, unlock("B", 2)),
		},
		"the second waits, and is in before the first call has returned": {
			at(0, 1, lock("A", 1)), at(2, 9, unlock("A", 1)), at(1, 5, lock("B", 2)), at(6, 7, unlock("B", 2)),
		},
		"entered and left in any order": {
			at(0, 1, lock("A", 1)), at(2, 3, again("A", 1)), at(4, 5, count("A", 1, 2)), at(6, 7, again("A", 1)), at(8, 9, count("A", 1, 3)),
			at(10, 11, unlock("A", 1)), at(12, 13, unlock("A", 1)), at(14, 15, count("A", 1, 1)), at(16, 17, unlock("A", 1)),
			at(18, 19, lock("B", 2)), at(20, 21, unlock("B", 2)),
		},
		"two goroutines of one holder": {
			at(0, 1, lock("A", 1)), at(2, 9, again("A", 1)), at(3, 8, again("A", 1)), at(4, 7, count("A", 1, 3)),
			at(10, 20, unlock("A", 1)), at(11, 21, unlock("A", 1)), at(12, 19, count("A", 1, 2)), at(13, 22, redis("A", 1)), at(30, 31, unlock("A", 1)),
		},
		"refused by the one who has it": {
			at(0, 1, lock("A", 1)), at(2, 3, refused("B", "A")), at(4, 5, refused("B", "")), at(6, 7, unlock("A", 1)),
		},
		"refused by one who has left, and Redis was not told yet": {
			at(0, 1, lock("A", 1)), at(2, 3, in(Unlock, Failed, "A", 1)), at(4, 5, refused("B", "A")), at(100, 101, lock("B", 2)), at(102, 103, unlock("B", 2)),
		},
		"a second Unlock changes nothing": {
			at(0, 1, lock("A", 1)), at(2, 3, again("A", 1)), at(4, 5, unlock("A", 1)),
			at(6, 7, Op{Kind: Unlock, Outcome: NotHeld, Again: true, Holder: "A", Hold: 1}), at(8, 9, count("A", 1, 1)), at(10, 11, unlock("A", 1)),
		},
		"lost at the end of the lease, and then told": {
			at(0, 1, lock("A", 1)), at(2, 3, remaining("A", 1, 50)), at(52, 60, in(Told, Lost, "A", 1)), at(54, 55, lock("B", 2)),
			at(61, 62, in(Unlock, Lost, "A", 1)), at(63, 64, unlock("B", 2)),
		},
		"lost at the end of the lease, and told by a nested call": {
			at(0, 1, lock("A", 1)), at(2, 3, remaining("A", 1, 50)), at(60, 61, in(Lock, Lost, "A", 1)), at(62, 63, in(Unlock, Lost, "A", 1)),
		},
		"freed by the Unlock that says at its end that it is lost": {
			at(0, 1, lock("A", 1)), at(2, 3, remaining("A", 1, 50)), at(10, 70, in(Unlock, Lost, "A", 1)), at(20, 21, lock("B", 2)), at(30, 31, unlock("B", 2)),
		},
		"a renewal that nobody saw": {
			at(0, 1, lock("A", 1)), at(2, 3, remaining("A", 1, 50)), at(200, 201, count("A", 1, 1)), at(202, 203, unlock("A", 1)),
		},
		"crashed, and its lease waited for": {
			at(0, 1, lock("A", 1)), at(2, 3, remaining("A", 1, 50)), at(4, 53, lock("B", 2)), at(54, 55, unlock("B", 2)),
		},
		"extended": {
			at(0, 1, lock("A", 1)), at(2, 3, Op{Kind: Extend, Holder: "A", Hold: 1, Lease: 100 * ms}), at(99, 100, in(Look, Lost, "A", 1)),
			at(101, 102, in(Unlock, Lost, "A", 1)),
		},
		"Redis says what the holder says": {
			at(0, 1, redis("", 0)), at(2, 3, lock("A", 1)), at(4, 5, redis("A", 1)), at(6, 7, again("A", 1)), at(8, 9, redis("A", 2)),
			at(10, 11, unlock("A", 1)), at(12, 13, unlock("A", 1)), at(14, 15, redis("", 0)), at(16, 17, Op{Kind: Force, Outcome: NotHeld}),
		},
		"local re-entry is not in Redis": {
			at(0, 1, local("A", 1)), at(2, 3, again("A", 1)), at(4, 5, redis("A", 1)), at(5, 6, count("A", 1, 2)),
			at(6, 7, unlock("A", 1)), at(8, 9, unlock("A", 1)),
		},
		"a lock that is passed on, of which Redis is told later": {
			at(0, 1, passing("A", 1)), at(2, 3, redis("A", 1)), at(4, 5, unlock("A", 1)),
			at(6, 7, passing("B", 2)), at(8, 9, redis("A", 1)), at(10, 11, redis("B", 1)),
			at(12, 13, refused("C", "A")), at(14, 15, unlock("B", 2)), at(16, 17, redis("", 0)),
		},
		"two nested entries at once, taken away before they are counted": {
			at(0, 1, lock("A", 1)), at(2, 20, again("A", 1)), at(2, 30, again("A", 1)), at(5, 6, force), at(7, 8, lock("B", 2)),
			at(22, 23, count("A", 1, 2)), at(32, 33, count("A", 1, 3)), at(34, 35, in(Told, Lost, "A", 1)), at(36, 37, unlock("B", 2)),
		},
		"a nested entry that failed may be counted in Redis for a while": {
			at(0, 1, lock("A", 1)), at(2, 3, in(Lock, Failed, "A", 1)), at(4, 5, late(redis("A", 2))), at(6, 7, count("A", 1, 1)), at(8, 9, again("A", 1)),
			at(10, 11, redis("A", 2)), at(12, 13, unlock("A", 1)), at(14, 15, redis("A", 1)), at(16, 17, unlock("A", 1)),
		},
		"a nested entry that Redis counts, and that ends with the lease": {
			at(0, 1, lock("A", 1)), at(2, 3, remaining("A", 1, 50)), at(4, 60, in(Lock, Lost, "A", 1)), at(6, 7, redis("A", 1)),
			at(8, 9, redis("A", 2)), at(61, 62, in(Unlock, Lost, "A", 1)),
		},
		"a nested entry that Redis counts before its holder does": {
			at(0, 1, lock("A", 1)), at(2, 9, again("A", 1)), at(3, 4, redis("A", 2)), at(5, 6, count("A", 1, 1)), at(10, 11, unlock("A", 1)),
			at(12, 13, unlock("A", 1)),
		},
		"a count that was not known, and is not by an Extend": {
			at(0, 1, lock("A", 1)), at(2, 3, in(Lock, Failed, "A", 1)), at(4, 5, Op{Kind: Extend, Holder: "A", Hold: 1, Lease: 100 * ms}),
			at(6, 7, late(redis("A", 2))), at(8, 9, unlock("A", 1)),
		},
		"deleted, made anew, and extended: Redis knows of one entry": {
			at(0, 1, lock("A", 1)), at(2, 3, again("A", 1)), at(4, 5, wipe), at(6, 7, Op{Kind: Extend, Holder: "A", Hold: 1, Lease: 100 * ms}),
			at(8, 9, late(redis("A", 1))), at(10, 11, unlock("A", 1)), at(12, 13, unlock("A", 1)),
		},
		"an exit that is counted, and then the loss is told": {
			at(0, 1, lock("A", 1)), at(2, 3, again("A", 1)), at(4, 60, in(Unlock, Lost, "A", 1)), at(5, 6, count("A", 1, 2)), at(7, 8, count("A", 1, 1)),
			at(9, 10, redis("A", 1)), at(61, 62, in(Unlock, Lost, "A", 1)),
		},
		"taken away, and told early": {
			at(0, 1, lock("A", 1)), at(2, 3, remaining("A", 1, 1000)), at(4, 5, force), at(6, 7, lock("B", 2)), at(8, 9, count("A", 1, 1)),
			at(10, 11, in(Told, Lost, "A", 1)), at(12, 13, redis("B", 1)), at(14, 15, in(Unlock, Lost, "A", 1)), at(16, 17, unlock("B", 2)),
		},
		"taken away, and never noticed": {
			at(0, 1, lock("A", 1)), at(4, 5, wipe), at(6, 7, lock("B", 2)), at(8, 9, unlock("A", 1)), at(16, 17, unlock("B", 2)),
		},
		"taken away twice": {
			at(0, 1, lock("A", 1)), at(2, 3, wipe), at(4, 5, lock("B", 2)), at(6, 7, force), at(8, 9, lock("C", 3)), at(10, 11, count("A", 1, 1)),
			at(12, 13, count("B", 2, 1)), at(14, 15, count("C", 3, 1)), at(16, 17, in(Unlock, Lost, "A", 1)), at(18, 19, in(Unlock, Lost, "B", 2)),
			at(20, 21, unlock("C", 3)),
		},
		"a force unlock that came too late, as the holder learns": {
			at(0, 1, lock("A", 1)), at(2, 3, force), at(4, 5, again("A", 1)), at(6, 7, redis("A", 2)), at(8, 9, unlock("A", 1)), at(10, 11, unlock("A", 1)),
		},
		"a force unlock that failed, and worked later": {
			at(0, 1, lock("A", 1)), at(2, 100, Op{Kind: Force, Outcome: Failed}), at(4, 5, again("A", 1)), at(6, 7, lock("B", 2)),
			at(8, 9, in(Unlock, Lost, "A", 1)), at(10, 11, in(Unlock, Lost, "A", 1)), at(12, 13, unlock("B", 2)),
		},
		"forced and nothing else, and told by the last Unlock": {
			at(0, 1, lock("A", 1)), at(2, 3, forceAlone), at(4, 5, lock("B", 2)), at(103, 105, count("A", 1, 1)), at(106, 107, in(Unlock, Lost, "A", 1)),
			at(108, 109, unlock("B", 2)),
		},
		"forced and nothing else, and told by the watchdog": {
			at(0, 1, lock("A", 1)), at(2, 3, remaining("A", 1, 1000)), at(4, 5, forceAlone), at(6, 60, in(Told, Lost, "A", 1)),
			at(110, 111, in(Look, Lost, "A", 1)), at(112, 113, in(Unlock, Lost, "A", 1)),
		},
		"forced and nothing else, while the last Unlock was on its way": {
			at(0, 1, lock("A", 1)), at(2, 10, unlock("A", 1)), at(9, 12, forceAlone), at(9, 11, lock("B", 2)), at(13, 14, unlock("B", 2)),
		},
		"forced and nothing else, and confirmed by Redis all the same": {
			at(0, 1, lock("A", 1)), at(2, 3, forceAlone), at(4, 5, again("A", 1)), at(6, 7, unlock("A", 1)), at(200, 201, count("A", 1, 1)), at(202, 203, unlock("A", 1)),
		},
		"forced and nothing else, and passed on": {
			at(0, 1, passing("A", 1)), at(2, 3, forceAlone), at(4, 5, unlock("A", 1)),
		},
		"forced, and passed on by one that has not heard of it": {
			at(0, 1, passing("A", 1)), at(2, 3, force), at(4, 5, lock("C", 7)), at(6, 8, unlock("A", 1)),
			at(7, 9, passing("B", 2)), at(10, 11, count("B", 2, 1)), at(12, 13, redis("C", 1)),
			at(14, 15, in(Told, Lost, "B", 2)), at(16, 17, in(Unlock, Lost, "B", 2)), at(18, 19, unlock("C", 7)),
		},
		"forced, and passed on before the next one is in": {
			at(0, 1, passing("A", 1)), at(2, 3, force), at(4, 6, unlock("A", 1)),
			at(5, 7, passing("B", 2)), at(8, 9, lock("C", 7)), at(10, 11, in(Unlock, Lost, "B", 2)),
			at(12, 13, unlock("C", 7)),
		},
		"forced and nothing else, and the last Unlock is not confirmed": {
			at(0, 1, lock("A", 1)), at(2, 3, forceAlone), at(4, 5, in(Unlock, Failed, "A", 1)),
		},
		"a force unlock that failed may have done nothing": {
			at(0, 1, lock("A", 1)), at(2, 3, Op{Kind: Force, Outcome: Failed, Within: 100 * ms}), at(200, 201, count("A", 1, 1)), at(202, 203, unlock("A", 1)),
		},
		"deleted, and made anew by a late command of the same hold": {
			at(0, 1, lock("A", 1)), at(2, 3, wipe), at(4, 5, lock("B", 2)), at(6, 7, unlock("B", 2)), at(8, 9, again("A", 1)), at(10, 11, redis("A", 2)),
			at(12, 13, unlock("A", 1)), at(14, 15, unlock("A", 1)),
		},
		"a Lock outside of a section that is lost begins a new hold": {
			at(0, 1, lock("A", 1)), at(2, 3, in(Look, Lost, "A", 1)), at(4, 5, lock("A", 2)), at(6, 7, unlock("A", 2)),
			at(8, 9, in(Unlock, Lost, "A", 1)),
		},
		"a refusal by a hold of the same holder": {
			at(0, 1, lock("A", 1)), at(2, 3, refused("A", "A")), at(4, 5, unlock("A", 1)), at(6, 7, lock("A", 2)), at(8, 9, unlock("A", 2)),
		},
		"tokens grow, and a hold keeps its first one": {
			at(0, 1, lock("A", 1)), at(2, 3, draw("A", 1, 5)), at(4, 5, draw("A", 1, 5)), at(6, 7, redisToken("A", 5)), at(8, 9, unlock("A", 1)),
			at(10, 11, lock("B", 2)), at(12, 13, unlock("B", 2)), at(14, 15, lock("C", 3)), at(16, 17, draw("C", 3, 6)), at(18, 19, unlock("C", 3)),
		},
		"a token that two goroutines draw at once": {
			at(0, 1, lock("A", 1)), at(2, 9, draw("A", 1, 6)), at(3, 8, draw("A", 1, 6)), at(10, 11, unlock("A", 1)),
		},
		"a draw that failed, and drew a token": {
			at(0, 1, lock("A", 1)), at(2, 3, in(Draw, Failed, "A", 1)), at(4, 5, redisToken("A", 5)), at(6, 7, draw("A", 1, 6)), at(8, 9, unlock("A", 1)),
		},
		"a draw that finds the loss": {
			at(0, 1, lock("A", 1)), at(2, 3, force), at(4, 5, in(Draw, Lost, "A", 1)), at(6, 7, in(Unlock, Lost, "A", 1)),
		},
		"a token that was drawn before the lock was taken away": {
			at(0, 1, lock("A", 1)), at(2, 3, draw("A", 1, 5)), at(4, 5, force), at(6, 7, lock("B", 2)), at(8, 9, draw("B", 2, 6)),
			at(10, 11, draw("A", 1, 5)), at(12, 13, in(Unlock, Lost, "A", 1)), at(14, 15, unlock("B", 2)),
		},
		"a token that Redisson counted when the hold began": {
			at(0, 1, redisson("c:1", 1)), at(2, 3, redisToken("c:7", 5)), at(4, 5, draw("c:1", 1, 5)), at(6, 7, unlock("c:1", 1)),
			at(8, 9, redisson("B", 2)), at(10, 11, draw("B", 2, 6)), at(12, 13, unlock("B", 2)),
		},
		"the token was deleted, and comes again": {
			at(0, 1, lock("A", 1)), at(2, 3, draw("A", 1, 5)), at(4, 5, Op{Kind: Forget}), at(6, 7, redisToken("A", 0)), at(8, 9, unlock("A", 1)),
			at(10, 11, lock("B", 2)), at(12, 13, draw("B", 2, 6)), at(14, 15, redisToken("B", 6)), at(16, 17, unlock("B", 2)),
		},
		"older data is back, and tokens grow all the same": {
			at(0, 1, lock("B", 1)), at(2, 3, draw("B", 1, 7)), at(4, 5, wipeOld), at(6, 7, redisToken("A", 5)),
			at(8, 9, count("B", 1, 1)), at(10, 11, lock("C", 2)), at(12, 13, draw("C", 2, 8)), at(14, 15, redisToken("C", 8)),
			at(16, 17, in(Unlock, Lost, "B", 1)), at(18, 19, unlock("C", 2)),
		},
		"the end of a call was not known, and it was cancelled": {
			at(0, 1, Op{Kind: Lock, Outcome: Failed, Holder: "A"}), at(2, 3, refused("B", "A")), at(4, 5, lock("B", 2)), at(6, 7, unlock("B", 2)),
		},
		"the second part of a recording": {
			at(0, 0, Op{Kind: Before, Token: 5}), at(1, 2, lock("A", 1)), at(3, 4, draw("A", 1, 6)), at(5, 6, unlock("A", 1)),
		},
		"two locks have nothing to do with each other": {
			at(0, 1, lock("A", 1)), at(10, 11, unlock("A", 1)), {Lock: "b", Call: 2 * ms, Return: 3 * ms, Kind: Lock, Holder: "B", Hold: 2},
			{Lock: "b", Call: 4 * ms, Return: 5 * ms, Kind: Unlock, Holder: "B", Hold: 2},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := check(t, ops)
			require.Equal(t, Kept, r.Verdict, r.Explain())
			require.Equal(t, "kept", r.Explain())
		})
	}
}

func TestHistoriesThatBreakAPromise(t *testing.T) {
	for name, c := range map[string]struct {
		says string // the promise, in the explanation
		ops  []Op
	}{
		"two holders at once": {"B begins hold 2, while A has hold 1", []Op{
			at(0, 1, lock("A", 1)), at(2, 3, lock("B", 2)), at(4, 5, unlock("A", 1)), at(6, 7, unlock("B", 2)),
		}},
		"forced, and passed on to a call that began later": {"B begins hold 3, while C has hold 2", []Op{
			at(0, 1, passing("A", 1)), at(2, 3, force), at(4, 5, lock("C", 2)), at(6, 7, unlock("A", 1)),
			at(8, 9, passing("B", 3)), at(10, 11, unlock("B", 3)), at(12, 13, unlock("C", 2)),
		}},
		"forced, and passed on twice": {", while C has hold 2", []Op{
			at(0, 1, passing("A", 1)), at(2, 3, force), at(4, 5, lock("C", 2)), at(5, 7, unlock("A", 1)),
			at(6, 9, passing("D", 3)), at(6, 8, passing("B", 4)), at(12, 13, unlock("B", 4)), at(14, 15, unlock("D", 3)), at(16, 17, unlock("C", 2)),
		}},
		"forced, and passed on by a store that does not": {"B begins hold 3, while C has hold 2", []Op{
			at(0, 1, passing("A", 1)), at(2, 3, force), at(4, 5, lock("C", 2)), at(5, 7, unlock("A", 1)),
			at(6, 9, lock("B", 3)), at(10, 11, unlock("B", 3)), at(12, 13, unlock("C", 2)),
		}},
		"forced, and passed on to another client": {"q:2 begins hold 3, while C has hold 2", []Op{
			at(0, 1, passing("p:1", 1)), at(2, 3, force), at(4, 5, lock("C", 2)), at(5, 7, unlock("p:1", 1)),
			at(6, 9, passing("q:2", 3)), at(10, 11, unlock("q:2", 3)), at(12, 13, unlock("C", 2)),
		}},
		"the second is in before the first begins to leave": {"B begins", []Op{
			at(0, 1, lock("A", 1)), at(1, 3, lock("B", 2)), at(4, 9, unlock("A", 1)), at(10, 11, unlock("B", 2)),
		}},
		"the first still believes": {"B begins", []Op{
			at(0, 1, lock("A", 1)), at(2, 10, in(Told, Lost, "A", 1)), at(3, 4, lock("B", 2)), at(5, 6, count("A", 1, 1)), at(7, 8, unlock("B", 2)),
		}},
		"the first still has a lease": {"begins", []Op{
			at(0, 1, lock("A", 1)), at(2, 3, remaining("A", 1, 50)), at(4, 51, lock("B", 2)), at(52, 53, unlock("B", 2)), at(54, 55, in(Unlock, Lost, "A", 1)),
		}},
		"a crashed holder still has a lease": {"begins", []Op{
			at(0, 1, lock("A", 1)), at(2, 3, remaining("A", 1, 50)), at(4, 51, lock("B", 2)), at(52, 53, unlock("B", 2)),
		}},
		"an extended lease is cut short": {"before the end of its lease", []Op{
			at(0, 1, lock("A", 1)), at(2, 3, Op{Kind: Extend, Holder: "A", Hold: 1, Lease: 100 * ms}), at(97, 98, in(Unlock, Lost, "A", 1)),
		}},
		"the same token twice": {"token 2 comes after token 2", []Op{
			at(0, 1, lock("A", 1)), at(2, 3, draw("A", 1, 2)), at(4, 5, unlock("A", 1)), at(6, 7, lock("B", 2)), at(8, 9, draw("B", 2, 2)), at(10, 11, unlock("B", 2)),
		}},
		"a token that goes back": {"token 1 comes after token 2", []Op{
			at(0, 1, lock("A", 1)), at(2, 3, draw("A", 1, 2)), at(4, 5, unlock("A", 1)), at(6, 7, lock("B", 2)), at(8, 9, draw("B", 2, 1)), at(10, 11, unlock("B", 2)),
		}},
		"a token that is none": {"0 is no token", []Op{at(0, 1, lock("A", 1)), at(2, 3, draw("A", 1, 0)), at(4, 5, unlock("A", 1))}},
		"another token in the same hold": {"hold 1 has token 3, and had token 2 before", []Op{
			at(0, 1, lock("A", 1)), at(2, 3, draw("A", 1, 2)), at(4, 5, draw("A", 1, 3)), at(6, 7, unlock("A", 1)),
		}},
		"a token after the hold": {"over, or another's", []Op{at(0, 1, lock("A", 1)), at(2, 3, draw("A", 1, 2)), at(4, 5, unlock("A", 1)), at(6, 7, draw("A", 1, 2))}},
		"a token for a hold that another one is beside": {"Redis confirms hold 1, while B", []Op{
			at(0, 1, lock("A", 1)), at(2, 3, force), at(4, 5, lock("B", 2)), at(6, 7, draw("A", 1, 5)), at(8, 9, count("A", 1, 1)),
			at(10, 11, unlock("B", 2)), at(12, 13, in(Unlock, Lost, "A", 1)),
		}},
		"a token that Redis has drawn before for nobody": {"token 5 comes after token 5", []Op{
			at(0, 1, lock("A", 1)), at(2, 3, redisToken("A", 5)), at(4, 5, draw("A", 1, 5)), at(6, 7, unlock("A", 1)),
		}},
		"a hold of another client in Redisson's layout": {`Redis names "d:1" as the owner`, []Op{
			at(0, 1, redisson("c:1", 1)), at(2, 3, redisToken("d:1", 5)), at(4, 5, draw("c:1", 1, 5)), at(6, 7, unlock("c:1", 1)),
		}},
		"a token of Redisson that is older than the hold": {"token 5 comes after token 5", []Op{
			at(0, 1, redisToken("", 5)), at(2, 3, redisson("A", 1)), at(4, 5, draw("A", 1, 5)), at(6, 7, unlock("A", 1)),
		}},
		"a token that goes back after the data was lost": {"token 1 comes after token 2", []Op{
			at(0, 1, lock("A", 1)), at(2, 3, draw("A", 1, 2)), at(4, 5, wipe), at(6, 7, lock("B", 2)), at(8, 9, draw("B", 2, 1)),
			at(10, 11, unlock("B", 2)), at(12, 13, in(Unlock, Lost, "A", 1)),
		}},
		"a token that goes back after older data is back": {"token 1 comes after token 2", []Op{
			at(0, 1, lock("A", 1)), at(2, 3, draw("A", 1, 2)), at(4, 5, unlock("A", 1)), at(6, 7, wipeOld), at(8, 9, lock("C", 3)), at(10, 11, draw("C", 3, 1)), at(12, 13, unlock("C", 3)),
		}},
		"Redis has an older token where older data was back before": {"the last token in Redis is 2, after token 8", []Op{
			at(0, 1, lock("A", 1)), at(2, 3, draw("A", 1, 2)), at(4, 5, unlock("A", 1)), at(6, 7, wipeOld), at(8, 9, lock("C", 3)), at(10, 11, draw("C", 3, 8)), at(12, 13, redisToken("C", 2)),
		}},
		"a token that goes back after it was deleted": {"token 1 comes after token 2", []Op{
			at(0, 1, lock("A", 1)), at(2, 3, draw("A", 1, 2)), at(4, 5, unlock("A", 1)), at(6, 7, Op{Kind: Forget}), at(8, 9, lock("B", 2)), at(10, 11, draw("B", 2, 1)), at(12, 13, unlock("B", 2)),
		}},
		"a token that goes back between two parts of a recording": {"token 5 comes after token 5", []Op{
			at(0, 0, Op{Kind: Before, Token: 5}), at(1, 2, lock("A", 1)), at(3, 4, draw("A", 1, 5)), at(5, 6, unlock("A", 1)),
		}},
		"a Token with an outcome that does not exist": {"no such outcome", []Op{at(0, 1, lock("A", 1)), at(2, 3, in(Draw, Refused, "A", 1))}},

		"in when only the token was deleted": {"B begins", []Op{
			at(0, 1, lock("A", 1)), at(2, 3, Op{Kind: Forget}), at(4, 5, lock("B", 2)), at(6, 7, unlock("A", 1)), at(8, 9, unlock("B", 2)),
		}},
		"a nested entry of another holder": {"over, or another's", []Op{
			at(0, 1, lock("A", 1)), at(2, 3, again("B", 1)), at(4, 5, unlock("B", 1)), at(6, 7, unlock("A", 1)),
		}},
		"a nested entry into a new hold": {"counts 1 entries, and 2 are open", []Op{
			at(0, 1, lock("A", 1)), at(2, 3, wipe), at(4, 5, again("A", 1)), at(6, 7, count("A", 1, 1)), at(8, 9, unlock("A", 1)),
			at(10, 11, in(Unlock, Lost, "A", 1)),
		}},
		"a nested entry after the loss was told": {"over, or another's", []Op{
			at(0, 1, lock("A", 1)), at(2, 3, in(Told, Lost, "A", 1)), at(4, 5, again("A", 1)), at(6, 7, in(Unlock, Lost, "A", 1)),
		}},
		"a nested entry after the last exit": {"over, or another's", []Op{
			at(0, 1, lock("A", 1)), at(2, 3, unlock("A", 1)), at(4, 5, again("A", 1)), at(6, 7, unlock("A", 1)),
		}},
		"one too many counted": {"counts 2 entries, and 1 are open", []Op{
			at(0, 1, lock("A", 1)), at(2, 3, count("A", 1, 2)), at(4, 5, unlock("A", 1)),
		}},
		"counted again after an exit": {"over, or another's", []Op{
			at(0, 1, lock("A", 1)), at(2, 3, again("A", 1)), at(4, 60, in(Unlock, Lost, "A", 1)), at(5, 6, count("A", 1, 1)), at(7, 8, count("A", 1, 2)),
			at(61, 62, in(Unlock, Lost, "A", 1)),
		}},
		"one too few counted": {"counts 1 entries, and 2 are open", []Op{
			at(0, 1, lock("A", 1)), at(2, 3, again("A", 1)), at(4, 5, count("A", 1, 1)), at(6, 7, unlock("A", 1)), at(8, 9, unlock("A", 1)),
		}},
		"free after the first of two exits": {"begins", []Op{
			at(0, 1, lock("A", 1)), at(2, 3, again("A", 1)), at(4, 5, unlock("A", 1)), at(6, 7, lock("B", 2)), at(8, 9, unlock("A", 1)), at(10, 11, unlock("B", 2)),
		}},
		"more exits than entries": {"left a hold that is over", []Op{
			at(0, 1, lock("A", 1)), at(2, 3, unlock("A", 1)), at(4, 5, unlock("A", 1)),
		}},
		"another's hold is unlocked": {"left a hold that is over, or another's", []Op{
			at(0, 1, lock("A", 1)), at(2, 3, unlock("B", 1)), at(4, 5, unlock("A", 1)),
		}},
		"a second Unlock eats the outer section's entry": {"left twice", []Op{
			at(0, 1, lock("A", 1)), at(2, 3, again("A", 1)), at(4, 5, unlock("A", 1)), at(6, 7, Op{Kind: Unlock, Again: true, Holder: "A", Hold: 1}),
		}},
		"a second Unlock frees the lock": {"begins", []Op{
			at(0, 1, lock("A", 1)), at(2, 3, again("A", 1)), at(4, 5, unlock("A", 1)),
			at(6, 7, Op{Kind: Unlock, Outcome: NotHeld, Again: true, Holder: "A", Hold: 1}), at(8, 9, lock("B", 2)), at(10, 11, unlock("A", 1)),
			at(12, 13, unlock("B", 2)),
		}},
		"an open entry is not held": {"said not to be held", []Op{at(0, 1, lock("A", 1)), at(2, 3, in(Unlock, NotHeld, "A", 1))}},
		"believes after its loss was told": {"over, or another's", []Op{
			at(0, 1, lock("A", 1)), at(2, 3, in(Told, Lost, "A", 1)), at(4, 5, count("A", 1, 1)), at(6, 7, in(Unlock, Lost, "A", 1)),
		}},
		"an Unlock that says nothing of the loss": {"over, or another's", []Op{
			at(0, 1, lock("A", 1)), at(2, 3, in(Told, Lost, "A", 1)), at(4, 5, unlock("A", 1)),
		}},
		"believes again": {"over, or another's", []Op{
			at(0, 1, lock("A", 1)), at(2, 3, in(Look, Lost, "A", 1)), at(4, 5, count("A", 1, 1)), at(6, 7, in(Unlock, Lost, "A", 1)),
		}},
		"another is in before the Unlock that says that it is lost": {"begins", []Op{
			at(0, 1, lock("A", 1)), at(2, 3, remaining("A", 1, 50)), at(4, 5, lock("B", 2)), at(10, 70, in(Unlock, Lost, "A", 1)), at(80, 81, unlock("B", 2)),
		}},
		"lost for no reason": {"nobody took it away", []Op{
			at(0, 1, lock("A", 1)), at(2, 3, remaining("A", 1, 50)), at(4, 5, in(Told, Lost, "A", 1)), at(6, 7, in(Unlock, Lost, "A", 1)),
		}},
		"lost because somebody else's lock was taken away": {"nobody took it away", []Op{
			at(0, 1, lock("A", 1)), at(2, 3, force), at(4, 5, lock("B", 2)), at(6, 7, remaining("B", 2, 50)), at(8, 9, in(Unlock, Lost, "B", 2)),
			at(10, 11, in(Unlock, Lost, "A", 1)),
		}},
		"a force unlock that takes it from two": {"C begins hold 3, while B", []Op{
			at(0, 1, lock("A", 1)), at(2, 3, force), at(4, 5, lock("B", 2)), at(6, 7, lock("C", 3)), at(8, 9, count("B", 2, 1)), at(10, 11, unlock("C", 3)),
			at(12, 13, unlock("B", 2)), at(14, 15, in(Unlock, Lost, "A", 1)),
		}},
		"forced and nothing else, and the last Unlock says nothing": {"the last Unlock of hold 1 does not say so", []Op{
			at(0, 1, lock("A", 1)), at(2, 3, forceAlone), at(4, 5, lock("B", 2)), at(6, 7, unlock("A", 1)), at(8, 9, unlock("B", 2)),
		}},
		"forced twice and nothing else, and the last Unlock says nothing": {"the last Unlock of hold 1 does not say so", []Op{
			at(0, 1, lock("A", 1)), at(2, 3, forceAlone), at(4, 5, force), at(6, 7, unlock("A", 1)),
		}},
		"forced and nothing else, and believes when its lease is over": {"hold 1 is believed in 2ms after its last lease", []Op{
			at(0, 1, lock("A", 1)), at(2, 3, forceAlone), at(105, 106, count("A", 1, 1)), at(107, 108, in(Unlock, Failed, "A", 1)),
		}},
		"forced twice and nothing else, and believes when its lease is over": {"believed in 2ms after its last lease", []Op{
			at(0, 1, lock("A", 1)), at(2, 3, forceAlone), at(50, 51, forceAlone), at(105, 106, count("A", 1, 1)), at(107, 108, in(Unlock, Failed, "A", 1)),
		}},
		"in before somebody takes it away": {"B begins", []Op{
			at(0, 1, lock("A", 1)), at(2, 3, lock("B", 2)), at(4, 5, count("A", 1, 1)), at(6, 7, force), at(8, 9, in(Unlock, Lost, "A", 1)),
			at(10, 11, unlock("B", 2)),
		}},
		"confirmed by Redis while another has it": {"Redis confirms hold 1, while B", []Op{
			at(0, 1, lock("A", 1)), at(2, 3, force), at(4, 5, lock("B", 2)), at(6, 7, again("A", 1)), at(8, 9, count("A", 1, 2)),
			at(10, 11, in(Unlock, Lost, "A", 1)), at(12, 13, unlock("B", 2)), at(14, 15, in(Unlock, Lost, "A", 1)),
		}},
		"extended while another has it": {"Redis confirms hold 1, while B", []Op{
			at(0, 1, lock("A", 1)), at(2, 3, wipe), at(4, 5, lock("B", 2)), at(6, 7, Op{Kind: Extend, Holder: "A", Hold: 1, Lease: 10 * ms}),
			at(8, 9, count("A", 1, 1)), at(10, 11, unlock("B", 2)), at(12, 13, in(Unlock, Lost, "A", 1)),
		}},
		"enters beside a hold that Redis has confirmed again": {"B begins", []Op{
			at(0, 1, lock("A", 1)), at(2, 3, force), at(4, 5, again("A", 1)), at(6, 7, lock("B", 2)), at(8, 9, unlock("A", 1)), at(10, 11, unlock("A", 1)),
			at(12, 13, unlock("B", 2)),
		}},
		"refused in a section of the lock": {"is refused", []Op{
			at(0, 1, lock("A", 1)), at(2, 3, in(Lock, Refused, "A", 1)), at(4, 5, unlock("A", 1)),
		}},
		"refused in the name of another": {`Redis names "C" as the owner, while A`, []Op{
			at(0, 1, lock("A", 1)), at(2, 3, refused("B", "C")), at(4, 5, unlock("A", 1)),
		}},
		"Redis names another": {`Redis names "C" as the owner, while A`, []Op{
			at(0, 1, lock("A", 1)), at(2, 3, redis("C", 1)), at(4, 5, unlock("A", 1)),
		}},
		"Redis has forgotten it": {`Redis names "" as the owner, while A`, []Op{
			at(0, 1, lock("A", 1)), at(2, 3, redis("", 0)), at(4, 5, unlock("A", 1)),
		}},
		"Redis counts one too many": {"Redis counts 2 entries of A, and there are 1", []Op{
			at(0, 1, lock("A", 1)), at(2, 3, again("A", 1)), at(4, 5, unlock("A", 1)), at(6, 7, redis("A", 2)), at(8, 9, unlock("A", 1)),
		}},
		"local re-entry is counted in Redis": {"Redis counts 2 entries of A, and there are 1", []Op{
			at(0, 1, local("A", 1)), at(2, 3, again("A", 1)), at(4, 5, redis("A", 2)),
			at(6, 7, unlock("A", 1)), at(8, 9, unlock("A", 1)),
		}},
		"Redis has forgotten a lock that is passed on": {`Redis names "" as the owner, while A`, []Op{
			at(0, 1, passing("A", 1)), at(2, 3, redis("", 0)), at(4, 5, unlock("A", 1)),
		}},
		"the token in Redis goes back": {"the last token in Redis is 1, after token 2", []Op{
			at(0, 1, lock("A", 1)), at(2, 3, draw("A", 1, 2)), at(4, 5, unlock("A", 1)), at(6, 7, redisToken("", 1)),
		}},
		"nothing to unlock where somebody is": {"nobody has the lock in Redis, while A", []Op{
			at(0, 1, lock("A", 1)), at(2, 3, Op{Kind: Force, Outcome: NotHeld}), at(4, 5, unlock("A", 1)),
		}},
		"a count that stays wrong": {"Redis counts 3 entries of A, and there are 2", []Op{
			at(0, 1, lock("A", 1)), at(2, 3, in(Lock, Failed, "A", 1)), at(4, 5, again("A", 1)), at(16, 17, late(redis("A", 3))), at(18, 19, unlock("A", 1)),
			at(20, 21, unlock("A", 1)),
		}},
		"another's hold is extended": {"extended a hold that is over, or another's", []Op{
			at(0, 1, lock("A", 1)), at(2, 3, Op{Kind: Extend, Holder: "B", Hold: 1, Lease: 10 * ms}), at(4, 5, unlock("A", 1)),
		}},
		"an inner exit is confirmed while another has it": {"Redis confirms hold 1, while B", []Op{
			at(0, 1, lock("A", 1)), at(2, 3, again("A", 1)), at(4, 5, force), at(6, 7, lock("B", 2)), at(8, 9, unlock("A", 1)), at(10, 11, count("A", 1, 1)),
			at(12, 13, unlock("B", 2)), at(14, 15, in(Unlock, Lost, "A", 1)),
		}},
		"told of a loss after an Unlock that worked": {"over", []Op{
			at(0, 1, lock("A", 1)), at(2, 3, unlock("A", 1)), at(4, 5, in(Told, Lost, "A", 1)),
		}},
		"a Lock with an outcome that does not exist":    {"no such outcome", []Op{at(0, 1, Op{Kind: Lock, Outcome: NotHeld, Holder: "A"})}},
		"an Extend with an outcome that does not exist": {"no such outcome", []Op{at(0, 1, Op{Kind: Extend, Outcome: Refused, Holder: "A"})}},
		"a State with an outcome that does not exist":   {"no such outcome", []Op{at(0, 1, Op{Kind: State, Outcome: Lost})}},
		"an Unlock with an outcome that does not exist": {"no such outcome", []Op{
			at(0, 1, lock("A", 1)), at(2, 3, in(Unlock, Refused, "A", 1)),
		}},
		"an operation that does not exist": {"no kind", []Op{at(0, 1, Op{Kind: -1})}},
	} {
		t.Run(name, func(t *testing.T) {
			r := check(t, c.ops)
			require.Equal(t, Broken, r.Verdict)
			require.Contains(t, r.Explain(), c.says)
			require.Contains(t, r.Explain(), `"a"`)
		})
	}
}

func TestABrokenHistoryIsDrawn(t *testing.T) {
	ops := []Op{at(0, 1, lock("A", 1)), at(2, 3, lock("B", 2)), at(4, 5, unlock("A", 1))}
	for i := range ops {
		ops[i].Lock = "made up"
	}
	r := check(t, ops)
	require.Equal(t, Broken, r.Verdict)
	files, err := r.Draw(t.TempDir()+"/soak", []Fault{{Name: "everything cut", From: 0, Until: time.Hour}})
	require.NoError(t, err)
	require.Len(t, files, 1)
	require.True(t, strings.HasSuffix(files[0], "/soak-made%20up.html"), files[0])
	page, err := os.ReadFile(files[0])
	require.NoError(t, err)
	require.Contains(t, string(page), "everything cut")
	require.Contains(t, string(page), "by B")
	require.Less(t, len(page), 2_000_000)
}

func TestACheckThatTakesTooLongIsNotDecided(t *testing.T) {
	var ops []Op
	for hold := 1; hold <= 10_000; hold++ {
		ops = append(ops, at(4*hold, 4*hold+1, lock("A", hold)), at(4*hold+2, 4*hold+3, unlock("A", hold)))
	}
	r := Check(ops, time.Microsecond)
	require.Equal(t, Undecided, r.Verdict)
	require.Equal(t, "not decided", r.Explain())
}

func TestARecordingIsTakenInParts(t *testing.T) {
	rec := NewRecorder()
	began := rec.Now()
	rec.Add(at(0, 1, lock("A", 1)))
	rec.Add(at(2, 3, draw("A", 1, 7)))
	rec.Add(at(4, 5, unlock("A", 1)))
	require.Equal(t, 3, rec.Len())
	first := rec.Take()
	require.Len(t, first, 3)
	require.Zero(t, rec.Len())
	require.Empty(t, rec.Take())
	require.Equal(t, []Op{{Lock: "a", Kind: Before, Token: 7}}, Tokens(first))
	require.Equal(t, Tokens(first), Tokens(Tokens(first)), "also if nothing happens in a part")

	old := append(first, at(200, 201, wipeOld))
	require.Equal(t, []Op{{Lock: "a", Kind: Before, Token: 7, Old: true}}, Tokens(old))
	require.Equal(t, Tokens(old), Tokens(Tokens(old)))
	require.Equal(t, Tokens(old), Tokens(append(old, at(300, 301, draw("A", 1, 7)))), "a later draw of the same hold does not ask Redis")
	require.Equal(t, []Op{{Lock: "a", Kind: Before, Token: 9}}, Tokens(append(Tokens(old), at(300, 301, draw("B", 2, 9)))))
	require.Equal(t, []Op{{Lock: "a", Kind: Before, Token: 9}}, Tokens(append(first, at(300, 301, redisToken("", 9)))), "a call that failed may have drawn it")
	one, other := rec.Hold(), rec.Hold()
	require.NotEqual(t, one, other)
	require.GreaterOrEqual(t, rec.Now(), began)
}
