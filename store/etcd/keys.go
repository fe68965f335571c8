package relocketcd

import (
	"context"
	"encoding/json"
	"errors"
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
func (s *Store) dir(a store.Claim) string { return s.prefix + a.Name + "/" }

// oldest reads the key that has the lock. The answer also counts all keys of the lock.
func (s *Store) oldest(a store.Claim) clientv3.Op {
	return clientv3.OpGet(s.dir(a), clientv3.WithFirstCreate()...)
}

// lastTwo reads the two youngest keys of the lock with a create revision of at most revision; 0 is
// no bound.
func (s *Store) lastTwo(a store.Claim, revision int64) clientv3.Op {
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

// is compares the create revision of a key: the key is there as read.
func is(st stay) clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(st.key), "=", st.revision)
}

// write runs a command that writes. If the command fails without an answer, the command may have
// run, or may run yet.
func (s *Store) write(ctx context.Context, command func(context.Context) error) error {
	err := s.once(ctx, command)
	if errors.Is(err, store.ErrUnavailable) || errors.Is(err, errClosed) {
		err = store.Unsure(err)
	}
	return err
}

// change runs a transaction that writes.
func (s *Store) change(ctx context.Context, cmp clientv3.Cmp, then, otherwise []clientv3.Op) (resp *clientv3.TxnResponse, err error) {
	err = s.write(ctx, func(ctx context.Context) error {
		resp, err = s.client.Txn(ctx).If(cmp).Then(then...).Else(otherwise...).Commit()
		return err
	})
	return resp, err
}

// get runs several reads at one revision.
func (s *Store) get(ctx context.Context, gets ...clientv3.Op) (resp *clientv3.TxnResponse, err error) {
	err = s.readOnly(ctx, func(ctx context.Context) error {
		resp, err = s.client.Txn(ctx).Then(gets...).Commit()
		return err
	})
	return resp, err
}

// batchMost is the number of keys in one read. etcd's own limit is 128 operations by default.
const batchMost = 100

// read returns the key of each hold, or nil for a hold that is gone, and the revision of etcd. For
// a hold of another process, read reads all keys of the lock.
func (s *Store) read(ctx context.Context, renewals []store.Renewal) (stays []*stay, revision int64, err error) {
	if ctx.Err() != nil {
		return nil, 0, lifetime.Ended(ctx)
	}
	for len(renewals) > 0 {
		batch := renewals[:min(batchMost, len(renewals))]
		renewals = renewals[len(batch):]
		var gets []clientv3.Op
		for _, r := range batch {
			if h, known := s.pool.hold(r.Lease.ID); known {
				gets = append(gets, clientv3.OpGet(h.key))
			} else {
				gets = append(gets, clientv3.OpGet(s.dir(r.Lease.Claim), clientv3.WithPrefix()))
			}
		}
		resp, err := s.get(ctx, gets...)
		if err != nil {
			return nil, 0, err
		}
		revision = resp.Header.Revision
		for i, r := range batch {
			stays = append(stays, find(resp.Responses[i], r.Lease.ID))
		}
	}
	return stays, revision, nil
}

// find returns the key of a hold in an answer, or nil.
func find(answer *pb.ResponseOp, id store.ID) *stay {
	for _, kv := range answer.GetResponseRange().Kvs {
		if st := stayOf(kv); st.ID == id {
			return &st
		}
	}
	return nil
}
