package wrong

import (
	"testing"

	"github.com/go-relock/relock"
)

func TestLock(t *testing.T) {
	var lock relock.Lock
	if _, err := lock.Lock(t.Context()); err != nil {
		t.Log(err)
	}
}
