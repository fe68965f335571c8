package ticket_test

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/ticket"
)

// This file has the code of ticket/README.md.

func pack(ctx context.Context) error { return ctx.Err() }

// page: lend
// shipOrder has another service pack, in the section of this one.
func shipOrder(ctx context.Context, lock *relock.Lock, signer *ticket.Signer, url string) error {
	return lock.Do(ctx, func(ctx context.Context) error {
		t, err := ticket.Lend(ctx, lock)
		if err != nil {
			return err
		}
		signed, err := signer.Sign(t, "packing")
		if err != nil {
			return err
		}
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, nil)
		if err != nil {
			return err
		}
		ticket.Set(r.Header, signed)
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusNoContent {
			return fmt.Errorf("packing: %s", response.Status)
		}
		return nil
	})
}

// end

func packing(locks *relock.Client, ordersKey ed25519.PublicKey) (http.Handler, error) {
	// page: handler
	verifier, err := ticket.NewVerifier("packing", ticket.Issuers{
		"orders": {"2026-11": ordersKey}, // two keys while the key is changed
	})
	if err != nil {
		return nil, err
	}
	lockOf := func(r *http.Request) *relock.Lock { return locks.NewLock("orders:" + r.PathValue("id")) }
	mux := http.NewServeMux()
	mux.Handle("POST /orders/{id}/pack", verifier.Handler(lockOf, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := pack(r.Context()); err != nil { // the context ends if the loan is recalled, or the lock is lost
			http.Error(w, "not packed", http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})))
	// end
	return mux, nil
}

// clients are the Clients of two services on one server.
func clients(t testing.TB) (here, there *relock.Client) {
	t.Helper()
	server := redistest.Start(t)
	both := make([]*relock.Client, 2)
	for i := range both {
		client, err := relock.New(server.Client())
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, client.Close()) })
		both[i] = client
	}
	return both[0], both[1]
}

func TestPageLend(t *testing.T) {
	here, there := clients(t)
	key := keyOf(1)
	// page: signer
	signer, err := ticket.NewSigner("orders", "2026-11", key) // an ed25519.PrivateKey
	// end
	require.NoError(t, err)
	handler, err := packing(there, publicOf(key))
	require.NoError(t, err)
	web := httptest.NewServer(handler)
	defer web.Close()
	require.NoError(t, shipOrder(t.Context(), here.NewLock("orders:7"), signer, web.URL+"/orders/7/pack"))
	require.ErrorContains(t, shipOrder(t.Context(), here.NewLock("orders:7"), signer, web.URL+"/orders/8/pack"), "403")
	section, err := there.NewLock("orders:7").TryLock(t.Context())
	require.NoError(t, err)
	require.NoError(t, there.NewLock("orders:7").Unlock(section))
}

// message is what a queue carries.
type message struct{ Order, Ticket string }

// page: send
// begin does the first half of a job, and hands the rest to the service billing.
func begin(ctx context.Context, lock *relock.Lock, signer *ticket.Signer, order string) (message, error) {
	section, err := lock.Lock(ctx)
	if err != nil {
		return message{}, err
	}
	defer lock.Unlock(section) // if anything fails; after the hand-off it returns ErrHandedOff
	if err := pack(section); err != nil {
		return message{}, err
	}
	t, err := ticket.HandOff(section, lock)
	if err != nil {
		return message{}, err
	}
	signed, err := signer.Sign(t, "billing") // after an error nobody has the ticket: the lock is free at the end of the lease
	return message{Order: order, Ticket: signed.Text()}, err
}

// end

// page: receive
// finish does the second half. The lock was not free in between.
func finish(ctx context.Context, locks *relock.Client, verifier *ticket.Verifier, m message) error {
	t, err := verifier.Verify(ticket.Signed(m.Ticket))
	if err != nil {
		return err
	}
	lock := locks.NewLock("orders:" + m.Order)
	if t.Lock != lock.Key() || t.Use != ticket.UseHandOff { // the message itself is not signed
		return fmt.Errorf("order %s came with a %s", m.Order, t)
	}
	section, err := ticket.Accept(ctx, lock, t)
	switch {
	case errors.Is(err, relock.ErrLockLost), errors.Is(err, relock.ErrTicket): // the message was late, or came twice
		section, err = lock.Lock(ctx) // with a token of its own; package once knows what is done already
	}
	if err != nil {
		return err
	}
	return errors.Join(bill(section), lock.Unlock(section))
}

// end

func bill(ctx context.Context) error { return ctx.Err() }

func TestPageHandOff(t *testing.T) {
	here, there := clients(t)
	signer, err := ticket.NewSigner("orders", "k1", keyOf(1))
	require.NoError(t, err)
	verifier, err := ticket.NewVerifier("billing", ticket.Issuers{"orders": {"k1": publicOf(keyOf(1))}})
	require.NoError(t, err)
	m, err := begin(t.Context(), here.NewLock("orders:7"), signer, "7")
	require.NoError(t, err)
	_, err = here.NewLock("orders:7").TryLock(t.Context())
	require.ErrorIs(t, err, relock.ErrLocked)
	for range 2 {
		require.NoError(t, finish(t.Context(), there, verifier, m))
	}
	m.Ticket += "A"
	require.ErrorIs(t, finish(t.Context(), there, verifier, m), ticket.ErrSignature)
}

// keep writes a ticket beside the progress of a workflow, for the process that continues it.
func keep(section context.Context, lock *relock.Lock, path string) error {
	t, err := ticket.ToResume(section, lock)
	if err != nil {
		return err
	}
	text, err := json.Marshal(t)
	if err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o600)
}

// page: restart
// resume continues after a restart, while the lease lasts, or else takes the lock anew.
func resume(ctx context.Context, lock *relock.Lock, path string) (section context.Context, err error) {
	var t ticket.Ticket
	text, err := os.ReadFile(path)
	if err == nil && json.Unmarshal(text, &t) == nil {
		section, err = ticket.Accept(ctx, lock, t)
		if err == nil || !errors.Is(err, relock.ErrLockLost) && !errors.Is(err, relock.ErrTicket) {
			return section, err
		}
	}
	return lock.Lock(ctx)
}

// end

func TestPageResume(t *testing.T) {
	dead, alive := clients(t)
	path := filepath.Join(t.TempDir(), "ticket")
	lock := func(c *relock.Client) *relock.Lock { return c.NewLock("workflow:7", relock.WithTTL(time.Second)) }
	section, err := lock(dead).Lock(t.Context())
	require.NoError(t, err)
	token, err := lock(dead).Token(section)
	require.NoError(t, err)
	require.NoError(t, keep(section, lock(dead), path))
	for _, isSame := range []bool{true, false} {
		section, err := resume(t.Context(), lock(alive), path)
		require.NoError(t, err)
		next, err := lock(alive).Token(section)
		require.NoError(t, err)
		require.Equal(t, isSame, token == next)
		require.NoError(t, lock(alive).Unlock(section))
	}
}
