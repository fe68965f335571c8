package redis_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
)

// What does New say of its go-redis client?

func TestNewLogsOnceWhatAClientWithoutContextTimeoutsCosts(t *testing.T) {
	const twice, hangs = "takes up to twice as long", "hangs until ReadTimeout"
	for name, test := range map[string]struct {
		open func(keeps bool) redis.UniversalClient
		says []string
	}{
		"a server": {func(keeps bool) redis.UniversalClient {
			return redis.NewClient(&redis.Options{ContextTimeoutEnabled: keeps})
		}, []string{twice, hangs}},
		"Sentinel": {func(keeps bool) redis.UniversalClient {
			return redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "m", ContextTimeoutEnabled: keeps})
		}, []string{twice, hangs}},
		"a cluster": {func(keeps bool) redis.UniversalClient {
			return redis.NewClusterClient(&redis.ClusterOptions{ContextTimeoutEnabled: keeps})
		}, []string{hangs}},
		"a wrapped client": {func(keeps bool) redis.UniversalClient {
			return struct{ *redis.Client }{redis.NewClient(&redis.Options{ContextTimeoutEnabled: keeps})}
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			for _, keeps := range []bool{false, true} {
				var log bytes.Buffer
				rdb := test.open(keeps)
				c, err := relock.New(rdb, relock.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
				require.NoError(t, err)
				require.NoError(t, c.Close()) // the log has all by now
				require.NoError(t, rdb.Close())
				if keeps || test.says == nil {
					require.Empty(t, log.String())
					continue
				}
				require.Equal(t, 1, strings.Count(log.String(), "\n"))
				for _, text := range append(test.says, "level=INFO", "ContextTimeoutEnabled") {
					require.Contains(t, log.String(), text)
				}
			}
		})
	}
}
