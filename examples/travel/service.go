package main

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/ticket"
)

// The verbs of the services.
const (
	do   = "do"
	undo = "undo"
)

const lease = 2 * time.Second

// world is all services, and what they share: the server of the locks, and the public key of
// orders.
type world struct {
	options  *redis.Options
	prefix   string
	public   ed25519.PublicKey
	signer   *ticket.Signer // of orders, and of nobody else
	services []*service
}

// service plays a service of another team, with a Client and a Verifier of its own.
type service struct {
	name, url string
	rdb       *redis.Client
	locks     *relock.Client
	web       *http.Server

	mu      sync.Mutex
	refuses map[string]bool
	done    map[string]int64 // the token of the step, by order
}

func (w *world) start(ctx context.Context, name string) error {
	s := &service{name: name, rdb: redis.NewClient(w.options), refuses: map[string]bool{}, done: map[string]int64{}}
	var err error
	if s.locks, err = relock.New(s.rdb, relock.WithPrefix(w.prefix), relock.WithTTL(lease), relock.WithOwner(name)); err != nil {
		return errors.Join(err, s.rdb.Close())
	}
	w.services = append(w.services, s)
	verifier, err := ticket.NewVerifier(name, ticket.Issuers{"orders": {"2026-11": w.public}})
	if err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s.url = "http://" + listener.Addr().String()
	mux := http.NewServeMux()
	mux.Handle("POST /orders/{order}/{verb}", verifier.Handler(s.lockOf, http.HandlerFunc(s.serve)))
	s.web = &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	go s.web.Serve(listener) //nolint:errcheck // it ends with Close
	return nil
}

func (s *service) lockOf(r *http.Request) *relock.Lock { return s.locks.NewLock(r.PathValue("order")) }

// serve takes or undoes a step. It runs in the section of the ticket: a loan, or a hold that was
// handed off.
func (s *service) serve(w http.ResponseWriter, r *http.Request) {
	token, err := s.lockOf(r).Token(r.Context())
	if err != nil {
		http.Error(w, "no token", http.StatusServiceUnavailable)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch order := r.PathValue("order"); {
	case r.PathValue("verb") == undo:
		delete(s.done, order)
	case s.refuses[order]:
		http.Error(w, "refused", http.StatusUnprocessableEntity)
		return
	default:
		s.done[order] = token
	}
	w.WriteHeader(http.StatusNoContent)
}

func (s *service) refuse(order string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuses[order] = true
}

func (w *world) of(name string) *service {
	for _, s := range w.services {
		if s.name == name {
			return s
		}
	}
	return nil
}

func (w *world) close() {
	for _, s := range w.services {
		if s.web != nil {
			s.web.Close()
		}
		s.locks.Close()
		s.rdb.Close()
	}
}

// status is the error of a response with this status.
type status int

func (s status) Error() string { return fmt.Sprintf("status %d", int(s)) }

// send has a service do or undo its step of an order, with a signed ticket unless it is empty. An
// answer but 204 is a status as an error.
func (w *world) send(ctx context.Context, to, order, verb string, signed ticket.Signed) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, w.of(to).url+"/orders/"+order+"/"+verb, nil)
	if err != nil {
		return err
	}
	if signed != "" {
		ticket.Set(r.Header, signed)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusNoContent {
		err = status(response.StatusCode)
	}
	return errors.Join(err, response.Body.Close())
}

// requireDone says that a service has taken its step of an order with this token; 0: not taken.
func (w *world) requireDone(name, order string, token int64) error {
	s := w.of(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done[order] != token {
		return fmt.Errorf("%s has token %d, and not %d", name, s.done[order], token)
	}
	return nil
}

// requireFree says that nobody has the lock of an order.
func (w *world) requireFree(ctx context.Context, o *order) error {
	section, err := o.lock.TryLock(ctx)
	if err != nil {
		return err
	}
	return o.lock.Unlock(section)
}
