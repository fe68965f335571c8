package relockk8s

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"time"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/go-relock/relock/internal/probe"
	"github.com/go-relock/relock/store"
)

// checkLimit bounds the lives of the holds of CheckServer, and cleanupLimit the cleanup after a
// failure.
const checkLimit, cleanupLimit = 2 * time.Second, time.Second

// CheckServer implements [store.Checker]. CheckServer watches a Lease of its own, and takes two
// holds of the Lease through their lives, with each verb that locks need. The error names the first
// step that fails.
func (s *Store) CheckServer(ctx context.Context, a store.Claim) error {
	a.Name = "relock-check-" + strings.ToLower(rand.Text())
	err := s.live(ctx, a)
	if err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupLimit)
		defer cancel()
		_ = s.leases.Delete(ctx, a.Name, meta.DeleteOptions{}) // nobody else uses the name
		s.drop(a.Name)
	}
	return err
}

func (s *Store) live(ctx context.Context, a store.Claim) error {
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	err := once(ctx, func(ctx context.Context) error {
		w, err := s.watch(ctx, meta.ListOptions{FieldSelector: meta.ObjectNameField + "=" + a.Name})
		if err == nil {
			w.Stop()
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("watch the Lease %s: %w", a.Name, err)
	}
	return probe.Live(ctx, s, a, a.Name)
}
