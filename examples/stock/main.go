// Stock runs two instances of an HTTP service that sells from one store, and sends buyers to both
// instances at once: first with a lock around each sale, then without. With the lock nothing is
// sold twice; without the lock much is. At last one request keeps the lock for long, other requests
// get a 503, and an operator takes the lock away.
//
//	go run ./examples/stock
//
// starts an embedded Redis; with REDIS_URL=redis://... it uses that one. The lock is in service.go.
// The exit code is 1 if anything is not as it should be.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/examples/internal/stage"
)

const (
	inStock = 25
	buyers  = 60
)

func main() { stage.Main("stock", run) }

func run(ctx context.Context, out io.Writer, redisURL string) error {
	options, end, err := stage.Redis(redisURL)
	if err != nil {
		return err
	}
	defer end()
	prefix := "relock-stock:" + rand.Text()[:8] + ":"
	fmt.Fprintf(out, "Redis at %s, keys begin with %s\n", options.Addr, prefix)

	d := &demo{out: out, options: options, prefix: prefix, store: &store{stock: map[string]int{}}}
	err = d.sales(ctx)
	if err == nil {
		err = d.busy(ctx)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx) // once, in place of the error of each request
	}
	return err
}

// instance is one process of the service: a web server, and a client of its own for the locks.
type instance struct {
	*service
	url   string
	web   *http.Server
	rdb   *redis.Client
	locks *relock.Client
}

// config differs between the rounds.
type config struct {
	unguarded bool
	patience  time.Duration
	ttl       time.Duration
}

func (d *demo) start(ctx context.Context, c config) (*instance, error) {
	in := &instance{service: &service{store: d.store, patience: c.patience}, rdb: redis.NewClient(d.options)}
	if err := in.rdb.Ping(ctx).Err(); err != nil {
		in.rdb.Close()
		return nil, fmt.Errorf("redis at %s: %w", d.options.Addr, err)
	}
	locks, err := relock.New(in.rdb, relock.WithPrefix(d.prefix), relock.WithTTL(c.ttl))
	if err != nil {
		in.rdb.Close()
		return nil, err
	}
	in.locks = locks
	in.lock = func(name string) locker { return locks.NewLock(name) }
	if c.unguarded {
		in.lock = func(string) locker { return unguarded{} }
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		in.locks.Close()
		in.rdb.Close()
		return nil, err
	}
	in.url = "http://" + listener.Addr().String()
	in.web = &http.Server{Handler: in.handler(), ReadHeaderTimeout: 5 * time.Second}
	go in.web.Serve(listener) //nolint:errcheck // it ends with Shutdown
	return in, nil
}

// startTwo starts two instances, and returns a function that stops both.
func (d *demo) startTwo(ctx context.Context, c config) (two [2]*instance, stop func(), err error) {
	for i := range two {
		if two[i], err = d.start(ctx, c); err != nil {
			if i > 0 {
				two[0].stop()
			}
			return two, nil, err
		}
	}
	return two, func() {
		// The buyers leave first: Shutdown waits 5 s for connections without a request.
		http.DefaultClient.CloseIdleConnections()
		two[0].stop()
		two[1].stop()
	}, nil
}

// stop ends the instance in the order in which a service should: first no more requests, then the
// locks, then Redis.
func (in *instance) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	in.web.Shutdown(ctx) //nolint:errcheck // a request that is not done by then is cut off
	in.locks.Close()
	in.rdb.Close()
}

// demo sends requests and judges the answers.
type demo struct {
	out     io.Writer
	options *redis.Options
	prefix  string
	store   *store
}

// sales sends all buyers at once, with the lock and without.
func (d *demo) sales(ctx context.Context) error {
	answers, took, err := d.buy(ctx, "shirt", false)
	if err != nil {
		return err
	}
	sold, left := answers[http.StatusNoContent], d.store.get("shirt")
	fmt.Fprintf(d.out, "with the lock:    %d in stock, %d buyers: %d sold, %d told it is sold out, %d left, in %s\n",
		inStock, buyers, sold, answers[http.StatusConflict], left, took)
	if sold != inStock || left != 0 || answers[http.StatusConflict] != buyers-inStock {
		return fmt.Errorf("with the lock: %v, %d left", answers, left)
	}

	if answers, took, err = d.buy(ctx, "hat", true); err != nil {
		return err
	}
	sold, left = answers[http.StatusNoContent], d.store.get("hat")
	fmt.Fprintf(d.out, "without the lock: %d in stock, %d buyers: %d sold and still %d left, in %s: oversold\n",
		inStock, buyers, sold, left, took)
	if sold+left <= inStock {
		return fmt.Errorf("without the lock nothing went wrong, which is luck: %v, %d left", answers, left)
	}
	return nil
}

// buy sends every buyer at once, in turn to two instances, and counts the answers by status.
func (d *demo) buy(ctx context.Context, product string, unguarded bool) (map[int]int, time.Duration, error) {
	instances, stop, err := d.startTwo(ctx, config{unguarded: unguarded, patience: 20 * time.Second, ttl: relock.DefaultTTL})
	if err != nil {
		return nil, 0, err
	}
	defer stop()
	d.store.put(product, inStock)
	var (
		wg      sync.WaitGroup
		mu      sync.Mutex
		answers = map[int]int{}
		errs    []error
		began   = time.Now()
	)
	for i := range buyers {
		url := instances[i%2].url + "/products/" + product + "/sale"
		wg.Go(func() {
			a := post(ctx, url)
			mu.Lock()
			defer mu.Unlock()
			answers[a.status]++
			errs = append(errs, a.err)
		})
	}
	wg.Wait()
	return answers, time.Since(began).Round(time.Millisecond), errors.Join(errs...)
}

// busy has one request keep the lock for longer than a buyer waits. An operator takes the lock from
// a second such request, whose write must not happen.
func (d *demo) busy(ctx context.Context) error {
	instances, stop, err := d.startTwo(ctx, config{patience: 250 * time.Millisecond, ttl: stocktaking})
	if err != nil {
		return err
	}
	defer stop()
	first, second := instances[0], instances[1]
	d.store.put("scarf", 3)

	counting := d.takeStock(ctx, first, "scarf")
	sale := post(ctx, second.url+"/products/scarf/sale")
	fmt.Fprintf(d.out, "while stock is taken: a sale waits %s, then %d %s (Retry-After: %s)\n",
		second.patience, sale.status, sale.text, sale.retryAfter)
	if sale.status != http.StatusServiceUnavailable || sale.retryAfter == "" {
		return fmt.Errorf("a sale while stock is taken: %+v", sale)
	}
	if c := <-counting; c.status != http.StatusNoContent {
		return fmt.Errorf("taking stock: %+v", c)
	}
	sale = post(ctx, second.url+"/products/scarf/sale")
	fmt.Fprintf(d.out, "after that:           the same sale: %d, %d left\n", sale.status, d.store.get("scarf"))
	if sale.status != http.StatusNoContent || d.store.get("scarf") != 2 {
		return fmt.Errorf("a sale after stock was taken: %+v, %d left", sale, d.store.get("scarf"))
	}

	counting = d.takeStock(ctx, first, "scarf")
	if err := second.locks.NewLock("product:scarf").ForceUnlock(ctx); err != nil {
		return err
	}
	sale = post(ctx, second.url+"/products/scarf/sale")
	c := <-counting
	fmt.Fprintf(d.out, "stock is taken again, and an operator takes the lock away:\n")
	fmt.Fprintf(d.out, "  a sale gets through: %d\n  taking stock ends:   %d %s\n", sale.status, c.status, c.text)
	if c.status != http.StatusInternalServerError || !strings.Contains(c.text, "lost") || sale.status != http.StatusNoContent {
		return fmt.Errorf("taking stock without the lock: %+v, a sale meanwhile: %+v", c, sale)
	}
	if left := d.store.get("scarf"); left != 1 {
		return fmt.Errorf("the number from before the sale was written after it: %d", left)
	}
	return nil
}

// takeStock starts a request that has the lock for long, and returns when the request has the lock.
func (d *demo) takeStock(ctx context.Context, in *instance, product string) <-chan reply {
	counting := make(chan reply, 1)
	go func() { counting <- post(ctx, in.url+"/products/"+product+"/stocktaking") }()
	for ctx.Err() == nil && len(counting) == 0 {
		state, err := in.locks.NewLock("product:" + product).State(ctx)
		if err != nil || state.Locked() {
			break
		}
		_ = sleep(ctx, 5*time.Millisecond)
	}
	return counting
}

// reply is an answer of the service.
type reply struct {
	status     int
	text       string
	retryAfter string
	err        error
}

func post(ctx context.Context, url string) reply {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, nil)
	if err != nil {
		return reply{err: err}
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return reply{err: err}
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return reply{
		status:     response.StatusCode,
		text:       strings.ReplaceAll(strings.TrimSpace(string(text)), "\n", "; "),
		retryAfter: response.Header.Get("Retry-After"),
		err:        err,
	}
}
