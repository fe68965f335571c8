package relockk8s_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	api "k8s.io/api/coordination/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"

	"github.com/go-relock/relock/store"
	relockk8s "github.com/go-relock/relock/store/kubernetes"
)

// webhook is an API server that stores one Lease as it pleases.
type webhook struct {
	coordination.LeaseInterface
	change func(*api.Lease)
	lease  *api.Lease // nil: none
}

func (w *webhook) Create(_ context.Context, lease *api.Lease, _ meta.CreateOptions) (*api.Lease, error) {
	w.lease = lease.DeepCopy()
	w.lease.ResourceVersion = "1"
	w.change(w.lease)
	return w.lease, nil
}

func (w *webhook) Update(ctx context.Context, lease *api.Lease, _ meta.UpdateOptions) (*api.Lease, error) {
	return w.Create(ctx, lease, meta.CreateOptions{})
}

func (w *webhook) Delete(context.Context, string, meta.DeleteOptions) error {
	w.lease = nil
	return nil
}

func TestALeaseThatIsStoredOtherwiseIsNoHold(t *testing.T) {
	claim := store.Claim{Name: "orders", ID: "client:1:1", TTL: time.Minute, Limit: 1}
	for name, change := range map[string]func(*api.Lease){
		"without the record": func(l *api.Lease) { l.Annotations = nil },
		"without the holder": func(l *api.Lease) { l.Spec.HolderIdentity = nil },
	} {
		t.Run(name, func(t *testing.T) {
			server := &webhook{change: change}
			s, err := relockk8s.New(server)
			require.NoError(t, err)
			_, err = s.Try(t.Context(), claim)
			require.ErrorContains(t, err, "does an admission webhook change Leases?")
			require.NotErrorIs(t, err, store.ErrUnavailable, "it stays")
			require.Nil(t, server.lease, "nothing is left")

			server.change = func(*api.Lease) {}
			l, err := s.Try(t.Context(), claim)
			require.NoError(t, err)
			server.change = change
			require.ErrorContains(t, s.Renew(t.Context(), []store.Renewal{{Lease: l, TTL: time.Minute, Count: 2}})[0], "admission webhook")
		})
	}
}
