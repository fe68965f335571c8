package subs

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/test/redistest"
)

func TestASilentConnectionIsPinged(t *testing.T) {
	fake(t, func(t *testing.T, r *rig) {
		l := r.listen("a", "1")
		require.Equal(t, 1, r.faults.Commands("PING"), "connecting")
		pass(pingEvery - time.Millisecond)
		require.Equal(t, 1, r.faults.Commands("PING"))
		pass(tick)
		require.Equal(t, 2, r.faults.Commands("PING"))
		for range 100 {
			pass(pingEvery / 2)
			r.hears("a", l)
		}
		require.Equal(t, 2, r.faults.Commands("PING"), "messages are a sign of life")
		r.faults.Reset()
		pass(time.Minute)
		require.LessOrEqual(t, r.faults.Commands(), int(time.Minute/pingEvery), "and nothing else is sent")
		require.GreaterOrEqual(t, r.faults.Commands("PING"), int(time.Minute/(pingEvery+tick)))
		require.Empty(t, r.losses())
		require.Empty(t, l.C())
	})
}

func TestADeadConnectionIsFoundWithinFiveSeconds(t *testing.T) {
	for name, kill := range map[string]func(r *rig){
		"silent for its listeners": func(r *rig) { r.faults.StallPubSub() },
		"silent after SUBSCRIBE": func(r *rig) {
			r.faults.Once(redistest.Named("SUBSCRIBE"), redistest.Stall())
			go r.listen("b", "1")
			pass(0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, r *rig) {
				l := r.listen("a", "1")
				kill(r)
				begin := time.Now()
				r.publish("a", "1") // lost
				r.confirmed(l)
				require.LessOrEqual(t, time.Since(begin), 2*pingEvery+tick/2)
				pass(0)
				require.Equal(t, []loss{{"", 1, errSilent}}, r.losses())
				require.Equal(t, []string{""}, r.backs())
				r.hears("a", l)
				r.faults.Heal()
			})
		})
	}
}

// Whenever it goes silent between two ticks.
func TestADeadConnectionIsFoundAtTheNearestTick(t *testing.T) {
	for _, after := range []time.Duration{time.Millisecond, tick/2 - time.Millisecond, tick / 2, tick - time.Millisecond} {
		t.Run(after.String(), func(t *testing.T) {
			fake(t, func(t *testing.T, r *rig) {
				l := r.listen("a", "1")
				pass(after)
				r.hears("a", l)
				begin := time.Now()
				r.faults.StallPubSub()
				r.confirmed(l)
				require.LessOrEqual(t, time.Since(begin), 2*pingEvery+tick/2)
				require.Equal(t, []loss{{"", 1, errSilent}}, r.losses())
				r.faults.Heal()
			})
		})
	}
}

func TestAConnectionThatHangsWhileItIsMadeIsGivenUp(t *testing.T) {
	fake(t, func(t *testing.T, r *rig) {
		hangs := r.faults.Once(redistest.Any, redistest.Stall()) // the handshake
		begin := time.Now()
		l := r.listen("a", "1")
		require.LessOrEqual(t, time.Since(begin), limit+tick)
		require.Equal(t, 1, hangs.Hits())
		r.hears("a", l)
		r.faults.Heal()
	})
}

func TestASubscriptionLingersForTwoSeconds(t *testing.T) {
	fake(t, func(t *testing.T, r *rig) {
		kept := r.listen("kept", "1")
		l := r.listen("a", "1")
		for range 10 {
			l.Close()
			pass(lingerFor - time.Millisecond)
			l = r.Listening(r.topic("a"), "1")
			require.NotNil(t, l)
		}
		l.Close()
		begin := time.Now()
		for r.subscribers("a") > 0 {
			pass(time.Millisecond)
		}
		require.InDelta(t, lingerFor+tick/2, time.Since(begin), float64(tick/2+time.Millisecond))
		require.Equal(t, 2, r.faults.Commands("SUBSCRIBE"))
		r.hears("a", r.listen("a", "1"))
		r.hears("kept", kept)
		require.Empty(t, r.losses())
	})
}

// A nil subscription panics whoever looks at it.
func TestASweepLooksAtNoSubscriptionThatHasListeners(t *testing.T) {
	fake(t, func(t *testing.T, r *rig) {
		kept := r.listen("kept", "1")
		r.listen("a", "1").Close()
		link := kept.sub.link
		mark := func(f func()) {
			link.hub.mu.Lock()
			defer link.hub.mu.Unlock()
			f()
		}
		mark(func() { link.subs[nil] = struct{}{} })
		pass(lingerFor + tick)
		require.Zero(t, r.subscribers("a"))
		require.NotPanics(t, func() { link.sweep(time.Now()) })
		mark(func() { delete(link.subs, nil) })
		r.hears("kept", kept)
		require.Empty(t, r.losses())
	})
}

func TestALinkEndsWithItsLastSubscription(t *testing.T) {
	fake(t, func(t *testing.T, r *rig) {
		for range 3 {
			l := r.listen("a", "1")
			r.hears("a", l)
			l.Close()
			pass(lingerFor + tick)
			require.Empty(t, r.subs)
			require.Empty(t, r.links)
			conns, _ := r.faults.Conns()
			require.Zero(t, conns)
		}
		require.Empty(t, r.losses())
	})
}

// Where pub/sub is not sharded, both topics are one channel for the server.
func TestATopicThatEndsDoesNotEndItsPlainTwin(t *testing.T) {
	for _, first := range []bool{false, true} {
		t.Run(fmt.Sprint("the plain one first: ", first), func(t *testing.T) {
			fake(t, func(t *testing.T, r *rig) {
				listeners := map[bool]*Listener{}
				for _, plain := range []bool{false, true} {
					topic := r.topic("a")
					topic.Plain = plain
					var err error
					listeners[plain], err = r.try(topic, "1")
					require.NoError(t, err)
				}
				listeners[first].Close()
				pass(lingerFor + tick)
				require.Len(t, r.subs, 1)
				require.Zero(t, r.faults.Commands("UNSUBSCRIBE"))
				r.hears("a", listeners[!first])
				r.listen("b", "1")
				listeners[!first].Close()
				pass(lingerFor + tick)
				require.Equal(t, 1, r.faults.Commands("UNSUBSCRIBE"))
				require.Zero(t, r.subscribers("a"))
			})
		})
	}
}

func TestALostConnectionDropsSubscriptionsWithoutListeners(t *testing.T) {
	fake(t, func(t *testing.T, r *rig) {
		kept := r.listen("kept", "1")
		r.listen("gone", "1").Close()
		r.faults.CutPubSub()
		r.confirmed(kept)
		pass(0)
		require.Len(t, r.subs, 1)
		require.Zero(t, r.subscribers("gone"))
		kept.Close()
		r.faults.CutPubSub()
		pass(time.Second)
		require.Empty(t, r.links)
		require.Len(t, r.losses(), 2)
	})
}

func TestPausesGrowWhileConnectionsFail(t *testing.T) {
	fake(t, func(t *testing.T, r *rig) {
		l := r.listen("a", "1")
		pass(lived)
		r.faults.Refuse()
		r.faults.Cut()
		pass(time.Minute)
		losses := r.losses()
		require.InDelta(t, 160, len(losses), 30, "0.25 to 0.5 s from each to the next")
		for i, l := range losses {
			require.Equal(t, i+1, l.attempt)
			require.Error(t, l.err)
		}
		r.faults.Heal()
		r.confirmed(l)
		pass(0)
		require.Len(t, r.backs(), 1, "one outage")

		pass(lived)
		begin := time.Now()
		r.faults.CutPubSub()
		r.confirmed(l)
		require.Less(t, time.Since(begin), 10*time.Millisecond, "the first attempt is at once")
		require.Equal(t, 1, r.losses()[len(losses)].attempt)
	})
}

func TestAConnectionThatEndsWhenItIsMadeCausesNoHotLoop(t *testing.T) {
	for name, fault := range map[string]func(r *rig) *redistest.Rule{
		"ended as soon as it is confirmed": func(r *rig) *redistest.Rule {
			return r.faults.On(redistest.Named("SUBSCRIBE"), redistest.After(func([]string, string) {
				time.AfterFunc(2*time.Millisecond, r.faults.CutPubSub)
			}))
		},
		"ended before": func(r *rig) *redistest.Rule {
			return r.faults.On(redistest.Named("SUBSCRIBE"), redistest.CutBefore(redistest.EOF))
		},
		"refused in passing": func(r *rig) *redistest.Rule {
			return r.faults.On(redistest.Named("SUBSCRIBE"), redistest.Answer("-LOADING Redis is loading"))
		},
		"no subscription that was asked for": func(r *rig) *redistest.Rule {
			return r.faults.On(redistest.Named("SUBSCRIBE"), redistest.Answer("*3\r\n$9\r\nsubscribe\r\n$1\r\nx\r\n:1"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, r *rig) {
				rule := fault(r)
				done := make(chan *Listener, 1)
				go func() {
					l, _ := r.Listen(t.Context(), r.topic("a"), "1")
					done <- l
				}()
				pass(time.Minute)
				require.InDelta(t, 160, rule.Hits(), 40)
				rule.Remove()
				pass(time.Second)
				l := <-done
				select {
				case <-l.C():
				default:
				}
				r.hears("a", l)
			})
		})
	}
}

func TestOddMakesTheConnectionAnew(t *testing.T) {
	fake(t, func(t *testing.T, r *rig) {
		l, other := r.listen("a", "1"), r.listen("b", "1")
		begin := time.Now()
		l.Suspect()
		other.Suspect()
		r.confirmed(l)
		other.Suspect() // it has a note
		r.confirmed(other)
		pass(time.Minute)
		require.Less(t, begin, time.Now())
		require.Equal(t, []loss{{"", 1, errNoMessages}}, r.losses())
		r.hears("a", l)
	})
}

func TestOddCannotSpin(t *testing.T) {
	fake(t, func(t *testing.T, r *rig) {
		l := r.listen("a", "1")
		odd := func(lasting time.Duration) int {
			before := len(r.losses())
			for end := time.Now().Add(lasting); time.Now().Before(end); pass(10 * time.Millisecond) {
				select {
				case <-l.C():
				default:
				}
				l.Suspect()
			}
			return len(r.losses()) - before
		}
		require.Equal(t, 1, odd(900*time.Millisecond), "at once, and then not")
		require.InDelta(t, 5, odd(30*time.Second), 1, "1, 2, 4, 8 and 16 s later")
		require.InDelta(t, 10, odd(10*time.Minute), 1, "and every minute")
		pass(5 * longGrace)
		require.Equal(t, 1, odd(900*time.Millisecond), "a connection that lived is a new start")
		require.InDelta(t, 3, odd(5*time.Second), 1)
	})
}

func TestAnErrorIsAsGoodAsAPong(t *testing.T) {
	fake(t, func(t *testing.T, r *rig) {
		l := r.listen("a", "1")
		busy := r.faults.On(redistest.Named("PING"), redistest.Answer("-BUSY Redis is busy running a script"))
		pass(time.Minute)
		require.GreaterOrEqual(t, busy.Hits(), 20)
		require.Empty(t, r.losses())
		r.hears("a", l)
	})
}

func TestAnAnswerThatIsOddEndsTheConnection(t *testing.T) {
	for name, c := range map[string]struct {
		command, reply string
	}{
		"an UNSUBSCRIBE that is refused":    {"UNSUBSCRIBE", "-NOPERM no"},
		"an UNSUBSCRIBE with another reply": {"UNSUBSCRIBE", "+PONG"},
		"an answer to nothing":              {"PING", "+PONG\r\n+PONG"},
		"an error for nothing":              {"PING", "+PONG\r\n-NOPERM no"},
	} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(t *testing.T, r *rig) {
				l := r.listen("a", "1")
				r.listen("b", "1").Close()
				r.faults.Once(redistest.Named(c.command), redistest.Answer(c.reply))
				pass(3 * pingEvery)
				require.Len(t, r.losses(), 1)
				r.confirmed(l)
				require.Zero(t, r.subscribers("b"))
				r.hears("a", l)
			})
		})
	}
}

func TestAClientOfGoRedisThatIsClosedIsAnError(t *testing.T) {
	fake(t, func(t *testing.T, r *rig) {
		l := r.listen("a", "1")
		require.NoError(t, r.rdb.Close())
		require.Equal(t, Note{Err: redis.ErrClosed}, r.next(l))
		_, err := r.try(r.topic("a"), "1")
		require.Equal(t, redis.ErrClosed, err)
		pass(time.Second)
		require.Empty(t, r.links)
	})
}
