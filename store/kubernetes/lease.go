package relockk8s

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"strconv"
	"strings"
	"time"

	api "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/store"
)

// Names of metadata in a Lease.
const (
	holdAnnotation = "relock/hold"
	clientLabel    = "relock/client"
)

// record is the value of the annotation.
type record struct {
	ID    store.ID `json:"id"`
	TTL   int64    `json:"ttl"` // with the delay, in milliseconds
	Count int      `json:"count"`
	Token int64    `json:"token,omitempty"` // 0: the version of the Lease is the token
}

// view is a version of a Lease, with its record. The ID of the record is empty if another program
// has the Lease. A view does not change.
type view struct {
	record
	lease *api.Lease
	at    time.Time // when the process has first read this version
}

func viewOf(lease *api.Lease) *view {
	v := &view{lease: lease, at: time.Now()}
	err := json.Unmarshal([]byte(lease.Annotations[holdAnnotation]), &v.record)
	if err != nil || string(v.ID) != v.holder() { // another program leaves the annotation as it is
		v.record = record{}
	}
	return v
}

func (v *view) holder() string {
	if v.lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *v.lease.Spec.HolderIdentity
}

// owner returns the ID of the hold, a name for a holder of another program, or "".
func (v *view) owner() store.ID {
	if v.ID != "" || v.holder() == "" {
		return v.ID
	}
	return store.ID("kubernetes:" + v.holder() + ":0")
}

// held says whether a hold may have the lock.
func (v *view) held() bool { return v.holder() != "" && v.rest() > 0 }

// rest returns the rest of the lease.
func (v *view) rest() time.Duration {
	ttl := time.Duration(v.TTL) * time.Millisecond
	if v.ID == "" && v.lease.Spec.LeaseDurationSeconds != nil {
		ttl = time.Duration(*v.lease.Spec.LeaseDurationSeconds) * time.Second
	}
	return ttl - time.Since(v.at)
}

// token returns the version of the write that gave the lock to the hold.
func (v *view) token() int64 {
	version, _ := strconv.ParseInt(v.lease.ResourceVersion, 10, 64) // get and note have checked it
	return cmp.Or(v.Token, version)
}

// again returns the record for a hold that asks for the lock. A hold that has the lock keeps its
// token, its count and a longer lease.
func (v *view) again(next record) record {
	if v.held() && v.ID == next.ID {
		next.Token, next.Count, next.TTL = v.token(), v.Count, max(next.TTL, lifetime.Millis(v.rest()))
	}
	return next
}

// write makes the Lease that stores a record. Each Lease differs from the last one by its
// renewTime, as the API server keeps the version in an update that changes nothing.
func (r record) write(lease *api.Lease) *api.Lease {
	text, err := json.Marshal(r)
	if err != nil {
		panic(err) // a record has a string and numbers
	}
	now, id := meta.NewMicroTime(time.Now()), string(r.ID)
	seconds := int32(min(max(1, (r.TTL+999)/1000), math.MaxInt32))
	lease = lease.DeepCopy()
	lease.Annotations = with(lease.Annotations, holdAnnotation, string(text))
	lease.Labels = with(lease.Labels, clientLabel, labelOf(clientOf(r.ID)))
	lease.Spec.LeaseDurationSeconds, lease.Spec.RenewTime = &seconds, &now
	if lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity != id {
		lease.Spec.HolderIdentity, lease.Spec.AcquireTime = &id, &now
	}
	return lease
}

func with(m map[string]string, key, value string) map[string]string {
	if m == nil {
		m = make(map[string]string)
	}
	m[key] = value
	return m
}

// clientOf returns the client of a hold: everything before the last two colons of the ID.
func clientOf(id store.ID) string {
	name := string(id)
	for range 2 {
		name = name[:max(0, strings.LastIndexByte(name, ':'))]
	}
	return name
}

// labelOf returns the value of the label for a client, whose name may be too long for a label.
func labelOf(client string) string {
	sum := sha256.Sum256([]byte(client))
	return hex.EncodeToString(sum[:8])
}

// get reads a Lease, and returns nil if there is none.
func (s *Store) get(ctx context.Context, name string) (v *view, err error) {
	var lease *api.Lease
	err = once(ctx, func(ctx context.Context) error {
		lease, err = s.leases.Get(ctx, name, meta.GetOptions{})
		return err
	})
	switch {
	case errors.Is(err, store.ErrUnavailable): // also a 404 of a proxy
		return nil, err
	case apierrors.IsNotFound(err):
		s.drop(name)
		return nil, nil // no Lease is no error
	case err != nil:
		return nil, err
	}
	return s.note(lease)
}

// create makes a Lease for a hold.
func (s *Store) create(ctx context.Context, name string, r record) (*view, error) {
	lease := r.write(&api.Lease{ObjectMeta: meta.ObjectMeta{Name: name}})
	v, err := s.write(ctx, func(ctx context.Context) (*api.Lease, error) {
		return s.leases.Create(ctx, lease, meta.CreateOptions{})
	}, apierrors.IsAlreadyExists)
	if err == nil && v.record != r {
		return nil, cmp.Or(s.remove(ctx, v), v.other())
	}
	return v, err
}

// update writes a record into a Lease that is as read.
func (s *Store) update(ctx context.Context, v *view, r record) (*view, error) {
	v, err := s.write(ctx, func(ctx context.Context) (*api.Lease, error) {
		return s.leases.Update(ctx, r.write(v.lease), meta.UpdateOptions{})
	}, isChanged)
	if err == nil && v.record != r {
		return nil, v.other()
	}
	return v, err
}

// other returns the error of a Lease that the API server has not stored as it was written.
func (v *view) other() error {
	return fmt.Errorf("the API server has stored the Lease %q with other values than relock wrote: does an admission webhook change Leases?",
		v.lease.Name)
}

// remove deletes a Lease that is as read.
func (s *Store) remove(ctx context.Context, v *view) error {
	_, err := s.write(ctx, func(ctx context.Context) (*api.Lease, error) {
		return nil, s.leases.Delete(ctx, v.lease.Name, meta.DeleteOptions{
			Preconditions: &meta.Preconditions{UID: &v.lease.UID, ResourceVersion: &v.lease.ResourceVersion},
		})
	}, isChanged)
	if err == nil {
		s.drop(v.lease.Name)
	}
	return err
}

// write runs a command that writes, and notes the Lease in its answer. If the command fails without
// an answer, the command may have run, or may run yet.
func (s *Store) write(ctx context.Context, command func(context.Context) (*api.Lease, error), changed func(error) bool) (*view, error) {
	var lease *api.Lease
	err := once(ctx, func(ctx context.Context) (err error) {
		lease, err = command(ctx)
		return err
	})
	switch {
	case errors.Is(err, store.ErrUnavailable):
		return nil, store.Unsure(err)
	case changed(err):
		return nil, errChanged
	case apierrors.IsConflict(err): // a create, as another client has changed a ResourceQuota
		return nil, store.Unavailable(fmt.Errorf("kubernetes: %w", err))
	case err != nil || lease == nil:
		return nil, err
	}
	return s.note(lease)
}

// note notes a version of a Lease. A version that the process has read before keeps its time.
func (s *Store) note(lease *api.Lease) (*view, error) {
	v := viewOf(lease)
	switch _, err := strconv.ParseInt(lease.ResourceVersion, 10, 64); {
	case err != nil:
		return nil, fmt.Errorf("the resourceVersion of the Lease %q is no number: %w", lease.Name, err)
	case v.owner() != "" && v.ID == "" && lease.Spec.LeaseDurationSeconds == nil:
		return nil, fmt.Errorf("%w: the Lease %q has a holder and no duration", store.ErrKind, lease.Name)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.views[lease.Name]; old != nil && old.lease.UID == lease.UID && old.lease.ResourceVersion == lease.ResourceVersion {
		return old, nil
	}
	s.views[lease.Name] = v
	if len(s.views) > s.most {
		maps.DeleteFunc(s.views, func(_ string, v *view) bool { return v.rest() < -time.Hour })
		s.most = 2*len(s.views) + 64
	}
	return v, nil
}

// known returns the last version that the process has read, or nil.
func (s *Store) known(name string) *view {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.views[name]
}

func (s *Store) drop(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.views, name)
}
