package relocksql_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/holds"
	"github.com/go-relock/relock/store"
)

// sessionDefaults are settings that services give to their sessions.
var sessionDefaults = map[string][]string{
	"PostgreSQL": {
		"default_transaction_isolation=serializable", "default_transaction_isolation=repeatable%20read",
		"default_transaction_deferrable=on", "timezone=Asia/Kathmandu", "datestyle=German", "bytea_output=escape",
		"statement_timeout=2000", "default_transaction_read_only=on",
	},
	"MariaDB": {
		"autocommit=0", "completion_type=1", "completion_type=2", "sql_select_limit=1", "tx_isolation='SERIALIZABLE'",
		"tx_isolation='READ-UNCOMMITTED'", "time_zone='%2B05:45'", "sql_safe_updates=1", "innodb_lock_wait_timeout=1", "tx_read_only=1",
		"sql_mode='ANSI,TRADITIONAL,NO_BACKSLASH_ESCAPES'", "autocommit=0&tx_isolation='REPEATABLE-READ'&completion_type=1",
	},
}

func TestLocksKeepTheirPromisesWithAnySessionDefault(t *testing.T) {
	servers(t, func(d *rig) {
		for i, setting := range sessionDefaults[d.kind] {
			d.Run(setting, func(t *testing.T) {
				t.Parallel()
				own := d.own(t)
				own.through += "&" + setting
				(&rig{t, own}).story(fmt.Sprint(i, "-"))
			})
		}
	})
}

// story is the life of some locks in a pool of a few connections. Another store looks on.
func (d *rig) story(prefix string) {
	d.Helper()
	named := func(name string, kind store.Kind, limit int) store.Claim {
		a := claim(time.Minute)
		a.Name, a.Kind, a.Limit = prefix+name, kind, limit
		return a
	}
	busy := func(s store.Store, a store.Claim) {
		d.Helper()
		var b *store.Busy
		_, err := s.Try(d.Context(), a)
		require.ErrorAs(d, err, &b)
	}
	s, past := d.pool(d.T, 3), d.past(d)
	err := s.CheckServer(d.Context(), named("", store.Mutex, 1))
	for n := 0; n < 20 && errors.Is(err, context.DeadlineExceeded); n++ { // many settings at once
		err = s.CheckServer(d.Context(), named("", store.Mutex, 1))
	}
	require.NoError(d, err)
	c, err := relock.Open(s, relock.WithTTL(2*time.Second))
	require.NoError(d, err)
	defer c.Close()
	lock, other := c.NewLock(prefix+"orders"), c.NewLock(prefix+"other")
	section, err := lock.Lock(d.Context())
	require.NoError(d, err)
	for begun := time.Now(); time.Since(begun) < 5*time.Second; {
		require.NoError(d, other.Do(d.Context(), func(section context.Context) error {
			return other.Do(section, func(context.Context) error { return nil })
		}))
		require.NoError(d, context.Cause(section))
		busy(past, named("orders", store.Mutex, 1))
	}
	require.NoError(d, lock.Unlock(section))
	holds.Take(d, past, named("orders", store.Mutex, 1))

	var held []store.Lease
	for range 3 {
		held = append(held, holds.Take(d, s, named("rw", store.ReadWrite, store.Unlimited)))
	}
	busy(s, named("rw", store.ReadWrite, 1))
	for range 2 {
		held = append(held, holds.Take(d, s, named("permits", store.Semaphore, 2)))
	}
	busy(s, named("permits", store.Semaphore, 2))
	for _, l := range held {
		require.NoError(d, s.Release(d.Context(), l))
	}

	l := holds.Take(d, past, named("queue", store.Mutex, 1))
	var line []*holds.Waiter
	for range 3 {
		line = append(line, holds.Wait(d, s, named("queue", store.Mutex, 1)))
	}
	for _, w := range line {
		<-time.After(200 * time.Millisecond) // some polls find nothing
		released := time.Now()
		require.NoError(d, past.Release(d.Context(), l))
		l = w.GetWithin(d, 5*time.Second)
		require.Equal(d, store.WakeGrant, l.Woken)
		require.Less(d, w.At.Sub(released), beatAtLeast)
	}
	require.NoError(d, past.Release(d.Context(), l))
}
