package main

import (
	"cmp"
	"io"
	"maps"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/store"
)

// connection says where the locks are, by flags and the environment.
type connection struct {
	url      string
	prefix   string
	redisson string        // the kind of Redisson's locks; empty: relock's own
	delay    time.Duration // of a server that has started
	timeout  time.Duration
	lease    time.Duration // of run; 0: the default
	given    *pflag.FlagSet

	kind  *backend // nil before open
	where string   // words for the store, without secrets
}

// The environment is the place for secrets, as ps shows flags to everybody.
const (
	envStore   = "RELOCK_STORE"
	envRedis   = "REDIS_URL"
	defaultURL = "redis://localhost:6379"
)

func (c *connection) flags(f *pflag.FlagSet) {
	c.given = f
	// The environment sets no defaults of flags, as --help would print them.
	f.StringVar(&c.url, "store", "", "`URL` of the store, such as redis://[user:password@]host[:port][/db], rediss:// for TLS,\n"+
		"or URL,URL,URL of a quorum (default $"+envStore+", $"+envRedis+", or "+defaultURL+")")
	f.StringVar(&c.prefix, "prefix", relock.DefaultPrefix, "`text` that the keys of locks in Redis begin with")
	f.StringVar(&c.redisson, "redisson", "", "`KIND` of Redisson's locks: plain is getLock, fenced is getFencedLock")
	f.Lookup("redisson").NoOptDefVal = redissonPlain
	f.DurationVar(&c.delay, "restart-delay", 0, "take no lock of a Redis that runs for less than this, at least the longest --ttl\n(default: no delay)")
	f.DurationVar(&c.timeout, "timeout", 10*time.Second, "how long the server has for each answer;\nit does not bound a wait for the lock")
}

// backend is a kind of store.
type backend struct {
	form string // of its URLs
	// open makes a store, and does not talk to the server.
	open func(c *connection, t target) (opened, error)
	// refuses says whether the server wants another user or password, or the user lacks a right.
	refuses func(error) bool
}

// target is the URL of a store.
type target struct {
	raw    string // as it was given
	source string // where it was given
	form   string // of such URLs
}

func (t target) scheme() string {
	scheme, _, _ := strings.Cut(t.raw, ":")
	return scheme
}

// unreadable returns the error of a URL. The error has no details: every detail (a port that is no
// number, an unknown option) can be a piece of a password with a character that should have been
// encoded.
func (t target) unreadable() error {
	return usage("%s cannot be read; it must be %s, with USER:PASSWORD@ before the host if there are such. Characters such as "+
		"@ : , / ? # %% in a password must be percent-encoded, and a ?option=value must be one that cmd/relock/README.md names", t.source, t.form)
}

// opened is a store that is open.
type opened struct {
	store store.Store
	uses  []io.Closer // the store, and the clients under it
}

// backends has the kinds of stores by the scheme of their URLs. others has those that the build tag
// redis leaves out.
var backends = func() map[string]*backend {
	all := maps.Clone(others)
	maps.Copy(all, map[string]*backend{
		"redis": single, "rediss": single, "unix": single,
		"cluster+redis": cluster, "cluster+rediss": cluster,
		"sentinel+redis": sentinel, "sentinel+rediss": sentinel,
	})
	return all
}()

// target returns the URL of the store.
func (c *connection) target() target {
	switch env := os.Getenv(envStore); {
	case c.given.Changed("store"): // an empty variable of a script is an error, and not another store
		return target{raw: c.url, source: "--store"}
	case env != "":
		return target{raw: env, source: envStore}
	default:
		return target{raw: cmp.Or(os.Getenv(envRedis), defaultURL), source: envRedis}
	}
}

// open makes the store, and does not talk to the server.
func (c *connection) open() (opened, error) {
	t := c.target()
	c.kind = backends[t.scheme()]
	if c.kind == single && strings.Contains(t.raw, ",") {
		c.kind = quorumOf
	}
	ofRedis := c.prefix != relock.DefaultPrefix || c.given.Changed("redisson") || c.delay != 0
	switch {
	case c.timeout <= 0:
		return opened{}, usage("--timeout %s: must be above 0", c.timeout)
	case t.raw == "":
		return opened{}, usage("%s: is empty", t.source)
	case c.kind == nil:
		return opened{}, usage("%s: must begin with one of %s, and a colon", t.source, strings.Join(slices.Sorted(maps.Keys(backends)), ", "))
	case others[t.scheme()] != nil && ofRedis:
		return opened{}, usage("%s: --prefix, --redisson and --restart-delay are for Redis only", t.source)
	}
	t.form = c.kind.form
	o, err := c.kind.open(c, t)
	if err == nil {
		o.uses = append([]io.Closer{o.store}, o.uses...)
	}
	return o, err
}

// open makes a client over the store. closeAll closes all that is open, one after another, and
// takes no longer than limit, so that a silent server does not keep the program from ending.
func (a *app) open(options ...relock.Option) (client *relock.Client, closeAll func(limit time.Duration), err error) {
	o, err := a.conn.open()
	if err == nil {
		client, err = relock.Open(o.store, options...)
	}
	if err != nil {
		for _, u := range o.uses {
			_ = u.Close()
		}
		return nil, nil, err
	}
	closeAll = func(limit time.Duration) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			for _, u := range append([]io.Closer{client}, o.uses...) {
				_ = u.Close()
			}
		}()
		select {
		case <-done:
		case <-time.After(limit):
		}
	}
	return client, closeAll, nil
}

// credentials matches the text between :// and @ in anything like a URL.
var credentials = regexp.MustCompile(`(://)[^\s"']*@`)

// redact takes every secret out of a message: what looks like the user of a URL, and the passwords
// of the URLs of the store in all their forms.
func (c *connection) redact(message string) string {
	message = credentials.ReplaceAllString(message, "${1}***@")
	for raw := range strings.SplitSeq(c.target().raw, ",") {
		u, err := url.Parse(raw)
		if err != nil {
			continue
		}
		password, _ := u.User.Password()
		for _, secret := range []string{password, u.Query().Get("password")} {
			// A very short secret occurs in ordinary words. The expression above hides that of a
			// URL.
			if len(secret) > 2 {
				message = strings.NewReplacer(secret, "***", url.QueryEscape(secret), "***", url.PathEscape(secret), "***").Replace(message)
			}
		}
	}
	return message
}
