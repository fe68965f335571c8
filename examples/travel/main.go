// Travel shows a saga that crosses services with its lock: signed tickets lend the section of an
// order to the services of its steps, or hand the order on.
//
// A worker of the service orders has the lock of an order. It lends the section to payment, and
// then to shipping, each with a ticket that is signed for this service, and is good once. A service
// takes a step only in a loan for the very order of the request. So a request of a worker that has
// died, a copied ticket, and a ticket for another order do nothing. If shipping refuses, the worker
// lends the section again, to undo the payment. Another order is handed off to delivery, which goes
// on with the same fencing token when the section of the worker is over.
//
//	go run .
//
// (in examples/travel, a module of its own because of the signatures) needs no server; with
// REDIS_URL=redis://... the locks are on that server. The exit code is 1 if anything is not as
// told.
package main

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/examples/internal/stage"
	"github.com/go-relock/relock/ticket"
)

func main() { stage.Main("travel", run) }

func run(ctx context.Context, out io.Writer, redisURL string) error {
	options, end, err := stage.Redis(redisURL)
	if err != nil {
		return err
	}
	defer end()
	defer http.DefaultClient.CloseIdleConnections()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		return err
	}
	w := &world{options: options, prefix: "relock-travel:" + rand.Text()[:8] + ":", public: public}
	defer w.close()
	if w.signer, err = ticket.NewSigner("orders", "2026-11", private); err != nil {
		return err
	}
	for _, name := range []string{"payment", "shipping", "delivery"} {
		if err := w.start(ctx, name); err != nil {
			return err
		}
	}
	for _, scene := range []struct {
		name string
		play func(context.Context, *world) (string, error)
	}{
		{"an order that all services accept", accepted},
		{"an order that shipping refuses", refused},
		{"an order that is handed on", handedOn},
		{"a request of a worker that has died", late},
		{"a ticket that a stranger has copied", copied},
	} {
		line, err := scene.play(ctx, w)
		if err != nil && ctx.Err() != nil {
			return context.Cause(ctx) // in place of the error of the call that ended
		}
		if err != nil {
			return fmt.Errorf("%s: %w", scene.name, err)
		}
		fmt.Fprintf(out, "%-38s%s\n", scene.name, line)
	}
	return nil
}

// accepted is an order whose steps are taken in one section.
func accepted(ctx context.Context, w *world) (string, error) {
	o, err := w.open(ctx, "order-1", lease)
	if err != nil {
		return "", err
	}
	defer o.close()
	for _, step := range []string{"payment", "shipping"} {
		if err := o.lend(ctx, step, do); err != nil {
			return "", err
		}
		if err := w.requireDone(step, o.name, o.token); err != nil {
			return "", err
		}
	}
	return "paid and shipped, under one token", errors.Join(o.lock.Unlock(o.section), w.requireFree(ctx, o))
}

// handedOn is an order that another service finishes, when its worker has ended.
func handedOn(ctx context.Context, w *world) (string, error) {
	o, err := w.open(ctx, "order-5", lease)
	if err != nil {
		return "", err
	}
	defer o.close()
	t, err := o.lock.HandOff(o.section)
	if err != nil {
		return "", err
	}
	if _, err := o.lock.TryLock(ctx); !errors.Is(err, relock.ErrLocked) {
		return "", fmt.Errorf("the lock is free between the services: %w", err)
	}
	signed, err := w.signer.Sign(t, "delivery")
	if err != nil {
		return "", err
	}
	if err := w.send(ctx, "delivery", o.name, do, signed); err != nil {
		return "", err
	}
	if err := o.lock.Unlock(o.section); !errors.Is(err, relock.ErrHandedOff) {
		return "", fmt.Errorf("the section of the worker has not ended with its hand-off: %w", err)
	}
	return "delivered under the token of the worker", errors.Join(w.requireDone("delivery", o.name, o.token), w.requireFree(ctx, o))
}

// refused is an order whose payment is undone in the same section.
func refused(ctx context.Context, w *world) (string, error) {
	o, err := w.open(ctx, "order-2", lease)
	if err != nil {
		return "", err
	}
	defer o.close()
	w.of("shipping").refuse(o.name)
	if err := o.lend(ctx, "payment", do); err != nil {
		return "", err
	}
	if err := o.lend(ctx, "shipping", do); !errors.Is(err, status(http.StatusUnprocessableEntity)) {
		return "", fmt.Errorf("shipping has not refused: %w", err)
	}
	if err := o.lend(ctx, "payment", undo); err != nil {
		return "", err
	}
	return "the payment is undone, and none remains", errors.Join(
		w.requireDone("payment", o.name, 0), w.requireDone("shipping", o.name, 0), o.lock.Unlock(o.section), w.requireFree(ctx, o))
}

// late is a request that arrives when the lease of its worker is over.
func late(ctx context.Context, w *world) (string, error) {
	o, err := w.open(ctx, "order-3", 200*time.Millisecond)
	if err != nil {
		return "", err
	}
	signed, err := o.sign(ctx, "payment")
	if err != nil {
		return "", err
	}
	o.close()                                  // the worker dies: it neither unlocks nor renews
	next, err := w.open(ctx, "order-3", lease) // waits for the end of the lease
	if err != nil {
		return "", err
	}
	defer next.close()
	if err := w.send(ctx, "payment", o.name, do, signed); !errors.Is(err, status(http.StatusConflict)) {
		return "", fmt.Errorf("the late request was not refused: %w", err)
	}
	if err := w.requireDone("payment", o.name, 0); err != nil {
		return "", err
	}
	if next.token <= o.token {
		return "", fmt.Errorf("token %d after %d", next.token, o.token)
	}
	return "refused: its hold is gone, and the next worker has the order", next.lock.Unlock(next.section)
}

// copied is a ticket that is used again, for another order, at another service, and changed.
func copied(ctx context.Context, w *world) (string, error) {
	o, err := w.open(ctx, "order-4", lease)
	if err != nil {
		return "", err
	}
	defer o.close()
	signed, err := o.sign(ctx, "payment")
	if err != nil {
		return "", err
	}
	for _, attempt := range []struct {
		what, service, order string
		ticket               ticket.Signed
		want                 status
	}{
		{"at another service", "shipping", o.name, signed, http.StatusForbidden},
		{"for another order", "payment", "order-6", signed, http.StatusForbidden},
		{"changed", "payment", o.name, signed + "A", http.StatusUnauthorized},
		{"without a ticket", "payment", o.name, "", http.StatusBadRequest},
		{"the first time", "payment", o.name, signed, http.StatusNoContent},
		{"the second time", "payment", o.name, signed, http.StatusConflict},
	} {
		err := w.send(ctx, attempt.service, attempt.order, do, attempt.ticket)
		if attempt.want == http.StatusNoContent && err == nil {
			continue
		}
		if !errors.Is(err, attempt.want) {
			return "", fmt.Errorf("%s: %w", attempt.what, err)
		}
	}
	return "good once, for one order at one service", errors.Join(w.requireDone("payment", o.name, o.token), o.lock.Unlock(o.section))
}

// order is an order that a worker works on, in a process of its own.
type order struct {
	w       *world
	name    string
	rdb     *redis.Client
	locks   *relock.Client
	lock    *relock.Lock
	section context.Context //nolint:containedctx // the worker is in the section
	token   int64
}

// open starts a worker, and waits for the lock of its order.
func (w *world) open(ctx context.Context, name string, ttl time.Duration) (o *order, err error) {
	o = &order{w: w, name: name, rdb: redis.NewClient(w.options)}
	if o.locks, err = relock.New(o.rdb, relock.WithPrefix(w.prefix), relock.WithTTL(ttl), relock.WithOwner("orders")); err != nil {
		return nil, errors.Join(err, o.rdb.Close())
	}
	o.lock = o.locks.NewLock(name)
	if o.section, err = o.lock.Lock(ctx); err == nil {
		o.token, err = o.lock.Token(o.section)
	}
	if err != nil {
		o.close()
		return nil, err
	}
	return o, nil
}

// close ends the process of a worker.
func (o *order) close() {
	o.locks.Close()
	o.rdb.Close()
}

// sign lends the section to a service.
func (o *order) sign(ctx context.Context, to string) (ticket.Signed, error) {
	t, err := o.lock.Lend(relock.WithSection(ctx, o.section))
	if err != nil {
		return "", err
	}
	return o.w.signer.Sign(t, to)
}

// lend has a service take, or undo, its step in the section.
func (o *order) lend(ctx context.Context, to, verb string) error {
	signed, err := o.sign(ctx, to)
	if err != nil {
		return err
	}
	return o.w.send(ctx, to, o.name, verb, signed)
}
