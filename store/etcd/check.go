package relocketcd

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/go-relock/relock/internal/probe"
	"github.com/go-relock/relock/store"
)

// checkLimit bounds CheckServer.
const checkLimit = 3 * time.Second

// CheckServer implements [store.Checker]. CheckServer takes two holds through their lives in a lock
// of its own, and reads where the store learns of broken holds. The error names the first step that
// fails. An etcd that is too old for a client with a user is an error, too.
func (s *Store) CheckServer(ctx context.Context, a store.Claim) error {
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	a = store.Claim{Name: a.Name + "-" + rand.Text(), TTL: a.TTL, Delay: a.Delay, Limit: 1}
	if err := probe.Live(ctx, s, a, s.dir(a)); err != nil {
		return err
	}
	if _, err := s.get(ctx, clientv3.OpGet(s.notices(), clientv3.WithPrefix(), clientv3.WithLimit(1), clientv3.WithKeysOnly())); err != nil {
		return fmt.Errorf("read %s: %w", s.notices(), err)
	}
	resp, err := pb.NewMaintenanceClient(s.client.ActiveConnection()).Status(ctx, &pb.StatusRequest{})
	if err != nil { // locks do not need the version
		return nil
	}
	return s.login(resp.Version)
}
