package relock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/redistest"
)

func TestAWaiterReadsTheFirstWordUnlessTheServerRefuses(t *testing.T) {
	refusal := errors.New("NOPERM")
	grant, confirmed, refused := word{message: true, token: 7}, word{}, word{err: refusal}
	for name, c := range map[string]struct {
		told []word
		want word
	}{
		"a grant and then a new connection":   {[]word{grant, confirmed}, grant},
		"a new connection and then a grant":   {[]word{confirmed, grant}, confirmed},
		"two grants":                          {[]word{grant, {message: true, token: 8}}, grant},
		"a grant and then a refusal":          {[]word{grant, refused}, refused},
		"a new connection and then a refusal": {[]word{confirmed, refused}, refused},
		"a refusal and then a new connection": {[]word{refused, confirmed}, refused},
	} {
		t.Run(name, func(t *testing.T) {
			w := &waiter{words: make(chan word, 1)}
			for _, what := range c.told {
				if what.err != nil {
					w.failLocked(what.err)
				} else {
					w.tellLocked(what)
				}
			}
			require.Equal(t, c.want, <-w.words)
			require.Empty(t, w.words)
		})
	}
}

func TestARefusalAndANewConnectionAtTheSameTimeDoNotHideTheRefusal(t *testing.T) {
	c := newTestClient(t, redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}), "me")
	refusal := errors.New("NOPERM")
	for range 500 {
		w := &waiter{hub: c.hub, words: make(chan word, 1)}
		var all sync.WaitGroup
		all.Go(func() {
			c.hub.mu.Lock()
			defer c.hub.mu.Unlock()
			w.tellLocked(word{})
		})
		all.Go(func() {
			c.hub.mu.Lock()
			defer c.hub.mu.Unlock()
			w.failLocked(refusal)
		})
		err := w.confirmation(t.Context(), time.Minute)
		if err == nil { // the new connection was first
			err = w.confirmation(t.Context(), time.Minute)
		}
		require.Equal(t, refusal, err)
		all.Wait()
	}
}

func TestASubscriptionThatGoRedisHasMadeAnewIsAskedAfter(t *testing.T) {
	c := newTestClient(t, redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}), "me")
	l := &link{hub: c.hub}
	w := &waiter{words: make(chan word, 1)}
	c.hub.subs["relock:{a}"] = &subscription{link: l, confirmed: true, waiters: map[string]*waiter{"hold": w}}
	l.confirmed("relock:{b}:me")
	require.Empty(t, w.words)
	l.confirmed("relock:{a}:me")
	require.Len(t, w.words, 1)
	require.Equal(t, word{}, <-w.words)
}

func TestALinkPingsOnlyWhatIsWaitedForAndSilentAndGivesUpWhatOwesAnAnswer(t *testing.T) {
	const now = 10 * time.Second
	for name, c := range map[string]struct {
		plan  plan
		heard time.Duration
		ping  bool
		next  time.Duration
		err   error
	}{
		"nobody waits":                        {plan{}, 0, false, time.Hour, nil},
		"nobody waits, one lingers":           {plan{linger: time.Second}, 0, false, time.Second, nil},
		"one lingers for an instant":          {plan{linger: time.Nanosecond}, 0, false, time.Millisecond, nil},
		"heard a moment ago":                  {plan{waited: true}, now - time.Millisecond, false, pingEvery - time.Millisecond, nil},
		"and one lingers":                     {plan{waited: true, linger: time.Second}, now, false, time.Second, nil},
		"silent for almost too long":          {plan{waited: true}, now - pingEvery + 1, false, time.Millisecond, nil},
		"silent":                              {plan{waited: true}, now - pingEvery, true, pingEvery, nil},
		"silent, and one lingers":             {plan{waited: true, linger: time.Second}, 0, true, time.Second, nil},
		"asked a moment ago":                  {plan{waited: true, owed: true, since: now - time.Second}, 0, false, pingEvery - time.Second, nil},
		"asked, and something else was heard": {plan{waited: true, owed: true}, now - time.Second, false, pingEvery - time.Second, nil},
		"asked, and silent":                   {plan{waited: true, owed: true, since: now - pingEvery}, now - pingEvery, false, 0, errSilent},
		"asked, and nobody waits any more":    {plan{owed: true}, 0, false, 0, errSilent},
	} {
		t.Run(name, func(t *testing.T) {
			ping, next, err := c.plan.look(now, c.heard)
			require.Equal(t, c.err, err)
			require.Equal(t, c.ping, ping)
			require.Equal(t, c.next, next)
		})
	}
}

func TestWhoComesWhenTheChannelIsHeardWaitsForNothing(t *testing.T) {
	r := newRig(t)
	b := r.client.hub
	for range 2 {
		w, err := b.subscribe(t.Context(), r.keys, "hold", time.Minute)
		require.NoError(t, err)
		defer w.close()
		require.Empty(t, w.words)
	}
}

func TestANewPubSubConnectionIsNotReplacedForWhatTheOneBeforeWasLacking(t *testing.T) {
	r := newRig(t)
	b := r.client.hub
	other, err := newKeys(DefaultPrefix, t.Name()+"2")
	require.NoError(t, err)
	var waiters []*waiter
	for _, k := range []*keys{r.keys, other} {
		w, err := b.subscribe(t.Context(), k, "hold", time.Minute)
		require.NoError(t, err)
		waiters = append(waiters, w)
	}
	first, second := waiters[0], waiters[1]
	l := first.sub.link
	isStale := func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return l.stale > 0
	}
	renew := func(s *subscription, pause time.Duration) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.renewLocked(s, pause)
	}
	renew(first.sub, 300*time.Millisecond)
	redistest.Eventually(t, time.Second, func() bool { return !isStale() }, "the link has noticed")
	renew(second.sub, time.Minute)
	require.NoError(t, first.confirmation(t.Context(), 5*time.Second))
	require.NoError(t, second.confirmation(t.Context(), 5*time.Second))
}

func TestTheEndOfASubscriptionCostsTheOthersNothing(t *testing.T) {
	c := newTestClient(t, redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}), "me")
	l := &link{hub: c.hub, node: "n", subs: make(map[*subscription]struct{}), wake: make(chan struct{}, 1)}
	for i := range 20_000 {
		topic := fmt.Sprintf("relock:{%d}", i)
		s := &subscription{topic: topic, channel: topic + ":me", link: l, sharded: true, confirmed: true}
		l.subs[s], c.hub.subs[topic] = struct{}{}, s
	}
	fastest := time.Hour
	for range 5 {
		begin := time.Now()
		for range 20 {
			l.evicted("relock:{other}:me")
		}
		fastest = min(fastest, time.Since(begin))
	}
	require.Less(t, fastest, time.Millisecond, "the hub is not searched, with the mutex held that every grant needs")
	seven := c.hub.subs["relock:{7}"]
	l.evicted("relock:{7}:me")
	c.hub.mu.Lock()
	defer c.hub.mu.Unlock()
	require.False(t, seven.confirmed, "and is found")
}

// In a cluster the runner of a race has two ears.
func TestTheRunnerOfARaceMissesNoRefusalBesideAMessage(t *testing.T) {
	refusal := errors.New("NOPERM")
	for name, told := range map[string][2]word{
		"refused by the second": {{message: true}, {err: refusal}},
		"refused by the first":  {{err: refusal}, {message: true}},
		"and a new connection":  {{}, {err: refusal}},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := New(redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}}), WithRedissonLayout())
			require.NoError(t, err)
			t.Cleanup(func() { _ = c.Close() })
			l := c.NewLock("a")
			h := l.newHold(c.layout.newHolder(c.id))
			for range 20 { // whichever ear select takes first
				p := &race{key: "a", due: time.Now().Add(time.Minute)}
				for i := range p.ears {
					s := &subscription{waiters: map[string]*waiter{}}
					p.ears[i] = &waiter{hub: c.hub, sub: s, words: make(chan word, 1)}
					p.ears[i].words <- told[i]
				}
				a := &acquiring{lock: l, ctx: t.Context(), waiting: t.Context(), mayWait: true}
				_, err := c.layout.(*redisson).wake(p, a, h)
				require.Equal(t, refusal, err)
				require.Nil(t, p.ears[0])
			}
		})
	}
}

// onSend is a hook of the go-redis client that calls f before a script is sent.
type onSend struct {
	pipelines
	f func()
}

func (o *onSend) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "evalsha" {
			o.f()
		}
		return next(ctx, cmd)
	}
}

func TestANestedEntryIntoAHoldThatIsBeingLeftIsAnError(t *testing.T) {
	r := newRig(t)
	l := r.client.NewLock(t.Name())
	section, err := l.Lock(t.Context())
	require.NoError(t, err)
	h := frameOf(section, r.client, l.keys.base).hold
	// As by an Unlock that does not wait for this entry any more, and has not come to its end.
	become := func(state holdState) {
		r.client.table.mu.Lock()
		defer r.client.table.mu.Unlock()
		h.state = state
	}
	r.rdb.AddHook(&onSend{f: func() { become(leaving) }})
	inner, err := l.Lock(section)
	become(held)
	require.ErrorIs(t, err, ErrReleased)
	require.Equal(t, section, inner)
	require.NoError(t, l.Unlock(section))
}
