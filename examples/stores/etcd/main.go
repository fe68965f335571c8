// Etcd keeps a lock in etcd. Three instances of a service write invoices into one book under the
// lock, see package invoices.
//
//	ETCD_ENDPOINTS=localhost:2379 go run ./store/etcd
//
// The endpoints have commas between them. The keys of the lock begin with /relock-example/, and no
// key is left. The exit code is 1 if anything is not as told.
package main

import (
	"cmp"
	"context"
	"io"
	"os"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/examples/internal/stage"
	"github.com/go-relock/relock/examples/stores/invoices"
	relocketcd "github.com/go-relock/relock/store/etcd"
)

func main() {
	stage.Main("etcd", func(ctx context.Context, out io.Writer, _ string) error {
		return run(ctx, out, cmp.Or(os.Getenv("ETCD_ENDPOINTS"), "localhost:2379"))
	})
}

func run(ctx context.Context, out io.Writer, endpoints string) error {
	return invoices.Write(ctx, out, func(context.Context) (*relock.Client, func(), error) {
		return open(strings.Split(endpoints, ","))
	})
}

// open connects an instance to etcd. The lock of a name is that of `etcdctl lock /relock-example/NAME`.
func open(endpoints []string) (locks *relock.Client, end func(), err error) {
	c, err := clientv3.New(clientv3.Config{
		Endpoints: endpoints, Logger: zap.NewNop(),
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: time.Second, // finds a member that is silent
	})
	if err != nil {
		return nil, nil, err
	}
	s, err := relocketcd.New(c, "/relock-example/")
	if err == nil {
		locks, err = relock.Open(s)
	}
	if err != nil {
		_ = c.Close()
		return nil, nil, err
	}
	return locks, func() {
		_ = locks.Close() // first, as the client uses the store
		_ = s.Close()     // and the store uses the connection
		_ = c.Close()
	}, nil
}
