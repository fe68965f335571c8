// Saga takes orders through three HTTP services, the stock, the payment and the shipping. Services
// refuse, answers are lost, and workers die in the middle of steps and of compensations. At the end
// of every order either all three steps have happened once, or none remains.
//
//   - A key of order, step and verb (package once) makes each step, and each compensation, one
//     operation. The service gets the same key as its Idempotency-Key.
//   - A refusal is stored (once.Permanent), and starts the compensations of the steps before.
//   - A worker that follows a dead one is told that a step may have happened (Attempt.Interrupted),
//     and asks the service.
//   - A lock lets one worker at a time work on an order, so the others do not send what it sends. A
//     worker that is shut down hands its order on, with the lock (HandOff).
//
// The command
//
//	go run ./examples/saga
//
// starts an embedded Redis; with REDIS_URL=redis://... the program uses that server. The saga
// is in saga.go. The exit code is 1 if anything is not as it should be.
//
// The lock is not needed for these steps alone: a refusal is stored before anything is undone, so
// two workers on one order come to the same end. The lock is needed when the saga decides by
// something that changes, such as the time or a cancellation. With all three steps in one SQL
// database a transaction does everything.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-relock/relock/examples/internal/stage"
	"github.com/go-relock/relock/ticket"
)

func main() { stage.Main("saga", run) }

func run(ctx context.Context, out io.Writer, redisURL string) error {
	options, end, err := stage.Redis(redisURL)
	if err != nil {
		return err
	}
	defer end()
	prefix := "relock-saga:" + rand.Text()[:8] + ":"
	fmt.Fprintf(out, "Redis at %s, keys begin with %s\n", options.Addr, prefix)

	bounded, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	d := &demo{options: options, prefix: prefix, asked: map[string]string{}}
	err = d.tell(bounded, out)
	if ctx.Err() != nil {
		return context.Cause(ctx) // once, in place of the error of each order
	}
	return err
}

// scenario is what happens to one order.
type scenario struct {
	refuses string // the service that refuses the order
	loses   string // the service whose answer is lost
	diesAt  string // where the first worker dies
	stops   string // the service after whose step the first worker is shut down
}

func (s scenario) String() string {
	var parts []string
	if s.refuses != "" {
		parts = append(parts, s.refuses+" refuses")
	}
	if s.loses != "" {
		parts = append(parts, "the answer of "+s.loses+" is lost")
	}
	if s.diesAt != "" {
		parts = append(parts, "the worker dies "+s.diesAt)
	}
	if s.stops != "" {
		parts = append(parts, "the worker is shut down after "+s.stops)
	}
	if parts == nil {
		return "nothing goes wrong"
	}
	return strings.Join(parts, ", ")
}

// scenarios has every step fail, and the first worker die before and after every request.
func scenarios() []scenario {
	all := []scenario{{}}
	for _, name := range names {
		all = append(all, scenario{refuses: name}, scenario{loses: name},
			scenario{diesAt: "before " + name + " do"}, scenario{diesAt: "after " + name + " do"})
	}
	all = append(all, scenario{stops: names[0]}, scenario{stops: names[1], refuses: names[2]})
	for _, name := range names[:2] {
		all = append(all, scenario{refuses: names[2], diesAt: "before " + name + " undo"},
			scenario{refuses: names[2], diesAt: "after " + name + " undo"})
	}
	return append(all, scenario{refuses: names[2], diesAt: "after " + names[2] + " do"})
}

// names is the services in the order of the steps.
var names = [...]string{"stock", "payment", "shipping"}

// demo sends orders to workers, and judges what has become of them.
type demo struct {
	options  *redis.Options
	prefix   string
	services []*service

	mu    sync.Mutex
	asked map[string]string // by order: what a service said about an interrupted attempt
}

// tell plays all scenarios at once, each with an order of its own.
func (d *demo) tell(ctx context.Context, out io.Writer) error {
	defer http.DefaultClient.CloseIdleConnections()
	for _, name := range names {
		s, err := startService(ctx, name)
		if err != nil {
			return err
		}
		defer s.web.Close()
		d.services = append(d.services, s)
	}
	all := scenarios()
	lines, errs := make([]string, len(all)), make([]error, len(all))
	var wg sync.WaitGroup
	for i, s := range all {
		wg.Go(func() { lines[i], errs[i] = d.play(ctx, fmt.Sprintf("order%d", i), s) })
	}
	wg.Wait()
	for i, s := range all {
		if errs[i] != nil {
			return fmt.Errorf("%s: %w", s, errs[i])
		}
		fmt.Fprintf(out, "%-57s%s\n", s, lines[i])
	}
	return nil
}

// play gives an order to a worker. If the worker dies, the queue delivers the order again, and as
// queues do, to two workers at once.
func (d *demo) play(ctx context.Context, order string, s scenario) (line string, err error) {
	for _, service := range d.services {
		service.mu.Lock()
		service.refuses[order] = service.name == s.refuses
		service.loses[order] = service.name == s.loses
		service.mu.Unlock()
	}
	ends := []end{d.deliver(ctx, order, s, nil)}
	if s.stops != "" {
		if ends[0].next == nil {
			return "", errors.New("the worker that was shut down has handed nothing on")
		}
		ends[0] = d.deliver(ctx, order, scenario{}, ends[0].next)
	}
	if s.diesAt != "" {
		if ends[0].alive {
			return "", errors.New("the worker has not died")
		}
		ends = make([]end, 2)
		var wg sync.WaitGroup
		for i := range ends {
			wg.Go(func() { ends[i] = d.deliver(ctx, order, scenario{}, nil) })
		}
		wg.Wait()
	}
	wanted := s.refuses == ""
	for _, e := range ends {
		if e.err != nil || !e.alive || e.all != wanted {
			return "", fmt.Errorf("a worker ended with %+v: %w", e, e.err)
		}
	}
	return d.judge(order, wanted, s.diesAt != "")
}

// end is how a worker ended: it is not alive if it died.
type end struct {
	alive, all bool
	next       *ticket.Ticket // for the next worker, of one that was shut down
	err        error
}

// deliver has a new worker process an order, again and again until the order has ended, or the
// worker as the scenario says. With a ticket the worker continues what another has begun.
func (d *demo) deliver(ctx context.Context, order string, s scenario, t *ticket.Ticket) (e end) {
	w, err := newWorker(d.options, d.prefix, d.services)
	if err != nil {
		return end{err: err}
	}
	w.diesAt, w.stops, w.asked = s.diesAt, s.stops, d.note
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			all, next, err := w.process(ctx, order, t)
			if err == nil || ctx.Err() != nil {
				e = end{alive: true, all: all, next: next, err: err}
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
	}()
	<-ended
	if err := w.close(); e.alive { // a dead worker has closed its connections before
		e.err = errors.Join(e.err, err)
	}
	return e
}

func (d *demo) note(key string, status int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	order, step, _ := strings.Cut(key, ":")
	what := map[int]string{http.StatusNoContent: "is done", http.StatusConflict: "was refused", http.StatusNotFound: "has not arrived"}
	d.asked[order] = fmt.Sprintf("; the next worker asks: %s %s", strings.ReplaceAll(step, ":", " "), what[status])
}

// judge looks at what the services have done.
func (d *demo) judge(order string, wanted, died bool) (line string, err error) {
	for _, s := range d.services {
		remains, err := s.remains(order)
		if err != nil {
			return "", err
		}
		if remains != wanted {
			return "", fmt.Errorf("in effect at %s: %t", s.name, remains)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	asked := d.asked[order]
	if died && asked == "" {
		return "", errors.New("the next worker was not told of the interrupted attempt")
	}
	if wanted {
		return "all three have happened" + asked, nil
	}
	return "none remains" + asked, nil
}
