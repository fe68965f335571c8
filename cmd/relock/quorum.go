package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/store"
	"github.com/go-relock/relock/store/quorum"
)

// This file is locks over a quorum of independent servers. docs/QUORUM.md describes the locks.

// quorumURLs returns the URLs of the members as they were given, and where they were given. Without
// a quorum there are none. A flag that names another place wins over the environment.
func (c *connection) quorumURLs() (urls []string, source string) {
	if len(c.quorum) > 0 {
		return strings.Split(strings.Join(c.quorum, ","), ","), "--quorum"
	}
	elsewhere := c.url != "" || c.sentinel != "" || len(c.cluster) > 0 || c.store != ""
	if env := os.Getenv(envQuorum); env != "" && !elsewhere {
		return strings.Split(env, ","), envQuorum
	}
	return nil, ""
}

// hasQuorum says whether a quorum has the locks.
func (c *connection) hasQuorum() bool {
	_, source := c.quorumURLs()
	return source != ""
}

// mutexesOnly returns the flag or the variable whose locks are all mutexes, empty if there is none.
func (c *connection) mutexesOnly() string {
	if c.hasStore() {
		if u, err := c.storeURL(); err == nil && u.mutexesOnly {
			return u.source
		}
		return ""
	}
	_, source := c.quorumURLs()
	if c.redisson != "" {
		source = "--redisson"
	}
	return source
}

// memberOptions reads the URLs of the members.
func (c *connection) memberOptions() ([]*redis.Options, error) {
	urls, source := c.quorumURLs()
	if n := len(urls); n < 3 || n%2 == 0 {
		return nil, usage("%s: a quorum needs an odd number of URLs, at least 3, with commas between them, and not %d", source, n)
	}
	var members []*redis.Options
	numbers := map[string]int{} // by address
	for i, raw := range urls {
		o, err := parseURL(raw, fmt.Sprintf("URL %d of %s", i+1, source))
		if err != nil {
			return nil, err
		}
		if first, ok := numbers[o.Addr]; ok {
			return nil, usage("%s: URL %d and URL %d are the same server, and the servers of a quorum must be independent", source, first, i+1)
		}
		numbers[o.Addr] = i + 1
		c.setDefaults(o)
		members = append(members, o)
	}
	return members, nil
}

// checkQuorum refuses flags that do not go with a quorum.
func (c *connection) checkQuorum() error {
	_, source := c.quorumURLs()
	switch {
	case c.url != "" || c.sentinel != "" || len(c.cluster) > 0:
		return usage("%s: goes with neither --url, --sentinel nor --cluster", source)
	case c.redisson != "":
		return usage("%s and --redisson: a quorum has relock's own locks only", source)
	}
	return c.checkGiven()
}

// openQuorum makes a client over the quorum, and does not talk to Redis. closeAll closes the client
// and all that it uses.
func (c *connection) openQuorum(options []relock.Option) (client *relock.Client, closeAll func(limit time.Duration), err error) {
	if err := c.checkQuorum(); err != nil {
		return nil, nil, err
	}
	members, rdbs, err := c.openMembers()
	if err != nil {
		return nil, nil, errors.Join(err, closed(rdbs))
	}
	all, err := quorum.New(members...)
	if err == nil {
		client, err = relock.Open(all, options...)
	}
	if err != nil {
		return nil, nil, errors.Join(err, closed(rdbs))
	}
	return client, closing(append([]io.Closer{client, all}, rdbs...)...), nil
}

// openMembers makes the stores of the members, and the go-redis clients that the stores use. After
// an error there may be clients too.
func (c *connection) openMembers() (members []store.Store, rdbs []io.Closer, err error) {
	servers, err := c.memberOptions()
	if err != nil {
		return nil, nil, err
	}
	layout, err := c.layout()
	if err != nil {
		return nil, nil, err
	}
	for _, o := range servers {
		rdb := redis.NewClient(o)
		rdbs = append(rdbs, rdb)
		member, err := relock.RedisStore(rdb, layout...)
		if err != nil {
			return nil, rdbs, err
		}
		members = append(members, member)
	}
	return members, rdbs, nil
}

// closed closes clients that are not used, and returns their errors.
func closed(clients []io.Closer) error {
	var errs []error
	for _, c := range clients {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// whereQuorum returns words for the members, without secrets.
func (c *connection) whereQuorum() string {
	members, err := c.memberOptions()
	if err != nil {
		return "?"
	}
	var addrs []string
	for _, o := range members {
		addrs = append(addrs, o.Addr)
	}
	return "the quorum of " + strings.Join(addrs, ", ")
}

// ranked refuses a subcommand that reads the queues of relock's own layout where it cannot.
func (c *connection) ranked(command string) error {
	if _, source := c.rawStore(); source != "" {
		return usage("%s reads the queues of Redis, and not those of %s: relock show NAME counts the waiters there", command, source)
	}
	if _, source := c.quorumURLs(); source != "" {
		return usage("%s reads the queues of one server, and not those of %s: name a member with --url", command, source)
	}
	return c.own(command)
}

// refusal matches the codes of Redis for a user who may not do something.
var refusal = regexp.MustCompile(`\b(NOAUTH|WRONGPASS|NOPERM)\b`)

// memberRefuses says whether a member wants another user or password. The error of a quorum has the
// texts of the errors of its members, and not their types.
func memberRefuses(err error) bool { return refusal.MatchString(err.Error()) }
