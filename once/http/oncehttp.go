package oncehttp

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/once"
)

// Names of header fields.
const (
	// HeaderKey carries the key of a request: a string of RFC 8941, such as "8e03978e-40d5", or the
	// same characters without the quotes. Both forms are one key.
	HeaderKey = "Idempotency-Key"

	// HeaderReplayed is "true" in the response to a repeat, and absent in the first response.
	HeaderReplayed = "Idempotency-Replayed"
)

// DefaultMaxBody is the longest request body in bytes.
const DefaultMaxBody = 1 << 20

// middleware has what the handlers of one New share. It is immutable.
type middleware struct {
	once  *once.Once
	scope func(*http.Request) (string, error)
	settings
}

// New makes a middleware that runs each request once, and keeps the responses in o.
//
// scope names the caller of a request, such as its tenant or account, so that two callers never
// share a key. A request for which scope returns an error or an empty string gets status 401. The
// error's text stays on the server.
//
// A handler gets a request with its whole body, and a context that ends when the client goes away
// or when the lock of the attempt is lost. A handler may go on after its client has gone: the lock
// is kept until the handler returns, and a repeat of the request waits, see [WithWait], or is
// refused. The response of a handler that has run is always sent, also if it could not be stored:
// it says what has happened, and an error in its place would make the client repeat what is done. A
// repeat of that request meets an interrupted attempt. If the lock was lost, another attempt may
// have begun before the handler ended. A panic of the handler goes on to the server, and the
// attempt counts as interrupted.
//
// If no handler runs and there is nothing to replay, the response is a problem of RFC 9457, see
// [TypeMissingKey] and the other types.
//
// Errors: [relock.ErrInvalid].
func New(o *once.Once, scope func(*http.Request) (string, error), options ...Option) (func(http.Handler) http.Handler, error) {
	m := &middleware{once: o, scope: scope, settings: defaults()}
	for _, option := range options {
		option(&m.settings)
	}
	switch {
	case o == nil:
		return nil, fmt.Errorf("%w: oncehttp.New needs a once.Once", relock.ErrInvalid)
	case scope == nil:
		return nil, fmt.Errorf("%w: oncehttp.New needs a scope, so that two callers never share a key", relock.ErrInvalid)
	case m.err != nil:
		return nil, m.err
	}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serve(w, r, next) })
	}, nil
}

// Key returns the key in package once of a request's Idempotency-Key. The scope is what the scope
// function of [New] returns, the path is as in [net/url.URL.EscapedPath], and key is without
// quotes. Operators need Key for [once.Once.Forget].
//
// Handlers behind [http.StripPrefix] see the path without the prefix, and no handler sees the host
// in the path. Where one once.Once serves several prefixes or hosts, put them into the scope.
func Key(scope, path, key string) string { return "http:" + digest(scope, path, key) }

// digest returns a hash of strings. Each string has its length before it, so that no two lists of
// strings are hashed as the same bytes.
func digest(parts ...string) string {
	h := sha256.New()
	for _, part := range parts {
		var length [8]byte
		binary.BigEndian.PutUint64(length[:], uint64(len(part)))
		h.Write(length[:])
		h.Write([]byte(part))
	}
	return hex.EncodeToString(h.Sum(nil))
}

// attemptKey is the key of the once.Attempt in a handler's context.
type attemptKey struct{}

// AttemptFrom returns the attempt of package once in which a handler runs. ctx is the context of
// the handler's request. ok is false if the request has passed through without a key.
func AttemptFrom(ctx context.Context) (a once.Attempt, ok bool) {
	a, ok = ctx.Value(attemptKey{}).(once.Attempt)
	return a, ok
}

// serve answers one request.
func (m *middleware) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if !m.applies(r) {
		next.ServeHTTP(w, r)
		return
	}
	req, refused := m.read(w, r)
	if refused != nil {
		refused.Write(w)
		return
	}
	m.answer(w, req, next)
}

// errNotStored reports a response that tells the client to repeat the request.
var errNotStored = errors.New("oncehttp: the response is not stored")

// answer runs the handler, replays a stored response, or sends a problem.
func (m *middleware) answer(w http.ResponseWriter, req *request, next http.Handler) {
	var recorded *recorder
	handle := func(ctx context.Context, a once.Attempt) (response, error) {
		rec := newRecorder(w.Header())
		next.ServeHTTP(rec, req.with(context.WithValue(ctx, attemptKey{}, a)))
		rec.finish()
		recorded = rec
		if rec.isRepeatable() {
			return response{}, errNotStored
		}
		return rec.response(m.headers), nil
	}
	wait := once.NoWait()
	if m.wait > 0 {
		wait = once.WaitFor(m.wait)
	}
	stored, _, err := once.Do(req.Context(), m.once, req.key, handle, wait, once.Input(req.fingerprint))
	switch {
	case recorded != nil: // whatever err is, see New
		recorded.send(w)
	case err != nil:
		problemOf(err).Write(w)
	default:
		stored.replay(w)
	}
}
