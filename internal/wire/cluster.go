package wire

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-relock/relock/internal/lifetime"
)

// The methods by which the clients of go-redis are told apart, also inside a struct of the
// caller's.
type (
	plainClient   interface{ Options() *redis.Options }
	clusterClient interface {
		Options() *redis.ClusterOptions
		MasterForKey(ctx context.Context, key string) (*redis.Client, error)
		ForEachMaster(ctx context.Context, f func(context.Context, *redis.Client) error) error
		ReloadState(ctx context.Context)
	}
)

// checkKind refuses clients that do not answer commands, or do not tell the server of a key.
func checkKind(rdb redis.UniversalClient) error {
	if rdb == nil || reflect.ValueOf(rdb).Kind() == reflect.Pointer && reflect.ValueOf(rdb).IsNil() {
		return errors.New("the go-redis client is nil")
	}
	switch rdb := rdb.(type) {
	case plainClient, clusterClient:
		return nil
	case interface{ Options() *redis.RingOptions }:
		return errors.New("redis.Ring is not supported: use a redis.Client, or a redis.ClusterClient")
	case interface{ IsBlocking() bool }:
		if !rdb.IsBlocking() {
			return errors.New("an AsyncAutoPipeline is not supported, as it does not wait for answers: " +
				"use AutoPipeline, or the client itself")
		}
	}
	single := false // Watch without keys sends nothing; only a client of one server calls the function
	_ = rdb.Watch(context.Background(), func(*redis.Tx) error { single = true; return nil })
	if !single {
		return fmt.Errorf("%T of several servers is not supported, as it does not tell where a lock is: "+
			"use the redis.ClusterClient itself", rdb)
	}
	return nil
}

// readTimeoutOf is how long go-redis waits for a reply; math.MaxInt64 without a limit.
func readTimeoutOf(rdb redis.UniversalClient) time.Duration {
	var d time.Duration
	switch rdb := rdb.(type) {
	case plainClient:
		d = rdb.Options().ReadTimeout
	case clusterClient:
		d = rdb.Options().ReadTimeout
	}
	if d <= 0 {
		return math.MaxInt64
	}
	return d
}

// hasTLS reports whether rdb speaks TLS by an option of go-redis.
func hasTLS(rdb redis.UniversalClient) bool {
	switch rdb := rdb.(type) {
	case plainClient:
		return rdb.Options().TLSConfig != nil
	case clusterClient:
		return rdb.Options().TLSConfig != nil
	default:
		return false
	}
}

// sendsOf is how many connections of a pool the calls may use: all but one, which is for renewals.
// Pipelines may have a pool of their own. math.MaxInt: rdb does not tell.
func sendsOf(rdb redis.UniversalClient) int {
	var o redis.Options
	switch rdb := rdb.(type) {
	case plainClient:
		o = *rdb.Options()
	case clusterClient:
		c := rdb.Options()
		o.PoolSize, o.MaxActiveConns = c.PoolSize, c.MaxActiveConns // only renewals have pipelines
	default:
		return math.MaxInt
	}
	size := o.PoolSize
	if o.MaxActiveConns > 0 {
		size = min(size, o.MaxActiveConns)
	}
	if o.PipelineReadBufferSize > 0 || o.PipelineWriteBufferSize > 0 {
		size = min(size, cmp.Or(o.PipelinePoolSize, 10)) // 10 is the default of go-redis
	}
	return max(size-1, 1)
}

// topology is the knowledge of the servers behind the go-redis client.
type topology struct {
	cluster clusterClient // the go-redis client of a cluster; otherwise nil
	sharded atomic.Bool   // pub/sub is sharded, as in a cluster of Redis 7 or newer
	reached atomic.Bool   // the cluster has answered, so go-redis has its map
	reading chan struct{} // holds a value while somebody reads the map
	read    time.Time     // when the map was last read; guarded by reading
}

// Clustered reports whether go-redis finds the server of a command by the slot of its keys.
func (t *topology) Clustered() bool { return t.cluster != nil }

// Sharded reports whether pub/sub is sharded: in a cluster, until NotSharded is called.
func (t *topology) Sharded() bool { return t.sharded.Load() }

// NotSharded notes that a server lacks sharded pub/sub.
func (t *topology) NotSharded() { t.sharded.Store(false) }

func (t *topology) noteAnswer() {
	if t.cluster != nil && !t.reached.Load() {
		t.reached.Store(true)
	}
}

// doubtMap makes go-redis read the map of the cluster again, as go-redis does only after MOVED.
func (t *topology) doubtMap(ctx context.Context) {
	if t.cluster != nil {
		t.cluster.ReloadState(ctx)
	}
}

// mapAge is how old a map of the cluster may be after a wrong one.
const mapAge = 200 * time.Millisecond

// Node finds the server of a key. The name is empty unless the servers are a cluster. With anew the
// map of the cluster is read first; many calls share one reading. Errors: errors of go-redis, and
// the end of ctx.
func (w *Wire) Node(ctx context.Context, key string, anew bool) (string, redis.UniversalClient, error) {
	if w.cluster == nil {
		return "", w.rdb, nil
	}
	if anew {
		if err := w.readMap(ctx); err != nil {
			return "", nil, err
		}
	}
	master, err := w.cluster.MasterForKey(ctx, key)
	if err != nil {
		return "", nil, err
	}
	return master.Options().Addr, master, nil
}

// readMap returns when the map of the cluster is younger than mapAge.
func (t *topology) readMap(ctx context.Context) error {
	select {
	case t.reading <- struct{}{}:
		defer func() { <-t.reading }()
	case <-ctx.Done():
		return lifetime.Ended(ctx)
	}
	if time.Since(t.read) > mapAge {
		// ForEachMaster is the only call of go-redis that returns after reading the map.
		_ = t.cluster.ForEachMaster(ctx, func(context.Context, *redis.Client) error { return nil })
		t.read = time.Now()
	}
	return nil
}

// SlotOf is the part of a key that decides its slot: the hash tag, or else the whole key.
func SlotOf(key string) string {
	_, rest, _ := strings.Cut(key, "{")
	if tag, _, ok := strings.Cut(rest, "}"); ok && tag != "" {
		return tag
	}
	return key
}
