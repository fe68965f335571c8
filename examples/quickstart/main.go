// Quickstart tells the story of one lock, line by line with times: contention between several
// instances of a service, a nested call, a section that outlasts its TTL, waiting, and a lock that
// is lost.
//
//	go run ./examples/quickstart
//
// needs no server, as the program starts an embedded one. To use a server of yours:
//
//	REDIS_URL=redis://localhost:6379 go run ./examples/quickstart
//
// On that server the program uses keys of its own, and leaves one token key, which expires within a
// day. The exit code is 1 if anything is not as the story says.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/examples/internal/stage"
)

const (
	lockName = "stock:42"
	ttl      = time.Second             // of some chapters; a short one makes a short story
	longWork = 2200 * time.Millisecond // more than two TTLs
)

func main() { stage.Main("quickstart", run) }

// run tells the whole story to out. An error says which chapter was not as told.
func run(ctx context.Context, out io.Writer, redisURL string) error {
	s := &story{
		out:    out,
		start:  time.Now(),
		prefix: "relock-quickstart:" + rand.Text()[:8] + ":",
	}
	defer s.disconnect() // for early returns; a second Close does nothing
	if err := s.connect(ctx, redisURL); err != nil {
		return err
	}

	for _, chapter := range []struct {
		title string
		tell  func(context.Context) error
	}{
		{"Nine goroutines on three instances want one lock", s.contention},
		{"A nested call enters at once", s.nested},
		{"A section that outlasts its TTL, and one that waits for it", s.watchdog},
		{"A lock that is lost", s.loss},
		{"The end", s.end},
	} {
		s.say("", "%s", chapter.title)
		err := chapter.tell(ctx)
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx) // once, in place of the error of each call
		}
		if err != nil {
			return fmt.Errorf("%s: %w", chapter.title, err)
		}
	}
	return nil
}

// contention counts down in a place without transactions. Sections that did not exclude each other
// would lose updates.
func (s *story) contention(ctx context.Context) error {
	const each = 3
	var (
		wg        sync.WaitGroup
		inside    atomic.Int32
		stock     atomic.Int64 // read, then written: not one step
		lastToken atomic.Int64
		errs      = make([]error, len(s.instances)*each)
	)
	stock.Store(100)
	for i := range errs {
		in := s.instances[i%len(s.instances)]
		who := fmt.Sprintf("%s%d", in.name, i/len(s.instances)+1)
		wg.Go(func() {
			asked := time.Now()
			errs[i] = in.lock.Do(ctx, func(ctx context.Context) error {
				if inside.Add(1) != 1 {
					return errors.New("two are inside at once")
				}
				defer inside.Add(-1)
				token, err := in.lock.Token(ctx)
				if err != nil {
					return err
				}
				if last := lastToken.Swap(token); token <= last {
					return fmt.Errorf("token %d came after %d", token, last)
				}
				before := stock.Load()
				if err := work(ctx, 5*time.Millisecond); err != nil {
					return err
				}
				stock.Store(before - 1)
				s.say(who, "in after %s, takes one of %d, token %d", ms(time.Since(asked)), before, token)
				return nil
			})
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if left := stock.Load(); left != 100-int64(len(errs)) {
		return fmt.Errorf("%d of 100 are left after %d sales", left, len(errs))
	}
	s.say("--", "%d left: no update was lost, and each token was larger than the one before", stock.Load())
	return nil
}

// nested calls a function that locks from another function that locks the same. The context tells
// that both belong together.
func (s *story) nested(ctx context.Context) error {
	lock := s.instances[0].lock
	reserve := func(ctx context.Context) error {
		return lock.Do(ctx, func(ctx context.Context) error {
			token, err := lock.Token(ctx)
			if err != nil {
				return err
			}
			s.say("A", "  reserve locks it again: count %d, same token %d", lock.Count(ctx), token)
			return expect(lock.Count(ctx) == 2, "the count in the nested call is %d", lock.Count(ctx))
		})
	}
	err := lock.Do(ctx, func(ctx context.Context) error {
		token, err := lock.Token(ctx)
		if err != nil {
			return err
		}
		s.say("A", "placeOrder has the lock: count %d, token %d", lock.Count(ctx), token)
		if err := reserve(ctx); err != nil {
			return err
		}
		s.say("A", "reserve is back and placeOrder still has the lock: count %d", lock.Count(ctx))
		return expect(lock.Count(ctx) == 1, "the count after the nested call is %d", lock.Count(ctx))
	})
	if err != nil {
		return err
	}
	state, err := lock.State(ctx)
	if err != nil {
		return err
	}
	s.say("A", "placeOrder is done: free")
	return expect(!state.Locked(), "%s still has the lock", state.Holder)
}

// watchdog lets A work for longer than its lease, which the watchdog renews. B is refused, then
// waits and gets the lock.
func (s *story) watchdog(ctx context.Context) error {
	a, b := s.instances[0], s.instances[1]
	renewals := a.renewals.Load()
	section, err := a.short.Lock(ctx)
	if err != nil {
		return err
	}
	defer a.short.Unlock(section) // for early returns; a second Unlock changes nothing
	began := time.Now()
	s.say("A", "in; its lease is %s, its work will take %s", ttl, longWork)

	if err := s.refused(ctx, b); err != nil {
		return err
	}

	granted := make(chan grant, 1)
	s.say("B", "Lock waits")
	asked := time.Now()
	ctx, giveUp := context.WithCancel(ctx)
	defer giveUp()
	go func() {
		section, err := b.short.Lock(ctx)
		granted <- grant{section, time.Now(), err}
	}()

	if err := work(section, longWork-time.Since(began)); err != nil {
		return err
	}
	state, err := a.short.State(ctx)
	if err != nil {
		return err
	}
	s.say("--", "State: count %d, lease ends in %s, %d waiting", state.Count, ms(state.TTL), state.Waiters)
	if state.Count != 1 || state.Waiters != 1 || state.TTL <= 0 {
		return fmt.Errorf("state: %+v", state)
	}
	n := a.renewals.Load() - renewals
	s.say("A", "done after %s and still the holder: the watchdog has renewed the lease %d times, %s are left",
		ms(time.Since(began)), n, ms(a.short.Remaining(section)))
	if !a.short.Held(section) || n < 2 {
		return fmt.Errorf("held: %v, renewals: %d", a.short.Held(section), n)
	}
	left := time.Now()
	s.say("A", "unlocks")
	if err := a.short.Unlock(section); err != nil {
		return err
	}
	g := <-granted
	if g.err != nil {
		return g.err
	}
	defer b.short.Unlock(g.section)
	s.say("B", "granted after %s, %s after A began to unlock", ms(g.at.Sub(asked)), ms(g.at.Sub(left)))
	if g.at.Before(left) {
		return errors.New("the waiter was in before the holder was out")
	}
	return b.short.Unlock(g.section)
}

// grant is how a wait has ended.
type grant struct {
	section context.Context
	at      time.Time
	err     error
}

// refused has an instance ask for a lock that another instance has.
func (s *story) refused(ctx context.Context, in *instance) error {
	_, err := in.short.TryLock(ctx)
	if !errors.Is(err, relock.ErrLocked) {
		return fmt.Errorf("TryLock of a lock that another has: %w", orNil(err))
	}
	s.say(in.name, "TryLock says: %v", err)
	_, err = in.short.TryLockFor(ctx, 100*time.Millisecond)
	if !errors.Is(err, relock.ErrLocked) {
		return fmt.Errorf("TryLockFor of a lock that another has: %w", orNil(err))
	}
	s.say(in.name, "TryLockFor(100ms) has waited and says the same")
	return nil
}

// loss lets an operator take the lock from C while C works. C's context ends, and says why.
func (s *story) loss(ctx context.Context) error {
	operator, c := s.instances[0], s.instances[2]
	section, err := c.short.Lock(ctx)
	if err != nil {
		return err
	}
	defer c.short.Unlock(section)
	token, err := c.short.Token(section) // before the first write
	if err != nil {
		return err
	}
	s.say("C", "in, token %d; works", token)
	if err := work(section, ttl/2); err != nil {
		return err
	}

	if err := operator.lock.ForceUnlock(ctx); err != nil {
		return err
	}
	taken := time.Now()
	s.say("--", "an operator takes the lock away (ForceUnlock); C is told by a message")

	err = work(section, longWork)
	s.say("C", "its work ends %s later with: %v", ms(time.Since(taken)), err)
	if !errors.Is(err, relock.ErrLockLost) {
		return fmt.Errorf("the context of a lost section ended with %w", orNil(err))
	}
	if err = c.short.Unlock(section); !errors.Is(err, relock.ErrLockLost) {
		return fmt.Errorf("the Unlock of a lost section: %w", orNil(err))
	}
	s.say("C", "Unlock says so too, so C knows that its last writes may have been unguarded")

	next, err := s.instances[1].lock.TryLock(ctx)
	if err != nil {
		return err
	}
	defer s.instances[1].lock.Unlock(next) // for early returns
	newer, err := s.instances[1].lock.Token(next)
	if err != nil {
		return err
	}
	s.say("B", "in, token %d: storage that remembers it refuses a late write of C with %d", newer, token)
	if newer <= token {
		return fmt.Errorf("token %d came after %d", newer, token)
	}
	return s.instances[1].lock.Unlock(next)
}

// end closes everything and looks at what is left in Redis.
func (s *story) end(ctx context.Context) error {
	for _, in := range s.instances {
		if err := in.client.Close(); err != nil {
			return err
		}
	}
	s.say("--", "the clients are closed: no goroutine, no connection, no subscription of theirs is left")

	rdb := s.instances[0].rdb
	var keys []string
	found := rdb.Scan(ctx, 0, s.prefix+"*", 1000).Iterator()
	for found.Next(ctx) {
		keys = append(keys, found.Val())
	}
	if err := found.Err(); err != nil {
		return err
	}
	token := s.prefix + "{" + lockName + "}:token"
	if len(keys) != 1 || keys[0] != token {
		return fmt.Errorf("left in Redis: %q; expected %q alone", keys, token)
	}
	expires, err := rdb.PTTL(ctx, token).Result()
	if err != nil {
		return err
	}
	s.say("--", "all that is left in Redis is %s, which expires in %s", token, expires.Round(time.Hour))
	if expires <= 0 {
		return fmt.Errorf("the TTL of %s is %s", token, expires)
	}
	s.disconnect()
	return nil
}

// story is shared by the chapters.
type story struct {
	out       io.Writer
	start     time.Time
	prefix    string
	instances []*instance
	endServer func()

	mu sync.Mutex // lines come from many goroutines
}

// instance plays one process of a service. Instances share nothing but Redis.
type instance struct {
	name     string
	rdb      *redis.Client
	client   *relock.Client
	lock     *relock.Lock // with the default TTL, 30 s
	short    *relock.Lock // the same lock, with a TTL of 1 s
	renewals atomic.Int64
}

// connect finds or starts a server and makes the three instances.
func (s *story) connect(ctx context.Context, redisURL string) error {
	options, end, err := stage.Redis(redisURL)
	if err != nil {
		return err
	}
	s.endServer = end
	if redisURL != "" {
		s.say("--", "Redis is at %s; keys begin with %s", options.Addr, s.prefix)
	} else {
		s.say("--", "an embedded Redis (miniredis) is at %s; set REDIS_URL to use another", options.Addr)
	}
	for _, name := range []string{"A", "B", "C"} {
		in := &instance{name: name, rdb: redis.NewClient(options)}
		s.instances = append(s.instances, in)
		if err := in.rdb.Ping(ctx).Err(); err != nil {
			return fmt.Errorf("redis at %s: %w", options.Addr, err)
		}
		var err error
		in.client, err = relock.New(in.rdb, relock.WithPrefix(s.prefix), relock.WithOwner("shop@"+name), relock.WithHooks(relock.Hooks{
			Renewed: func(r relock.Renewed) { in.renewals.Add(int64(r.Locks - r.Lost - r.Failed)) },
		}))
		if err != nil {
			return err
		}
		in.lock = in.client.NewLock(lockName)
		in.short = in.client.NewLock(lockName, relock.WithTTL(ttl))
	}
	return nil
}

// disconnect may be called twice.
func (s *story) disconnect() {
	for _, in := range s.instances {
		if in.client != nil {
			in.client.Close()
		}
		in.rdb.Close()
	}
	if s.endServer != nil {
		s.endServer()
	}
}

// say prints one line: time, name, text. Without a name the text is the title of a chapter.
func (s *story) say(who, format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if who == "" {
		fmt.Fprintf(s.out, "\n"+format+"\n", args...)
		return
	}
	fmt.Fprintf(s.out, "%6.3fs  %-2s  %s\n", time.Since(s.start).Seconds(), who, fmt.Sprintf(format, args...))
}

// work takes d, and ends early with the cause if the section's context ends.
func work(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func ms(d time.Duration) time.Duration {
	if d < time.Millisecond {
		return d.Round(10 * time.Microsecond)
	}
	return d.Round(time.Millisecond)
}

func expect(ok bool, format string, args ...any) error {
	if ok {
		return nil
	}
	return fmt.Errorf(format, args...)
}

// orNil makes a missing error readable.
func orNil(err error) error {
	if err == nil {
		return errors.New("no error")
	}
	return err
}
