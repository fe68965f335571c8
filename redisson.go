package relock

import (
	"errors"
	"math/rand/v2"
	"runtime"
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
// as Redisson does, and may count further than that where a reply was lost; it never goes back as long as Redis keeps it. The key
// of the counter has no TTL: it stays when nobody uses the lock any more. Where it is lost, tokens begin again at 1.
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

func (*redisson) channel(k *keys, _ string) string { return strings.TrimPrefix(k.topic, plainTopic) }

// topics are two: in a cluster both kinds of pub/sub are heard.
func (*redisson) topics(channel, _ string) []string { return []string{channel, plainTopic + channel} }

// newHold makes the number of a hold one that no other holder or hold has, and no thread of Java.
func (*redisson) newHold(h Holder) string {
	process, _, _ := strings.Cut(h.id, ":")
	return numbered(process, carriedNumber.Add(1))
}

func (*redisson) newHolder(client string) (h Holder, hold string) {
	h = newHolder(client)
	return h, h.id
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
	r.leaseAt = len(r.args) + 3
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
	r.leaseAt = len(r.args) + 3
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

	// turn is the runner's. Taken by sending, which Go lets happen in the order of arrival; given back by receiving, by
	// whoever is not the runner any more. It guards ears, due, owner and news.
	turn  chan struct{}
	ears  [2]*waiter // set while the channel is heard; the second one on plain pub/sub where the first is on sharded
	due   time.Time  // when to ask although nothing was heard
	owner string     // the hold that had the lock when that was last known
	news  int        // how often there was a reason to ask, or an answer

	// Guarded by the layout's mutex.
	waiting int
	refusal *LockedError // what is known of who has the lock; nil: nothing yet
}

// first asks once and then waits in the client's race for the lock. A call that finds a race on goes behind those in it,
// without asking; and where the channel is still heard since the last race, a new one begins with the question.
func (r *redisson) first(a *acquiring, h *hold) error {
	p, position := r.join(a, h, a.mayWait && h.client.hub.hears(h.keys.topic), time.Time{})
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
			p, position = r.join(a, h, true, time.Now().Add(redissonRecheck(h, reply)))
		}
	}
	defer r.leave(p)
	if position > 0 || a.refusal != nil {
		a.joined(h, position)
	}
	return r.run(p, a, h)
}

// takeTurn makes the call the runner, and lets it know what the race knows.
func (r *redisson) takeTurn(p *race, a *acquiring) (err error) {
	select {
	case p.turn <- struct{}{}:
	case <-a.lock.client.closed:
		err = ErrClosed
	case <-a.waiting.Done():
		err = ended(a.waiting)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if p.refusal != nil {
		a.refusal, a.waited = sameRefusal(p.refusal), true
	}
	return err
}

// refuse notes for the others in the race who has the lock.
func (r *redisson) refuse(p *race, refusal *LockedError) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p.refusal = sameRefusal(refusal)
}

// join joins the race for the lock, and says how many are in it already. If there is none, it begins one if that is
// wanted.
func (r *redisson) join(a *acquiring, h *hold, begin bool, due time.Time) (p *race, position int) {
	if !a.mayWait {
		return nil, 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	p = r.races[h.keys.base]
	switch {
	case p == nil && !begin:
		return nil, 0
	case p == nil:
		p = &race{key: h.keys.base, turn: make(chan struct{}, 1), due: due, refusal: sameRefusal(a.refusal)}
		r.races[p.key] = p
	case a.refusal != nil: // it has asked just now
		p.refusal = sameRefusal(a.refusal)
	}
	p.waiting++
	return p, p.waiting - 1
}

// sameRefusal is a copy: whoever gets an error may write to it.
func sameRefusal(e *LockedError) *LockedError {
	if e == nil {
		return nil
	}
	refusal := *e
	return &refusal
}

// leave leaves the race. The last one stops hearing the channel, before anybody can begin a new race. It needs no turn for that, as
// nobody is left to have it.
func (r *redisson) leave(p *race) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p.waiting--; p.waiting > 0 {
		return
	}
	delete(r.races, p.key)
	p.deafen()
}

func (p *race) deafen() {
	for i, w := range p.ears {
		if w != nil {
			w.close()
		}
		p.ears[i] = nil
	}
}

// run is a call's wait for its turn, and then the runner's: it hears the channel, asks, and waits for a message or the end of the
// owner's lease, again and again. What it knows when it leaves is in the race, for the next.
func (r *redisson) run(p *race, a *acquiring, h *hold) error {
	runner, entered := false, false
	defer func() {
		if !runner {
			return
		}
		if !entered {
			p.due = time.Time{} // what we were told may be meant for the next
		}
		<-p.turn
	}()
	last := struct { // what our last question has said, if that was a refusal
		due   time.Time // when to ask again
		owner string
		news  int // when we asked
	}{news: -1}
	for {
		if !runner {
			if err := r.takeTurn(p, a); err != nil {
				return a.giveUp(h, err)
			}
			runner = true
			if p.news == last.news { // we have had our answer, though late: on a slow link we would ask and ask
				p.due, p.owner = last.due, last.owner
			}
		}
		silent, err := r.wake(p, a, h)
		if err != nil {
			return a.giveUp(h, err)
		}
		asked := p.news
		reply, answer, err := p.ask(a, h, &runner)
		if err != nil {
			return a.giveUp(h, err)
		}
		if runner {
			if silent && reply.owner != p.owner {
				p.suspect()
			}
			p.owner = reply.owner
			p.news++
		}
		if reply.status == acquireOurs {
			done, err := a.ours(h, reply.token, answer)
			if done && err == nil { // the next hears of it when we leave, or finds out when our lease should be over
				entered = true
				r.refuse(p, &LockedError{Name: a.lock.name, Holder: h.client.layout.holderOf(h.id), TTL: h.ttl})
				if runner {
					p.owner, p.due = h.id, time.Now().Add(h.ttl+time.Millisecond)
				}
			}
			if done {
				return err
			}
			last.news = -1
			if runner {
				p.due = time.Time{} // the lease was over before we could enter, and nobody tells us of that
			}
			continue
		}
		a.refusedBy(h, reply)
		r.refuse(p, a.refusal)
		a.joined(h, 0)
		last.due, last.owner, last.news = time.Now().Add(redissonRecheck(h, reply)), reply.owner, asked
		if runner {
			p.due = last.due
		}
	}
}

// ask asks Redis in the runner's turn. Where the answer takes its time, the turn goes to the next, who asks too, perhaps over a
// connection that is better; then runner is false. It is set through a pointer so that run sees it also where a hook of the go-redis
// client panics: else run would give back somebody else's turn. A long TTL of ours is no reason to wait for longer here, either.
func (p *race) ask(a *acquiring, h *hold, runner *bool) (acquisition, answer, error) {
	slow := time.AfterFunc(min(h.ttl, DefaultTTL)/3, func() {
		p.due = time.Time{}
		<-p.turn
	})
	defer func() { *runner = slow.Stop() }()
	return a.ask(h, false)
}

// suspect is for a lock that has become another's, and nobody has told us. Mostly nobody could: a lease ran out. But it may be that
// we are subscribed where the master is not any more, so the subscriptions are made anew, though not again and again.
func (p *race) suspect() {
	for _, w := range p.ears {
		if w != nil {
			w.suspect()
		}
	}
}

// wake returns when Redis should be asked. silent: because it is time to, and nothing was heard.
func (r *redisson) wake(p *race, a *acquiring, h *hold) (silent bool, err error) {
	a.wake = WakeNone
	if latest := time.Now().Add(redissonPatience(h)); p.due.After(latest) { // it was for another call
		p.due = latest
	}
	if hears, err := r.listen(p, a, h); !hears {
		p.news++
		return false, err
	}
	var words [2]chan word // one that is nil never has anything
	for i, w := range p.ears {
		if w != nil {
			words[i] = w.words
		}
	}
	timer := time.NewTimer(time.Until(p.due))
	defer timer.Stop()
	var heard [3]word
	news := true
	select {
	case heard[0] = <-words[0]:
	case heard[0] = <-words[1]:
	case <-timer.C:
		silent = !p.due.IsZero() // else because the one before us could not ask
		news = silent
	case <-h.client.closed:
		return false, ErrClosed
	case <-a.waiting.Done():
		return false, ended(a.waiting)
	}
	if words[1] != nil {
		runtime.Gosched() // both kinds of one message come together: the reader has the other one, and has let us go first
	}
	for i := range words { // whatever has come by now, we ask after it
		select {
		case heard[i+1] = <-words[i]:
			news = true
		default:
		}
	}
	if news {
		p.news++
	}
	for _, what := range heard {
		switch {
		case what.err != nil:
			p.deafen()
			return false, what.err
		case what.message:
			a.wake = WakeReleased
		}
	}
	return silent && a.wake == WakeNone, nil
}

// listen makes the client hear the lock's channel. heard: it does already. A message from before the subscription is
// lost, so whoever has just subscribed asks. In a cluster a Redisson client publishes on sharded or on plain pub/sub, as
// it is set up, and nobody can tell: so both are heard there.
func (r *redisson) listen(p *race, a *acquiring, h *hold) (heard bool, err error) {
	c := h.client
	heard = true
	for i := range p.ears {
		if p.ears[i] != nil || i == 1 && !c.wire.sharded.Load() {
			continue
		}
		heard = false
		k := h.keys
		if i == 1 {
			plain := *k
			plain.topic, plain.plain = plainTopic+k.topic, true
			k = &plain
		}
		// As p.key, and not as h.id: the race outlives this call.
		p.ears[i], err = c.hub.subscribe(a.waiting, k, p.key, max(time.Until(p.due), firstPause))
		if errors.Is(err, errNotYet) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
	}
	return heard, nil
}

// plainTopic tells the plain subscription to a channel from the sharded one.
const plainTopic = "plain "

// redissonUnknown is when a waiter asks again at the latest where the lock has no lease: somebody else has made it so.
const redissonUnknown = 10 * time.Second

// redissonRecheck is when a waiter asks for itself: when the owner's lease should be over. Nobody needs to be
// left time, as one of each client asks.
func redissonRecheck(h *hold, reply acquisition) time.Duration {
	d := min(reply.remaining, redissonPatience(h))
	if d < 0 {
		d = min(h.ttl, redissonUnknown)
	}
	return d + time.Millisecond + rand.N(5*time.Millisecond)
}

// redissonPatience is how much of a lease that is much longer than ours is waited out: meanwhile the lock may have come to
// somebody whose lease is shorter, or was freed by a getSpinLock, which publishes nothing. A long TTL of ours is no reason
// to wait for longer, as those behind us may have a short one.
func redissonPatience(h *hold) time.Duration {
	return min(max(h.ttl, redissonUnknown), DefaultTTL)
}

// received wakes the runner: the lock has become free. What the message says does not matter, and to whom the lock goes is
// for Redis to say.
func (r *redisson) received(b *hub, channel, _ string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, topic := range r.topics(channel, b.client.id) {
		if s := b.subs[topic]; s != nil {
			for _, w := range s.waiters {
				w.tellLocked(word{message: true})
			}
		}
	}
}
