// Zookeeper keeps a lock in ZooKeeper. Three instances of a service write invoices into one book
// under the lock, see package invoices.
//
//	ZOOKEEPER_SERVERS=localhost:2181 go run ./store/zookeeper
//
// The servers have commas between them, and may end in a path. The nodes of the lock are below
// /relock-example. ZooKeeper deletes its containers when they are empty. The exit code is 1 if
// anything is not as told.
package main

import (
	"cmp"
	"context"
	"io"
	"os"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/examples/internal/stage"
	"github.com/go-relock/relock/examples/stores/invoices"
	relockzk "github.com/go-relock/relock/store/zookeeper"
)

func main() {
	stage.Main("zookeeper", func(ctx context.Context, out io.Writer, _ string) error {
		return run(ctx, out, cmp.Or(os.Getenv("ZOOKEEPER_SERVERS"), "localhost:2181"))
	})
}

func run(ctx context.Context, out io.Writer, servers string) error {
	return invoices.Write(ctx, out, func(context.Context) (*relock.Client, func(), error) { return open(servers) })
}

// open makes a store for an instance, which has a session of its own. The lock of a name is that of
// Curator's InterProcessMutex at /relock-example/NAME.
func open(servers string) (locks *relock.Client, end func(), err error) {
	s, err := relockzk.New(servers, relockzk.WithRoot("/relock-example"))
	if err != nil {
		return nil, nil, err
	}
	locks, err = relock.Open(s)
	if err != nil {
		return nil, nil, err
	}
	return locks, func() {
		_ = locks.Close() // first, as the client uses the store
		_ = s.Close()     // ends the session
	}, nil
}
