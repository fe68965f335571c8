package ticket_test

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/store/mem"
	"github.com/go-relock/relock/ticket"
)

// The service orders lends its section to the service packing.
func Example() {
	store := mem.New() // in your services: relock.New, with one Redis
	orders, err := relock.Open(store)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer orders.Close()
	packing, err := relock.Open(store)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer packing.Close()
	public, private, err := ed25519.GenerateKey(nil) // orders keeps private, and packing has public
	if err != nil {
		fmt.Println(err)
		return
	}

	verifier, err := ticket.NewVerifier("packing", ticket.Issuers{"orders": {"2026-11": public}})
	if err != nil {
		fmt.Println(err)
		return
	}
	mux := http.NewServeMux()
	lockOf := func(r *http.Request) *relock.Lock { return packing.NewLock("orders:" + r.PathValue("id")) }
	mux.Handle("POST /orders/{id}/pack", verifier.Handler(lockOf, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Println("packing is in:", lockOf(r).Held(r.Context()))
		w.WriteHeader(http.StatusNoContent)
	})))

	signer, err := ticket.NewSigner("orders", "2026-11", private)
	if err != nil {
		fmt.Println(err)
		return
	}
	lock := orders.NewLock("orders:7")
	err = lock.Do(context.Background(), func(ctx context.Context) error {
		t, err := ticket.Lend(ctx, lock)
		if err != nil {
			return err
		}
		signed, err := signer.Sign(t, "packing")
		if err != nil {
			return err
		}
		fmt.Println("sending", signed)
		for _, path := range []string{"/orders/8/pack", "/orders/7/pack", "/orders/7/pack"} {
			r := httptest.NewRequestWithContext(relock.WithoutHolder(ctx), http.MethodPost, path, nil) // as in another process
			ticket.Set(r.Header, signed)
			w := httptest.NewRecorder()
			mux.ServeHTTP(w, r)
			fmt.Println(path, w.Code)
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// sending [signed ticket]
	// /orders/8/pack 403
	// packing is in: true
	// /orders/7/pack 204
	// /orders/7/pack 409
	// <nil>
}
