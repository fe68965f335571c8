package torture

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
)

// Defect is what is wrong with a home-made lock.
type Defect string

// The defects. Each is a mistake that people make.
const (
	Sound      Defect = ""
	Racy       Defect = "looks, and then writes"
	Credulous  Defect = "takes an error for a yes"
	Careless   Defect = "deletes whatever is there"
	Forgetful  Defect = "sets no lease"
	Silent     Defect = "tells nobody of a loss"
	Impatient  Defect = "does not renew"
	Deaf       Defect = "waits for a message, and for nothing else"
	Scriptless Defect = "knows scripts by their hash alone"
	Counting   Defect = "takes with INCR"
	Leaky      Defect = "leaves its waiters behind"
	Unfenced   Defect = "has one token for all"
	Idle       Defect = "never unlocks"
	Lying      Defect = "says that it has unlocked, whatever the answer is"
	Doubtful   Defect = "takes the answer to its own repeat for a loss"
	Hopeful    Defect = "counts its lease from the answer"
	Believing  Defect = "believes a grant, however old"
	Nameless   Defect = "has one name for a whole process"
	Extending  Defect = "renews whatever is there"
	Absent     Defect = "keeps a lock whose caller has given up"
	Early      Defect = "draws its token before it has the lock"
	Trusting   Defect = "hears of a loss from the server alone"
	Quitting   Defect = "does not renew again after an error"
	Hasty      Defect = "does not wait for the answer to its unlock"
	Nervous    Defect = "takes an error of a renewal for a loss"
)

var defects = []Defect{
	Sound, Racy, Credulous, Careless, Forgetful, Silent, Impatient, Deaf, Scriptless, Counting, Leaky, Unfenced, Idle, Lying, Doubtful,
	Hopeful, Believing, Nameless, Extending, Absent, Early, Trusting, Quitting, Hasty, Nervous,
}

// HomeMade is the lock that people write themselves: SET NX with a lease, a goroutine for renewals,
// and a compare-and-delete. [Sound] is the best lock of this kind.
func HomeMade(d Defect) *Library {
	name := "home-made"
	if d != Sound {
		name += ", " + string(d)
	}
	promises := Renews | Tells | Fences | Follows
	if d != Sound {
		promises |= Shares | Leads | Remembers | HandsOn | Knows // which nobody makes well in this way
	}
	return &Library{Name: name, Module: "github.com/redis/go-redis/v9", Promises: promises, Claim: "SET NX with a lease, renewed, and a compare-and-delete; nothing is written down", Keeps: []string{"{*}:token"}, Open: func(s Setup) (Locker, error) {
		h := &homeMade{ttl: s.TTL, defect: d, name: uuid.NewString(), rdb: s.Redis(func(o *redis.UniversalOptions) {
			o.ContextTimeoutEnabled = true
			if d == Credulous || d == Lying {
				o.MaxRetries = -1 // go-redis hides few errors then
			}
		})}
		if d == Scriptless {
			for _, script := range []*redis.Script{takeScript, renewScript, freeScript} {
				if err := script.Load(context.Background(), h.rdb).Err(); err != nil {
					return nil, err
				}
			}
		}
		return h, nil
	}}
}

type homeMade struct {
	rdb    redis.UniversalClient
	ttl    time.Duration
	defect Defect
	name   string // of the process
}

var (
	takeScript = redis.NewScript(`
		if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 1 end
		if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
		return 0`)
	renewScript = redis.NewScript(`
		if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
		return 0`)
	freeScript = redis.NewScript(`
		if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) redis.call('PUBLISH', KEYS[1], '') return 1 end
		return 0`)
)

// passScript passes a lock on to the first of the queue.
const passScript = `
	if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
	local next = redis.call('LPOP', KEYS[2])
	if not next then return redis.call('DEL', KEYS[1]) end
	redis.call('SET', KEYS[1], next, 'PX', ARGV[2])
	return redis.call('PUBLISH', next, '')`

func (h *homeMade) run(ctx context.Context, s *redis.Script, key string, args ...any) (bool, error) {
	if h.defect == Scriptless {
		n, err := s.EvalSha(ctx, h.rdb, []string{key}, args...).Int()
		return n == 1, err
	}
	n, err := s.Run(ctx, h.rdb, []string{key}, args...).Int()
	return n == 1, err
}

func (h *homeMade) take(ctx context.Context, key, value string) (bool, error) {
	switch h.defect {
	case Racy:
		n, err := h.rdb.Exists(ctx, key).Result()
		if err != nil || n > 0 {
			return false, err
		}
		return true, h.rdb.Set(ctx, key, value, h.ttl).Err()
	case Nameless: // a repeat would be another call of this process
		return h.rdb.SetNX(ctx, key, value, h.ttl).Result()
	case Forgetful:
		return h.rdb.SetNX(ctx, key, value, 0).Result()
	case Counting:
		n, err := h.rdb.Incr(ctx, key).Result()
		return n == 1, err
	default:
		return h.run(ctx, takeScript, key, value, h.ttl.Milliseconds())
	}
}

func (h *homeMade) Lock(ctx context.Context, name string) (*Held, error) {
	key, value := "{"+name+"}", uuid.NewString()
	if h.defect == Leaky {
		h.rdb.SAdd(ctx, key+":waiters", value)
	}
	if h.defect == Nameless {
		value = h.name
	}
	var drawn func(context.Context) (int64, error)
	if h.defect == Early {
		token, err := h.rdb.Incr(ctx, key+":token").Result()
		drawn = func(context.Context) (int64, error) { return token, err }
	}
	for {
		sent, sending := time.Now(), ctx
		if h.defect == Absent && ctx.Err() == nil {
			sending = context.WithoutCancel(ctx)
		}
		bounded, cancel := context.WithTimeout(sending, h.ttl/4)
		ok, err := h.take(bounded, key, value)
		cancel()
		switch {
		case ok, err != nil && h.defect == Credulous:
			if h.defect == Hopeful {
				sent = time.Now()
			}
			if h.defect == Leaky {
				h.rdb.SRem(ctx, key+":waiters", value)
			}
			held := h.held(key, value, sent)
			if h.defect == Absent && ctx.Err() != nil {
				return nil, ctx.Err()
			}
			if drawn != nil {
				held.Token = drawn
			}
			return held, nil
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case isRefusal(err):
			return nil, err
		}
		if h.defect == Believing {
			if err := h.queue(ctx, key, value); err != nil {
				return nil, err
			}
			return h.held(key, value, time.Now()), nil
		}
		if err := h.wait(ctx, key); err != nil {
			return nil, err
		}
	}
}

// queue waits in a queue until a message says that the lock was granted, or until the lock is free.
func (h *homeMade) queue(ctx context.Context, key, value string) error {
	sub := h.rdb.Subscribe(ctx, value)
	defer sub.Close()
	if _, err := sub.Receive(ctx); err != nil {
		return err
	}
	if err := h.rdb.RPush(ctx, key+":queue", value).Err(); err != nil {
		return err
	}
	leave := func() { h.rdb.LRem(context.WithoutCancel(ctx), key+":queue", 0, value) }
	for {
		select {
		case <-sub.Channel():
			return nil
		case <-ctx.Done():
			leave()
			return ctx.Err()
		case <-time.After(h.ttl / 8):
			bounded, cancel := context.WithTimeout(ctx, h.ttl/8)
			ok, err := h.rdb.SetNX(bounded, key, value, h.ttl).Result()
			cancel()
			if ok && err == nil {
				leave()
				return nil
			}
		}
	}
}

func isRefusal(err error) bool {
	return redis.HasErrorPrefix(err, "NOAUTH") || redis.HasErrorPrefix(err, "WRONGTYPE")
}

func (h *homeMade) wait(ctx context.Context, key string) error {
	again := time.After(20 * time.Millisecond)
	var told <-chan *redis.Message
	if h.defect == Deaf && h.rdb.Exists(ctx, key).Val() > 0 {
		sub := h.rdb.Subscribe(ctx, key)
		defer sub.Close()
		if _, err := sub.Receive(ctx); err == nil && h.rdb.Exists(ctx, key).Val() > 0 {
			told, again = sub.Channel(), nil
		}
	}
	select {
	case <-again:
	case <-told:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

func (h *homeMade) renew(ctx context.Context, key, value string) (bool, error) {
	if h.defect == Extending {
		return h.rdb.PExpire(ctx, key, h.ttl).Result()
	}
	return h.run(ctx, renewScript, key, value, h.ttl.Milliseconds())
}

// held renews a lease until the Unlock or the loss.
func (h *homeMade) held(key, value string, sent time.Time) *Held {
	lost, left := make(chan struct{}), make(chan struct{})
	if h.defect == Counting {
		return &Held{Unlock: func(ctx context.Context) error { return h.rdb.Del(ctx, key).Err() }}
	}
	go func() {
		every, lease := h.ttl/3, h.ttl
		if h.defect == Trusting {
			lease = time.Hour
		}
		end, next := time.NewTimer(time.Until(sent.Add(lease))), time.NewTicker(every)
		defer end.Stop()
		defer next.Stop()
		renewed := make(chan time.Time, 1) // the time when it was sent; zero: the lock is gone
		for busy, quit := false, false; ; {
			select {
			case <-left:
				return
			case <-next.C:
				if busy || quit || h.defect == Impatient {
					continue
				}
				busy = true
				go func() {
					sent := time.Now()
					ctx, cancel := context.WithTimeout(context.Background(), every)
					defer cancel()
					switch ok, err := h.renew(ctx, key, value); {
					case err == nil && !ok, err != nil && h.defect == Nervous:
						sent = time.Time{}
					case err != nil:
						sent = sent.Add(-h.ttl) // the lease is not longer for it
					}
					renewed <- sent
				}()
			case at := <-renewed:
				busy = false
				if quit = h.defect == Quitting && time.Since(at) >= h.ttl; at.IsZero() {
					end.Reset(0)
				} else if time.Since(at) < h.ttl {
					end.Reset(time.Until(at.Add(lease)))
				}
			case <-end.C:
				if h.defect != Silent && h.defect != Impatient {
					close(lost)
				}
				return
			}
		}
	}()
	leave := sync.OnceFunc(func() { close(left) })
	unlock := func(ctx context.Context) error {
		leave()
		switch h.defect {
		case Careless:
			return h.rdb.Del(ctx, key).Err()
		case Idle:
			return nil
		case Hasty:
			go func() { _, _ = h.run(context.WithoutCancel(ctx), freeScript, key, value) }()
			return nil
		case Lying:
			_, _ = h.run(ctx, freeScript, key, value)
			return nil
		case Believing:
			return h.rdb.Eval(ctx, passScript, []string{key, key + ":queue"}, value, h.ttl.Milliseconds()).Err()
		}
		ok, err := h.run(ctx, freeScript, key, value)
		if err == nil && !ok {
			err = errNotOurs
		}
		return err
	}
	return &Held{
		Lost: lost, Unlock: unlock,
		HandOff: func(ctx context.Context) (any, error) { return nil, unlock(ctx) },
		Token: func(ctx context.Context) (int64, error) {
			if h.defect == Unfenced {
				return 1, nil
			}
			return h.rdb.Incr(ctx, key+":token").Result()
		},
	}
}

// Read, Write, Permit and Several look, and then write, whatever the defect.
func (h *homeMade) Read(ctx context.Context, name string) (*Held, error) {
	return h.enter(ctx, name, "reader", func(in []string) bool { return !slices.ContainsFunc(in, isWriter) })
}

func (h *homeMade) Write(ctx context.Context, name string) (*Held, error) {
	return h.enter(ctx, name, "writer", func(in []string) bool { return len(in) == 0 })
}

func (h *homeMade) Permit(ctx context.Context, name string, n int) (*Held, error) {
	return h.enter(ctx, name, "permit", func(in []string) bool { return len(in) < n })
}

func isWriter(who string) bool { return strings.HasPrefix(who, "writer") }

func (h *homeMade) enter(ctx context.Context, name, as string, fits func(in []string) bool) (*Held, error) {
	key, value := "{"+name+"}", as+uuid.NewString()
	for {
		in, err := h.rdb.SMembers(ctx, key).Result()
		if err == nil && fits(in) {
			sent := time.Now()
			if err = errors.Join(h.rdb.SAdd(ctx, key, value).Err(), h.rdb.PExpire(ctx, key, h.ttl).Err()); err == nil {
				return &Held{Until: sent.Add(h.ttl), Unlock: func(ctx context.Context) error { return h.rdb.SRem(ctx, key, value).Err() }}, nil
			}
		}
		if err := h.wait(ctx, key); err != nil {
			return nil, err
		}
	}
}

func (h *homeMade) Several(ctx context.Context, names ...string) (*Held, error) {
	var all []*Held
	free := func(ctx context.Context) (err error) {
		for _, held := range all {
			err = errors.Join(err, held.Unlock(ctx))
		}
		return err
	}
	for _, name := range names {
		held, err := h.Lock(ctx, name)
		if err != nil {
			return nil, errors.Join(err, free(context.WithoutCancel(ctx)))
		}
		all = append(all, held)
	}
	return &Held{Lost: all[0].Lost, Unlock: free}, nil
}

// Do looks for a note of the operation, does the operation, and writes the note.
func (h *homeMade) Do(ctx context.Context, key string, do func(again bool)) error {
	if n, err := h.rdb.Exists(ctx, key).Result(); n > 0 || err != nil {
		return err
	}
	do(false)
	return h.rdb.Set(ctx, key, "done", h.ttl).Err()
}

// Accept locks what the former holder has unlocked, see held.
func (h *homeMade) Accept(ctx context.Context, name string, _ any) (*Held, error) {
	return h.Lock(ctx, name)
}

// Lead is Lock, as it is in many a program.
func (h *homeMade) Lead(ctx context.Context, name string) (*Held, error) { return h.Lock(ctx, name) }

func (h *homeMade) Close() {
	if err := h.rdb.Close(); err != nil && !errors.Is(err, redis.ErrClosed) {
		panic(err)
	}
}
