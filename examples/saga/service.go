package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"
)

// service plays a service of another team: the stock, the payment or the shipping. The
// service does each Idempotency-Key once, repeats its answer for a key that it knows, and can be
// asked about a key.
type service struct {
	name string
	url  string
	web  *http.Server

	mu      sync.Mutex
	refuses map[string]bool // orders that the service refuses
	loses   map[string]bool // orders whose next answer is lost on its way
	answers map[string]int  // status by Idempotency-Key
	done    map[string]int  // how often an order was done
	undone  map[string]int
}

func startService(ctx context.Context, name string) (*service, error) {
	s := &service{
		name: name, refuses: map[string]bool{}, loses: map[string]bool{},
		answers: map[string]int{}, done: map[string]int{}, undone: map[string]int{},
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s.url = "http://" + listener.Addr().String()
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders/{order}/{verb}", s.serve)
	mux.HandleFunc("GET /answers/{key}", s.answer)
	s.web = &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	go func() { _ = s.web.Serve(listener) }() // it ends with Close
	return s, nil
}

// serve does or undoes an order, unless the key was used before.
func (s *service) serve(w http.ResponseWriter, r *http.Request) {
	order, key := r.PathValue("order"), r.Header.Get("Idempotency-Key")
	s.mu.Lock()
	status, known := s.answers[key]
	if !known {
		status = s.change(order, r.PathValue("verb"))
		s.answers[key] = status
	}
	lost := s.loses[order]
	delete(s.loses, order)
	s.mu.Unlock()
	if lost {
		panic(http.ErrAbortHandler) // the connection breaks after the work
	}
	w.WriteHeader(status)
}

// change has the mutex.
func (s *service) change(order, verb string) (status int) {
	switch {
	case verb == undo:
		s.undone[order]++
	case s.refuses[order]:
		return http.StatusConflict
	default:
		s.done[order]++
	}
	return http.StatusNoContent
}

// answer says how a key was answered, or that nothing has come with it.
func (s *service) answer(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	status, known := s.answers[r.PathValue("key")]
	if !known {
		status = http.StatusNotFound
	}
	w.WriteHeader(status)
}

// remains says whether an order is in effect. An error says that the service was asked to do or to
// undo it twice.
func (s *service) remains(order string) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	done, undone := s.done[order], s.undone[order]
	if done > 1 || undone > done {
		return false, fmt.Errorf("%s was done %d times and undone %d times", s.name, done, undone)
	}
	return done > undone, nil
}
