package relocketcd

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/store"
)

// record is the value of a key.
type record struct {
	ID    store.ID `json:"id"`
	Count int      `json:"count"`
	TTL   int64    `json:"ttl"`             // of the etcd lease, in seconds
	Token int64    `json:"token,omitempty"` // drawn for a call that was passed the lock
}

// stay is a key as read. The ID of the record is empty if another program has made the key.
type stay struct {
	record
	key      string
	revision int64 // at which the key was made
	lease    clientv3.LeaseID
}

func stayOf(kv *mvccpb.KeyValue) stay {
	st := stay{key: string(kv.Key), revision: kv.CreateRevision, lease: clientv3.LeaseID(kv.Lease)}
	if json.Unmarshal(kv.Value, &st.record) != nil {
		st.record = record{}
	}
	return st
}

// id returns the ID of the hold, or a name for the key of another program.
func (st stay) id() store.ID {
	if st.ID != "" || st.key == "" {
		return st.ID
	}
	return store.ID("etcd:" + st.key[strings.LastIndexByte(st.key, '/')+1:] + ":0")
}

// dir returns the beginning of all keys of a lock.
func (s *Store) dir(a store.Ask) string { return s.prefix + a.Name + "/" }

// key returns the key of a hold. The end of the key looks like an etcd lease.
func (s *Store) key(a store.Ask) string {
	sum := sha256.Sum256([]byte(a.ID))
	return fmt.Sprintf("%s%016x", s.dir(a), binary.BigEndian.Uint64(sum[:]))
}

// oldest reads the key that has the lock. The answer also counts all keys of the lock.
func (s *Store) oldest(a store.Ask) clientv3.Op {
	return clientv3.OpGet(s.dir(a), clientv3.WithFirstCreate()...)
}

// lastTwo reads the two youngest keys of the lock with a create revision of at most revision; 0 is
// no bound.
func (s *Store) lastTwo(a store.Ask, revision int64) clientv3.Op {
	return clientv3.OpGet(s.dir(a), clientv3.WithPrefix(), clientv3.WithMaxCreateRev(revision), clientv3.WithLimit(2),
		clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortDescend))
}

func put(key string, r record, options ...clientv3.OpOption) clientv3.Op {
	value, err := json.Marshal(r)
	if err != nil {
		panic(err) // a record has a string and numbers
	}
	return clientv3.OpPut(key, string(value), options...)
}

// is compares the create revision of a key. With 0 the key must be there.
func is(key string, revision int64) clientv3.Cmp {
	if revision == 0 {
		return clientv3.Compare(clientv3.CreateRevision(key), ">", 0)
	}
	return clientv3.Compare(clientv3.CreateRevision(key), "=", revision)
}

// write runs a transaction that writes. A transaction that fails without an answer may have run, or
// may run yet.
func (s *Store) write(ctx context.Context, cmps []clientv3.Cmp, then, otherwise []clientv3.Op) (resp *clientv3.TxnResponse, err error) {
	err = once(ctx, func(ctx context.Context) error {
		resp, err = s.client.Txn(ctx).If(cmps...).Then(then...).Else(otherwise...).Commit()
		return err
	})
	if errors.Is(err, store.ErrUnavailable) {
		err = store.Unsure(err)
	}
	return resp, err
}

// get runs several reads at one revision.
func (s *Store) get(ctx context.Context, gets ...clientv3.Op) (resp *clientv3.TxnResponse, err error) {
	err = read(ctx, func(ctx context.Context) error {
		resp, err = s.client.Txn(ctx).Then(gets...).Commit()
		return err
	})
	return resp, err
}

// batchMost is the number of keys in one read, and of leases in flight in one stream. etcd's own
// limit is 128 operations by default.
const batchMost = 100

// read returns the key of each hold, or nil for a hold that is gone, and the revision of etcd.
func (s *Store) read(ctx context.Context, renewals []store.Renewal) (stays []*stay, revision int64, err error) {
	if ctx.Err() != nil {
		return nil, 0, lifetime.Ended(ctx)
	}
	for len(renewals) > 0 {
		batch := renewals[:min(batchMost, len(renewals))]
		renewals = renewals[len(batch):]
		var gets []clientv3.Op
		for _, r := range batch {
			gets = append(gets, clientv3.OpGet(s.key(r.Lease.Ask)))
		}
		resp, err := s.get(ctx, gets...)
		if err != nil {
			return nil, 0, err
		}
		revision = resp.Header.Revision
		for i := range batch {
			stays = append(stays, first(resp.Responses[i]))
		}
	}
	return stays, revision, nil
}

// first returns the first key of an answer, or nil.
func first(answer *pb.ResponseOp) *stay {
	kvs := answer.GetResponseRange().Kvs
	if len(kvs) == 0 {
		return nil
	}
	st := stayOf(kvs[0])
	return &st
}
