package relock

import (
	"errors"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"
)

// WithRedissonLayout makes a client keep its locks as Redisson does, the Java library, so that Go and Java services exclude
// and wake each other: a lock is the same as Redisson's getLock of the same name, or with [WithRedissonFencing]
// as its getFencedLock. It is for [New] only. docs/REDISSON.md says what to set on each side.
//
// What is different from the layout of this package's own:
//   - There is no queue, since Redisson's RLock has none. When the lock becomes free a message wakes the waiters, one of
//     each client, and whoever asks Redis first has it. The order is not that of arrival, except among the waiters of one
//     client that are waiting already.
//   - A lock has no token, and [Lock.Token] returns 0, unless it is fenced.
//   - A lock's key is its name, without a prefix; [WithPrefix] is refused.
//   - Redis knows a hold by a field that looks like one of Redisson's: a UUID and a number. That is the holder's own name
//     where Lock made the holder, which is the usual case; a holder that takes more than one lock has another number in
//     each of the others. [State.Holder] and [LockedError.Holder] are that field.
//   - [State.Waiters] is 0: nobody knows.
//
// All else holds: frames, counts that are set and not added to, renewal, the notice of a loss, and that nothing is left
// behind.
func WithRedissonLayout() Option {
	return func(s *settings) {
		if s.ofClient {
			s.check(invalid("WithRedissonLayout: it is for New, all locks of a client are kept in one way; make a second Client"))
		}
		s.redisson = true
	}
}

// WithRedissonFencing makes locks the same as Redisson's getFencedLock: with a fencing token that grows across Go
// and Java. It needs [WithRedissonLayout]. All who use a name must agree on it: without it, no token is counted.
//
// [Lock.Token] is the one of the hold's first entry, also in nested ones. Redis counts one further for each nested entry,
// as Redisson does, and may count further than that where a reply was lost; it never goes back. The key of the counter
// has no TTL: it stays when nobody uses the lock any more.
func WithRedissonFencing() Option {
	return func(s *settings) { s.fenced = true }
}

// redisson is the layout of Redisson's RLock and RFencedLock, fact by fact as observed there; see testdata/redisson.
type redisson struct {
	cluster bool

	mu    sync.Mutex       // before the hub's
	races map[string]*race // by key
}

func newRedisson(cluster bool) *redisson {
	return &redisson{cluster: cluster, races: make(map[string]*race)}
}

// What Redisson's names begin with.
const (
	redissonChannel = "redisson_lock__channel:"
	redissonToken   = "redisson_lock_token:"
)

var (
	redissonAcquire = loadScript("redisson/acquire")
	redissonRelease = loadScript("redisson/release")
	redissonState   = loadScript("redisson/state")
)

// place follows Redisson's rule for names: whether there is a '{' in them is all that it asks. For some names that
// puts the channel into another slot than the key.
func (r *redisson) place(s *settings, name string) (*keys, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	braced := name
	if !strings.Contains(name, "{") {
		braced = "{" + name + "}"
	}
	k := &keys{layout: r, name: name, base: name, topic: redissonChannel + braced}
	if s.fenced {
		k.token = redissonToken + braced
	}
	if r.cluster && slotOf(k.topic) != slotOf(name) {
		return nil, invalid("lock name %q: Redisson's key and channel of it are in different slots of a cluster; a name must have "+
			"no braces, or a whole tag such as {user:7}", name)
	}
	k.args = [3]any{k.base, k.queue, k.token}
	return k, nil
}

func (*redisson) channel(k *keys, _ string) string { return k.topic }

// newHold makes the number of a hold one that no other holder or hold of this process has.
func (*redisson) newHold(h Holder, fresh bool) string {
	if fresh {
		return h.id
	}
	process, _, _ := strings.Cut(h.id, ":")
	return process + ":" + strconv.FormatInt(holderNumber.Add(1), 10)
}

func (*redisson) holderOf(hold string) Holder { return Holder{id: hold} }

// newRedissonRequest is newRequest for the keys that there are in this layout.
func newRedissonRequest(s *script, k *keys, withToken bool, args int) *request {
	r := &request{script: s, name: k.name, args: make([]any, 0, 5+args)}
	if withToken && k.token != "" {
		r.args = append(r.args, evalSHA, s.shaArg, 2, k.base, k.token)
	} else {
		r.args = append(r.args, evalSHA, s.shaArg, 1, k.base)
	}
	return r
}

// guard is 1 for a change of a hold that another one of it may follow late.
func (h *hold) guard() int {
	if h.doubt {
		return 1
	}
	return 0
}

func (*redisson) acquire(_ *wire, h *hold, c change, _ bool, _ int64) *request {
	r := newRedissonRequest(redissonAcquire, h.keys, true, 5)
	r.args = append(r.args, &h.id, c.target, c.step, millis(c.lease), h.guard())
	return r
}

func (*redisson) acquisition(reply any) (acquisition, error) {
	if n, ok := reply.(int64); ok {
		switch {
		case n >= 0:
			return acquisition{status: acquireOurs, token: n}, nil
		case n == -1:
			return acquisition{status: acquireLost}, nil
		}
		return acquisition{}, badReply(redissonAcquire, reply)
	}
	fields, ok := reply.([]any)
	if !ok || len(fields) != 2 {
		return acquisition{}, badReply(redissonAcquire, reply)
	}
	remaining, isInt := fields[0].(int64)
	owner, isString := fields[1].(string)
	if !isInt || !isString {
		return acquisition{}, badReply(redissonAcquire, reply)
	}
	return acquisition{status: acquireBusy, remaining: fromMillis(remaining), owner: owner}, nil
}

func (*redisson) release(w *wire, h *hold, c change) *request {
	r := newRedissonRequest(redissonRelease, h.keys, false, 7)
	r.args = append(r.args, &h.id, c.target, c.step, millis(c.lease), h.guard(), w.publish(), h.keys.topic)
	return r
}

func (*redisson) abandon(w *wire, h *hold) *request {
	return freeRequest(w, h.keys, &h.id)
}

func (*redisson) forceRelease(w *wire, k *keys, hold string) *request {
	return freeRequest(w, k, &hold)
}

// freeRequest frees the lock if that hold has it.
func freeRequest(w *wire, k *keys, hold *string) *request {
	r := newRedissonRequest(redissonRelease, k, false, 7)
	r.args = append(r.args, hold, 0, 0, 0, 0, w.publish(), k.topic)
	return r
}

func (*redisson) state(k *keys) *request { return newRedissonRequest(redissonState, k, true, 0) }

// race is the waiters of one client for one lock. One of them at a time is the runner: it hears the lock's channel and asks
// Redis, and all others of the client wait for it to be done. So a message costs one script call of each client,
// however many wait there; and since the runner's place always has somebody in it while anybody waits, no message is lost
// on somebody who has just given up.
type race struct {
	key string

	// turn is the runner's. Taken by sending, which Go lets happen in the order of arrival; given back by receiving. It
	// guards waiter and due.
	turn   chan struct{}
	waiter *waiter   // set while the channel is heard
	due    time.Time // when to ask although nothing was heard

	// Guarded by the layout's mutex.
	waiting int
	refusal LockedError // what Redis said last
}

// first asks once and then waits in the client's race for the lock. Who finds a race that is on goes behind those in it,
// without asking.
func (r *redisson) first(a *acquiring, h *hold) error {
	p, position := r.enter(a, h)
	for p == nil {
		reply, answer, err := a.ask(h, false)
		switch {
		case err != nil:
			return a.giveUp(h, err)
		case reply.status == acquireOurs:
			if done, err := a.ours(h, reply.token, answer); done {
				return err
			}
		default:
			a.refusedBy(h, reply)
			if !a.mayWait {
				return a.giveUp(h, nil)
			}
			p, position = r.begin(a, h, time.Now().Add(redissonRecheck(h, reply)))
		}
	}
	defer r.leave(p)
	a.joined(h, position)
	select {
	case p.turn <- struct{}{}:
	case <-h.client.closed:
		return a.giveUp(h, ErrClosed)
	case <-a.waiting.Done():
		return a.giveUp(h, ended(a.waiting))
	}
	defer func() { <-p.turn }()
	return r.run(p, a, h)
}

// enter joins the race that is on, if there is one, and says how many are in it already.
func (r *redisson) enter(a *acquiring, h *hold) (p *race, position int) {
	if !a.mayWait {
		return nil, 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	p = r.races[h.keys.base]
	if p == nil {
		return nil, 0
	}
	refusal := p.refusal
	a.refusal = &refusal
	p.waiting++
	return p, p.waiting - 1
}

// begin is enter for who has been refused, and begins a race if there is none.
func (r *redisson) begin(a *acquiring, h *hold, due time.Time) (p *race, position int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p = r.races[h.keys.base]
	if p == nil {
		p = &race{key: h.keys.base, turn: make(chan struct{}, 1), due: due, refusal: *a.refusal}
		r.races[p.key] = p
	}
	p.waiting++
	return p, p.waiting - 1
}

// leave leaves the race. The last one stops to hear the channel, before anybody can begin a new race.
func (r *redisson) leave(p *race) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p.waiting--; p.waiting > 0 {
		return
	}
	delete(r.races, p.key)
	if p.waiter != nil {
		p.waiter.close()
	}
}

// run is the runner's wait: it hears the channel, asks, and waits for a message or the end of the owner's lease, again
// and again. What it knows when it leaves is in the race, for the next.
func (r *redisson) run(p *race, a *acquiring, h *hold) error {
	for {
		if err := r.wake(p, a, h); err != nil {
			p.due = time.Time{} // what we were told may be meant for the next
			return a.giveUp(h, err)
		}
		reply, answer, err := a.ask(h, false)
		switch {
		case err != nil:
			p.due = time.Time{}
			return a.giveUp(h, err)
		case reply.status == acquireOurs:
			p.due = time.Time{}
			done, err := a.ours(h, reply.token, answer)
			if done && err == nil { // the next hears of it when we leave, or finds out when our lease should be over
				p.due = time.Now().Add(h.ttl + time.Millisecond)
			}
			if done {
				return err
			}
		default:
			a.refusedBy(h, reply)
			p.due = time.Now().Add(redissonRecheck(h, reply))
			r.mu.Lock()
			p.refusal = *a.refusal
			r.mu.Unlock()
		}
	}
}

// wake returns when Redis should be asked.
func (r *redisson) wake(p *race, a *acquiring, h *hold) error {
	if p.waiter == nil {
		// A message from before the subscription is lost, so whoever has just subscribed asks.
		w, err := h.client.hub.subscribe(a.waiting, p.ear(h), max(time.Until(p.due), firstPause))
		if errors.Is(err, errNotYet) {
			err = nil
		}
		p.waiter = w
		return err
	}
	timer := time.NewTimer(time.Until(p.due))
	defer timer.Stop()
	select {
	case <-p.waiter.granted:
		a.wake = WakeReleased
		return nil
	case <-p.waiter.again: // the connection was lost, and what was published meanwhile with it
	case <-timer.C:
	case err := <-p.waiter.failed:
		p.waiter.close()
		p.waiter = nil
		return err
	case <-h.client.closed:
		return ErrClosed
	case <-a.waiting.Done():
		return ended(a.waiting)
	}
	a.wake = WakeNone
	return nil
}

// ear is what the hub knows the race by: its waiter outlives the hold that has made it.
func (p *race) ear(h *hold) *hold { return &hold{client: h.client, keys: h.keys, id: p.key} }

// redissonUnknown is when a waiter asks again at the latest where the lock has no lease: somebody else has made it so.
const redissonUnknown = 10 * time.Second

// redissonRecheck is when a waiter asks for itself: when the owner's lease should be over. Nobody needs to be
// left time, as one of each client asks. A lease much longer than ours is not waited out: by then the lock may belong to
// somebody whose lease is shorter, or it was freed by a getSpinLock, which publishes nothing.
func redissonRecheck(h *hold, reply acquisition) time.Duration {
	d := min(reply.remaining, max(h.ttl, redissonUnknown))
	if d < 0 {
		d = min(h.ttl, redissonUnknown)
	}
	return d + time.Millisecond + rand.N(5*time.Millisecond)
}

// told wakes the runner: the lock has become free. What the message says does not matter, and to whom the lock goes is
// for Redis to say.
func (r *redisson) told(b *hub, channel, _ string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.subs[channel]
	if s == nil {
		return
	}
	for _, w := range s.waiters {
		select {
		case w.granted <- 0:
		default: // it has not asked since the last one
		}
	}
}
