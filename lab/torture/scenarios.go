package torture

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/store"
)

// Scenario is a workload with one kind of trouble.
type Scenario struct {
	Name   string
	Text   string // for the page: what happens, and what is wrong
	Needs  Promise
	Place  Place
	Any    bool   // of any server, and not only of Redis
	Alone  bool   // not for a library with servers beside the one in trouble
	Defect Defect // of the home-made lock that fails here
	Run    func(w *World)
}

const (
	exclusion = "Two holders believe in the lock at one moment, a read sees what no order of the holders explains, a waiter sleeps, or a process gets no lock in the 15 s after the trouble."
	keeping   = "The holder loses the lock, or the waiter gets it beside the holder."
	losing    = "The holder is not told in time, or works beside the next one."
)

// Scenarios are all scenarios, in the order of the page.
var Scenarios = []*Scenario{
	// Answers and commands.
	{
		Name: "answers-fin", Defect: Credulous, Text: "The server closes the connection in place of an answer. " + exclusion,
		Run: func(w *World) { w.Each(40*time.Millisecond, strike(redistest.DropReply(redistest.EOF))) },
	},
	{
		Name: "answers-reset", Defect: Credulous, Text: "The same with a reset.",
		Run: func(w *World) { w.Each(40*time.Millisecond, strike(redistest.DropReply(redistest.Reset))) },
	},
	{
		Name: "answers-silent", Defect: Credulous, Text: "The answer never comes, and the connection stays open.",
		Run: func(w *World) { w.Each(400*time.Millisecond, strike(redistest.DropReply(redistest.Silence))) },
	},
	{
		Name: "commands-cut", Defect: Credulous, Text: "The connection breaks before a command reaches the server.",
		Run: func(w *World) { w.Each(40*time.Millisecond, strike(redistest.CutBefore(redistest.Reset))) },
	},
	{
		Name: "commands-twice", Defect: Counting, Text: "Commands run two or three times.",
		Run: func(w *World) {
			w.Each(20*time.Millisecond, func(c *Client) {
				c.Faults.Once(writes, redistest.Duplicate(2+w.pick(2), redistest.Last))
			})
		},
	},
	{
		Name: "command-late", Defect: Forgetful, Text: "The command of a call that has given up reaches the server later. The next caller gets no lock within two leases.",
		Run: func(w *World) {
			late, next := w.Join(), w.Join()
			late.Comes(w.Patience, "before the trouble")
			w.Fault(func() {
				rule := late.Faults.Once(writes, redistest.Hold())
				ctx, cancel := context.WithTimeout(w.T.Context(), 300*time.Millisecond)
				defer cancel()
				done := make(chan struct{})
				go func() {
					defer close(done)
					if held, err := late.Lock(ctx, name); err == nil {
						_ = held.Unlock(w.T.Context())
					}
				}()
				time.Sleep(400 * time.Millisecond)
				late.Faults.Cut() // the caller is gone, its command is not
				rule.LetGo()
				<-done
			})
			next.Comes(2*w.TTL, "after a take that came late")
		},
	},

	// Connections.
	{
		Name: "cuts", Any: true, Defect: Credulous, Text: "All connections of a process are cut, again and again. " + exclusion,
		Run: func(w *World) { w.Each(30*time.Millisecond, func(c *Client) { c.Faults.Cut() }) },
	},
	{
		Name: "slow", Any: true, Defect: Racy, Text: "Each way to the server takes 15 ms. " + exclusion,
		Run: func(w *World) {
			w.Crowd(func(clients []*Client) {
				for _, c := range clients {
					c.Faults.Delay(30 * time.Millisecond)
				}
				time.Sleep(w.Long)
			})
		},
	},
	{
		Name: "jitter", Any: true, Defect: Racy, Text: "The ways to the server take 0 to 100 ms, and change all the time.",
		Run: func(w *World) {
			w.Each(20*time.Millisecond, func(c *Client) { c.Faults.Delay(w.between(0, 200*time.Millisecond)) })
		},
	},
	{
		Name: "refused", Any: true, Defect: Racy, Text: "Connections are cut and refused for up to 300 ms.",
		Run: func(w *World) {
			w.Each(300*time.Millisecond, func(c *Client) {
				c.Faults.Refuse()
				c.Faults.Cut()
				time.Sleep(w.between(0, 300*time.Millisecond))
				c.Faults.Heal()
			})
		},
	},
	{
		Name: "partition", Any: true, Defect: Silent, Needs: Tells, Text: "The holder's way to the server is silent from now on. " + losing,
		Run: func(w *World) { w.Loses(w.TTL+100*time.Millisecond, func(c *Client) { c.Faults.Partition() }) },
	},
	{
		Name: "late-unlock", Any: true, Alone: true, Defect: Careless, Text: "The holder's way is silent until its lease is over and the next one is in; then its Unlock arrives. It frees the lock of the next one.",
		Run: func(w *World) {
			first, second := w.Join(), w.Join()
			w.UnlocksLate(first, second, func(ctx context.Context, held *Held) (arrive func()) {
				first.Faults.Partition()
				return func() {
					first.Faults.Heal()
					_ = held.Unlock(ctx)
				}
			})
		},
	},
	{
		Name: "own-unlock", Alone: true, Defect: Nameless, Text: "The command of an Unlock arrives when its lease is over and the next one is in, which is of the same process.",
		Run: func(w *World) {
			c := w.Join()
			c.Comes(w.Patience, "before the trouble") // the server knows the script of the Unlock then
			c.in.Store(false)
			w.UnlocksLate(c, c, func(ctx context.Context, held *Held) (arrive func()) {
				rule := c.Faults.Once(writes, redistest.Hold())
				ctx, cancel := context.WithTimeout(ctx, w.TTL/4)
				defer cancel()
				_ = held.Unlock(ctx)
				return rule.LetGo
			})
		},
	},
	{
		Name: "unlock", Any: true, Defect: Lying, Text: "The connection breaks at an Unlock, again and again. Unlock returns no error, and the lock is not free.",
		Run: func(w *World) {
			w.Unlocks(func(holder *Client) {
				if w.Backend != nil {
					holder.Faults.Cut()
				} else {
					holder.Faults.Once(writes, redistest.CutBefore(redistest.Reset))
				}
			})
		},
	},
	{
		Name: "not-held", Needs: Knows, Defect: Doubtful, Text: "The answer to an Unlock is lost, again and again. Unlock says that the lock was another's, which it was not.",
		Run: func(w *World) { w.Unlocks(strike(redistest.DropReply(redistest.EOF))) },
	},
	{
		Name: "late-answer", Any: true, Defect: Hopeful, Text: "The answer that gives the lock takes a fifth of a lease. Then the holder's way is silent. " + losing,
		Run: func(w *World) {
			holder, other := w.Join(), w.Join()
			holder.Comes(w.Patience, "before the trouble")
			holder.in.Store(false)
			w.Fault(func() {
				if late := w.TTL / 5; w.Backend == nil {
					holder.Faults.DelayOneWay(0, late)
				} else { // where an answer takes several round trips
					holder.Faults.DelayOneWay(0, late/2)
				}
			})
			ctx, cancel := context.WithTimeout(w.T.Context(), w.Patience)
			defer cancel()
			done := make(chan Visit, 1)
			go func() { done <- holder.Visit(ctx, 2*w.TTL) }()
			holder.waitIn()
			w.Fault(holder.Faults.Partition)
			other.Comes(2*w.TTL+w.Patience, "the next one")
			if v := <-done; v.Err != nil && !w.faulty { // in trouble it need not get the lock
				w.Late("the holder gets no lock: %v", v.Err)
			}
			holder.Faults.Heal()
		},
	},
	{
		Name: "late-grant", Any: true, Defect: Believing, Text: "When the lock becomes free, a waiter's way takes a lease and a half: all that it hears of the lock is too old. It works beside the next one.",
		Run: func(w *World) {
			holder, waiter, next := w.Join(), w.Join(), w.Join()
			ctx, cancel := context.WithTimeout(w.T.Context(), 2*w.Patience)
			defer cancel()
			held, err := holder.Lock(ctx, name)
			if err != nil {
				w.Wrong("the first one gets no free lock: %v", err)
				return
			}
			done := make(chan Visit, 1)
			go func() { done <- waiter.Visit(ctx, w.TTL/4) }()
			time.Sleep(w.TTL / 4)
			w.Fault(func() { waiter.Faults.DelayOneWay(3*w.TTL/2, 3*w.TTL/2) })
			if err := held.Unlock(ctx); err != nil {
				w.Wrong("unlock: %v", err)
			}
			if v := next.Visit(ctx, 7*w.TTL/8); v.Err != nil {
				w.Late("the next one gets no lock: %v", v.Err)
			}
			waiter.Faults.Delay(0)
			if v := <-done; v.Err != nil {
				w.Late("the waiter gets no lock: %v", v.Err)
			}
		},
	},
	{
		Name: "waiter-cut", Any: true, Defect: Deaf, Text: "A waiter has no connection for the 300 ms in which the lock becomes free. It sleeps for longer than a lease and a second.",
		Run: func(w *World) {
			w.Wakes(func(waiter *Client) {
				waiter.Faults.Refuse()
				waiter.Faults.Cut()
			})
		},
	},
	{
		Name: "waiter-deaf", Defect: Deaf, Text: "The connection on which a waiter hears of the lock is silent from now on.",
		Run: func(w *World) { w.Wakes(func(waiter *Client) { waiter.Faults.StallPubSub() }) },
	},
	{
		Name: "keeps-cuts", Any: true, Defect: Impatient, Needs: Renews, Text: "The connections of a holder that works for two leases and a half are cut all the time. " + keeping,
		Run: func(w *World) {
			w.Keeps(func(c *Client) {
				c.Faults.Cut()
				if w.Backend != nil { // whose connections take longer to make
					time.Sleep(w.TTL / 8)
				}
			})
		},
	},
	{
		Name: "keeps-silence", Any: true, Defect: Impatient, Needs: Renews, Text: "The holder's way is silent for a fifth of a lease, again and again.",
		Run: func(w *World) {
			w.Keeps(func(c *Client) {
				c.Faults.Partition()
				time.Sleep(w.TTL / 5)
				c.Faults.Heal()
				time.Sleep(w.TTL / 5)
			})
		},
	},

	{
		Name: "keeps-refused", Defect: Nervous, Needs: Renews, Text: "The server refuses writes for want of replicas for a fifth of a lease, again and again.",
		Run: func(w *World) {
			w.Keeps(func(*Client) {
				w.config("min-replicas-to-write", "1")
				time.Sleep(w.TTL / 5)
				w.config("min-replicas-to-write", "0")
				time.Sleep(w.TTL / 2)
			})
		},
	},
	{
		Name: "renewals", Any: true, Needs: Renews | Tells, Defect: Impatient, Text: "Holders in a crowd work for up to a lease and a quarter, while answers are lost and connections are cut. " + exclusion,
		Run: func(w *World) {
			w.Work = [2]time.Duration{w.TTL / 8, 5 * w.TTL / 4}
			w.Long = max(w.Long, 2*w.TTL)
			w.Patience += 8 * w.Work[1] // of those before a waiter
			w.Each(40*time.Millisecond, lose)
		},
	},

	// The server.
	{
		Name: "pause", Any: true, Defect: Impatient, Needs: Renews, Text: "The server stands still for a fourth of a lease, again and again. " + keeping,
		Run: func(w *World) {
			w.Keeps(func(*Client) {
				w.Pause()
				time.Sleep(w.TTL / 4)
				w.Resume()
				time.Sleep(w.TTL / 3)
			})
		},
	},
	{
		Name: "long-pause", Any: true, Defect: Silent, Needs: Tells, Text: "The server stands still for two leases. " + losing,
		Run: func(w *World) {
			w.Loses(w.TTL+100*time.Millisecond, func(*Client) {
				w.Pause()
				time.AfterFunc(2*w.TTL, w.Resume)
			})
		},
	},
	{
		Name: "restart", Any: true, Defect: Racy, Place: Kept, Text: "The server is killed and comes back with its data. " + exclusion,
		Run: func(w *World) {
			w.Crowd(func([]*Client) {
				time.Sleep(w.between(100*time.Millisecond, 600*time.Millisecond))
				w.Restart()
			})
		},
	},
	{
		Name: "restart-empty", Defect: Silent, Needs: Tells, Text: "The server is killed and comes back empty. The holder is not told within a lease.",
		Run: func(w *World) {
			w.Loses(w.TTL, func(*Client) { w.Taken(w.Server.Restart) })
		},
	},
	{
		Name: "deleted", Defect: Silent, Needs: Tells, Text: "Somebody deletes all keys. The holder is not told within a lease.",
		Run: func(w *World) {
			w.Loses(w.TTL, func(*Client) {
				w.Taken(func() { w.Admin.FlushAll(w.T.Context()) })
			})
		},
	},
	{
		Name: "script-flush", Defect: Scriptless, Text: "The server forgets all scripts, again and again. " + exclusion,
		Run: func(w *World) {
			w.Each(20*time.Millisecond, func(*Client) { w.Admin.ScriptFlush(w.T.Context()) })
		},
	},
	{
		Name: "client-kill", Defect: Credulous, Text: "The server closes all connections, again and again.",
		Run: func(w *World) {
			w.Each(30*time.Millisecond, func(*Client) {
				for _, kind := range []string{"normal", "pubsub"} {
					w.Admin.ClientKillByFilter(w.T.Context(), "TYPE", kind, "SKIPME", "yes")
				}
			})
		},
	},
	{
		Name: "out-of-memory", Defect: Credulous, Text: "The server has no memory for up to 300 ms, again and again.",
		Run: func(w *World) { w.setting("maxmemory", "1", "0") },
	},
	{
		Name: "read-only", Defect: Credulous, Text: "The server is a replica for up to 300 ms, again and again.",
		Run: func(w *World) {
			w.spell(func() { w.Admin.SlaveOf(w.T.Context(), "127.0.0.1", "1") }, func() { w.Admin.SlaveOf(w.T.Context(), "NO", "ONE") })
		},
	},
	{
		Name: "too-few-replicas", Defect: Credulous, Text: "The server refuses writes for want of replicas for up to 300 ms, again and again.",
		Run: func(w *World) { w.setting("min-replicas-to-write", "1", "0") },
	},
	{
		Name: "too-many-clients", Defect: Credulous, Text: "The server closes all connections and takes no new ones for up to 300 ms, again and again.",
		Run: func(w *World) {
			w.spell(func() {
				w.config("maxclients", "1")
				w.Admin.ClientKillByFilter(w.T.Context(), "TYPE", "normal", "SKIPME", "yes")
			}, func() { w.config("maxclients", "10000") })
		},
	},
	{
		Name: "busy-script", Defect: Credulous, Text: "Somebody's script keeps the server busy for 300 ms, again and again.",
		Run: func(w *World) {
			w.config("busy-reply-threshold", "50")
			w.Crowd(func([]*Client) {
				const loop = "local t = redis.call('TIME') local e = t[1] * 1000 + t[2] / 1000 + 300 repeat t = redis.call('TIME') until t[1] * 1000 + t[2] / 1000 > e"
				w.Admin.Eval(w.T.Context(), loop, nil)
				time.Sleep(w.between(50*time.Millisecond, 200*time.Millisecond))
			})
		},
	},
	{
		Name: "no-rights", Alone: true, Defect: Credulous, Text: "A process comes without the password. It gets the lock, or no error within 15 s.",
		Run: func(w *World) {
			c := w.Join()
			c.Comes(w.Patience, "before the trouble")
			w.Fault(func() {
				w.config("requirepass", "secret") // connections that are there keep their right
				defer w.config("requirepass", "")
				c.Faults.Cut()
				began := time.Now()
				ctx, cancel := context.WithTimeout(w.T.Context(), w.Patience)
				defer cancel()
				v := c.Visit(ctx, time.Millisecond)
				switch {
				case v.Err == nil:
					w.Wrong("a lock without the password")
				case time.Since(began) >= w.Patience && w.Library.Promises&Says != 0:
					w.Wrong("no word of the missing right in %s: %v", w.Patience, v.Err)
				}
			})
			c.Comes(w.Patience, "after the trouble")
		},
	},
	{
		Name: "clock-back", Place: Timed, Defect: Racy, Text: "The server's clock goes back by a minute, again and again. " + exclusion,
		Run: func(w *World) {
			w.Crowd(func([]*Client) {
				w.Clock.Step(-time.Minute)
				time.Sleep(w.between(100*time.Millisecond, 400*time.Millisecond))
			})
		},
	},
	{
		Name: "clock-ahead", Place: Timed, Defect: Silent, Needs: Tells, Text: "The server's clock goes ahead by an hour, so that all leases are over. The holder is not told within a lease.",
		Run: func(w *World) {
			w.Loses(w.TTL, func(*Client) { w.Taken(func() { w.Clock.Step(time.Hour) }) })
		},
	},

	// Callers and processes.
	{
		Name: "cancelled-waits", Any: true, Defect: Leaky, Text: "A hundred callers wait for a lock that is held for a second, and give up at random. Others give up while the answer that gives them the lock is on its way. The next one gets no lock, or something is left.",
		Run: func(w *World) {
			holder, crowd := w.Join(), w.Join()
			ctx, cancel := context.WithTimeout(w.T.Context(), w.Patience)
			defer cancel()
			held, err := holder.Lock(ctx, name)
			if err != nil {
				w.Wrong("the first one gets no free lock: %v", err)
				return
			}
			var all sync.WaitGroup
			for range 100 {
				all.Go(func() {
					wait := w.Patience
					w.Fault(func() { wait = w.between(time.Millisecond, w.TTL/2) })
					ctx, cancel := context.WithTimeout(ctx, wait)
					defer cancel()
					crowd.Visit(ctx, time.Millisecond)
				})
			}
			time.Sleep(w.TTL / 2)
			if err := held.Unlock(ctx); err != nil {
				w.Wrong("unlock: %v", err)
			}
			all.Wait()
			w.Fault(func() {
				crowd.Faults.Delay(w.TTL / 20)
				for range 10 {
					ctx, cancel := context.WithTimeout(ctx, w.between(0, 3*w.TTL/40))
					crowd.Visit(ctx, time.Millisecond)
					cancel()
				}
				crowd.Faults.Delay(0)
			})
			holder.Comes(w.TTL+time.Second+w.Grace, "after all have given up")
		},
	},
	{
		Name: "crowd", Any: true, Defect: Racy, Text: "Hundreds of callers in eight processes want the lock at once, two hundred where the server is not Redis. One of them does not get it within a minute. The control has twenty.",
		Run: func(w *World) {
			ctx, cancel := context.WithTimeout(w.T.Context(), time.Minute)
			defer cancel()
			each := 3
			w.Fault(func() {
				if each = 25; w.Backend == nil {
					each = int(w.Long / (50 * time.Millisecond))
				}
			})
			var all sync.WaitGroup
			for range 8 {
				c := w.Join()
				for range each {
					all.Go(func() {
						for {
							switch v := c.Visit(ctx, time.Millisecond); {
							case v.Err == nil:
								return
							case ctx.Err() != nil:
								w.Late("not in within a minute: %v", v.Err)
								return
							}
							time.Sleep(10 * time.Millisecond)
						}
					})
				}
			}
			all.Wait()
		},
	},
	{
		Name: "killed", Any: true, Defect: Forgetful, Text: "The process that has the lock is killed. The next one waits for longer than a lease and a second.",
		Run: func(w *World) {
			p := w.child()
			next := w.Join()
			if w.faulty {
				p.Kill()
			} else {
				p.Send("leave")
			}
			next.Comes(w.TTL+time.Second+w.Grace, "after a holder that was killed")
		},
	},
	{
		Name: "stopped", Any: true, Defect: Silent, Needs: Tells, Text: "The process that has the lock stands still past its lease, and goes on. It is not told within a second.",
		Run: func(w *World) {
			p := w.child()
			next := w.Join()
			w.Fault(func() {
				p.Pause()
				next.Comes(w.TTL+time.Second+w.Grace, "after a holder that stands still")
				p.Resume()
				time.Sleep(time.Second)
				p.Send("look")
				if word := p.Line(w.Patience); word != "lost" {
					w.Wrong("the holder that stood still believes that it is %s", word)
				}
			})
			p.Send("leave")
		},
	},
	{
		Name: "fence", Any: true, Defect: Unfenced, Needs: Fences, Text: "The same, and it writes before it looks. Its token is not smaller than that of the next one, so no resource can refuse it. Or a holder draws a token that is not larger than that of the one before.",
		Run: func(w *World) {
			p := w.child()
			p.Send("token")
			older, _ := strconv.ParseInt(p.Line(w.Patience), 10, 64)
			next := w.Join()
			w.Fault(p.Pause)
			if !w.faulty {
				p.Send("leave")
			}
			ctx, cancel := context.WithTimeout(w.T.Context(), w.Patience)
			defer cancel()
			held, err := next.Lock(ctx, name)
			if err != nil {
				w.Wrong("the next one: %v", err)
				return
			}
			newer, err := held.Token(ctx)
			if err != nil || newer <= older {
				w.Wrong("tokens %d and then %d, %v", older, newer, err)
			}
			w.Fault(p.Resume)
			drawing, cancel := context.WithTimeout(w.T.Context(), 2*w.Patience)
			defer cancel()
			var all sync.WaitGroup
			for range 8 {
				all.Go(func() {
					held, err := next.lockFor(name, w.Patience)
					if err != nil {
						return // late is for other scenarios
					}
					if token, err := held.Token(drawing); err != nil || token <= newer {
						w.Wrong("tokens %d and then %d, %v", newer, token, err)
					} else {
						newer = token // behind the lock
					}
					_ = held.Unlock(drawing)
				})
			}
			time.Sleep(w.TTL / 20)
			_ = held.Unlock(ctx)
			all.Wait()
		},
	},

	// Several servers.
	{
		Name: "failover", Place: Sentinel, Needs: Follows, Defect: Racy, Text: "Sentinel moves the master's part to the replica. No lock in the 15 s after it, or a broken exclusion before or after.",
		Run: func(w *World) { w.failover(func() { w.Sentinel.Failover() }) },
	},
	{
		Name: "master-killed", Place: Sentinel, Needs: Follows, Defect: Racy, Text: "The master is killed, and Sentinel makes the replica the master.",
		Run: func(w *World) { w.failover(func() { w.Sentinel.KillMaster() }) },
	},
	{
		Name: "slot-moves", Place: Cluster, Needs: Follows, Defect: Racy, Text: "The slot of the lock goes from node to node. " + exclusion,
		Run: func(w *World) {
			w.Crowd(func([]*Client) {
				key, moved := w.key(), false
				for _, n := range w.Cluster.Nodes() {
					if n != w.Cluster.MasterFor(key) && w.isMaster(n) && !moved {
						w.Cluster.MoveSlot(key, n)
						moved = true
					}
				}
				time.Sleep(w.between(100*time.Millisecond, 300*time.Millisecond))
			})
		},
	},
	{
		Name: "node-killed", Place: Cluster, Needs: Follows, Defect: Racy, Text: "The node that has the lock is killed, and its replica takes its place. As for failover.",
		Run: func(w *World) { w.failover(func() { w.Cluster.KillMasterFor(w.key()) }) },
	},

	// Other kinds of locks.
	{
		Name: "readers", Any: true, Needs: Shares, Defect: Racy, Text: "Readers and writers, while answers are lost and connections are cut. A writer is in beside somebody, a read sees what no order explains, a waiter sleeps.",
		Run: func(w *World) {
			w.Turns = []Turn{
				{1, []string{name}, func(ctx context.Context, l Locker) (*Held, error) { return l.(Sharer).Write(ctx, name) }},
				{store.Unlimited, []string{name}, func(ctx context.Context, l Locker) (*Held, error) { return l.(Sharer).Read(ctx, name) }},
			}
			w.Each(40*time.Millisecond, lose)
		},
	},
	{
		Name: "permits", Any: true, Needs: Shares, Defect: Racy, Text: "A semaphore of three permits. Four are in.",
		Run: func(w *World) {
			w.Turns = []Turn{{3, []string{name}, func(ctx context.Context, l Locker) (*Held, error) { return l.(Sharer).Permit(ctx, name, 3) }}}
			w.Each(40*time.Millisecond, lose)
		},
	},
	{
		Name: "several", Any: true, Needs: Shares, Defect: Racy, Text: "Two of three locks at once, named in any order. One of them has two holders, or all wait for each other.",
		Run: func(w *World) {
			w.Turns = nil
			for _, two := range [][]string{{"a", "b"}, {"b", "a"}, {"b", "c"}, {"c", "a"}} {
				w.Turns = append(w.Turns, Turn{1, two, func(ctx context.Context, l Locker) (*Held, error) { return l.(Sharer).Several(ctx, two...) }})
			}
			w.Each(40*time.Millisecond, lose)
		},
	},
	{
		Name: "leader", Any: true, Needs: Leads | Tells, Defect: Silent, Text: "The leader's way to the server is silent from now on. Two lead, or nobody does.",
		Run: func(w *World) {
			w.Turns = []Turn{{1, []string{name}, func(ctx context.Context, l Locker) (*Held, error) { return l.(Leader).Lead(ctx, name) }}}
			w.Loses(w.TTL+100*time.Millisecond, func(c *Client) { c.Faults.Partition() })
		},
	},

	{
		Name: "once", Needs: Remembers, Defect: Racy, Text: "Four processes want each of many operations, while answers are lost and connections are cut. One is done twice, and the second time nothing says that it may have been done.",
		Run: func(w *World) {
			var clients []*Client
			for range 4 {
				clients = append(clients, w.Join())
			}
			end := time.Now().Add(w.Long)
			for n := 0; time.Now().Before(end); n++ {
				w.Fault(func() { lose(clients[w.pick(len(clients))]) })
				var first atomic.Int64
				var all sync.WaitGroup
				for _, c := range clients {
					all.Go(func() {
						ctx, cancel := context.WithTimeout(w.T.Context(), w.Patience)
						defer cancel()
						for err := errors.New("not yet"); err != nil && ctx.Err() == nil; {
							err = c.Locker.(Doer).Do(ctx, fmt.Sprint("operation", n), func(again bool) {
								if !again {
									first.Add(1)
								}
							})
						}
						if ctx.Err() != nil {
							w.Late("an operation took %s", w.Patience)
						}
					})
				}
				all.Wait()
				if first.Load() > 1 {
					w.Wrong("operation %d was done %d times without a word", n, first.Load())
				}
			}
		},
	},
	{
		Name: "hand-off", Needs: HandsOn, Defect: Racy, Text: "A holder hands its lock on to another process, again and again, while others wait and answers are lost. One of those gets in between.",
		Run: func(w *World) {
			clients := []*Client{w.Join(), w.Join()}
			var inside, between atomic.Int64
			ctx, cancel := context.WithCancel(w.T.Context())
			defer cancel()
			var all sync.WaitGroup
			for range 2 {
				waiter := w.Join()
				all.Go(func() {
					for ctx.Err() == nil {
						if held, err := waiter.Lock(ctx, name); err == nil {
							between.Add(inside.Load())
							_ = held.Unlock(w.T.Context())
						}
					}
				})
			}
			for end := time.Now().Add(w.Long); time.Now().Before(end); {
				held, err := clients[0].Lock(ctx, name)
				if err != nil {
					continue
				}
				inside.Store(1)
				w.Fault(func() { lose(clients[w.pick(len(clients))]) })
				if ticket, err := held.HandOff(ctx); err == nil {
					held, err = clients[1].Locker.(Relay).Accept(ctx, name, ticket)
					inside.Store(0)
					if err != nil {
						w.Wrong("accept: %v", err)
						continue
					}
				}
				inside.Store(0)
				_ = held.Unlock(ctx)
			}
			cancel()
			all.Wait()
			if n := between.Load(); n > 0 {
				w.Wrong("%d others got in between", n)
			}
		},
	},

	{
		Name: "mix", Defect: Credulous, Text: "Answers lost, commands twice, cuts, silence, delays, scripts forgotten, connections closed by the server and short pauses, at random. " + exclusion,
		Run: func(w *World) {
			w.Each(60*time.Millisecond, func(c *Client) {
				switch w.pick(8) {
				case 0:
					c.Faults.Once(redistest.Any, redistest.DropReply(redistest.Reset))
				case 1:
					c.Faults.Once(writes, redistest.Duplicate(2, redistest.First))
				case 2:
					c.Faults.Cut()
				case 3:
					c.Faults.Partition()
					time.Sleep(w.between(0, w.TTL/4))
					c.Faults.Heal()
				case 4:
					c.Faults.Delay(w.between(0, 50*time.Millisecond))
				case 5:
					w.Admin.ScriptFlush(w.T.Context())
				case 6:
					w.Admin.ClientKillByFilter(w.T.Context(), "TYPE", "normal", "SKIPME", "yes")
				case 7:
					w.Server.Pause()
					time.Sleep(w.between(0, w.TTL/8))
					w.Server.Resume()
				}
			})
		},
	},
}

// writes are commands that may change something, and those that libraries send about a lock.
var writes = redistest.Named("SET", "SETNX", "INCR", "DEL", "EVAL", "EVALSHA", "GET")

// lose loses an answer, or cuts all connections.
func lose(c *Client) {
	if c.w.pick(2) == 0 && c.w.Backend == nil {
		c.Faults.Once(redistest.Any, redistest.DropReply(redistest.EOF))
	} else {
		c.Faults.Cut()
	}
}

// strike has an action happen to the next command of a client.
func strike(a redistest.Action) func(c *Client) {
	return func(c *Client) { c.Faults.Once(redistest.Any, a) }
}

// spell is Crowd with something that begins and ends at the server.
func (w *World) spell(begin, end func()) {
	w.Crowd(func([]*Client) {
		begin()
		time.Sleep(w.between(0, 300*time.Millisecond))
		end()
		time.Sleep(w.between(50*time.Millisecond, 300*time.Millisecond))
	})
}

func (w *World) setting(name, bad, good string) {
	w.spell(func() { w.config(name, bad) }, func() { w.config(name, good) })
}

func (w *World) config(name, value string) {
	if err := w.Admin.ConfigSet(w.T.Context(), name, value).Err(); err != nil {
		w.T.Errorf("CONFIG SET %s %q: %v", name, value, err)
	}
}

// Wakes has a waiter in trouble at the moment when its lock becomes free.
func (w *World) Wakes(trouble func(waiter *Client)) {
	holder, waiter := w.Join(), w.Join()
	ctx, cancel := context.WithTimeout(w.T.Context(), 2*w.Patience)
	defer cancel()
	held, err := holder.Lock(ctx, name)
	if err != nil {
		w.Wrong("the first one gets no free lock: %v", err)
		return
	}
	done := make(chan Visit, 1)
	go func() { done <- waiter.Visit(ctx, time.Millisecond) }()
	time.Sleep(w.TTL / 4)
	w.Fault(func() { trouble(waiter) })
	time.Sleep(50 * time.Millisecond)
	began := time.Now()
	if err := held.Unlock(ctx); err != nil {
		w.Wrong("unlock: %v", err)
	}
	time.Sleep(300 * time.Millisecond)
	w.Fault(func() {
		if conns, pubsub := waiter.Faults.Conns(); conns == 0 || pubsub == 0 { // a stalled connection stays
			waiter.Faults.Heal()
		}
	})
	v := <-done
	if took := v.In.Sub(began); v.Err != nil {
		w.Late("the waiter never came: %v", v.Err)
	} else if took > w.TTL+time.Second+w.Grace {
		w.Late("the waiter slept for %s", took.Round(time.Millisecond))
	}
}

// failover is Crowd with one failover, whose replication may not know the last locks.
func (w *World) failover(f func()) {
	var did sync.Once
	w.Crowd(func([]*Client) {
		time.Sleep(w.Long / 3)
		did.Do(func() {
			w.Taken(func() {
				f()
				time.Sleep(w.TTL) // who was in is told at its next renewal
			})
		})
	})
}

// key is a key of the lock in a cluster.
func (w *World) key() string { return "{" + name + "}" }

func (w *World) isMaster(n *redistest.Server) bool {
	rdb := redis.NewClient(n.Options())
	defer rdb.Close()
	role, err := rdb.Do(w.T.Context(), "ROLE").Slice()
	return err == nil && len(role) > 0 && role[0] == "master"
}

// child starts a process that has the lock, and obeys "look", "token" and "leave".
func (w *World) child() *redistest.Process {
	p := redistest.Child(w.T, "torture", append([]string{w.Library.Name, w.source(), w.TTL.String()}, w.aside()...)...)
	if word := p.Line(w.Patience); word != "in" {
		w.T.Fatalf("the child says %q", word)
	}
	return p
}

func init() { redistest.RegisterChild("torture", runChild) }

func runChild(args []string, in *bufio.Reader, out io.Writer) {
	if err := beHolder(args, in, out); err != nil {
		fmt.Fprintln(out, "failed:", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
}

func beHolder(args []string, in *bufio.Reader, out io.Writer) error {
	l := find(args[0])
	ttl, err := time.ParseDuration(args[2])
	if l == nil || err != nil {
		return errors.New("wrong arguments")
	}
	locker, err := l.Open(Setup{
		TTL: ttl, Addr: args[1], Calm: args[3:],
		Redis: func(...func(*redis.UniversalOptions)) redis.UniversalClient {
			return redis.NewClient(&redis.Options{Addr: args[1]})
		},
	})
	if err != nil {
		return err
	}
	defer locker.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	held, err := locker.Lock(ctx, name)
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "in")
	for {
		word, err := in.ReadString('\n')
		if err != nil {
			return err
		}
		switch strings.TrimSpace(word) {
		case "look":
			fmt.Fprintln(out, map[bool]string{true: "lost", false: "in"}[held.isOver()])
		case "token":
			token, err := held.Token(ctx)
			if err != nil {
				return err
			}
			fmt.Fprintln(out, token)
		default:
			_ = held.Unlock(ctx)
			return nil
		}
	}
}

// find returns a library by its name, also a home-made one with a defect.
func find(name string) *Library {
	for _, l := range Libraries {
		if l.Name == name {
			return l
		}
	}
	for _, d := range defects {
		if l := HomeMade(d); l.Name == name {
			return l
		}
	}
	return nil
}
