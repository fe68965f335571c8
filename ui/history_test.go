package ui

import (
	"context"
	"encoding/json"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/event"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/leader"
	"github.com/go-relock/relock/once"
)

// entries closes the history, and returns what was written.
func (w *world) entries(h *History) []pastEntry {
	require.NoError(w, h.Close())
	p, err := h.read(w.Context(), "")
	require.NoError(w, err)
	return p.Entries
}

func kinds(all []pastEntry) (kinds []string) {
	for _, e := range all {
		kinds = append(kinds, e.Kind)
	}
	return kinds
}

func TestTheHistoryHasTheEndsOfHoldsWithTheirReasons(t *testing.T) {
	w := newWorld(t)
	h := &History{Redis: w.rdb, Match: func(name string) bool { return name != "secret" }}
	c := w.client(relock.WithHooks(h.Hooks()), relock.WithTTL(time.Minute))
	for _, name := range []string{"released", "secret"} {
		require.NoError(t, c.NewLock(name).Do(t.Context(), func(ctx context.Context) error {
			_, err := c.NewLock(name).Token(ctx)
			return err
		}))
	}
	section := w.lock(c.NewLock("lost"))
	require.NoError(t, c.NewLock("lost").ForceUnlock(t.Context()))
	<-section.Done()
	open := w.lock(c.NewLock("open"))
	require.NoError(t, c.Close())
	require.Error(t, open.Err())

	all := map[string]pastEntry{}
	for _, e := range w.entries(h) {
		all[e.Name] = e
	}
	require.Len(t, all, 3)
	released := all["released"]
	require.Equal(t, held, released.Kind)
	require.NotZero(t, released.Token)
	require.Equal(t, time.Minute.Milliseconds(), released.TTL)
	require.Equal(t, c.ID()+":1", released.Holder)
	require.InDelta(t, time.Now().UnixMilli(), released.At, float64(hang.Milliseconds()))
	require.Equal(t, lost, all["lost"].Kind)
	require.Equal(t, string(event.LossTaken), all["lost"].Why)
	require.Equal(t, closed, all["open"].Kind)
	ttl := w.rdb.PTTL(t.Context(), "relock:history").Val()
	require.Greater(t, ttl, 23*time.Hour)
}

func TestTheHistoryHasLongWaitsAndHowTheyEnded(t *testing.T) {
	w := newWorld(t)
	h := &History{Redis: w.rdb, Wait: time.Millisecond}
	w.lock(w.client().NewLock("orders"))
	c := w.client(relock.WithHooks(h.Hooks()))
	_, err := c.NewLock("orders").TryLockFor(t.Context(), 10*time.Millisecond)
	require.ErrorIs(t, err, relock.ErrLocked)
	require.NoError(t, c.Close())
	all := w.entries(h)
	require.Equal(t, []string{waited}, kinds(all))
	require.Equal(t, string(event.OutcomeLocked), all[0].Why)
	require.GreaterOrEqual(t, all[0].Took, int64(10))
}

func TestLeadersAndPeriodsHaveABeginToo(t *testing.T) {
	w := newWorld(t)
	h := &History{Redis: w.rdb}
	c := w.client(relock.WithHooks(h.Hooks()))
	ctx, stop := context.WithCancel(t.Context())
	candidate := leader.Campaign(ctx, c.NewLock("leader:reports"))
	redistest.Eventually(t, hang, candidate.IsLeader, "leads")
	stop()
	<-candidate.Done()
	o, err := once.New(c)
	require.NoError(t, err)
	defer func() { _ = o.Close() }()
	ctx, stop = context.WithCancel(t.Context())
	_ = once.Every(ctx, o, "invoices", time.Hour, func(context.Context, once.Tick) { stop() })
	require.NoError(t, c.Close())
	begun := map[string]string{}
	for _, e := range w.entries(h) {
		begun[e.Name] += e.Kind + " "
		require.Equal(t, e.Name == "leader:reports", e.Leader)
	}
	require.Len(t, begun, 2)
	require.Equal(t, "began held ", begun["leader:reports"])
	for name, kinds := range begun {
		require.True(t, name == "leader:reports" || period.MatchString(name) && kinds == "began held ", "%s: %s", name, kinds)
	}
}

func TestTheHistoryIsCappedAndReadInParts(t *testing.T) {
	w := newWorld(t)
	h := &History{Redis: w.rdb, Most: 1000}
	for range 3 {
		for range 1500 {
			h.add(entry{Kind: held, Name: "orders"})
		}
		require.NoError(t, h.Close())
	}
	length := w.rdb.XLen(t.Context(), "relock:history").Val()
	require.Less(t, length, int64(1300), "about 1000")
	p, err := h.read(t.Context(), "")
	require.NoError(t, err)
	require.Len(t, p.Entries, partSize)
	rest, err := h.read(t.Context(), p.Last)
	require.NoError(t, err)
	require.EqualValues(t, length, partSize+len(rest.Entries))
	last, err := h.last(t.Context())
	require.NoError(t, err)
	require.Equal(t, last, rest.Entries[len(rest.Entries)-1].ID)
	none, err := h.read(t.Context(), last)
	require.NoError(t, err)
	require.Empty(t, none.Entries)
	first, err := h.read(t.Context(), "no ID; + -")
	require.NoError(t, err)
	require.Equal(t, p.Entries[0].ID, first.Entries[0].ID)
}

func TestWhatCouldNotBeWrittenIsCounted(t *testing.T) {
	w := newWorld(t)
	h := &History{Redis: w.rdb}
	require.NoError(t, w.rdb.Do(t.Context(), "acl", "setuser", "default", "-xadd").Err())
	h.add(entry{Kind: held, Name: "a"})
	h.add(entry{Kind: held, Name: "b"})
	require.NoError(t, h.Close())
	require.NoError(t, w.rdb.Do(t.Context(), "acl", "setuser", "default", "+xadd").Err())
	h.Hooks().Dropped(event.Dropped{Events: 5})
	h.add(entry{Kind: held, Name: "c"})
	all := w.entries(h)
	require.Equal(t, []string{held, gap}, kinds(all))
	require.Equal(t, 7, all[1].Missing)

	for range mostWaiting + 3 {
		h.add(entry{Kind: held, Name: "d"})
	}
	h.mu.Lock()
	require.LessOrEqual(t, len(h.waiting), mostWaiting)
	h.mu.Unlock()
	require.NoError(t, h.Close())
}

func TestAnEntryOfAnotherKindIsPassedOver(t *testing.T) {
	w := newWorld(t)
	h := &History{Redis: w.rdb, Key: "elsewhere"}
	for _, values := range [][]any{{"e", "no JSON"}, {"other", "1"}} {
		require.NoError(t, w.rdb.XAdd(t.Context(), &redis.XAddArgs{Stream: "elsewhere", Values: values}).Err())
	}
	h.add(entry{Kind: held, Name: "orders"})
	require.Len(t, w.entries(h), 1)
}

func TestThePageReadsTheHistoryBehindAnEntry(t *testing.T) {
	h := &History{}
	w := newWorld(t, func(handler *Handler) { handler.History = h })
	h.Redis = w.rdb
	h.add(entry{Kind: held, Name: `<script>"`})
	require.NoError(t, h.Close())
	e := w.watch()()
	require.True(t, e.History)
	require.NotEmpty(t, e.Past)
	var p part
	require.NoError(t, json.Unmarshal([]byte(body(t, w.get("past"))), &p))
	require.Equal(t, `<script>"`, p.Entries[0].Name)
	require.Equal(t, e.Past, p.Last)
	require.NoError(t, json.Unmarshal([]byte(body(t, w.get("past?after="+p.Last))), &p))
	require.Empty(t, p.Entries)
}

// The price of a hold with and without its line in the history: go test -bench History.
// pipelines counts the round trips with several commands.
type pipelines struct {
	counting
	sent *atomic.Int64
}

func (p pipelines) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		p.sent.Add(1)
		return next(ctx, cmds)
	}
}

// What the page of the module says of the cost of a hold.
func TestAHoldInTheHistoryCostsOneEntryAndItsRoundTripIsShared(t *testing.T) {
	const holds = 400
	w := newWorld(t)
	own := redis.NewClient(w.rdb.Options())
	defer func() { _ = own.Close() }()
	var sent atomic.Int64
	own.AddHook(pipelines{counting{new(atomic.Int64)}, &sent})
	h := &History{Redis: own}
	c := w.client(relock.WithHooks(h.Hooks()))
	begin := time.Now()
	for range holds {
		require.NoError(t, c.NewLock("orders:4711").Do(t.Context(), func(context.Context) error { return nil }))
	}
	require.NoError(t, c.Close())
	require.NoError(t, h.Close())
	require.LessOrEqual(t, sent.Load(), int64(time.Since(begin)/writeAfter)+2, "four a second, however many holds")
	stats := w.rdb.Info(t.Context(), "commandstats").Val()
	require.Contains(t, stats, fmt.Sprintf("cmdstat_xadd:calls=%d,", holds))
	require.Less(t, w.rdb.MemoryUsage(t.Context(), "relock:history").Val()/holds, int64(300), "bytes an entry")
}

func BenchmarkAHoldWithAndWithoutHistory(b *testing.B) {
	rdb := redis.NewClient(&redis.Options{Addr: redistest.Start(b).Addr()})
	defer func() { _ = rdb.Close() }()
	for _, name := range []string{"without", "with"} {
		b.Run(name, func(b *testing.B) {
			h, hooks := &History{Redis: rdb}, event.Hooks{}
			if name == "with" {
				hooks = h.Hooks()
			}
			c, err := relock.New(rdb, relock.WithHooks(hooks))
			require.NoError(b, err)
			l := c.NewLock("orders")
			for b.Loop() {
				section, err := l.Lock(b.Context())
				require.NoError(b, err)
				require.NoError(b, l.Unlock(section))
			}
			require.NoError(b, c.Close())
			require.NoError(b, h.Close())
		})
	}
}
