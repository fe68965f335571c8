package relock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
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
	c.hub.subs["relock:{a}"] = &subscription{link: l, stage: confirmed, waiters: map[string]*waiter{"hold": w}}
	l.confirmed("relock:{b}:me")
	require.Empty(t, w.words)
	l.confirmed("relock:{a}:me")
	require.Len(t, w.words, 1)
	require.Equal(t, word{}, <-w.words)
	asked := &question{subs: []*subscription{{channel: "relock:{b}:me"}}}
	l.asked = []*question{asked}
	l.confirmed("relock:{a}:me")
	require.Len(t, w.words, 1)
	require.Equal(t, []*question{asked}, l.asked, "that is no answer to it")
	require.Len(t, asked.subs, 1)
}

func TestAGrantThatComesWhenItsSubscriptionHasEndedIsGivenBack(t *testing.T) {
	r := newRig(t)
	ps := r.listen("me")
	owner := r.enter()
	gone := r.waiter("me")
	require.True(t, r.release(owner, 0))
	hold, token := r.granted(ps)
	require.Equal(t, gone.id, hold)
	require.Equal(t, gone.id, r.owner())
	native{}.received(r.client.hub, r.keys.channel("me"), fmt.Sprintf("%s|%d", hold, token))
	redistest.Eventually(t, 5*time.Second, func() bool { return r.owner() == "" }, "it is free")
}

// As a go-redis would that looks at the context of Receive also where it has a connection: here it has none yet.
func TestAConnectionIsReadAlsoWhereGoRedisWantsAContextThatIsNotDone(t *testing.T) {
	r := newRig(t)
	dialled := make(chan struct{}, 1)
	rdb := r.server.Client(func(o *redis.Options) {
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			if err == nil {
				dialled <- struct{}{}
			}
			return conn, err
		}
	})
	ps := rdb.Subscribe(t.Context())
	l := &link{hub: r.client.hub, start: time.Now(), asked: []*question{{}}}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- l.read(ctx, ps) }()
	select {
	case <-dialled:
	case err := <-done:
		require.NoError(t, err)
	}
	require.NoError(t, ps.Ping(t.Context()))
	redistest.Eventually(t, 5*time.Second, func() bool {
		l.hub.mu.Lock()
		defer l.hub.mu.Unlock()
		return len(l.asked) == 0
	}, "the answer is read")
	cancel()
	require.NoError(t, ps.Close())
	require.Error(t, <-done)
	require.True(t, l.answered)
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
	n := newLinked(t)
	l := n.a
	for i := range 20_000 {
		n.hear(l, fmt.Sprint(i))
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
	seven := n.subs["relock:{7}"]
	l.evicted("relock:{7}:me")
	n.mu.Lock()
	defer n.mu.Unlock()
	require.NotEqual(t, confirmed, seven.stage, "and is found")
}

// oneMap is a cluster whose map has one master for all slots.
type oneMap struct {
	clusterClient
	master  *redis.Client
	err     error
	reloads int
}

func (m *oneMap) ReloadState(context.Context) { m.reloads++ }

func (m *oneMap) MasterForKey(context.Context, string) (*redis.Client, error) { return m.master, m.err }

func (m *oneMap) ForEachMaster(context.Context, func(context.Context, *redis.Client) error) error {
	return nil
}

// linked is a client in a cluster with links to two of its nodes, a and b, that nobody runs. The map says b.
type linked struct {
	*hub
	a, b    *link
	cluster *oneMap
}

func newLinked(t *testing.T) *linked {
	t.Helper()
	c := newTestClient(t, redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}}), "me")
	n := &linked{hub: c.hub, cluster: &oneMap{}}
	link := func(node string) *link {
		rdb := redis.NewClient(&redis.Options{Addr: node})
		t.Cleanup(func() { _ = rdb.Close() })
		n.cluster.master = rdb
		l := &link{hub: c.hub, node: node, rdb: rdb, start: time.Now(), subs: make(map[*subscription]struct{}), wake: make(chan struct{}, 1)}
		c.hub.links[node] = l
		return l
	}
	n.a, n.b = link("127.0.0.1:1"), link("127.0.0.1:2")
	c.wire.cluster = n.cluster
	return n
}

// hear makes a subscription with a waiter that a link has, and that is confirmed.
func (n *linked) hear(l *link, lock string) *subscription {
	topic := "relock:{" + lock + "}"
	s := &subscription{topic: topic, key: topic, channel: topic + ":me", link: l, stage: confirmed, sharded: true, there: true}
	s.waiters = map[string]*waiter{"hold": {hub: n.hub, sub: s, id: "hold", words: make(chan word, 1)}}
	n.subs[topic], l.subs[s] = s, struct{}{}
	return s
}

// rest ends the wait for a subscription, as if that had been some time ago.
func (n *linked) rest(s *subscription, ago time.Duration) {
	s.waiters["hold"].close()
	s.since = s.since.Add(-ago)
}

// asks is what a link sends next.
func asks(l *link) (commands []string) {
	l.plan(time.Now())
	for _, q := range l.asked {
		commands = append(commands, asked(q))
	}
	l.asked = nil
	return commands
}

func asked(q *question) string {
	command := map[bool]string{true: "SUB", false: "UNSUB"}[len(q.subs) > 0]
	if q.sharded {
		command = "S" + command
	}
	for _, s := range q.subs {
		command += " " + s.channel
	}
	for _, channel := range q.gone {
		command += " " + channel
	}
	return command
}

func TestAnAnswerToASubscriptionThatHasMovedOnEndsItWhereItCameFrom(t *testing.T) {
	n := newLinked(t)
	s := n.hear(n.b, "x")
	s.stage, s.there = asking, false
	n.hear(n.a, "kept")
	n.a.asked = []*question{{sharded: true, subs: []*subscription{s}}}
	n.a.confirmed(s.channel)
	require.Equal(t, asking, s.stage)
	require.False(t, s.there)
	require.Len(t, n.a.wake, 1)
	require.Equal(t, []string{"SUNSUB relock:{x}:me"}, asks(n.a))
	require.Empty(t, asks(n.a), "once")

	n.a.asked = []*question{{subs: []*subscription{s}}}
	require.True(t, n.a.refused(serverError("NOPERM")))
	require.Empty(t, s.waiters["hold"].words, "refused where it does not matter any more")
	require.Contains(t, n.b.subs, s)
	n.a.again([]*subscription{s}, 0, n.a.made)
	require.Equal(t, asking, s.stage, "where it is now")
	n.b.again([]*subscription{s}, 0, n.b.made.Add(-time.Second))
	require.Equal(t, asking, s.stage, "a connection that was made since has asked by itself")
	n.b.again([]*subscription{s}, 0, n.b.made)
	require.Equal(t, unasked, s.stage)
}

func TestASubscriptionWhoseSlotHasMovedWhenItIsAskedForMoves(t *testing.T) {
	n := newLinked(t)
	s := n.hear(n.a, "x")
	s.stage, s.there = asking, false
	n.a.asked = []*question{{sharded: true, subs: []*subscription{s}}}
	require.True(t, n.a.refused(serverError("MOVED 1 127.0.0.1:2")))
	require.Empty(t, n.a.wake, "it is not asked for there once more")
	redistest.Eventually(t, 5*time.Second, func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return s.link == n.b && s.stage == unasked
	}, "it moves")
	require.Empty(t, s.waiters["hold"].words)
}

func TestWithoutAMapOfTheClusterNobodyIsAskedForReplicasOrSubscriptions(t *testing.T) {
	n := newLinked(t)
	n.cluster.master, n.cluster.err = nil, errStale
	k, err := newKeys(DefaultPrefix, "x")
	require.NoError(t, err)
	_, err = n.subscribe(t.Context(), k, "hold", time.Minute)
	require.ErrorIs(t, err, errStale)
	require.Empty(t, n.subs)
	ask := newRequest(stateScript, k, 0)
	ask.acks, ask.acksTimeout = 1, time.Millisecond
	_, _, err = n.client.wire.process(t.Context(), ask, false)
	require.ErrorIs(t, err, errStale)
}

func TestWhoWaitsForTheMapOfTheClusterWaitsNoLongerThanItMay(t *testing.T) {
	n := newLinked(t)
	n.client.wire.mapping <- struct{}{} // somebody reads it
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, _, err := n.client.wire.relocated(ctx, "x")
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

func TestOnlyTheAnswerToAnUnsubscribeIsTakenForIt(t *testing.T) {
	for name, c := range map[string]struct {
		asked *question
		is    bool
	}{
		"it was asked for":               {&question{sharded: true, gone: []string{"x"}}, true},
		"it was asked for among others":  {&question{sharded: true, gone: []string{"y", "x"}}, true},
		"its plain twin was asked for":   {&question{gone: []string{"x"}}, false},
		"another channel was asked for":  {&question{sharded: true, gone: []string{"y"}}, false},
		"a subscription was asked for":   {&question{sharded: true, subs: []*subscription{{channel: "x"}}}, false},
		"nothing but a sign of life":     {&question{}, false},
		"nothing that is sharded at all": {&question{subs: []*subscription{{channel: "x"}}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			n := newLinked(t)
			n.a.asked = []*question{c.asked}
			require.Equal(t, c.is, n.a.left("x", true))
			require.Equal(t, c.is && len(c.asked.gone) == 0, len(n.a.asked) == 0)
		})
	}
}

func TestWhatARefusalMeansForAPubSubConnection(t *testing.T) {
	moved, noPerm, loading := serverError("MOVED 1 127.0.0.1:2"), serverError("NOPERM"), serverError("LOADING")
	for name, c := range map[string]struct {
		asked  []*question
		err    error
		goesOn bool
	}{
		"a slot that has moved has ended its subscriptions":      {[]*question{{sharded: true, gone: []string{"x"}}}, moved, true},
		"a subscription that cannot be ended goes with it":       {[]*question{{sharded: true, gone: []string{"x"}}}, noPerm, false},
		"and also where it could be ended later":                 {[]*question{{gone: []string{"x"}}}, loading, false},
		"a server that is busy is alive":                         {[]*question{{}}, loading, true},
		"a server that forbids a sign of life gives none":        {[]*question{{}}, noPerm, false},
		"a slot that has moved before its subscription was left": {nil, moved, true},
	} {
		t.Run(name, func(t *testing.T) {
			n := newLinked(t)
			n.a.asked = c.asked
			require.Equal(t, c.goesOn, n.a.refused(c.err))
			require.Empty(t, n.a.asked)
		})
	}
}

func TestWhatAConnectionThatCannotBeMadeMeansForItsWaiters(t *testing.T) {
	for name, c := range map[string]struct {
		node string
		err  error
		told bool
	}{
		"a server that refuses it refuses them":             {"", serverError("WRONGPASS"), true},
		"also one of a cluster":                             {"a", serverError("WRONGPASS"), true},
		"one that refuses it in passing does not":           {"", serverError("LOADING"), false},
		"nor does one that cannot be reached":               {"", net.ErrClosed, false},
		"nor does one that is silent":                       {"", errSilent, false},
		"a client that is closed refuses them":              {"", redis.ErrClosed, true},
		"that of a node may be closed as the node has gone": {"a", redis.ErrClosed, false},
	} {
		t.Run(name, func(t *testing.T) {
			n := newLinked(t)
			s := n.hear(n.a, "x")
			w := n.addLocked(s, "h")
			n.a.node = c.node
			n.a.barred(c.err)
			if !c.told {
				require.Empty(t, w.words)
				require.Contains(t, n.a.subs, s)
				return
			}
			require.Equal(t, word{err: c.err}, <-w.words)
			require.Empty(t, n.a.subs)
			require.NotContains(t, n.subs, s.topic)
		})
	}
}

func TestASubscriptionFollowsItsSlotToTheLinkOfItsMaster(t *testing.T) {
	for name, c := range map[string]struct {
		given      func(n *linked, s *subscription)
		link       string
		there      bool
		atA, atB   []string
		stage      stage
		wakeA, asB int
	}{
		"to another node": {
			func(*linked, *subscription) {}, "b", false, []string{"SUNSUB relock:{x}:me"}, []string{"SSUB relock:{x}:me"}, unasked, 1, 1,
		},
		"to another node, from one that has ended it": {
			func(_ *linked, s *subscription) { s.there = false }, "b", false, nil, []string{"SSUB relock:{x}:me"}, unasked, 1, 1,
		},
		"to where it is": {
			func(n *linked, s *subscription) { n.cluster.master = s.link.rdb.(*redis.Client) },
			"a", true, []string{"SSUB relock:{x}:me"}, nil, unasked, 1, 0,
		},
		"and without a map stays": {
			func(n *linked, _ *subscription) { n.cluster.master, n.cluster.err = nil, errStale },
			"a", true, []string{"SSUB relock:{x}:me"}, nil, unasked, 1, 0,
		},
		"not where it was to move before the last word": {
			func(_ *linked, s *subscription) { s.moves++ }, "a", true, nil, nil, confirmed, 0, 0,
		},
		"not when it has ended": {
			func(n *linked, s *subscription) { delete(n.subs, s.topic) }, "a", true, nil, nil, confirmed, 0, 0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newLinked(t)
			s := n.hear(n.a, "x")
			n.hear(n.a, "kept")
			n.hear(n.b, "kept too")
			c.given(n, s)
			n.relocate(s, 0, 0)
			require.Equal(t, map[string]*link{"a": n.a, "b": n.b}[c.link], s.link)
			require.Equal(t, c.stage, s.stage)
			require.Equal(t, c.there, s.there)
			require.Len(t, n.a.wake, c.wakeA)
			require.Len(t, n.b.wake, c.asB)
			require.Len(t, n.a.subs, map[string]int{"a": 2, "b": 1}[c.link])
			require.Equal(t, c.atA, asks(n.a))
			require.Equal(t, c.atB, asks(n.b))
		})
	}
}

func TestNobodyElseAsksForASubscriptionThatIsAboutToMove(t *testing.T) {
	n := newLinked(t)
	s := n.hear(n.a, "x")
	s.stage = unasked
	n.mu.Lock()
	n.relocateLocked(s, time.Hour)
	n.mu.Unlock()
	require.Empty(t, asks(n.a))
	s.unaskLocked() // it is to stay
	n.a.leave = []departure{{s.channel, true}}
	require.Equal(t, []string{"SUNSUB relock:{x}:me", "SSUB relock:{x}:me"}, asks(n.a), "when it has moved away and back")
}

func TestASubscriptionThatIsNotHeardInAClusterMovesAndLeavesTheOthersTheirConnection(t *testing.T) {
	n := newLinked(t)
	s, kept := n.hear(n.a, "x"), n.hear(n.a, "kept")
	n.mu.Lock()
	n.renewLocked(s, 0)
	n.mu.Unlock()
	redistest.Eventually(t, 10*time.Second, func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return s.link == n.b
	}, "it is where the master is")
	require.Equal(t, confirmed, kept.stage)
	require.Zero(t, n.a.stale, "the connection stays")
}

func TestTheEndOfAShardedSubscriptionByTheServerMovesWhatWasThere(t *testing.T) {
	for name, c := range map[string]struct {
		given func(n *linked, s *subscription)
		moves int
		there bool
		atA   []string
	}{
		"a sharded one":                    {func(*linked, *subscription) {}, 1, false, nil},
		"and its plain twin with it":       {func(_ *linked, s *subscription) { s.sharded, s.plain = false, true }, 1, false, []string{"UNSUB relock:{x}:me"}},
		"not a plain one that has no twin": {func(_ *linked, s *subscription) { s.sharded = false }, 0, true, nil},
		"not one that is given up":         {func(_ *linked, s *subscription) { s.stage = asking }, 0, false, nil},
		"not one that is heard elsewhere":  {func(n *linked, s *subscription) { s.link = n.b }, 0, true, nil},
	} {
		t.Run(name, func(t *testing.T) {
			n := newLinked(t)
			s := n.hear(n.a, "x")
			n.hear(n.a, "kept")
			c.given(n, s)
			n.a.evicted(s.channel)
			n.mu.Lock()
			moves := s.moves
			n.mu.Unlock()
			require.Equal(t, c.moves, moves)
			redistest.Eventually(t, 5*time.Second, func() bool {
				n.mu.Lock()
				defer n.mu.Unlock()
				return s.link == n.b || c.moves == 0
			}, "it moves")
			require.Equal(t, c.there, s.there)
			delete(n.a.subs, map[int]*subscription{0: s}[c.moves])
			require.Equal(t, c.atA, asks(n.a))
		})
	}
}

func TestAnIdleSubscriptionEndsWhereTheServerHasIt(t *testing.T) {
	for name, c := range map[string]struct {
		stage       stage
		there, gone bool
		asks        []string
	}{
		"heard":                              {confirmed, true, true, []string{"SUNSUB relock:{x}:me"}},
		"to be asked for once more":          {unasked, true, true, []string{"SUNSUB relock:{x}:me"}},
		"not asked for yet":                  {unasked, false, true, nil},
		"asked for":                          {asking, false, false, nil},
		"asked for once more, or on its way": {asking, true, false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			n := newLinked(t)
			n.hear(n.a, "kept")
			s := n.hear(n.a, "x")
			if c.stage == unasked {
				s.unaskLocked()
			}
			s.stage, s.there = c.stage, c.there
			n.rest(s, lingerFor)
			require.Equal(t, c.asks, asks(n.a))
			require.Equal(t, c.gone, n.subs[s.topic] == nil)
			require.Empty(t, asks(n.a), "once")
		})
	}
}

// In Redisson's layout a channel is heard twice in a cluster. Where some nodes do not know sharded pub/sub, as while they are brought
// to Redis 7 one by one, both may have become plain.
func TestAnIdleSubscriptionDoesNotEndItsTwin(t *testing.T) {
	for name, c := range map[string]struct {
		given func(n *linked, s, twin *subscription)
		asks  []string
	}{
		"heard in the same way":     {func(_ *linked, _, _ *subscription) {}, nil},
		"asked for in the same way": {func(_ *linked, _, twin *subscription) { twin.stage, twin.there = asking, false }, nil},
		"heard in another way":      {func(_ *linked, s, _ *subscription) { s.sharded = true }, []string{"SUNSUB relock:{x}:me"}},
		"to be asked for now":       {func(_ *linked, _, twin *subscription) { twin.there = false; twin.unaskLocked() }, []string{"SUB relock:{x}:me"}},
		"idle too":                  {func(n *linked, _, twin *subscription) { n.rest(twin, lingerFor) }, []string{"UNSUB" + strings.Repeat(" relock:{x}:me", 2)}},
	} {
		t.Run(name, func(t *testing.T) {
			for range 10 { // whichever is looked at first
				n := newLinked(t)
				n.client.layout = newRedisson(true)
				n.client.wire.sharded.Store(false)
				n.hear(n.a, "kept")
				s := n.hear(n.a, "x")
				twin := &subscription{topic: plainTopic + s.channel, key: s.key, channel: s.channel, plain: true, link: n.a, stage: confirmed, there: true}
				twin.waiters = map[string]*waiter{"hold": {hub: n.hub, sub: twin, id: "hold", words: make(chan word, 1)}}
				delete(n.subs, s.topic)
				s.topic, s.sharded = s.channel, false
				n.subs[s.topic], n.subs[twin.topic], n.a.subs[twin] = s, twin, struct{}{}
				n.rest(s, lingerFor)
				c.given(n, s, twin)
				require.Equal(t, c.asks, asks(n.a))
			}
		})
	}
}

func TestSubscriptionsThatRestEndSeveralAtATime(t *testing.T) {
	n := newLinked(t)
	n.client.wire.sharded.Store(false)
	names := func(from, to int) (names []string) {
		for i := from; i < to; i++ {
			names = append(names, fmt.Sprintf("relock:{%03d}:me", i))
		}
		return names
	}
	var subs []*subscription
	for i := range subscribeBatch + 20 {
		s := n.hear(n.a, fmt.Sprintf("%03d", i))
		s.sharded = false
		n.rest(s, lingerFor-time.Duration(i)*time.Millisecond)
		subs = append(subs, s)
	}
	late := n.hear(n.a, "late")
	late.sharded = false
	n.rest(late, lingerFor-lingerLess-time.Minute)
	n.addLocked(subs[1], "again").close() // who waits in between makes it last
	plan := n.a.plan(time.Now())
	require.Equal(t, "UNSUB "+strings.Join(append(names(0, 1), names(2, subscribeBatch+1)...), " "), asked(plan.ask[0]))
	require.Equal(t, "UNSUB "+strings.Join(names(subscribeBatch+1, subscribeBatch+20), " "), asked(plan.ask[1]))
	require.Len(t, plan.ask, 2)
	require.Len(t, n.a.subs, 2)
	require.False(t, plan.waited)
	require.Greater(t, plan.linger, lingerFor, "when the next one is over, not when it could be")
}

func TestASubscriptionThatNobodyWaitsForAnyMoreIsKeptForAWhileAndOnce(t *testing.T) {
	n := newLinked(t)
	s := n.hear(n.a, "x")
	w := s.waiters["hold"]
	w.close()
	w.close()
	require.Equal(t, 1, n.a.idle.Len())
	require.Empty(t, asks(n.a))
	require.True(t, n.hears(s.topic))

	again := n.listen(&keys{topic: s.topic}, "again")
	require.NotNil(t, again)
	require.Zero(t, n.a.idle.Len())
	require.True(t, n.a.plan(time.Now()).waited)

	n.mu.Lock()
	n.a.failLocked(s, serverError("NOPERM"))
	n.mu.Unlock()
	again.close() // of a subscription that is over
	require.Zero(t, n.a.idle.Len())
	require.Empty(t, n.subs)

	s = n.hear(n.a, "moving")
	n.rest(s, lingerFor)
	n.relocate(s, 0, 0)
	require.Zero(t, n.a.idle.Len())
	require.Equal(t, 1, n.b.idle.Len())
	n.b.plan(time.Now())
	require.Contains(t, n.b.subs, s, "asked for anew, it rests anew")
}

func TestOneOutageLastsUntilItIsOver(t *testing.T) {
	n := newLinked(t)
	s := n.hear(n.a, "x")
	outage := func() *outage {
		n.mu.Lock()
		lost, there := s.outage, s.there
		n.mu.Unlock()
		require.False(t, there)
		return lost
	}
	n.cluster.err = errStale // it stays
	n.a.reset(false)
	require.Nil(t, outage(), "nothing was heard")
	n.a.leave = []departure{{"gone", true}}
	n.a.reset(true)
	first := outage()
	require.NotNil(t, first)
	n.mu.Lock()
	leave := n.a.leave
	n.mu.Unlock()
	require.Empty(t, leave)
	n.a.reset(true)
	require.Same(t, first, outage(), "the connection that was lost then")
	first.over = true
	n.a.reset(true)
	require.NotSame(t, first, outage())
}

func TestAClusterWithoutShardedPubSubIsAskedOnceForIt(t *testing.T) {
	n := newLinked(t)
	s := n.hear(n.a, "x")
	s.stage, s.there = asking, false
	unknown := serverError("ERR unknown command 'SUBSCRIBE'")
	n.a.asked = []*question{{sharded: true, subs: []*subscription{s}}}
	require.True(t, n.a.refused(unknown))
	require.Len(t, n.a.wake, 1)
	require.Equal(t, []string{"SUB relock:{x}:me"}, asks(n.a))
	n.a.asked = []*question{{subs: []*subscription{s}}}
	require.True(t, n.a.refused(unknown))
	require.Len(t, s.waiters["hold"].words, 1)
	require.Equal(t, word{err: unknown}, <-s.waiters["hold"].words, "nor is a plain one asked for again")
	require.Empty(t, n.a.subs)
	require.Empty(t, n.subs)
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
					s := &subscription{link: &link{}, waiters: map[string]*waiter{}}
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

func TestATryLockThatFindsItsSiblingInTheQueueIsErrLockedThoughThatHasTheLockWhenItReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
		defer func() { _ = rdb.Close() }()
		c, err := New(rdb)
		require.NoError(t, err)
		defer func() { _ = c.Close() }()
		l, holder := c.NewLock("a"), NewHolder()
		h, first := c.table.join(holdKey{l.keys.base, holder}, l, "") // which is about to ask
		require.True(t, first)
		done := make(chan error, 1)
		go func() {
			_, err := l.TryLock(WithHolder(t.Context(), holder))
			done <- err
		}()
		synctest.Wait()
		c.table.mu.Lock()
		close(h.queued)
		h.state = held
		c.table.mu.Unlock()
		err = <-done
		var locked *LockedError
		require.ErrorAs(t, err, &locked)
		require.Equal(t, &LockedError{Name: "a"}, locked)
	})
}

func TestWithLocalReentryAnExitThatIsNotTheLastAnyMoreWhenItsTurnComesSendsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", Dialer: func(context.Context, string, string) (net.Conn, error) {
			t.Error("it wants a connection")
			return nil, net.ErrClosed
		}})
		defer func() { _ = rdb.Close() }()
		c, err := New(rdb, WithLocalReentry())
		require.NoError(t, err)
		defer func() { _ = c.Close() }()
		l, holder := c.NewLock("a"), NewHolder()
		h, _ := c.table.join(holdKey{l.keys.base, holder}, l, "")
		f, outer := newFrame(t.Context(), h)
		c.table.mu.Lock()
		c.table.addLocked(h, f)
		h.state, h.deadline = held, time.Now().Add(time.Minute)
		c.table.mu.Unlock()
		done := make(chan error, 1)
		go func() { done <- l.Unlock(outer) }()
		synctest.Wait() // it is not its turn yet
		inner, err := l.Lock(context.WithoutCancel(outer))
		require.NoError(t, err)
		h.endTurn()
		require.NoError(t, <-done)
		require.Equal(t, 1, l.Count(inner))
	})
}

// The watchdog is late, as where the process was stopped for a while: here there is none.
func TestANestedCallThatFindsTheLeaseOverBeforeTheWatchdogEndsTheHold(t *testing.T) {
	for name, c := range map[string]struct {
		ctx  func(section, shared context.Context) context.Context
		lost bool
	}{
		"in its section": {func(section, _ context.Context) context.Context { return section }, true},
		"under a context that does not end with it": {
			func(section, _ context.Context) context.Context { return context.WithoutCancel(section) }, true,
		},
		"outside of it": {func(_, shared context.Context) context.Context { return shared }, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.client.watchdog.running = true // it is what this test says it is
			l := r.client.NewLock(t.Name())
			shared := WithHolder(t.Context(), NewHolder())
			section, err := l.Lock(shared)
			require.NoError(t, err)
			token := l.Token(section)
			h := frameOf(section, r.client, l.keys.base).hold
			r.client.table.mu.Lock()
			h.deadline = time.Now()
			r.client.table.mu.Unlock()

			done := make(chan entered, 1)
			go func() {
				again, err := l.Lock(c.ctx(section, shared))
				done <- entered{again, err}
			}()
			var second entered
			select {
			case second = <-done:
			case <-time.After(5 * time.Second):
				_ = h.lose(LossExpired)
				require.Fail(t, "it waits for the watchdog")
			}
			var lost *LostError
			require.ErrorAs(t, context.Cause(section), &lost)
			require.Equal(t, LossExpired, lost.Reason)
			if c.lost {
				require.Equal(t, error(lost), second.err)
			} else {
				require.NoError(t, second.err)
				require.Equal(t, 1, l.Count(second.section))
				require.Greater(t, l.Token(second.section), token)
				require.NoError(t, l.Unlock(second.section))
			}
			require.ErrorIs(t, l.Unlock(section), ErrLockLost)
			redistest.Eventually(t, 5*time.Second, func() bool { return r.owner() == "" }, "nothing is left")
		})
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
