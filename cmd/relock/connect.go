package main

import (
	"cmp"
	"errors"
	"io"
	"net"
	"net/url"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/spf13/pflag"

	"github.com/go-relock/relock"
)

// connection says where the locks are, by flags and by secrets from the environment.
type connection struct {
	url      string
	sentinel string
	cluster  []string
	quorum   []string // lists of URLs, see quorumURLs
	store    string   // the URL of a store that is not Redis
	prefix   string
	redisson string        // the kind of Redisson's locks; empty: relock's own
	delay    time.Duration // of a server that has started
	timeout  time.Duration
	lease    time.Duration // of run and hold; 0: the default
	given    *pflag.FlagSet
}

const defaultURL = "redis://localhost:6379"

// The environment is the place for secrets, as ps shows flags to everybody.
const (
	envURL              = "REDIS_URL"
	envQuorum           = "RELOCK_QUORUM"
	envSentinelUser     = "RELOCK_SENTINEL_USERNAME"
	envSentinelPassword = "RELOCK_SENTINEL_PASSWORD"
)

func (c *connection) flags(f *pflag.FlagSet) {
	c.given = f
	// The environment sets no defaults of flags, as --help would print them.
	f.StringVar(&c.url, "url", "", "`URL` of the server: redis://[user:password@]host[:port][/db], rediss:// for TLS,\n"+
		"unix:// for a socket (default $"+envURL+", or "+defaultURL+")")
	f.StringVar(&c.sentinel, "sentinel", "", "ask sentinels for the master, `NAME@HOST:PORT`,HOST:PORT,…;\n"+
		"user, password, database and TLS come from the URL")
	// Not a slice of pflag, whose errors repeat a value that cannot be read.
	f.StringArrayVar(&c.cluster, "cluster", nil, "nodes of a Redis Cluster, `HOST:PORT`,…;\n"+
		"user, password and TLS come from the URL")
	f.StringArrayVar(&c.quorum, "quorum", nil, "an odd number of independent servers, `URL,URL,URL`,…: a majority has the locks\n"+
		"(default $"+envQuorum+")")
	f.StringVar(&c.store, "store", "", "`URL` of a store that is not Redis: etcd://, zookeeper://, postgres://, mysql:// or sqlite:\n"+
		"(default $"+envStore+", or Redis)")
	f.StringVar(&c.prefix, "prefix", relock.DefaultPrefix, "`text` that the keys of locks begin with")
	f.StringVar(&c.redisson, "redisson", "", "`KIND` of Redisson's locks, for run, hold and unlock:\nplain is getLock, fenced is getFencedLock")
	f.Lookup("redisson").NoOptDefVal = redissonPlain
	f.DurationVar(&c.delay, "restart-delay", 0, "take no lock of a server that runs for less than this, at least the longest --ttl\n(default: no delay)")
	f.DurationVar(&c.timeout, "timeout", 10*time.Second, "how long the server has for each answer;\nit does not bound a wait for the lock")
}

// checkGiven refuses flags with an empty value, as in a script whose variable is not set: without
// the flag the lock would be another one.
func (c *connection) checkGiven() error {
	for name, value := range map[string]string{
		"url": c.url, "sentinel": c.sentinel, "redisson": c.redisson, "quorum": strings.Join(c.quorum, ""),
		"store": c.store,
	} {
		if value == "" && c.given.Changed(name) {
			return usage("--%s: is empty", name)
		}
	}
	if c.timeout <= 0 {
		return usage("--timeout %s: must be above 0", c.timeout)
	}
	return nil
}

// tries is how often a question without an answer is asked, by the library and by a reader.
const tries = 3

// open makes the go-redis client, and does not talk to Redis.
func (c *connection) open() (redis.UniversalClient, error) {
	if err := c.checkGiven(); err != nil {
		return nil, err
	}
	base, err := c.options()
	if err != nil {
		return nil, err
	}
	c.setDefaults(base)
	switch {
	case c.sentinel != "" && len(c.cluster) > 0:
		return nil, usage("--sentinel and --cluster: only one of them")

	case c.sentinel != "":
		master, sentinels, ok := strings.Cut(c.sentinel, "@")
		if !ok || master == "" {
			return nil, usage("--sentinel: must be the name of the master and the addresses of sentinels, NAME@HOST:PORT,…")
		}
		if strings.Contains(master, ":") { // of a user with a password, or of a URL
			return nil, usage("--sentinel: before the @ stands the name of the master, which has no colon. User and password of the "+
				"master belong in the URL, those of the sentinels in %s and %s", envSentinelUser, envSentinelPassword)
		}
		addrs, err := addresses("--sentinel", sentinels)
		if err != nil {
			return nil, err
		}
		o := servers(base, addrs).Failover()
		o.MasterName = master
		o.SentinelUsername, o.SentinelPassword = os.Getenv(envSentinelUser), os.Getenv(envSentinelPassword)
		return redis.NewFailoverClient(o), nil

	case len(c.cluster) > 0:
		addrs, err := addresses("--cluster", strings.Join(c.cluster, ","))
		if err != nil {
			return nil, err
		}
		if base.DB != 0 {
			return nil, usage("--cluster: a cluster has no database but 0; the URL names another")
		}
		return redis.NewClusterClient(servers(base, addrs).Cluster()), nil

	default:
		return redis.NewClient(base), nil
	}
}

// setDefaults sets what a URL may leave out. A person or a script waits for the answer, and has
// less patience than a service.
func (c *connection) setDefaults(o *redis.Options) {
	const dials = 1 // the subcommands try again, so the dialler does not
	quiet := &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	o.DialTimeout = cmp.Or(o.DialTimeout, min(c.timeout, 5*time.Second))
	// All tries together have the timeout. One try must leave time for another connection or node.
	o.ReadTimeout = cmp.Or(o.ReadTimeout, max(min(c.timeout, 3*time.Second), c.timeout/tries))
	o.WriteTimeout = cmp.Or(o.WriteTimeout, o.ReadTimeout)
	o.DialerRetries, o.ContextTimeoutEnabled, o.MaintNotificationsConfig = dials, true, quiet
}

// servers returns o for several servers: all that a URL can set, and what open sets.
func servers(o *redis.Options, addrs []string) *redis.UniversalOptions {
	return &redis.UniversalOptions{
		Addrs: addrs, Username: o.Username, Password: o.Password, DB: o.DB, TLSConfig: o.TLSConfig,
		Protocol: o.Protocol, ClientName: o.ClientName,
		MaxRetries: o.MaxRetries, MinRetryBackoff: o.MinRetryBackoff, MaxRetryBackoff: o.MaxRetryBackoff,
		DialTimeout: o.DialTimeout, ReadTimeout: o.ReadTimeout, WriteTimeout: o.WriteTimeout,
		PoolFIFO: o.PoolFIFO, PoolSize: o.PoolSize, PoolTimeout: o.PoolTimeout,
		MinIdleConns: o.MinIdleConns, MaxIdleConns: o.MaxIdleConns, MaxActiveConns: o.MaxActiveConns, MaxConcurrentDials: o.MaxConcurrentDials,
		PipelinePoolSize: o.PipelinePoolSize, PipelineReadBufferSize: o.PipelineReadBufferSize, PipelineWriteBufferSize: o.PipelineWriteBufferSize,
		ConnMaxIdleTime: o.ConnMaxIdleTime, ConnMaxLifetime: o.ConnMaxLifetime, ConnMaxLifetimeJitter: o.ConnMaxLifetimeJitter,
		DialerRetries: o.DialerRetries, ContextTimeoutEnabled: o.ContextTimeoutEnabled, MaintNotificationsConfig: o.MaintNotificationsConfig,
	}
}

// rawURL returns the URL as it was given, and where it was given.
func (c *connection) rawURL() (raw, source string) {
	if c.url != "" {
		return c.url, "--url"
	}
	if env := os.Getenv(envURL); env != "" {
		return env, envURL
	}
	return defaultURL, "the default URL"
}

// parseURL reads a URL from a source. An error has no details: every detail (a port that is no
// number, an unknown option) can be a piece of a password with a character that should have been
// encoded.
func parseURL(raw, source string) (*redis.Options, error) {
	o, err := redis.ParseURL(raw)
	if err != nil || strings.Contains(raw, "#") { // go-redis ignores the text behind # in a password
		return nil, usage("%s cannot be read; it must be redis://HOST:PORT/DB, rediss://HOST:PORT/DB or unix://PATH, with "+
			"USER:PASSWORD@ before the host or path if Redis wants them. Characters such as @ : / ? # %% in a password must "+
			"be percent-encoded, and a ?option=value must be one that go-redis knows", source)
	}
	return o, nil
}

// options reads the URL of the server, or of what all servers have in common.
func (c *connection) options() (*redis.Options, error) {
	raw, source := c.rawURL()
	o, err := parseURL(raw, source)
	if err != nil {
		return nil, err
	}
	if c.sentinel != "" || len(c.cluster) > 0 {
		if o.Network == "unix" {
			return nil, usage("%s is a unix socket, which goes with neither --sentinel nor --cluster", source)
		}
		if o.TLSConfig != nil {
			o.TLSConfig.ServerName = "" // the name in the URL is not that of the servers
		}
	}
	return o, nil
}

// addresses reads a list of HOST:PORT. The error of a list with an @ does not repeat the list,
// which may have a password.
func addresses(flag, list string) ([]string, error) {
	if strings.Contains(list, "@") {
		return nil, usage("%s: an address is HOST:PORT, without user and password: those belong in the URL", flag)
	}
	addrs := strings.Split(list, ",")
	for _, addr := range addrs {
		host, port, err := net.SplitHostPort(addr)
		if err != nil || host == "" || port == "" {
			return nil, usage("%s: %q is not HOST:PORT", flag, addr)
		}
	}
	return addrs, nil
}

// where returns words for the server, without secrets.
func (c *connection) where() string {
	if c.hasStore() {
		return c.whereStore()
	}
	if c.hasQuorum() {
		return c.whereQuorum()
	}
	if c.sentinel != "" {
		master, sentinels, _ := strings.Cut(c.sentinel, "@")
		return "the master " + master + " of the sentinels " + sentinels
	}
	if len(c.cluster) > 0 {
		return "the cluster " + strings.Join(c.cluster, ",")
	}
	o, err := c.options()
	if err != nil {
		return "?"
	}
	return o.Addr
}

const hidden = "***"

// credentials matches the text between :// and @ in anything like a URL.
var credentials = regexp.MustCompile(`(://)[^\s"']*@`)

// redact takes every secret out of a message.
func (c *connection) redact(message string) string {
	raw, _ := c.rawURL()
	members, _ := c.quorumURLs()
	secrets := []string{os.Getenv(envSentinelPassword)}
	for _, raw := range append(members, raw) {
		u, _ := url.Parse(raw)
		secrets = append(secrets, secretsOf(u)...)
	}
	if c.hasStore() {
		u, _ := c.storeURL()
		secrets = append(secrets, secretsOf(u.URL)...)
	}
	message = credentials.ReplaceAllString(message, "${1}"+hidden+"@")
	for _, secret := range secrets {
		// A very short secret occurs in ordinary words. The line above hides the secret of a URL.
		if len(secret) > 2 {
			message = strings.ReplaceAll(message, secret, hidden)
		}
	}
	return message
}

// secretsOf returns the password of a URL, in all its forms. A URL that cannot be read is nil.
func secretsOf(u *url.URL) []string {
	if u == nil || u.User == nil {
		return nil
	}
	password, ok := u.User.Password()
	if !ok {
		return nil
	}
	_, encoded, _ := strings.Cut(u.User.String(), ":")
	return []string{password, url.QueryEscape(password), url.PathEscape(password), encoded}
}

// client makes a go-redis client, and a relock client that uses it. A quorum has no single go-redis
// client, and another store has none: rdb is nil. closeAll closes all clients, and takes no longer
// than limit, so that a silent server does not keep the program from ending.
func (a *app) client(options ...relock.Option) (rdb redis.UniversalClient, client *relock.Client, closeAll func(limit time.Duration), err error) {
	if a.conn.hasStore() {
		client, closeAll, err = a.conn.openStore(options)
		return nil, client, closeAll, err
	}
	if a.conn.hasQuorum() {
		client, closeAll, err = a.conn.openQuorum(options)
		return nil, client, closeAll, err
	}
	rdb, err = a.conn.open()
	if err != nil {
		return nil, nil, nil, err
	}
	where, err := a.conn.layout()
	if err == nil {
		client, err = relock.New(rdb, append(where, options...)...)
	}
	if err != nil {
		return nil, nil, nil, errors.Join(err, rdb.Close())
	}
	return rdb, client, closing(client, rdb), nil
}

// closing returns a function that closes all of closers, one after another, and waits for no longer
// than a limit.
func closing(closers ...io.Closer) func(limit time.Duration) {
	return func(limit time.Duration) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			for _, c := range closers {
				_ = c.Close()
			}
		}()
		timer := time.NewTimer(limit)
		defer timer.Stop()
		select {
		case <-done:
		case <-timer.C:
		}
	}
}

// The values of --redisson.
const (
	redissonPlain  = "plain"
	redissonFenced = "fenced"
)

// layout returns the options that say how locks are kept in Redis.
func (c *connection) layout() ([]relock.Option, error) {
	if c.redisson != "" && c.prefix != relock.DefaultPrefix {
		return nil, usage("--prefix and --redisson: Redisson's keys have no prefix, put it into the lock's name")
	}
	if c.redisson != "" && c.delay != 0 {
		return nil, usage("--restart-delay and --redisson: the delay is for relock's own locks only")
	}
	switch c.redisson {
	case "":
		options := []relock.Option{relock.WithPrefix(c.prefix)}
		if c.delay != 0 {
			options = append(options, relock.WithRestartDelay(c.delay))
		}
		return options, nil
	case redissonPlain:
		return []relock.Option{relock.WithRedissonLayout()}, nil
	case redissonFenced:
		return []relock.Option{relock.WithRedissonFencing()}, nil
	default:
		return nil, usage("--redisson=%s: must be %s or %s", c.redisson, redissonPlain, redissonFenced)
	}
}

// own refuses --redisson for a subcommand that reads the keys of relock's own layout.
func (c *connection) own(command string) error {
	if c.redisson != "" {
		return usage("%s knows relock's own locks only, which are not those of --redisson", command)
	}
	return nil
}

// closeLimit bounds the end of the subcommands that only read.
const closeLimit = time.Second
