package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/go-relock/relock/internal/attempts"
	"github.com/go-relock/relock/internal/subs"
	"github.com/go-relock/relock/internal/wire"
	"github.com/go-relock/relock/store"
)

// This file asks a Redis server for everything that locks will need, for both layouts.

const (
	// checkTTL is the lease of the holds that check a server.
	checkTTL = 2 * time.Second
	// checkLimit bounds a check, without the time for confirmations of other servers.
	checkLimit = 3 * time.Second
)

// checkServer runs each verb of st on a lock that nobody else uses, and returns all failures. A
// server that does not serve, or serves nobody, is one failure. Waiters of that lock listen on
// topics, and token is the key of its token.
func (s *redisStore) checkServer(ctx context.Context, st store.Store, a store.Claim, topics []subs.Topic, token string) error {
	ctx, cancel := context.WithTimeout(ctx, checkLimit+a.Acks.Timeout)
	defer cancel()
	first, second := a, a
	first.ID, second.ID = a.ID+":0:1", a.ID+":0:2"
	second.Acks = store.Acks{}
	c := checks{scripts: s.scripts}

	lease, err := st.Try(ctx, first)
	c.note("take a lock", err)
	if err != nil && servesNobody(err) {
		if err = c.missing[0]; s.wire.MayLackTLS(err) {
			err = fmt.Errorf("%w (TLS at one end only?)", err)
		}
		return err
	}
	lease.Claim = first // also after a refusal: something else may be missing, too
	if several, is := st.(store.Several); is {
		_, err = several.TryAll(ctx, []store.Claim{first})
		c.note("take several locks", err)
	}
	_, err = st.Enter(ctx, lease, 2)
	c.note("renew a lock", err)
	_, err = st.Token(ctx, lease)
	c.note("draw a token", err)
	state, err := st.Look(ctx, a)
	c.note("read a lock", err)
	c.shows("renew a lock", state.Count == 2 && len(state.Others) == 0)
	for _, topic := range topics {
		l, err := s.subs.Listen(ctx, topic, string(second.ID))
		c.note("subscribe to "+topic.Channel, err)
		if err == nil {
			defer l.Close()
		}
	}
	c.note("wait for a lock", c.handOver(ctx, st, lease, second))
	if asking, is := st.(store.Asking); is && !c.lacksPublish() { // there may have been no grant to tell of
		c.note("tell a client", asking.Want(ctx, second))
	}
	c.note("break a lock", st.Break(ctx, second))
	for _, err := range st.Forget(ctx, []store.Claim{first, second}) {
		c.note("clean up", err)
	}
	state, err = st.Look(ctx, a)
	c.note("read a lock", err)
	c.shows("clean up", state.Owner == "")
	if _, rdb, err := s.wire.Node(ctx, token, false); err == nil && token != "" {
		c.note("remove a token", rdb.PExpire(ctx, token, 0).Err()) // at once; a Redis user need not have DEL
	}
	return errors.Join(c.missing...)
}

// servesNobody reports whether an error is not about a command, but about the server.
func servesNobody(err error) bool {
	switch wire.Code(err) {
	case "MOVED", "NOAUTH", "WRONGPASS", "DENIED":
		return true
	case "": // and no word of a server, such as a certificate that is refused
		return errors.Is(err, store.ErrUnavailable) || wire.Refused(err)
	}
	return errors.Is(err, store.ErrUnavailable)
}

type checks struct {
	scripts *Scripts
	missing []error
}

// note adds an error, unless another verb has added the same error.
func (c *checks) note(verb string, err error) {
	var busy *store.Busy
	timedOut := errors.Is(err, context.DeadlineExceeded) && len(c.missing) > 0 // follows from another failure
	if err == nil || timedOut || errors.Is(err, store.ErrGone) || errors.Is(err, errors.ErrUnsupported) || errors.As(err, &busy) {
		return
	}
	cause, _, _ := strings.Cut(err.Error(), " script: ")
	if line := c.scripts.lineOf(err.Error()); line != "" {
		rights := rightsFor(err, line)
		cause = cmp.Or(rights, line) // the same command is missing in all verbs
		err = fmt.Errorf("%w (%s%s)", err, rights, line)
	}
	if !slices.ContainsFunc(c.missing, func(m error) bool { return strings.Contains(m.Error(), cause) }) {
		c.missing = append(c.missing, fmt.Errorf("cannot %s: %w", verb, err))
	}
}

// shows notes a verb that has succeeded, unless a look at the lock shows its effect. After a verb
// that has failed the look would find that verb once more.
func (c *checks) shows(verb string, effect bool) {
	if !effect && len(c.missing) == 0 {
		c.note(verb, errors.New("a look at the lock does not show it: do all commands reach one server?"))
	}
}

// lacksPublish reports whether a grant could not be told.
func (c *checks) lacksPublish() bool {
	return slices.ContainsFunc(c.missing, func(m error) bool { return strings.Contains(m.Error(), "UNTOLD") })
}

// rightsFor says which rights the Redis user may lack in a line of a script. Redis 7.0 names none.
func rightsFor(err error, line string) string {
	var rights []string
	for _, call := range scriptCommand.FindAllStringSubmatch(err.Error()+line, -1) {
		rights = append(rights, "+"+strings.ToLower(call[1]))
	}
	if len(rights) == 0 || !strings.Contains(err.Error(), "can't run this command") {
		return ""
	}
	return "the user needs " + strings.Join(rights, " ") + ": "
}

var scriptCommand = regexp.MustCompile(`(?:call\('|UNTOLD )([A-Z]+)`)

var scriptError = regexp.MustCompile(`script: ([0-9a-f]{40}), on @user_script:(\d+)`)

// lineOf returns the line at which a script has failed, as Redis 7 does not name the command
// forbidden to a user. For other errors lineOf returns an empty string.
func (s *Scripts) lineOf(text string) string {
	found := scriptError.FindStringSubmatch(text)
	if found == nil {
		return ""
	}
	for _, script := range s.loaded {
		if at, _ := strconv.Atoi(found[2]); script.Hash == found[1] {
			line, _, _ := strings.Cut(strings.Split(script.Source, "\n")[at-1], " -- ")
			return strings.TrimSpace(line)
		}
	}
	return ""
}

// handOver frees a lock for which another hold waits.
func (c *checks) handOver(ctx context.Context, st store.Store, lease store.Lease, next store.Claim) error {
	waits, done := make(chan struct{}), make(chan error, 1)
	go func() {
		queued := sync.OnceFunc(func() { close(waits) })
		done <- attempts.Apart(func() error {
			got, err := st.Wait(ctx, next, func(p store.Progress) {
				if p.Queued {
					queued()
				}
			})
			if err == nil && got.Woken == store.WakeRecheck {
				err = errors.New("the message did not come")
			}
			return err
		})
	}()
	select {
	case <-waits:
		if err := st.Release(ctx, lease); err != nil {
			c.note("release a lock", err)
			<-done // which nobody has told
			return nil
		}
		return <-done
	case err := <-done: // Break needs some of the commands that a waiter would have needed
		c.shows("keep a second hold out", err != nil || next.Limit > 1)
		c.note("break a lock", st.Break(ctx, lease.Claim))
		c.note("release a lock", st.Release(ctx, lease))
		return err
	}
}

// newCheckClaim returns a claim for the holds that check a server. Its ID is their client.
func newCheckClaim(a store.Claim) store.Claim {
	a.ID, a.TTL = store.ID(uuid.NewString()), checkTTL
	return a
}
