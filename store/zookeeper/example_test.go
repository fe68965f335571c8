package relockzk_test

import (
	"context"
	"fmt"

	"github.com/go-relock/relock"
	relockzk "github.com/go-relock/relock/store/zookeeper"
)

func ExampleNew() {
	// Java: new InterProcessMutex(curator, "/locks/orders"), with curator connected to .../app.
	s, err := relockzk.New("zk1:2181,zk2:2181,zk3:2181/app", relockzk.WithRoot("/locks"))
	if err != nil {
		fmt.Println(err)
		return
	}
	client, err := relock.Open(s)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = s.Close() }()
	defer func() { _ = client.Close() }()
	lock := client.NewLock("orders")
	fmt.Println(lock.Err())
	_ = func(ctx context.Context) error { // in a service
		return lock.Do(ctx, func(context.Context) error { return nil })
	}
	// Output: <nil>
}
