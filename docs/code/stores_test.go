package code

import (
	"testing"

	"github.com/go-relock/relock/store"
	"github.com/go-relock/relock/store/mem"
	"github.com/go-relock/relock/storetest"
)

// openStore makes the store that a page calls yours.
func openStore(*testing.T) store.Store { return mem.New() }

// page: suite
func TestMyStore(t *testing.T) {
	storetest.Run(t, storetest.Harness{
		Start: func(t *testing.T) storetest.Server {
			s := openStore(t)
			return storetest.Server{New: func() store.Store { return s }}
		},
		Without: map[storetest.Promise]string{
			storetest.Acks:        "there are no replicas",
			storetest.CheckServer: "there is no server",
		},
	})
}

// end
