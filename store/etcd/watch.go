package relocketcd

import (
	"context"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/go-relock/relock/internal/attempts"
	"github.com/go-relock/relock/store"
)

// notices returns the beginning of the keys that tell clients of broken holds. No lock has keys
// there, as no lock has an empty name.
func (s *Store) notices() string { return s.prefix + "/broken/" }

// notice tells the client of a hold that the hold is broken. The notice ends with the etcd lease of
// the hold.
func (s *Store) notice(st stay) clientv3.Op {
	return clientv3.OpPut(s.notices()+string(st.ID), "", clientv3.WithLease(st.lease))
}

func (s *Store) wants() string { return s.prefix + "/wanted/" }

// Want implements [store.Asking]: a key that is there for a moment, and at most until the etcd
// lease of the hold ends.
func (s *Store) Want(ctx context.Context, a store.Claim) error {
	owner, _, err := s.owner(ctx, a)
	switch {
	case err != nil:
		return err
	case owner.id() != a.ID:
		return store.ErrGone
	}
	key := s.wants() + string(a.ID)
	resp, err := s.change(ctx, is(owner), []clientv3.Op{clientv3.OpPut(key, "", clientv3.WithLease(owner.lease))}, nil)
	if err == nil && !resp.Succeeded {
		return store.ErrGone
	}
	if err == nil {
		_, err = s.get(ctx, clientv3.OpDelete(key))
	}
	return err
}

// WatchWanted implements [store.Asking].
func (s *Store) WatchWanted(client string, wanted func(store.ID)) (stop func()) {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(s.life))
	s.group.GoOpen(func() {
		for pause := (attempts.Pause{}); ctx.Err() == nil; pause.Wait(ctx.Done()) {
			for resp := range s.client.Watch(ctx, s.wants()+client+":", clientv3.WithPrefix(), clientv3.WithFilterDelete(), clientv3.WithCreatedNotify()) {
				if resp.Created {
					wanted("")
				}
				for _, e := range resp.Events {
					wanted(store.ID(strings.TrimPrefix(string(e.Kv.Key), s.wants())))
				}
				if resp.Err() == nil {
					pause = attempts.Pause{}
				}
			}
		}
	})
	return cancel
}

// keepStream keeps the stream of all watches open until Close. The etcd client ends the stream with
// the last watch otherwise, and authenticates a user anew for the next stream.
func (s *Store) keepStream() {
	if !s.watched.CompareAndSwap(false, true) {
		return
	}
	open := s.group.GoOpen(func() {
		defer s.watched.Store(false)
		never := s.client.Watch(clientv3.WithRequireLeader(s.life), s.notices()) // nobody writes that key
		for open := true; open; {
			_, open = <-never
		}
	})
	if !open {
		s.watched.Store(false)
	}
}

// Watch implements [store.Watcher]. Watch tells of holds that [Store.Break] has taken out, and of
// all holds if etcd has ended the watch.
func (s *Store) Watch(client string, doubt func(store.ID)) (stop func()) {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(s.life))
	s.group.GoOpen(func() {
		for pause := (attempts.Pause{}); ctx.Err() == nil; pause.Wait(ctx.Done()) {
			if s.watchNotices(ctx, s.notices()+client+":", doubt) {
				pause = attempts.Pause{}
			}
		}
	})
	return cancel
}

// watchNotices watches until etcd ends the watch, or ctx is done. watchNotices returns false if
// etcd could not be read.
func (s *Store) watchNotices(ctx context.Context, prefix string, doubt func(store.ID)) bool {
	tell := func(key []byte) { doubt(store.ID(strings.TrimPrefix(string(key), s.notices()))) }
	resp, err := s.get(ctx, clientv3.OpGet(prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly()))
	if err != nil {
		return false
	}
	for _, kv := range resp.Responses[0].GetResponseRange().Kvs {
		tell(kv.Key)
	}
	watch := s.client.Watch(ctx, prefix, clientv3.WithPrefix(), clientv3.WithFilterDelete(), clientv3.WithRev(resp.Header.Revision+1))
	for resp := range watch {
		for _, e := range resp.Events {
			tell(e.Kv.Key)
		}
	}
	if ctx.Err() == nil {
		doubt("")
	}
	return true
}
