package relock

import (
	"container/list"
	"context"
	"errors"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// The hub is where grants arrive. It has one pub/sub connection for each Redis node that has locks somebody waits for,
// however many locks these are: one connection for a standalone or Sentinel server, one for each master of a cluster.
//
// A client hears a lock on the channel base:<client id>. Subscriptions are counted, and linger a little after the last
// waiter has gone, so that a lock which is contended again and again is subscribed once. A connection that is lost is
// made again with all its subscriptions, and then every waiter asks Redis again: what was published meanwhile is lost.
type hub struct {
	client *Client

	mu    sync.Mutex
	links map[string]*link         // by node
	subs  map[string]*subscription // by topic
}

const (
	// lingerFor is how long a subscription without waiters is kept, or up to lingerLess shorter, to go with others. The connection ends
	// with the last one.
	lingerFor  = 2 * time.Second
	lingerLess = lingerFor / 10
	// pingEvery is how long a connection may be silent before it is asked for a sign of life, and how long the answer
	// may take. Together they bound how long a dead connection (no FIN, no RST) goes unnoticed.
	pingEvery = 2 * time.Second
	// subscribeLimit is for one attempt to connect and to subscribe.
	subscribeLimit = 5 * time.Second
)

// subscription is one lock's channel.
type subscription struct {
	topic   string // its place in hub.subs
	key     string // where the lock is
	channel string
	plain   bool // SUBSCRIBE also where pub/sub is sharded

	// Guarded by the hub's mutex.
	link     *link
	waiters  map[string]*waiter // by hold id
	stage    stage
	sharded  bool          // it was last asked for with SSUBSCRIBE
	there    bool          // the server has it on the link's present connection, whoever may be heard there
	alone    bool          // ask for this one by itself: it failed together with others
	refusals int           // times in a row that the server refused it in passing
	moves    int           // how often relocate was begun; only the last one counts
	unheard  int           // times in a row that Redis said that nobody hears it
	outage   *outage       // what it has not come back from
	idle     *list.Element // in link.idle while nobody waits, else nil
	since    time.Time     // when it was put there
}

// stage is how far a subscription has come on its link's present connection.
type stage int

const (
	unasked   stage = iota // the link asks the server for it when it plans next
	asking                 // the server has been asked; or again, relocate or a new connection will make it unasked, in their time
	confirmed              // the server has said yes
)

// outage is the loss of a connection, which all its subscriptions share. It is over with the first of them that is
// confirmed on another.
type outage struct {
	since time.Time
	over  bool // guarded by the hub's mutex
}

// waiter is one hold that waits for its grant.
type waiter struct {
	hub *hub
	sub *subscription
	id  string // in sub.waiters

	// words has room for one, is sent to under the hub's mutex, and is only read by that wait. The first word is enough: whatever
	// it is, the waiter asks Redis after it, or need not ask.
	words chan word
}

// word is what a waiter is told. The zero word: the subscription is (again) confirmed, so ask Redis.
type word struct {
	message bool  // a message has come
	token   int64 // that it grants, 0 if it grants none
	err     error // the server refuses the subscription
}

// tellLocked leaves a word for the waiter, if there is none yet.
func (w *waiter) tellLocked(what word) {
	select {
	case w.words <- what:
	default:
	}
}

// failLocked leaves an error for the waiter, in place of any other word: asking Redis would not bring it again.
func (w *waiter) failLocked(err error) {
	select {
	case <-w.words:
	default:
	}
	w.tellLocked(word{err: err})
}

// unaskLocked makes the link ask for s when it plans next.
func (s *subscription) unaskLocked() {
	s.stage = unasked
	s.link.todo = append(s.link.todo, s)
}

// restLocked notes that nobody waits for s, unless its link has let go of it.
func (s *subscription) restLocked() {
	if _, there := s.link.subs[s]; there && s.idle == nil {
		s.since, s.idle = time.Now(), s.link.idle.PushBack(s)
	}
}

// rouseLocked notes that somebody does, or that its link lets go of it.
func (s *subscription) rouseLocked() {
	if s.idle != nil {
		s.link.idle.Remove(s.idle)
		s.idle = nil
	}
}

// tellLocked makes the waiters ask Redis.
func (s *subscription) tellLocked() {
	for _, w := range s.waiters {
		w.tellLocked(word{})
	}
}

func newHub(c *Client) *hub {
	return &hub{client: c, links: make(map[string]*link), subs: make(map[string]*subscription)}
}

// listen registers the hold of that id as a waiter if the client hears its lock's channel already. nil: it does not.
func (b *hub) listen(k *keys, id string) *waiter {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.subs[k.topic]
	if s == nil || s.stage != confirmed {
		return nil
	}
	return b.addLocked(s, id)
}

// hears says whether the client hears a channel already.
func (b *hub) hears(topic string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.subs[topic]
	return s != nil && s.stage == confirmed
}

func (b *hub) addLocked(s *subscription, id string) *waiter {
	w := &waiter{hub: b, sub: s, id: id, words: make(chan word, 1)}
	s.waiters[id] = w
	s.rouseLocked()
	return w
}

// errNotYet: no subscription for now. Redis should be asked all the same, since the owner's lease should be over.
var errNotYet = errors.New("no pub/sub connection")

// subscribe registers the hold of that id as a waiter, and returns when the lock's channel is subscribed and the server has
// confirmed it; with errNotYet if it has not by the time of the recheck.
func (b *hub) subscribe(ctx context.Context, k *keys, id string, recheck time.Duration) (*waiter, error) {
	node, rdb, err := b.client.wire.node(ctx, k.base)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	s := b.subs[k.topic]
	if s == nil {
		l := b.linkLocked(node, rdb)
		if l == nil {
			b.mu.Unlock()
			return nil, ErrClosed
		}
		s = &subscription{
			topic: k.topic, key: k.base, channel: k.channel(b.client.id), plain: k.plain,
			link: l, waiters: make(map[string]*waiter),
		}
		b.subs[s.topic] = s
		l.subs[s] = struct{}{}
		s.unaskLocked()
	}
	w := b.addLocked(s, id)
	stage := s.stage
	if stage == unasked {
		s.link.kick()
	}
	b.mu.Unlock()
	if stage == confirmed {
		return w, nil
	}
	if err := w.confirmation(ctx, recheck); err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

// confirmation waits until the server has confirmed the subscription, or confirmed it once more. A message says as much, and
// one from before costs a question to Redis.
func (w *waiter) confirmation(ctx context.Context, recheck time.Duration) error {
	timer := time.NewTimer(recheck)
	defer timer.Stop()
	select {
	case what := <-w.words:
		return what.err
	case <-timer.C:
		return errNotYet
	case <-w.hub.client.closed:
		return ErrClosed
	case <-ctx.Done():
		return ended(ctx)
	}
}

// unheard handles the word of Redis that nobody hears the waiter's channel where the lock is: our connection has just
// died, or leads to a server that is not the master any more and lives on. The subscription is made anew, where the
// master is now, and unheard returns when that is confirmed. But where there is a word, that may have happened since Redis was
// asked: then unheard returns at once, and Redis is asked again first.
func (w *waiter) unheard(ctx context.Context, recheck time.Duration) error {
	b, s := w.hub, w.sub
	b.mu.Lock()
	if s.stage == confirmed && len(w.words) == 0 {
		s.unheard++
		b.renewLocked(s, pause(s.unheard))
	}
	b.mu.Unlock()
	return w.confirmation(ctx, recheck)
}

// suspect is unheard where nobody knows that it is so. A connection that has just been made leads to the right place.
func (w *waiter) suspect() {
	b, s := w.hub, w.sub
	b.mu.Lock()
	defer b.mu.Unlock()
	if s.stage == confirmed && time.Since(s.link.made) >= pingEvery {
		b.renewLocked(s, 0)
	}
}

// renewLocked makes a subscription anew after a pause, where the master is then. Where there is only one link, it connects anew.
func (b *hub) renewLocked(s *subscription, pause time.Duration) {
	if s.link.node != "" {
		b.relocateLocked(s, pause)
		return
	}
	s.stage = asking
	s.link.stale = max(s.link.stale, pause, time.Nanosecond)
	s.link.kick()
}

// heard notes that Redis does reach the waiter's channel.
func (w *waiter) heard() {
	w.hub.mu.Lock()
	defer w.hub.mu.Unlock()
	w.sub.unheard = 0
}

// close ends the wait. A grant that arrives later finds no waiter, and is given back.
func (w *waiter) close() {
	b := w.hub
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(w.sub.waiters, w.id)
	if len(w.sub.waiters) == 0 {
		w.sub.restLocked()
	}
}

// received hands a grant to its waiter, or gives it back.
func (native) received(b *hub, channel, payload string) {
	c := b.client
	hold, token, ok := grantMessage(payload)
	base, isOurs := strings.CutSuffix(channel, c.id)
	base, isChannel := strings.CutSuffix(base, ":")
	if !ok || !isOurs || !isChannel {
		c.events.log(c.settings.logger, slog.LevelWarn, "relock: a message that is not a grant", slog.String("channel", channel))
		return
	}
	if !b.grant(base, hold, token) {
		c.returnGrant(base, hold)
	}
}

// grant tells the waiter of a hold that the lock is granted to it. false: there is no such waiter.
func (b *hub) grant(topic, hold string, token int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.subs[topic]
	if s == nil {
		return false
	}
	w := s.waiters[hold]
	if w == nil {
		return false
	}
	w.tellLocked(word{message: true, token: token})
	return true
}

// link is the pub/sub connection to one node. Its goroutine makes the connection, asks for what is to be heard on it,
// and ends when there is nothing to hear or the client is closed.
type link struct {
	hub  *hub
	node string
	rdb  redis.UniversalClient
	wake chan struct{}

	heard atomic.Int64 // when something last arrived, in nanoseconds since start
	start time.Time

	answered bool // anything was heard on the present connection; the reader's, and serve's when it has ended

	// Guarded by the hub's mutex.
	subs  map[*subscription]struct{}
	todo  []*subscription // those that are unasked are here; others that were may be
	idle  list.List       // those that nobody waits for, the one that rests longest first
	made  time.Time       // when the present connection was begun
	stale time.Duration   // connect anew, after this pause; 0: no need to
	asked []*question     // that are not answered, oldest first
	leave []departure     // whose subscriptions have moved to another link
}

// question is a command: SUBSCRIBE for subs, UNSUBSCRIBE for gone, or PING if it has neither. Redis answers in the order of the
// commands, with a reply for each channel, or with an error for all of them.
type question struct {
	sharded bool          // it is SSUBSCRIBE, or SUNSUBSCRIBE
	asked   time.Duration // when, since the link's start

	// Guarded by the hub's mutex: those without an answer.
	subs []*subscription
	gone []string
}

func (q *question) isPing() bool { return len(q.subs) == 0 && len(q.gone) == 0 }

// departure is a channel to unsubscribe.
type departure struct {
	channel string
	sharded bool
}

// linkLocked returns the link to a node, nil if the client is closed.
func (b *hub) linkLocked(node string, rdb redis.UniversalClient) *link {
	if l := b.links[node]; l != nil {
		return l
	}
	l := &link{
		hub: b, node: node, rdb: rdb, wake: make(chan struct{}, 1), start: time.Now(),
		subs: make(map[*subscription]struct{}),
	}
	if !b.client.workers.startOpen(l.run) {
		return nil
	}
	b.links[node] = l
	return l
}

func (l *link) kick() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *link) run() {
	c := l.hub.client
	for attempt := 1; ; attempt++ {
		answered, err := l.serve()
		if c.isClosed() {
			l.hub.drop(l)
			return
		}
		if err == nil {
			return
		}
		if answered && time.Since(l.made) >= longPause { // else it may be ended again and again
			attempt = 1
		}
		l.reset(answered)
		level := slog.LevelInfo
		if attempt > 3 {
			level = slog.LevelWarn
		}
		c.events.log(c.settings.logger, level, "relock: pub/sub connection lost, connecting again",
			slog.String("node", l.node), slog.Int("attempt", attempt), slog.Any("error", err))
		_ = sleep(context.Background(), c.closed, pause(attempt)) // Close: serve notices
	}
}

// serve is the life of one connection, and says whether anything was heard on it. It returns nil when the link is not
// needed any more.
func (l *link) serve() (answered bool, err error) {
	c := l.hub.client
	l.hub.mu.Lock()
	l.made = time.Now()
	l.hub.mu.Unlock()
	ps := l.rdb.Subscribe(context.Background()) // connects with the first channel
	ctx, cancel := context.WithCancel(c.life)
	broken := make(chan error, 1)
	var connected, reading chan struct{}
	defer func() {
		cancel()
		switch {
		case reading != nil:
			_ = ps.Close() // ends the reader
			<-reading
			answered = l.answered
		case connected != nil:
			c.workers.start(func() {
				<-connected // until then go-redis has a mutex that Close wants
				_ = ps.Close()
			})
		default:
			_ = ps.Close()
		}
	}()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-c.closed:
			return false, nil
		default:
		}
		p := l.plan(time.Now())
		if p.done {
			return false, nil
		}
		if p.stale > 0 {
			_ = sleep(context.Background(), c.closed, p.stale)
			return false, errStale
		}
		if reading != nil {
			err = l.send(ps, subscribeLimit, p.ask)
		} else if len(p.ask) > 0 {
			connected = make(chan struct{})
			if err = l.connect(ps, p.ask, connected); err == nil {
				reading = make(chan struct{})
				l.hear()
				l.answered = false
				c.workers.start(func() {
					defer close(reading)
					broken <- l.read(ctx, ps)
				})
			}
		}
		if err != nil {
			l.barred(err)
			return false, err
		}
		next := pingEvery
		if reading != nil {
			var ping bool
			ping, next, err = p.look(time.Since(l.start), time.Duration(l.heard.Load()))
			if err == nil && ping {
				err = l.ping(ps)
			}
			if err != nil {
				return false, err
			}
		}
		timer.Reset(next)
		select {
		case <-l.wake:
		case <-timer.C:
		case err := <-broken:
			return false, err
		case <-c.closed:
		}
	}
}

var errStale = errors.New("the pub/sub connection does not lead to the master")

var errSilent = errors.New("the pub/sub connection is silent")

// plan is what a link has to do next.
type plan struct {
	ask    []*question
	waited bool          // somebody waits
	owed   bool          // a question is not answered
	since  time.Duration // and was asked then
	linger time.Duration // until a subscription has lingered long enough
	stale  time.Duration // connect anew, after this pause
	done   bool
}

// look says whether to ping now, and when to look again. An error: the connection owes an answer for too long, so it is dead although
// nobody has said so. All times are since the link's start.
func (p plan) look(now, heard time.Duration) (ping bool, next time.Duration, err error) {
	next = time.Hour
	at := func(t time.Duration) { next = max(min(next, t-now), time.Millisecond) }
	if p.linger > 0 {
		at(now + p.linger)
	}
	due := max(p.since, heard) + pingEvery
	switch {
	case !p.owed && !p.waited:
		return false, next, nil
	case now < due:
		at(due)
		return false, next, nil
	case p.owed:
		return false, 0, errSilent
	}
	at(now + pingEvery)
	return true, next, nil
}

// subscribeBatch is how many channels one SUBSCRIBE or UNSUBSCRIBE names.
const subscribeBatch = 100

func (l *link) plan(now time.Time) plan {
	b := l.hub
	b.mu.Lock()
	defer b.mu.Unlock()
	p := plan{stale: l.stale, waited: len(l.subs) > l.idle.Len()}
	leave, todo := l.leave, l.todo
	l.stale, l.leave, l.todo = 0, nil, nil
	var over []*subscription
	over, p.linger = l.lingeredLocked(now)
	asks := l.subscribeLocked(todo)
	for _, s := range over {
		twin := func(other *subscription) bool { return other.sharded == s.sharded } // which would end with it
		if s.there && !slices.ContainsFunc(l.ofLocked(s.channel), twin) {
			leave = append(leave, departure{s.channel, s.sharded})
		}
	}
	p.ask = append(unsubscribe(leave), asks...) // in this order: a subscription may have moved away and back
	l.askLocked(p.ask)
	if p.owed = len(l.asked) > 0; p.owed {
		p.since = l.asked[0].asked
	}
	if p.done = len(l.subs) == 0; p.done {
		delete(b.links, l.node)
	}
	return p
}

// lingeredLocked takes out what has lingered for long enough, and says when the next one will have; 0: none lingers.
func (l *link) lingeredLocked(now time.Time) (over []*subscription, next time.Duration) {
	for e := l.idle.Front(); e != nil; e = l.idle.Front() {
		s := e.Value.(*subscription)
		left := lingerFor - now.Sub(s.since)
		if left > lingerLess {
			return over, left
		}
		if s.stage == asking { // the answer to SUBSCRIBE is on its way
			s.since = now
			l.idle.MoveToBack(e)
			continue
		}
		l.removeLocked(s)
		over = append(over, s)
	}
	return over, 0
}

// subscribeLocked makes the questions for those of todo that are still to be asked for.
func (l *link) subscribeLocked(todo []*subscription) []*question {
	sharded := l.hub.client.wire.sharded.Load()
	var questions []*question
	var batch *question
	for _, s := range todo {
		if _, there := l.subs[s]; !there || s.stage != unasked {
			continue
		}
		s.stage, s.sharded = asking, sharded && !s.plain
		if s.alone || s.sharded {
			questions = append(questions, &question{sharded: s.sharded, subs: []*subscription{s}}) // and one slot a command in a cluster
			continue
		}
		if batch == nil || len(batch.subs) == subscribeBatch {
			batch = &question{}
			questions = append(questions, batch)
		}
		batch.subs = append(batch.subs, s)
	}
	return questions
}

func (l *link) removeLocked(s *subscription) {
	l.letGoLocked(s)
	if l.hub.subs[s.topic] == s {
		delete(l.hub.subs, s.topic)
	}
}

func (l *link) letGoLocked(s *subscription) {
	delete(l.subs, s)
	s.rouseLocked()
}

// unsubscribe makes the questions for departures.
func unsubscribe(leave []departure) []*question {
	var questions []*question
	var plain *question
	for _, d := range leave {
		if d.sharded { // one slot a command here, too
			questions = append(questions, &question{sharded: true, gone: []string{d.channel}})
			continue
		}
		if plain == nil || len(plain.gone) == subscribeBatch {
			plain = &question{}
			questions = append(questions, plain)
		}
		plain.gone = append(plain.gone, d.channel)
	}
	return questions
}

// askLocked notes what is about to be sent.
func (l *link) askLocked(questions []*question) {
	for _, q := range questions {
		q.asked = time.Since(l.start)
	}
	l.asked = append(l.asked, questions...)
}

// connect is send on a connection that is made with it. To set one up, go-redis takes its own time, whatever the context says: a
// connection that is not there in time is left to it, and over is closed when it is done.
func (l *link) connect(ps *redis.PubSub, questions []*question, over chan<- struct{}) error {
	c := l.hub.client
	sent := make(chan error, 1)
	c.workers.start(func() {
		defer close(over)
		sent <- l.send(ps, subscribeLimit, questions)
	})
	timer := time.NewTimer(subscribeLimit)
	defer timer.Stop()
	select {
	case err := <-sent:
		return err
	case <-timer.C:
		return errSilent
	case <-c.closed:
		return ErrClosed
	}
}

func (l *link) send(ps *redis.PubSub, limit time.Duration, questions []*question) error {
	ctx, cancel := context.WithTimeout(l.hub.client.life, limit)
	defer cancel()
	for _, q := range questions {
		if err := q.send(ctx, l.hub, ps); err != nil {
			return err
		}
	}
	return nil
}

// send sends the command for what is not answered yet: a server that gives a slot away ends subscriptions by itself.
func (q *question) send(ctx context.Context, b *hub, ps *redis.PubSub) error {
	b.mu.Lock()
	gone, channels := slices.Clone(q.gone), make([]string, len(q.subs))
	for i, s := range q.subs {
		channels[i] = s.channel
	}
	b.mu.Unlock()
	switch {
	case len(gone) > 0 && q.sharded:
		return ps.SUnsubscribe(ctx, gone...)
	case len(gone) > 0:
		return ps.Unsubscribe(ctx, gone...)
	case len(channels) == 0:
		return ps.Ping(ctx)
	case q.sharded:
		return ps.SSubscribe(ctx, channels...)
	default:
		return ps.Subscribe(ctx, channels...)
	}
}

func (l *link) ping(ps *redis.PubSub) error {
	ping := []*question{{}}
	l.hub.mu.Lock()
	l.askLocked(ping)
	l.hub.mu.Unlock()
	return l.send(ps, pingEvery, ping)
}

// hear notes that something has arrived, and returns how long there was nothing before.
func (l *link) hear() time.Duration {
	now := int64(time.Since(l.start))
	return time.Duration(now - l.heard.Swap(now))
}

// quiet is how long a silence must be for the message behind it to count as a single one, with no more to be read at once.
const quiet = time.Millisecond

var errReplaced = errors.New("go-redis has given up the pub/sub connection")

// read hands out what arrives until the connection ends.
//
// When a connection breaks, or the server asks to be called elsewhere, go-redis makes a new one before Receive returns: to the
// node that may just have died, with a mutex held that Close needs, and without a word to those who have missed something
// meanwhile. A context that is done keeps it from that, and from nothing else: Receive only dials with it. Should that
// change one day, the context of the connection is as good. (A dialer that does not look at contexts, as go-redis's own for
// TLS, dials all the same, and the connection's end is noticed after that.)
func (l *link) read(ctx context.Context, ps *redis.PubSub) error {
	done, cancel := context.WithCancel(ctx)
	cancel()
	for first := true; ; first = false {
		msg, err := ps.Receive(done)
		if errors.Is(err, context.Canceled) && ctx.Err() == nil {
			if !first {
				return errReplaced // it was about to dial a new one, which done has kept it from
			}
			done = ctx //nolint:fatcontext // once: the context of the connection in place of one made from it
			continue
		}
		if err != nil {
			var refusal redis.Error
			if errors.As(err, &refusal) && l.refused(err) {
				l.hear()
				continue
			}
			return err
		}
		before := l.hear()
		l.answered = true
		switch m := msg.(type) {
		case *redis.Message:
			l.hub.client.layout.received(l.hub, m.Channel, m.Payload)
			// The waiter goes first, and not when we have set up the next read. Where message follows upon message it would be
			// the other way round: of all that is ready to run we would be the last, and those behind would wait for us.
			if before > quiet {
				runtime.Gosched()
			}
		case *redis.Subscription:
			switch m.Kind {
			case "subscribe", "ssubscribe":
				l.confirmed(m.Channel)
			case "unsubscribe":
				l.left(m.Channel, false)
			case "sunsubscribe":
				if !l.left(m.Channel, true) {
					l.evicted(m.Channel)
				}
			}
		case *redis.Pong:
			l.pong()
		}
	}
}

// confirmed notes that a channel is heard, and makes its waiters ask Redis what they may have missed.
func (l *link) confirmed(channel string) {
	l.hub.mu.Lock()
	over := l.confirmedLocked(channel)
	l.hub.mu.Unlock()
	if over != nil {
		l.hub.client.reconnected(l.node, time.Since(over.since))
	}
}

// confirmedLocked returns the outage that is over with it, if there is one.
func (l *link) confirmedLocked(channel string) *outage {
	s := l.subscribedLocked(channel)
	if s == nil { // go-redis has asked, on a connection that it has made by itself
		for _, s := range l.ofLocked(channel) {
			s.tellLocked()
		}
		return nil
	}
	if s.link != l { // it has moved on meanwhile
		l.leave = append(l.leave, departure{channel, s.sharded})
		l.kick()
		return nil
	}
	s.stage, s.there, s.alone, s.refusals = confirmed, true, false, 0
	s.tellLocked()
	lost := s.outage
	if s.outage = nil; lost == nil || lost.over {
		return nil
	}
	lost.over = true
	return lost
}

// subscribedLocked is the subscription for which SUBSCRIBE is answered with a channel, nil if it was not asked.
func (l *link) subscribedLocked(channel string) *subscription {
	if len(l.asked) == 0 {
		return nil
	}
	q := l.asked[0]
	i := slices.IndexFunc(q.subs, func(s *subscription) bool { return s.channel == channel })
	if i < 0 {
		return nil
	}
	s := q.subs[i]
	q.subs[i] = q.subs[len(q.subs)-1]
	if q.subs = q.subs[:len(q.subs)-1]; len(q.subs) == 0 {
		l.asked = l.asked[1:]
	}
	return s
}

// left notes the answer to an UNSUBSCRIBE. false: there is none to answer.
func (l *link) left(channel string, sharded bool) bool {
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	if len(l.asked) == 0 || l.asked[0].sharded != sharded {
		return false
	}
	q := l.asked[0]
	i := slices.Index(q.gone, channel)
	if i < 0 {
		return false
	}
	if q.gone = slices.Delete(q.gone, i, i+1); len(q.gone) == 0 {
		l.asked = l.asked[1:]
	}
	return true
}

// pong notes the answer to a PING.
func (l *link) pong() {
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	if len(l.asked) > 0 && l.asked[0].isPing() {
		l.asked = l.asked[1:]
	}
}

// refused handles an error, which answers the oldest question. false: with this connection there is no going on.
func (l *link) refused(err error) bool {
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	q := &question{}
	if len(l.asked) > 0 {
		q, l.asked = l.asked[0], l.asked[1:]
	}
	switch {
	case len(q.subs) > 0:
		l.notSubscribedLocked(q, err)
		return true
	case len(q.gone) > 0:
		return errorCode(err.Error()) == "MOVED" // with its slot: the server has ended it by itself
	default:
		return judge(err) == passing // busy, but alive
	}
}

// notSubscribedLocked handles an error in place of SUBSCRIBE's replies.
func (l *link) notSubscribedLocked(q *question, err error) {
	c, passes := l.hub.client, judge(err) == passing
	refusals := 0
	for _, s := range q.subs {
		switch {
		case s.link != l: // it has moved on meanwhile
		case passes: // MOVED, or a server that does not serve right now
			s.refusals++
			refusals = max(refusals, s.refusals)
		case len(q.subs) > 1: // which of them, we are not told
			s.alone = true
			s.unaskLocked()
		case s.sharded && strings.Contains(err.Error(), "unknown command"): // a cluster older than Redis 7
			s.unaskLocked()
			c.wire.sharded.Store(false)
		default:
			l.failLocked(s, err)
		}
	}
	switch wait := pause(refusals + 1); {
	case refusals == 0:
		l.kick()
	case q.sharded:
		l.hub.relocateLocked(q.subs[0], wait)
	default:
		made := l.made
		c.workers.start(func() { l.again(q.subs, wait, made) })
	}
}

// failLocked ends a subscription that the server refuses for good.
func (l *link) failLocked(s *subscription, err error) {
	for _, w := range s.waiters {
		w.failLocked(err)
	}
	l.removeLocked(s)
}

// barred handles the error of a connection that could not be made: where the server will not have it, now or later, as with a
// wrong password, or the go-redis client is closed, the waiters are told. (That of a node go-redis closes by itself when the node
// has left the cluster: then they are somewhere else.)
func (l *link) barred(err error) {
	if judge(err) != refused || l.node != "" && isRedisClosed(err) {
		return
	}
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	for s := range l.subs {
		l.failLocked(s, err)
	}
}

// again asks once more after a pause, for all that was asked for together: on the same connection, as a new one asks by itself.
func (l *link) again(subs []*subscription, pause time.Duration, made time.Time) {
	if sleep(context.Background(), l.hub.client.closed, pause) != nil {
		return
	}
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	if !l.made.Equal(made) {
		return
	}
	for _, s := range subs {
		if s.link == l && s.stage == asking {
			s.unaskLocked()
		}
	}
	l.kick()
}

// ofLocked is the subscriptions to a channel that are this link's.
func (l *link) ofLocked(channel string) []*subscription {
	var subs []*subscription
	for _, topic := range l.hub.client.layout.topics(channel, l.hub.client.id) {
		if s := l.hub.subs[topic]; s != nil && s.link == l {
			subs = append(subs, s)
		}
	}
	return subs
}

// evicted handles the loss of a subscription that the server ended by itself: its slot has moved to another node. Its plain
// twin goes there too: the node may be about to leave the cluster.
func (l *link) evicted(channel string) {
	b := l.hub
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range l.ofLocked(channel) {
		if !s.sharded && !s.plain {
			continue
		}
		s.there = s.there && s.plain
		if s.stage == confirmed { // not one that we have just given up
			b.relocateLocked(s, 0)
		}
	}
}

// relocateLocked moves a subscription, after a pause, to the link of the node that has its slot then. It is asked for there,
// or where it was once more; either way its waiters ask Redis again when it is confirmed.
func (b *hub) relocateLocked(s *subscription, pause time.Duration) {
	s.stage = asking
	s.moves++
	move := s.moves
	b.client.workers.start(func() { b.relocate(s, move, pause) })
}

func (b *hub) relocate(s *subscription, move int, pause time.Duration) {
	c := b.client
	if sleep(context.Background(), c.closed, pause) != nil {
		return
	}
	ctx, cancel := context.WithTimeout(c.life, subscribeLimit)
	defer cancel()
	node, rdb, err := c.wire.relocated(ctx, s.key)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.subs[s.topic] != s || s.moves != move {
		return
	}
	if err == nil && node != s.link.node {
		if l := b.linkLocked(node, rdb); l != nil {
			rests := s.idle != nil
			s.link.letGoLocked(s)
			if s.there { // and whoever else is heard on that connection keeps it
				s.link.leave = append(s.link.leave, departure{s.channel, s.sharded})
				s.there = false
			}
			s.link.kick()
			s.link = l
			l.subs[s] = struct{}{}
			if rests {
				s.restLocked()
			}
		}
	}
	s.unaskLocked()
	s.link.kick()
}

// reset forgets what the lost connection had, if it was one. What nobody waits for is not asked for again.
func (l *link) reset(lost bool) {
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	l.asked, l.leave, l.todo, l.stale = nil, nil, nil, 0
	now := &outage{since: time.Now()}
	for s := range l.subs {
		s.there = false
		if lost && (s.outage == nil || s.outage.over) {
			s.outage = now
		}
		switch {
		case len(s.waiters) == 0:
			l.removeLocked(s)
		case l.node != "": // the slot's master may be another by now
			l.hub.relocateLocked(s, 0)
		default:
			s.unaskLocked()
		}
	}
}

// drop takes a link out of the hub when the client is closed.
func (b *hub) drop(l *link) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for s := range l.subs {
		l.removeLocked(s)
	}
	delete(b.links, l.node)
}
