package explore_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/fence"
	"github.com/go-relock/relock/locktest/explore"
	"github.com/go-relock/relock/once"
)

// provider charges an account. With a fence, the provider refuses the token of an older attempt.
type provider struct {
	fence   fence.Memory
	charged int
}

// payment is one attempt at an operation of package once.
type payment func(ctx context.Context, w *explore.World, a once.Attempt, p *provider) error

// twice asks two processes for one payment, and each again after a failure.
func twice(pay payment) func(t *testing.T, w *explore.World) {
	return func(t *testing.T, w *explore.World) {
		t.Helper()
		server := miniredis.NewMiniRedis()
		server.ClockTTL(true)
		t.Cleanup(func() {
			server.Close()
			<-time.After(time.Minute) // go-redis goes on dialling for a while
		})
		var p provider
		var all sync.WaitGroup
		defer all.Wait()
		for range 2 {
			o := newOnce(t, w, server)
			all.Go(func() {
				for range 3 {
					if _, _, err := once.Do(t.Context(), o, "payment:42", func(ctx context.Context, a once.Attempt) (string, error) {
						return "paid", pay(ctx, w, a, &p)
					}); err == nil {
						return
					}
				}
			})
			<-time.After(100 * time.Millisecond)
		}
	}
}

func newOnce(t *testing.T, w *explore.World, server *miniredis.Miniredis) *once.Once {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{
		Dialer:   func(context.Context, string, string) (net.Conn, error) { return server.Dial() },
		Addr:     "127.0.0.1:6379", // nobody listens there
		PoolSize: 1000, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	t.Cleanup(func() { _ = rdb.Close() })
	o, err := once.New(w.Redis(rdb))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, o.Close()) })
	return o
}

func TestAnOperationThatIsDoneTwiceIsFound(t *testing.T) {
	cures, texts := explore.Findings(t, twice(func(ctx context.Context, w *explore.World, _ once.Attempt, p *provider) error {
		<-time.After(40 * time.Second) // and ctx may end
		w.Work(ctx)
		p.charged++
		return nil
	}))
	require.NotZero(t, cures[explore.Stop], "%q", texts)
	require.NotZero(t, cures[explore.Fence], "%q", texts)
}

func TestAnOperationWithItsTokenIsNotAccused(t *testing.T) {
	explore.Run(t, twice(func(ctx context.Context, w *explore.World, a once.Attempt, p *provider) error {
		token, err := a.Token(ctx)
		if err != nil {
			return err
		}
		<-time.After(40 * time.Second)
		w.Step(ctx)
		leave, err := p.fence.Enter(context.WithoutCancel(ctx), "account", token)
		if err != nil {
			return once.Unknown(err)
		}
		defer leave()
		if p.charged == 0 { // a later attempt asks whether the account was charged
			w.Fenced(ctx)
			p.charged++
		}
		return nil
	}))
}
