package oncehttp

import (
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/go-relock/relock"
)

type settings struct {
	methods  []string
	headers  []string // canonical names
	maxBody  int64
	wait     time.Duration
	optional bool
	err      error
}

func defaults() settings {
	return settings{
		methods: []string{http.MethodPost, http.MethodPatch},
		headers: kept([]string{"Content-Type", "Content-Language", "Location", "ETag", "Last-Modified"}),
		maxBody: DefaultMaxBody,
	}
}

// Option is a setting of [New].
type Option func(*settings)

// WithMethods sets the methods of the requests that run once. Requests with other methods pass
// through. The default is POST and PATCH.
func WithMethods(methods ...string) Option {
	return func(s *settings) {
		if len(methods) == 0 || slices.Contains(methods, "") {
			s.err = fmt.Errorf("%w: WithMethods(%q): needs names of methods", relock.ErrInvalid, methods)
		}
		s.methods = slices.Clone(methods)
	}
}

// WithOptionalKey lets requests without the header pass through. Without this option they get
// status 400.
func WithOptionalKey() Option { return func(s *settings) { s.optional = true } }

// WithMaxBody sets the longest request body in bytes. A request with a longer one gets status 413.
// The default is [DefaultMaxBody].
func WithMaxBody(n int64) Option {
	return func(s *settings) {
		if n < 1 {
			s.err = fmt.Errorf("%w: WithMaxBody(%d): must be at least 1 byte", relock.ErrInvalid, n)
		}
		s.maxBody = n
	}
}

// WithHeaders sets the response headers that are stored and replayed. The first response has all
// headers of the handler, and a replay has these. The default is Content-Type, Content-Language,
// Location, ETag and Last-Modified. Content-Encoding is always stored, as nobody can read an
// encoded body without it. Think twice before you name Set-Cookie.
func WithHeaders(names ...string) Option {
	return func(s *settings) {
		if slices.Contains(names, "") {
			s.err = fmt.Errorf("%w: WithHeaders(%q): a header has no name", relock.ErrInvalid, names)
		}
		s.headers = kept(names)
	}
}

// kept returns the canonical names of the headers that are stored.
func kept(names []string) []string {
	all := []string{"Content-Encoding"}
	for _, name := range names {
		all = append(all, http.CanonicalHeaderKey(name))
	}
	return all
}

// WithWait sets the time for which a request waits while an earlier request with its key runs. If
// the earlier one takes longer, the request gets status 409. The time is no limit for the handler,
// nor for the store: status 503 comes after go-redis's own timeouts. The default is 0: status 409
// at once.
func WithWait(d time.Duration) Option {
	return func(s *settings) {
		if d < 0 {
			s.err = fmt.Errorf("%w: WithWait(%s): must not be negative", relock.ErrInvalid, d)
		}
		s.wait = d
	}
}
