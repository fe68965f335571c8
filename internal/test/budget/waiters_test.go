package budget_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/fakeredis"
)

// queueOf is the script of a server with one lock, whose owner renews its lease for ever.
func queueOf(server *fakeredis.Server) {
	arrivals := map[string]int64{}
	server.Script = func(reply []byte, args [][]byte) []byte {
		keys, argv := fakeredis.Args(args)
		units, size := len(keys)/2, (len(argv)-1)/(len(keys)/2)
		if units > 1 {
			reply = fakeredis.AppendList(reply, units)
		}
		for i := range units {
			unit := argv[1+i*size:]
			switch hold := string(unit[0]); {
			case size < 3: // Forget
				delete(arrivals, hold)
				reply = fakeredis.AppendInts(reply, 1)
			case len(unit[2]) == 0: // the client does not listen yet
				reply = append(fakeredis.AppendInts(fakeredis.AppendList(reply, 3), 0), owner...)
				reply = fakeredis.AppendInts(reply, relock.DefaultTTL.Milliseconds())
			default:
				if arrivals[hold] == 0 {
					arrivals[hold] = int64(len(arrivals) + 1)
				}
				reply = append(fakeredis.AppendInts(fakeredis.AppendList(reply, 5), 2), owner...)
				reply = fakeredis.AppendInts(reply, relock.DefaultTTL.Milliseconds(), arrivals[hold], arrivals[hold]-1)
			}
		}
		return reply
	}
}

func TestTenThousandWaitersThatSleepSendAFewCommandsASecond(t *testing.T) {
	const clients, waiters = 4, 10_000
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		queueOf(r.server)
		ctx, cancel := context.WithCancel(t.Context())
		var waiting sync.WaitGroup
		for range clients {
			c := r.client()
			for range waiters / clients {
				waiting.Go(func() { _, _ = c.NewLock("x").Lock(ctx) })
			}
		}
		time.Sleep(2 * relock.DefaultTTL)
		var before, after spending
		before.read(r.server)
		const leases = 20
		time.Sleep(leases * relock.DefaultTTL)
		after.read(r.server)
		require.LessOrEqual(t, after.commands-before.commands, int64(3*leases*relock.DefaultTTL/time.Second), "with the PINGs of all clients")
		require.InDelta(t, clients*leases, after.scripts-before.scripts, clients*leases/4, "each client looks once in a lease, in its turn")
		cancel()
		waiting.Wait()
	})
}
