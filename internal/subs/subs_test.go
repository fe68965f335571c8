package subs

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/test/redistest"
)

func TestAMessageGoesToTheListenersWithItsID(t *testing.T) {
	r := newRig(t, redistest.Shared(t))
	one, two, all := r.listen("a", "1"), r.listen("a", "2"), r.listen("a", "")
	twin, other := r.listen("a", "1"), r.listen("b", "1")
	r.hears("a", one)
	require.Equal(t, Note{Message: true, Payload: "1"}, r.next(twin))
	require.Equal(t, Note{Message: true, Payload: "1"}, r.next(all))
	r.publish("a", "nobody")
	require.Equal(t, Note{Message: true, Payload: "nobody"}, r.next(all))
	r.hears("b", other) // on the same connection, so whatever came before has been delivered
	for _, l := range []*Listener{one, two, twin, all} {
		require.Empty(t, l.C())
	}
	one.Close()
	one.Close()
	r.hears("a", twin)
	require.Equal(t, Note{Message: true, Payload: "1"}, r.next(all))
	require.Empty(t, one.C())
	r.publish("a", "")
	r.hears("b", other)
	require.Empty(t, all.C(), "a message without a payload is for nobody")
	r.publish("a", "\n")
	require.Equal(t, Note{Message: true, Payload: "\n"}, r.next(all))
	r.hears("b", other)
	require.Empty(t, all.C(), "one message is one note")
}

func TestTheFirstNoteIsKeptUnlessAnErrorComes(t *testing.T) {
	message, confirmed, refused := Note{Message: true}, Note{}, Note{Err: errors.New("NOPERM")}
	one, two := Note{Message: true, Payload: "1"}, Note{Message: true, Payload: "2\n3"}
	long := Note{Message: true, Payload: strings.Repeat("4", longestPayload)}
	for name, c := range map[string]struct {
		told []Note
		want Note
	}{
		"a message, then a new connection": {[]Note{message, confirmed}, message},
		"a new connection, then a message": {[]Note{confirmed, message}, confirmed},
		"a message, then a refusal":        {[]Note{message, refused}, refused},
		"a new connection, then a refusal": {[]Note{confirmed, refused}, refused},
		"a refusal, then a new connection": {[]Note{refused, confirmed}, refused},
		"a refusal alone":                  {[]Note{refused}, refused},
		"two payloads":                     {[]Note{one, two}, Note{Message: true, Payload: "1\n2\n3"}},
		"payloads that are too long":       {[]Note{one, long, two}, message},
		"a payload, then a new connection": {[]Note{one, confirmed}, message},
		"a new connection, then a payload": {[]Note{confirmed, one}, confirmed},
	} {
		t.Run(name, func(t *testing.T) {
			l := &Listener{notes: make(chan Note, 1)}
			for _, n := range c.told {
				l.notifyLocked(n)
			}
			require.Equal(t, c.want, <-l.notes)
			require.Empty(t, l.notes)
		})
	}
}

func TestListeningIsForConfirmedChannels(t *testing.T) {
	r := newRig(t, redistest.Shared(t))
	require.Nil(t, r.Listening(r.topic("a"), "1"))
	hold := r.faults.On(redistest.Named("SUBSCRIBE"), redistest.Hold())
	done := make(chan *Listener)
	go func() { done <- r.listen("a", "1") }()
	hold.WaitHits(t, 1)
	require.Nil(t, r.Listening(r.topic("a"), "2"))
	hold.Remove()
	hold.Release(t)
	first := <-done
	require.Empty(t, first.C())
	second := r.Listening(r.topic("a"), "2")
	require.NotNil(t, second)
	r.hears("a", second)
	r.listen("a", "3")
	require.Equal(t, 1, r.faults.Commands("SUBSCRIBE"))
	plain := r.topic("a")
	plain.Plain = true
	require.Nil(t, r.Listening(plain, "4"), "topics are told apart by Plain")
}

func TestListenEndsWithItsContext(t *testing.T) {
	r := newRig(t, redistest.Shared(t))
	hold := r.faults.On(redistest.Named("SUBSCRIBE"), redistest.Hold())
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan error)
	go func() {
		_, err := r.Listen(ctx, r.topic("a"), "1")
		done <- err
	}()
	hold.WaitHits(t, 1)
	cancel(cause)
	err := <-done
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, cause)
	ctx, stop := context.WithTimeout(t.Context(), time.Millisecond)
	defer stop()
	_, err = r.Listen(ctx, r.topic("a"), "1")
	require.Equal(t, context.DeadlineExceeded, err)
	hold.Remove()
	hold.Release(t)
	r.hears("a", r.listen("a", "1"))
}

func TestListenReturnsTheErrorOfNode(t *testing.T) {
	r := newRig(t, redistest.Shared(t))
	want := errors.New("no map")
	r.place(func(context.Context, string, bool) (string, redis.UniversalClient, error) { return "", nil, want })
	_, err := r.try(r.topic("a"), "1")
	require.Equal(t, want, err)
	require.Empty(t, r.subs)
}

func TestAClosedClientEndsListeners(t *testing.T) {
	r := newRig(t, redistest.Shared(t))
	l := r.listen("a", "1")
	hold := r.faults.On(redistest.Named("SUBSCRIBE"), redistest.Hold())
	done := make(chan error)
	go func() {
		_, err := r.try(r.topic("b"), "1")
		done <- err
	}()
	hold.WaitHits(t, 1)
	r.close()
	require.Equal(t, ErrClosed, <-done)
	require.Equal(t, Note{Err: ErrClosed}, r.next(l))
	l.Suspect() // nothing is left of it
	l.Close()
	_, err := r.try(r.topic("a"), "1")
	require.Equal(t, ErrClosed, err)
	hold.Release(t)
}

func TestChannelsShareAConnectionAndLinger(t *testing.T) {
	r := newRig(t, redistest.Shared(t))
	const channels, listeners = 20, 50
	var all []*Listener
	for i := range channels {
		for j := range listeners {
			all = append(all, r.listen(fmt.Sprint(i), fmt.Sprint(j)))
		}
	}
	for i := range channels {
		require.Equal(t, 1, r.subscribers(fmt.Sprint(i)))
	}
	_, pubsub := r.faults.Conns()
	require.Equal(t, 1, pubsub)
	require.Equal(t, channels, r.faults.Commands("SUBSCRIBE"))
	for range 5 { // contended again and again
		l := r.listen("0", "again")
		l.Close()
	}
	require.Equal(t, channels, r.faults.Commands("SUBSCRIBE"))
	kept := r.listen("0", "kept")
	for _, l := range all {
		l.Close()
	}
	require.Equal(t, 1, r.subscribers("1"), "it lingers")
	r.eventually(func() bool { return r.subscribers("1") == 0 }, "channels end")
	require.LessOrEqual(t, r.faults.Commands("UNSUBSCRIBE"), 3, "several at a time")
	r.hears("0", kept)
	kept.Close()
	r.eventually(func() bool { all, _ := r.faults.Conns(); return all == 0 }, "the connection ends")
	r.eventually(func() bool { return r.subscribers("0") == 0 }, "the server has noticed")
	require.Empty(t, r.losses())
	r.hears("0", r.listen("0", "new"))
}

func TestAMessageForNobodyIsReported(t *testing.T) {
	r := newRig(t, redistest.Shared(t))
	one, all := r.listen("one", "1"), r.listen("all", "")
	r.publish("one", "gone")
	r.publish("one", "1|r\ngone too|w")
	r.publish("all", "anything")
	require.Equal(t, Note{Message: true, Payload: "1|r\ngone too|w"}, r.next(one))
	require.Equal(t, Note{Message: true, Payload: "anything"}, r.next(all))
	channel := r.topic("one").Channel
	r.mu.Lock()
	defer r.mu.Unlock()
	require.Equal(t, []string{channel + " gone", channel + " gone too|w"}, r.unheard)
}

func TestAThousandChannelsTakeFewCommands(t *testing.T) {
	r := newRig(t, redistest.Shared(t))
	const channels = 1000
	listeners := make([]*Listener, channels)
	var all sync.WaitGroup
	for i := range channels {
		all.Go(func() { listeners[i], _ = r.try(r.topic(fmt.Sprint(i)), fmt.Sprint(i)) })
	}
	all.Wait()
	for _, l := range listeners {
		require.NotNil(t, l)
	}
	r.faults.Reset()
	r.faults.CutPubSub()
	for _, l := range listeners {
		r.confirmed(l)
	}
	require.LessOrEqual(t, r.faults.Commands("SUBSCRIBE"), channels/maxBatch+1)
	r.eventually(func() bool { return len(r.backs()) == 1 }, "the outage is over")
	for i, l := range listeners {
		r.publish(fmt.Sprint(i), l.id)
	}
	for _, l := range listeners {
		require.Equal(t, Note{Message: true, Payload: l.id}, r.next(l))
		l.Close()
	}
}

func TestCommandsNameTheChannelsThatMayShareOne(t *testing.T) {
	var subs []*subscription
	add := func(n int, s subscription) {
		for range n {
			s.Channel = fmt.Sprint(len(subs))
			one := s
			subs = append(subs, &one)
		}
	}
	add(maxBatch-1, subscription{})
	add(1, subscription{sharded: true})
	add(1, subscription{single: true})
	add(2, subscription{})
	add(1, subscription{sharded: true, single: true})
	var got []string
	for _, c := range batch("subscribe", subs, time.Time{}) {
		require.Len(t, c.subs, len(c.channels))
		got = append(got, fmt.Sprint(c.verb, len(c.channels), " ", c.channels[len(c.channels)-1]))
	}
	require.Equal(t, "subscribe100 101, ssubscribe1 99, subscribe1 100, subscribe1 102, ssubscribe1 103", strings.Join(got, ", "))
}
