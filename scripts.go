package relock

import (
	"context"
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// This file is the Redis side: the only place that knows keys, arguments and replies (with redisson.go, for that layout). Each
// script sets state and never adds to it, so running one twice does what running it once does, and a reply that was lost is
// answered by asking again.

//go:embed scripts/*.lua scripts/redisson/*.lua
var sources embed.FS

type script struct {
	name, source, sha string

	shaArg any // sha, as an argument
}

var (
	acquireScript      = loadScript("acquire")
	releaseScript      = loadScript("release")
	renewScript        = loadScript("renew")
	abandonScript      = loadScript("abandon")
	stateScript        = loadScript("state")
	forceReleaseScript = loadScript("force_release")
	passScript         = loadScript("pass")
	manyScript         = loadScript("many")
)

const includeDirective = "--- include "

func loadScript(name string) *script {
	source := loadSource(name)
	sum := sha1.Sum([]byte(source)) // what EVALSHA wants; not for secrecy
	sha := hex.EncodeToString(sum[:])
	return &script{name: path.Base(name), source: source, sha: sha, shaArg: sha}
}

// loadSource reads a file and puts those that it includes where it names them. Lua builds the functions of an include
// when it gets there, so a script that returns before pays nothing for them.
func loadSource(name string) string {
	source, err := sources.ReadFile("scripts/" + name + ".lua")
	if err != nil {
		panic(err) // the file is part of the build
	}
	var b strings.Builder
	for line := range strings.Lines(string(source)) {
		if include, ok := strings.CutPrefix(strings.TrimSpace(line), includeDirective); ok {
			b.WriteString(loadSource(include))
		} else {
			b.WriteString(line)
		}
	}
	return b.String()
}

// keys is where a lock is in Redis. In relock's own layout, every key and channel begins with base, which has a complete
// hash tag, so in a cluster they all share one slot.
type keys struct {
	layout             layout
	name               string
	base, queue, token string
	topic              string // what the hub knows its channel by
	plain              bool   // the channel is one of plain pub/sub also where that is sharded

	args [3]any // base, queue and token, as arguments
}

const (
	queueSuffix = ":queue"
	tokenSuffix = ":token"
)

// newKeys places a lock: prefix{name}, or prefix+name where that has a hash tag of its own already.
func newKeys(prefix, name string) (*keys, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	base := prefix + "{" + name + "}"
	if hashTag(name) != "" {
		if strings.HasSuffix(name, queueSuffix) || strings.HasSuffix(name, tokenSuffix) {
			return nil, invalid("lock name %q: a name with a hash tag must not end in %q or %q, which are keys of another lock",
				name, queueSuffix, tokenSuffix)
		}
		base = prefix + name
	}
	if strings.Contains(prefix, "{") && hashTag(base) == "" {
		return nil, invalid("prefix %q with lock name %q: the key %q would have an empty hash tag, and the keys of the lock different "+
			"slots in a cluster; a prefix must have no '{', or a whole tag such as {app}", prefix, name, base)
	}
	if hashTag(base) == "" {
		return nil, invalid("lock name %q: the key %q would have an empty hash tag, and the keys of the lock different slots "+
			"in a cluster; a name must not begin with '}'", name, base)
	}
	return keysAt(name, base), nil
}

func checkName(name string) error {
	if name == "" {
		return invalid("lock name is empty; 1 to %d bytes are allowed", MaxNameLen)
	}
	if len(name) > MaxNameLen {
		return invalid("lock name has %d bytes; at most %d are allowed", len(name), MaxNameLen)
	}
	return nil
}

// keysAt is the keys of the lock that is known to be at base.
func keysAt(name, base string) *keys {
	k := &keys{layout: native{}, name: name, base: base, queue: base + queueSuffix, token: base + tokenSuffix, topic: base}
	k.args = [3]any{k.base, k.queue, k.token}
	return k
}

// hashTag is the part of a key that decides its slot in a cluster, empty if it is the whole key: what stands between
// the first '{' and the first '}' behind it.
func hashTag(key string) string {
	_, rest, _ := strings.Cut(key, "{")
	tag, _, ok := strings.Cut(rest, "}")
	if !ok {
		return ""
	}
	return tag
}

// channel is where a client's waiters hear of their lock.
func (k *keys) channel(client string) string { return k.layout.channel(k, client) }

// grantMessage is what the grant script publishes: the hold, and its token.
func grantMessage(payload string) (hold string, token int64, ok bool) {
	hold, digits, ok := strings.Cut(payload, "|")
	if !ok {
		return "", 0, false
	}
	token, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || token <= 0 || hold == "" || digits[0] == '+' {
		return "", 0, false
	}
	return hold, token, true
}

// command is a command that go-redis must not send again by itself. After a broken connection it would, without
// telling; only our own loop may, because it knows that it did.
type command struct {
	*redis.Cmd
}

// NoRetry makes go-redis send the command once.
func (command) NoRetry() bool { return true }

// Clone keeps that.
func (c command) Clone() redis.Cmder { return command{c.Cmd.Clone().(*redis.Cmd)} }

// request is one script call.
type request struct {
	script *script
	name   string // the lock, for messages
	args   []any  // the whole command, beginning with EVALSHA; nil: that of a usual request

	// A usual request is the first entry or the last exit of a hold, with nothing to say but its lease. Many can go in one call.
	usual usual
	keys  *keys
	id    *string       // the hold
	lease time.Duration // that it sets, 0 if it leaves it alone
	alone bool          // it must have a call of its own

	// refresh is the lease that a nested entry, or an exit that is not the last, sets when it is sent again: by then less may be left
	// of the longest hold, or nobody work in the section any more. nil for all others.
	refresh func() time.Duration
	leaseAt int // where the lease stands in args

	// until is when go-redis must not wait for a connection any longer; zero: the context says so, or nobody does.
	until time.Time

	acks        int // replicas that must confirm, 0 for none
	acksTimeout time.Duration

	// first is the hold that this request makes the owner; nil for all others. If it is given up on its way, the hold's
	// orphan is told when it has landed.
	first *hold
}

// renewLease makes the request ready to be sent again. Its old arguments stay as they are, for whoever still looks at them.
func (r *request) renewLease() {
	if r.refresh != nil {
		r.lease = r.refresh()
		r.args = slices.Clone(r.args)
		r.args[r.leaseAt] = millis(r.lease)
	}
}

// usualRequests are those that are not needed any more: a seventh of what a pair would allocate.
var usualRequests = sync.Pool{New: func() any { return new(request) }}

func newUsualRequest(s *script, u usual, h *hold, lease time.Duration) *request {
	r := usualRequests.Get().(*request)
	*r = request{script: s, name: h.keys.name, usual: u, keys: h.keys, id: &h.id, lease: lease}
	return r
}

// usual is what a usual request does.
type usual int

const (
	unusual usual = iota
	usualEntry
	usualExit
)

// newRequest begins a request; the caller appends the arguments. Strings that change from call to call go in as *string,
// which go-redis sends alike: putting a pointer into an interface costs no allocation.
func newRequest(s *script, k *keys, args int) *request {
	r := &request{script: s, name: k.name, args: make([]any, 0, 3+len(k.args)+args)}
	r.args = append(append(r.args, evalSHA, s.shaArg, len(k.args)), k.args[:]...)
	return r
}

var evalSHA, evalText any = "EVALSHA", "EVAL"

func (r *request) command(ctx context.Context, eval bool) command {
	args := r.args
	if r.usual != unusual {
		args = make([]any, 0, 8)
		args = append(append(args, evalSHA, r.script.shaArg, len(r.keys.args)), r.keys.args[:]...)
		args = append(args, r.id)
		if r.usual == usualEntry {
			args = append(args, millis(r.lease))
		}
	}
	if eval {
		args = slices.Clone(args)
		args[0], args[1] = evalText, r.script.source
	}
	return command{redis.NewCmd(ctx, args...)}
}

// answer is what became of a request.
type answer struct {
	reply any
	acked int           // replicas that confirmed
	sent  time.Time     // just before the attempt that was answered was sent
	lease time.Duration // that the command has set, 0 if it left it alone
	// unsure: the end of some attempt is not known. It may have run, or run yet.
	unsure bool
	// gaveUp: the last attempt was given up on its way; it ends with go-redis.
	gaveUp bool
}

// verdict is what an error says about the command.
type verdict int

const (
	refused verdict = iota // the server will not run it, now or later
	passing                // the server did not run it, but may if asked again
	unsent                 // it did not reach a server
	unknown                // it may have run, or may yet
)

// passingCodes are the error codes of a server that does not serve right now: it starts, fails over, or is out of
// connections, replicas or time. Others, such as NOAUTH, NOPERM, WRONGTYPE or OOM, stay until somebody mends them.
var passingCodes = map[string]bool{
	"LOADING": true, "READONLY": true, "MASTERDOWN": true, "CLUSTERDOWN": true, "TRYAGAIN": true, "BUSY": true,
	"NOREPLICAS": true, "MOVED": true, "ASK": true, "UNBLOCKED": true,
}

func judge(err error) verdict {
	var reply redis.Error
	if errors.Is(err, errNoAcks) {
		return unknown
	}
	if errors.Is(err, errNotTogether) {
		return passing
	}
	if isContextEnd(err) {
		return unsent // go-redis says so where the context ends before there is a connection; later ends are network errors
	}
	if errors.As(err, &reply) {
		if passes(reply) {
			return passing
		}
		return refused
	}
	if isRedisClosed(err) {
		return refused
	}
	var op *net.OpError
	if errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrPoolExhausted) || errors.As(err, &op) && op.Op == "dial" {
		return unsent
	}
	return unknown
}

// isRedisClosed says whether the go-redis client was closed: it sends nothing any more.
func isRedisClosed(err error) bool { return errors.Is(err, redis.ErrClosed) }

// passes says whether a server that answers so may answer otherwise when it is asked again.
func passes(reply redis.Error) bool {
	msg := reply.Error()
	return passingCodes[errorCode(msg)] || strings.Contains(msg, "max number of clients reached") ||
		strings.Contains(msg, "non local key") // from a script, while its slot migrates
}

// errorCode is the first word of an error reply. Redis before 7 wraps an error of a command in a script: "ERR Error
// running script (call to f_...): @user_script:1: -OOM command not allowed", or without the first half, where the script returns it.
func errorCode(msg string) string {
	if i := strings.Index(msg, ": -"); i >= 0 && (strings.HasPrefix(msg, "ERR ") || strings.HasPrefix(msg, "@user_script: ")) {
		msg = msg[i+len(": -"):]
	}
	code, _, _ := strings.Cut(msg, " ")
	return code
}

// How a script is sent again. The first time at once, then with growing pauses. (Connections from the pool that were dead do not
// count, see wasStale.)
const (
	firstPause = 5 * time.Millisecond
	longPause  = 500 * time.Millisecond
)

func pause(attempt int) time.Duration {
	if attempt <= 1 {
		return 0
	}
	d := min(firstPause<<min(attempt-2, 10), longPause)
	return d/2 + rand.N(d/2)
}

// wire sends scripts.
type wire struct {
	rdb      redis.UniversalClient
	cluster  clusterClient // rdb, if it is one
	client   string        // the client id
	patience time.Duration // how long go-redis waits for an answer
	sharded  atomic.Bool   // pub/sub is sharded, as in a cluster of Redis 7 or newer
	workers  *workers
	lanes    lanes
	mapping  chan struct{} // taken by whoever reads the map of the cluster
	mapped   time.Time     // when it was last read; guarded by mapping
	reached  atomic.Bool   // the cluster has answered, so go-redis has its map
	orphans  *orphans
	retried  func(r *request, attempt, tries int, err error)
}

// publish is the command with which scripts send grants.
func (w *wire) publish() string {
	if w.sharded.Load() {
		return "SPUBLISH"
	}
	return plainPublish
}

// plainPublish is what scripts take where they are not told.
const plainPublish = "PUBLISH"

// node is the server that publishes grants for a lock: its name (empty if there is only one) and a client for it.
func (w *wire) node(ctx context.Context, key string) (string, redis.UniversalClient, error) {
	if w.cluster == nil {
		return "", w.rdb, nil
	}
	master, err := w.cluster.MasterForKey(ctx, key)
	if err != nil {
		return "", nil, err
	}
	return master.Options().Addr, master, nil
}

// relocated is node for a key that is not where it was: it asks the cluster instead of the client's map of it. Many at a
// time share one answer.
func (w *wire) relocated(ctx context.Context, key string) (string, redis.UniversalClient, error) {
	select {
	case w.mapping <- struct{}{}:
	case <-ctx.Done():
		return "", nil, ended(ctx)
	}
	if time.Since(w.mapped) > mapAge {
		// The only way to make the client read the map again before it goes on.
		_ = w.cluster.ForEachMaster(ctx, func(context.Context, *redis.Client) error { return nil })
		w.mapped = time.Now()
	}
	<-w.mapping
	return w.node(ctx, key)
}

// mapAge is how old the client's map of the cluster may be where it has just been wrong.
const mapAge = 200 * time.Millisecond

// triesTake is how long tryAttempts tries can take over connections that are there.
func (w *wire) triesTake() time.Duration {
	return min(w.patience, math.MaxInt64/tryAttempts) * tryAttempts
}

// effort is how hard a request is tried.
type effort struct {
	stop  <-chan struct{} // ends it with ErrClosed; nil: never
	tries int             // 0: until ctx is done
	until time.Time       // ends it like a deadline of ctx; zero: never
	// lease, if there is one: until is when it ends as far as is known, or at a limit. Where it is renewed by then, the effort goes on
	// until it is over, or at the limit; zero: there is none.
	lease *hold
	limit time.Time
}

// bound is a context that ends with the effort.
func (e effort) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if e.lease != nil {
		return e.lease.bound(ctx, e.limit)
	}
	return context.WithDeadline(ctx, e.until)
}

// run sends a request until it is answered, refused, or ctx is done. The answer says what is known also with an error.
// It returns as soon as ctx is done, even while Redis is silent; what was sent then may still run.
func (w *wire) run(ctx context.Context, r *request, e effort) (answer, error) {
	var a answer
	var last error // of the attempt before
	again := false // the next attempt follows one that failed
	eval := false
	stale, idle := 0, math.MaxInt // attempts that were no tries, see wasStale
	tries := 0                    // all others
	for attempt := 1; ; {
		a.sent = time.Now()
		if !e.until.IsZero() && (attempt > 1 || e.until.Sub(a.sent) < w.patience || w.cluster != nil) {
			var cancel context.CancelFunc
			ctx, cancel = e.bound(ctx) //nolint:fatcontext // once: until is zero from then on
			defer cancel()
			e.until = time.Time{}
		}
		r.until = e.until // else it is answered before, or go-redis has no connection
		if ctx.Err() != nil {
			return a, endedAfter(ctx, last)
		}
		if again {
			again = false
			w.retried(r, attempt-1, tries, last)
			r.renewLease()
		}
		reply, acked, err := w.send(ctx, r, eval, e.stop)
		if err == nil {
			if w.cluster != nil && !w.reached.Load() {
				w.reached.Store(true)
			}
			a.reply, a.acked, a.lease = reply, acked, r.lease
			return a, nil
		}
		if errors.Is(err, ErrClosed) || errors.Is(err, errGivenUp) {
			a.gaveUp = true
			a.unsure = a.unsure || r.first == nil
			if last == nil { // else what Redis has said says more than that it has not spoken since
				last = err
			}
			if ctx.Err() != nil {
				return a, endedAfter(ctx, last)
			}
			return a, ErrClosed
		}
		if !eval && redis.HasErrorPrefix(err, "NOSCRIPT") {
			eval = true // the server has forgotten, or never had, the script; it has not run, and that is no try
			r.renewLease()
			continue
		}
		if err == errAskAlone || err == errNotTogether { //nolint:errorlint // as they are
			r.alone = true // that is no try either
			// An entry that has run is answered again. An exit finds nothing, and must know why.
			a.unsure = a.unsure || err == errAskAlone //nolint:errorlint // as it is
			continue
		}
		v := judge(err)
		if v == unknown {
			a.unsure = true
		}
		if last == nil || !isContextEnd(err) { // else what Redis has said says more than that this was not sent
			last = err
		}
		if ctx.Err() != nil {
			return a, endedAfter(ctx, last)
		}
		if w.wasStale(err, &idle) {
			stale++
		}
		tries = attempt - stale
		if v == refused || e.tries > 0 && tries >= e.tries || errors.Is(err, errNoAcks) && !waitPasses(err) {
			return a, err
		}
		if w.cluster != nil {
			w.cluster.ReloadState(ctx)
		}
		again = true
		attempt++
		if sleep(ctx, e.stop, pause(tries)) == ErrClosed { //nolint:errorlint // as it is: ctx may have ended with that of another client
			return a, ErrClosed
		}
	}
}

// wasStale says that a command had no chance: go-redis had kept its connection, which had ended. Over TLS, or what a dialer of the
// caller's makes, it cannot see that before it uses one; and where the server was restarted, or has ended what was idle, it can have
// dozens of these. So that was no try, and the next one needs no pause, as long as there are fewer idle connections each time: fewest
// is how many there were, math.MaxInt at first. A server that ends every connection is asked no more often than that.
func (w *wire) wasStale(err error, fewest *int) bool {
	if !hasEnded(err) || w.cluster != nil && !w.reached.Load() { // else go-redis would wait for the map
		return false
	}
	stats := w.rdb.PoolStats()
	idle := int(stats.IdleConns)
	if pipelines := stats.PipelineStats; pipelines != nil {
		idle += int(pipelines.IdleConns)
	}
	if idle == 0 || idle >= *fewest {
		return false
	}
	*fewest = idle
	return true
}

// hasEnded says that a command failed with its connection, and not for the time that its answer took.
func hasEnded(err error) bool {
	var op *net.OpError
	return errors.Is(err, io.EOF) || errors.As(err, &op) && op.Op != "dial" && !op.Timeout()
}

// process lets go-redis send the command, with WAIT behind it on the same connection where replicas must confirm.
func (w *wire) process(ctx context.Context, r *request, eval bool) (reply any, acked int, err error) {
	if !r.until.IsZero() {
		limit := &limited{Context: ctx, deadline: r.until}
		defer limit.end()
		ctx = limit
	}
	cmd := r.command(ctx, eval)
	if r.acks == 0 {
		err = believed(ctx, w.rdb.Process(ctx, cmd))
		return cmd.Val(), 0, err
	}
	_, node, err := w.node(ctx, cmd.Args()[3].(string)) // WAIT has no key: a cluster client would send it anywhere
	if err != nil {
		return nil, 0, err
	}
	wait := command{redis.NewCmd(ctx, "WAIT", r.acks, millis(r.acksTimeout))}
	pipe := node.Pipeline()
	_ = pipe.Process(ctx, cmd) // queued
	_ = pipe.Process(ctx, wait)
	exec(ctx, pipe)
	if err := cmd.Err(); err != nil {
		return nil, 0, err
	}
	if acked, err = wait.Int(); err != nil {
		return nil, 0, fmt.Errorf("%w: %w", errNoAcks, err)
	}
	return cmd.Val(), acked, nil
}

// exec sends what is queued in pipe, and notes with each command its own reply or error. (go-redis notes with none of them what a
// hook says instead of sending them, or Redis while a connection is made.)
func exec(ctx context.Context, pipe redis.Pipeliner) {
	cmds, err := pipe.Exec(ctx)
	for _, cmd := range cmds {
		cmd := cmd.(command)
		if cmd.Err() == nil && cmd.Val() == nil {
			cmd.SetErr(err)
		}
		cmd.SetErr(believed(ctx, cmd.Err()))
	}
}

// believed is what go-redis says of a command that was sent with ctx. That a context has ended, it says as it is only of a command
// that was not sent; where ctx has not, it was the context of a hook, or of a dialer, and the command may have been sent.
func believed(ctx context.Context, err error) error {
	if isContextEnd(err) && ctx.Err() == nil {
		return fmt.Errorf("%w, though the call goes on", err)
	}
	return err
}

// isContextEnd says whether err is one of the two as it is, and not inside another.
func isContextEnd(err error) bool {
	return err == context.Canceled || err == context.DeadlineExceeded //nolint:errorlint // as they are
}

// errNoAcks says that a script has run, and that Redis then would not say how many replicas have it.
var errNoAcks = errors.New("WAIT failed after the script")

// waitPasses says whether that is because the server does not serve right now, as one that has just become a replica.
func waitPasses(err error) bool {
	var reply redis.Error
	return errors.As(err, &reply) && (passes(reply) || strings.Contains(reply.Error(), "WAIT cannot be used with replica"))
}

// endedAfter is ended with the error of the last attempt, if there was one.
func endedAfter(ctx context.Context, last error) error {
	if last == nil {
		return ended(ctx)
	}
	return fmt.Errorf("%w (last: %w)", ended(ctx), last)
}

// sleep is a pause that ends early with an error.
func sleep(ctx context.Context, stop <-chan struct{}, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-stop: // before a timer that has fired already
		return ErrClosed
	default:
	}
	select {
	case <-timer.C:
		return nil
	case <-stop:
		return ErrClosed
	case <-ctx.Done():
		return ended(ctx)
	}
}

// result is what became of one of many requests.
type result struct {
	reply any
	err   error
}

// runAll sends requests that do not depend on each other in one round trip, once, and returns when all are answered or
// ctx is done.
func (w *wire) runAll(ctx context.Context, requests []request) []result {
	done := make(chan []result, 1)
	w.workers.start(func() { done <- w.pipeline(ctx, requests) })
	select {
	case results := <-done:
		return results
	case <-ctx.Done():
		results := make([]result, len(requests))
		for i := range results {
			results[i].err = errGivenUp
		}
		return results
	}
}

func (w *wire) pipeline(ctx context.Context, requests []request) []result {
	results := make([]result, len(requests))
	todo := make([]int, len(requests))
	for i := range todo {
		todo[i] = i
	}
	for eval, idle := false, math.MaxInt; len(todo) > 0; {
		cmds := make([]redis.Cmder, len(todo))
		for i, n := range todo {
			cmds[i] = requests[n].command(ctx, eval)
		}
		pipe := w.rdb.Pipeline()
		_ = pipe.BatchProcess(ctx, cmds...) // queued
		exec(ctx, pipe)
		var again, ended []int // whose server does not have the script; whose connection has ended
		for i, n := range todo {
			results[n].reply, results[n].err = cmds[i].(command).Result()
			err := results[n].err
			if w.cluster != nil && err != nil && judge(err) != refused {
				w.cluster.ReloadState(ctx) // go-redis does so by itself only where a node says MOVED
			}
			switch {
			case !eval && redis.HasErrorPrefix(err, "NOSCRIPT"):
				again = append(again, n)
			case hasEnded(err):
				ended = append(ended, n)
			}
		}
		eval = eval || len(again) > 0
		if len(ended) > 0 && w.wasStale(results[ended[0]].err, &idle) {
			again = append(again, ended...)
		}
		todo = again
	}
	return results
}

// ---------------------------------------------------------------------------------------------------------------------
// One function for each script.

type acquireStatus int

const (
	acquireBusy acquireStatus = iota
	acquireOurs
	acquireQueued
	acquireLost
)

// acquisition is the reply to acquire.
type acquisition struct {
	status    acquireStatus
	token     int64         // ours: its token; queued: the last one before this answer
	owner     string        // busy, queued: the hold that has it
	remaining time.Duration // busy, queued: of its lease; negative: it has none
	arrival   int64         // queued: in microseconds
	position  int           // queued: how many are before this one
}

// acquire asks for a lock, or for one more entry into it, as hold h whose count is to become target. With wait it joins
// the queue of a lock that another holder has, or stays there with its first arrival.
func (w *wire) acquire(ctx context.Context, h *hold, target int, wait bool, arrival int64, e effort) (acquisition, answer, error) {
	step, lease := int64(firstStep), h.ttl
	if target > 1 {
		step, lease = h.nextStep(), h.refresh(true)
	}
	r := h.keys.layout.acquire(w, h, change{target: target, step: step, lease: lease}, wait, arrival)
	r.lease = lease
	if target == 1 {
		r.first, r.acks, r.acksTimeout = h, h.acks, h.acksTimeout
	} else {
		r.refresh = func() time.Duration { return h.refresh(true) }
	}
	a, err := w.runStep(ctx, h, r, e)
	if err != nil {
		return acquisition{}, a, err
	}
	reply, err := h.keys.layout.acquisition(a.reply)
	a.unsure = a.unsure || err != nil // it may have run, whatever stands in the way of its reply
	if reply.status == acquireOurs {
		h.told = target
	}
	return reply, a, err
}

func (native) acquire(w *wire, h *hold, c change, wait bool, arrival int64) *request {
	aside := 0
	if c.target == 1 {
		aside = h.aside
	}
	if c.target == 1 && !wait && aside == 0 && w.publish() == plainPublish {
		return newUsualRequest(acquireScript, usualEntry, h, c.lease)
	}
	r := newRequest(acquireScript, h.keys, 8)
	r.leaseAt = len(r.args) + 1
	r.args = append(r.args, &h.id, millis(c.lease), c.target, c.step, w.publish())
	switch {
	case wait:
		r.args = append(r.args, &w.client, arrival)
	case aside > 0:
		r.args = append(r.args, "", 0)
	}
	if aside > 0 {
		r.args = append(r.args, aside)
	}
	return r
}

func (native) acquisition(reply any) (acquisition, error) {
	if n, ok := reply.(int64); ok {
		switch {
		case n > 0:
			return acquisition{status: acquireOurs, token: n}, nil
		case n == 0:
			return acquisition{status: acquireLost}, nil
		}
		return acquisition{}, badReply(acquireScript, reply)
	}
	fields, ok := reply.([]any)
	if !ok || len(fields) != 2 && len(fields) != 5 {
		return acquisition{}, badReply(acquireScript, reply)
	}
	r := acquisition{status: acquireBusy}
	remaining, isInt := fields[0].(int64)
	r.remaining = fromMillis(remaining)
	if r.owner, ok = fields[1].(string); !ok || !isInt || r.owner == "" {
		return acquisition{}, badReply(acquireScript, reply)
	}
	if len(fields) == 5 {
		arrival, ok1 := fields[2].(int64)
		position, ok2 := fields[3].(int64)
		token, ok3 := fields[4].(int64)
		if !ok1 || !ok2 || !ok3 || arrival <= 0 || position < 0 || token < 0 {
			return acquisition{}, badReply(acquireScript, reply)
		}
		r.status, r.arrival, r.position, r.token = acquireQueued, arrival, int(position), token
	}
	return r, nil
}

// runStep sends an entry or exit of a hold, whose turn it is, and notes whether its end is known. It is not until it is back: a
// hook of the go-redis client may panic. The request is over then, unless it was given up on its way.
func (w *wire) runStep(ctx context.Context, h *hold, r *request, e effort) (answer, error) {
	before := h.doubt
	h.doubt = true
	a, err := w.run(ctx, r, e)
	h.doubt = before || a.unsure || a.gaveUp
	if r.usual != unusual && !a.gaveUp {
		*r = request{}
		usualRequests.Put(r)
	}
	return a, err
}

// release leaves the hold with target entries, or frees the lock if that is 0. It says whether the hold was there.
func (w *wire) release(ctx context.Context, h *hold, target int, e effort) (bool, answer, error) {
	step, lease := h.nextStep(), time.Duration(0)
	if target > 0 {
		lease = h.refresh(false)
	}
	r := h.keys.layout.release(w, h, change{target: target, step: step, lease: lease})
	script := r.script
	if target > 0 {
		r.lease, r.refresh = lease, func() time.Duration { return h.refresh(false) }
	}
	a, err := w.runStep(ctx, h, r, e)
	if err != nil {
		return false, a, err
	}
	n, err := parseNumber(script, a.reply)
	if n == 1 {
		h.told = target
	}
	return n == 1, a, err
}

func (native) release(w *wire, h *hold, c change) *request {
	unused := c.target == 0 && h.lastToken > h.usedToken
	if c.target == 0 && !unused && w.publish() == plainPublish {
		return newUsualRequest(releaseScript, usualExit, h, 0)
	}
	r := newRequest(releaseScript, h.keys, 7)
	r.leaseAt = len(r.args) + 3
	r.args = append(r.args, &h.id, c.target, c.step, millis(c.lease), w.publish())
	if unused {
		r.args = append(r.args, h.usedToken, h.lastToken)
	}
	return r
}

// manyBatch is how many locks one script call takes and releases: enough that the call itself costs little, few enough that the
// server is not held up (about 0.1 ms).
const manyBatch = 64

// manyCommand is one call for usual requests. It sorts them as the script wants them: exits first.
func manyCommand(batch []*flight, eval bool) command {
	var entering [manyBatch]*flight
	exits := batch[:0]
	entries := entering[:0]
	for _, f := range batch {
		if f.request.usual == usualExit {
			exits = append(exits, f)
		} else {
			entries = append(entries, f)
		}
	}
	copy(batch[len(exits):], entries)
	n := len(batch)
	leases := min(len(entries), 1)
	for _, f := range entries {
		if f.request.lease != entries[0].request.lease {
			leases = len(entries)
			break
		}
	}
	args := make([]any, 0, 4+4*n+leases)
	if eval {
		args = append(args, evalText, manyScript.source, 3*n)
	} else {
		args = append(args, evalSHA, manyScript.shaArg, 3*n)
	}
	for which := range 3 { // base, queue, token
		for _, f := range batch {
			args = append(args, f.request.keys.args[which])
		}
	}
	args = append(args, len(exits))
	for _, f := range batch {
		args = append(args, f.request.id)
	}
	for _, f := range entries[:leases] {
		args = append(args, millis(f.request.lease))
	}
	return command{redis.NewCmd(context.Background(), args...)}
}

// manyNothing is the reply for an exit that must be sent by itself and has changed nothing.
const manyNothing int64 = -1

// manyReplies is the reply to manyCommand: one for each flight, nil for one that must be sent by itself, as it may have run in part.
func manyReplies(cmd command, n int) ([]any, error) {
	reply, err := cmd.Result()
	if err != nil {
		return nil, err
	}
	replies, ok := reply.([]any)
	if !ok || len(replies) != n {
		return make([]any, n), nil // no answer for anybody
	}
	return replies, nil
}

// pass notes that the hold to which Redis gave a lock has passed it on, for the number-th time, and to which. It says whether the
// lock was ours.
func (w *wire) pass(ctx context.Context, k *keys, id string, number int, to string, e effort) (bool, error) {
	r := &request{script: passScript, name: k.name, args: []any{evalSHA, passScript.shaArg, 1, k.base, id, number, to}}
	a, err := w.run(ctx, r, e)
	if err != nil {
		return false, err
	}
	n, err := parseNumber(r.script, a.reply)
	return n == 1, err
}

// extend renews one lease by itself and says whether the hold was there.
func (w *wire) extend(ctx context.Context, h *hold, ttl time.Duration, e effort) (bool, answer, error) {
	r := renewRequest([]renewal{{hold: h, ttl: ttl}})
	a, err := w.run(ctx, &r, e)
	if err != nil {
		return false, a, err
	}
	lost, err := parseLost(a.reply, 1)
	return len(lost) == 0, a, err
}

// renewal is one lease in a batch, and then what became of it.
type renewal struct {
	hold *hold
	ttl  time.Duration

	lost bool
	err  error
}

// renewBatch is how many leases one script call renews: enough that the call itself costs nothing, few enough that the
// server is not held up (about 0.1 ms).
const renewBatch = 100

func renewRequest(batch []renewal) request {
	leases := 1
	for i := range batch {
		if batch[i].ttl != batch[0].ttl {
			leases = len(batch)
			break
		}
	}
	r := request{script: renewScript, name: batch[0].hold.keys.name, args: make([]any, 0, 3+2*len(batch)+leases)}
	r.args = append(r.args, evalSHA, renewScript.shaArg, len(batch))
	for i := range batch {
		r.args = append(r.args, &batch[i].hold.keys.base)
	}
	for i := range batch {
		r.args = append(r.args, &batch[i].hold.id)
	}
	for i := range leases {
		r.args = append(r.args, millis(batch[i].ttl))
	}
	return r
}

// parseLost reads the positions of lost holds, which must be in 1..n and ascending.
func parseLost(reply any, n int) ([]int, error) {
	list, ok := reply.([]any)
	if !ok {
		return nil, badReply(renewScript, reply)
	}
	lost := make([]int, 0, len(list))
	for _, v := range list {
		i, ok := v.(int64)
		if !ok || i < 1 || i > int64(n) || len(lost) > 0 && int(i)-1 <= lost[len(lost)-1] {
			return nil, badReply(renewScript, reply)
		}
		lost = append(lost, int(i)-1)
	}
	return lost, nil
}

// renew makes one attempt to renew a batch in one round trip, and notes in each renewal what became of it.
func (w *wire) renew(ctx context.Context, batch []renewal) {
	if w.cluster == nil {
		w.renewTogether(ctx, batch, renewBatch)
		return
	}
	// One call may only name keys of one slot: what shares a hash tag goes together.
	slices.SortFunc(batch, func(a, b renewal) int { return strings.Compare(a.hold.tag(), b.hold.tag()) })
	w.renewTogether(ctx, batch, renewBatch)
	// While a slot migrates, its node refuses a call where it has some of the keys and not others. Alone each one is answered.
	var refused []int
	var alone []renewal
	for i, r := range batch {
		if r.err != nil && errorCode(r.err.Error()) == "TRYAGAIN" {
			refused, alone = append(refused, i), append(alone, r)
		}
	}
	if len(alone) == 0 {
		return
	}
	w.renewTogether(ctx, alone, 1)
	for i, r := range alone {
		batch[refused[i]] = r
	}
}

// renewTogether is renew with so many in a call at most. Those for one slot of a cluster stand side by side.
func (w *wire) renewTogether(ctx context.Context, batch []renewal, most int) {
	scripts := 1 + len(batch)/most
	groups, requests := make([][]renewal, 0, scripts), make([]request, 0, scripts)
	for len(batch) > 0 {
		n := 1
		for n < len(batch) && n < most && (w.cluster == nil || batch[n].hold.tag() == batch[0].hold.tag()) {
			n++
		}
		groups = append(groups, batch[:n])
		requests = append(requests, renewRequest(batch[:n]))
		batch = batch[n:]
	}
	for i, res := range w.runAll(ctx, requests) {
		var lost []int
		if res.err == nil {
			lost, res.err = parseLost(res.reply, len(groups[i]))
		}
		for j := range groups[i] {
			groups[i][j].err = res.err
		}
		for _, j := range lost {
			groups[i][j].lost = true
		}
	}
}

// tag is what decides the slot of a hold in a cluster.
func (h *hold) tag() string { return slotOf(h.keys.base) }

// slotOf is the part of a key that decides its slot in a cluster: its hash tag, or else the whole key.
func slotOf(key string) string {
	if tag := hashTag(key); tag != "" {
		return tag
	}
	return key
}

// abandon makes one attempt to take back what holds may have left behind, and returns an error for each that failed.
func (w *wire) abandon(ctx context.Context, batch []*orphan) []error {
	requests := make([]request, len(batch))
	for i, p := range batch {
		requests[i] = *p.hold.keys.layout.abandon(w, p.hold)
	}
	errs := make([]error, len(batch))
	for i, res := range w.runAll(ctx, requests) {
		if errs[i] = res.err; res.err == nil {
			_, errs[i] = parseNumber(requests[i].script, res.reply)
		}
	}
	return errs
}

func (native) abandon(w *wire, h *hold) *request {
	r := newRequest(abandonScript, h.keys, 4)
	var lease any = millis(h.ttl)
	if h.aside > 0 {
		lease = fmt.Sprintf("%d|%d", lease, h.aside)
	}
	r.args = append(r.args, &h.id, &w.client, lease, w.publish())
	return r
}

// forceRelease frees the lock if hold owns it.
func (w *wire) forceRelease(ctx context.Context, k *keys, hold string, e effort) error {
	r := k.layout.forceRelease(w, k, hold)
	a, err := w.run(ctx, r, e)
	if err != nil {
		return err
	}
	_, err = parseNumber(r.script, a.reply)
	return err
}

func (native) forceRelease(w *wire, k *keys, hold string) *request {
	r := newRequest(forceReleaseScript, k, 2)
	r.args = append(r.args, hold, w.publish())
	return r
}

// lockState is the reply to state.
type lockState struct {
	hold    string // in Redis
	shown   string // the one to which its process has passed the lock; otherwise the same
	count   int
	ttl     time.Duration
	token   int64
	waiters int
}

func (w *wire) state(ctx context.Context, k *keys, e effort) (lockState, error) {
	a, err := w.run(ctx, k.layout.state(k), e)
	if err != nil {
		return lockState{}, err
	}
	return parseState(a.reply)
}

func (native) state(k *keys) *request { return newRequest(stateScript, k, 0) }

func parseState(reply any) (lockState, error) {
	fields, ok := reply.([]any)
	if !ok || len(fields) != 6 {
		return lockState{}, badReply(stateScript, reply)
	}
	hold, ok1 := fields[0].(string)
	count, ok2 := fields[1].(int64)
	ttl, ok3 := fields[2].(int64)
	token, ok4 := fields[3].(int64)
	waiters, ok5 := fields[4].(int64)
	shown, ok6 := fields[5].(string)
	if !ok1 || !ok2 || !ok3 || !ok4 || !ok5 || !ok6 {
		return lockState{}, badReply(stateScript, reply)
	}
	return lockState{hold: hold, shown: shown, count: int(count), ttl: fromMillis(ttl), token: token, waiters: int(waiters)}, nil
}

// parseNumber reads a reply that is one number.
func parseNumber(s *script, reply any) (int64, error) {
	n, ok := reply.(int64)
	if !ok {
		return 0, badReply(s, reply)
	}
	return n, nil
}

func badReply(s *script, reply any) error {
	return fmt.Errorf("unexpected reply of script %s: %.200s", s.name, fmt.Sprint(reply)) // %.200v would pad a number
}
