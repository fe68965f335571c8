package relocketcd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"github.com/go-relock/relock/internal/lifetime"
	"github.com/go-relock/relock/store"
)

const (
	// limit bounds each command: a member of etcd that is silent must not hold up a call that
	// another member can serve.
	limit = 3 * time.Second
	// readTries is the number of times that a command without effects is sent in that time. The
	// etcd client sends one command after another to the members in turn.
	readTries = 3
	// parallel is how many commands of one call are in flight.
	parallel = 16
)

// errClosed reports an etcd client that is closed.
var errClosed = errors.New("the etcd client is closed")

// once runs a command.
func (s *Store) once(ctx context.Context, command func(context.Context) error) error {
	return s.tries(ctx, 1, command)
}

// readOnly runs a command that may run again.
func (s *Store) readOnly(ctx context.Context, command func(context.Context) error) error {
	return s.tries(ctx, readTries, command)
}

func (s *Store) tries(ctx context.Context, n int, command func(context.Context) error) (err error) {
	if s.client.Ctx().Err() != nil {
		return errClosed // the etcd client would try for seconds
	}
	for range n {
		bounded, cancel := context.WithTimeout(ctx, limit/time.Duration(n))
		err = command(bounded)
		answered := bounded.Err() == nil
		cancel()
		if err == nil || answered {
			break
		}
	}
	if err != nil {
		err = s.failed(ctx, err)
	}
	return err
}

// failed returns the error of a command without an answer, or with an error as the answer.
func (s *Store) failed(ctx context.Context, err error) error {
	switch {
	case s.client.Ctx().Err() != nil:
		return fmt.Errorf("%w: %w", errClosed, err)
	case ctx.Err() != nil:
		if cause := s.silence(ctx); cause != nil {
			return store.Unavailable(fmt.Errorf("%w: etcd: %w", lifetime.Ended(ctx), cause))
		}
		return store.Unavailable(lifetime.Ended(ctx))
	case isLate(err):
		if cause := s.silence(ctx); cause != nil {
			return store.Unavailable(fmt.Errorf("etcd: %w", cause))
		}
		return store.Unavailable(fmt.Errorf("etcd has given no answer in %s", limit))
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		return store.Unavailable(fmt.Errorf("the etcd lease has ended: %w", err))
	case isRefusal(err):
		return fmt.Errorf("etcd: %w", err)
	case errors.Is(err, io.EOF):
		return store.Unavailable(errors.New("etcd has closed the stream"))
	default:
		return store.Unavailable(fmt.Errorf("etcd: %w", err))
	}
}

// silence returns why a command has no answer, or nil if nothing is known. The etcd client lets its
// commands wait for a connection, for a leader and for a login, and does not say why. A command that
// waits for none of them has the error of the last dial, or knows of no leader.
func (s *Store) silence(ctx context.Context) error {
	conn := s.client.ActiveConnection()
	if !errors.Is(context.Cause(ctx), context.DeadlineExceeded) && ctx.Err() != nil && conn.GetState() != connectivity.TransientFailure {
		return nil // nobody has waited for etcd for long
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 100*time.Millisecond)
	defer cancel()
	resp, err := pb.NewMaintenanceClient(conn).Status(ctx, &pb.StatusRequest{})
	switch {
	case err == nil && resp.Leader == 0:
		return rpctypes.ErrNoLeader
	case err == nil:
		return s.login(resp.Version)
	case isLate(err) || isRefusal(err):
		return nil
	}
	return err
}

// login returns why a member with a version may let a user in once only, or nil. Before 3.4.28 etcd
// refuses a login in a connection whose token has expired, and the etcd client tries such a login
// again until the command ends.
func (s *Store) login(version string) error {
	var major, minor, patch int
	_, err := fmt.Sscanf(version, "%d.%d.%d", &major, &minor, &patch)
	if s.client.Username == "" || err != nil || slices.Compare([]int{major, minor, patch}, []int{3, 4, 28}) >= 0 {
		return nil
	}
	return fmt.Errorf("%w: etcd %s lets no user in again whose token has expired (--auth-token-ttl): "+
		"update etcd to 3.4.28 or newer; until then a new etcd client gets in", rpctypes.ErrInvalidAuthToken, version)
}

// isLate reports whether a command has taken all its time, at etcd or on the way. A member knows
// the time that a command has, and gives its end as an unknown error.
func isLate(err error) bool {
	return codeOf(err) == codes.DeadlineExceeded || strings.HasSuffix(err.Error(), context.DeadlineExceeded.Error())
}

func codeOf(err error) codes.Code {
	if e := (rpctypes.EtcdError{}); errors.As(err, &e) {
		return e.Code()
	}
	return status.Code(err)
}

// isRefusal reports whether etcd, or a proxy before etcd, has refused a command for a reason that
// stays: a command that etcd does not take, a wrong password, missing rights, or another server.
// The reasons of all other classes pass, as a member that is about to join or to leave gives them.
func isRefusal(err error) bool {
	if errors.Is(err, rpctypes.ErrInvalidAuthToken) || errors.Is(err, rpctypes.ErrAuthOldRevision) {
		return false // the etcd client draws a new token
	}
	switch codeOf(err) { // all other codes may pass
	case codes.InvalidArgument, codes.OutOfRange, codes.PermissionDenied, codes.Unauthenticated, codes.Unimplemented:
		return true
	}
	return false
}
