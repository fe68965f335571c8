package adapters

import (
	"context"
	"errors"
	"net/http"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/go-relock/relock"
)

// page: middleware

// OneAtATime serves the requests with one key behind each other. Without a key a request is served
// at once.
func OneAtATime(locks *relock.Client, key func(*http.Request) string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := key(r)
		if name == "" {
			next.ServeHTTP(w, r)
			return
		}
		err := doFor(r.Context(), locks.NewLock("request:"+name), func(ctx context.Context) error {
			next.ServeHTTP(w, r.WithContext(ctx))
			return nil
		})
		if relock.NotEntered(err) {
			w.Header().Set("Retry-After", "1")
			http.Error(w, "busy", http.StatusServiceUnavailable)
		}
	})
}

// OneCallAtATime is OneAtATime for gRPC. A lock that is lost at the end of a call is its error.
func OneCallAtATime(locks *relock.Client, key func(request any) string) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (reply any, err error) {
		err = doFor(ctx, locks.NewLock("call:"+key(request)), func(ctx context.Context) (err error) {
			reply, err = next(ctx, request)
			return err
		})
		switch {
		case relock.NotEntered(err):
			return nil, status.Error(codes.Unavailable, err.Error())
		case errors.Is(err, relock.ErrLockLost):
			return nil, status.Error(codes.Aborted, err.Error())
		}
		return reply, err
	}
}

// doFor waits for the lock for a second, and keeps it until fn returns, also if the client has left
// before. The context of fn ends with the lock, and when the client leaves.
func doFor(ctx context.Context, lock *relock.Lock, fn func(ctx context.Context) error) error {
	return lock.DoFor(relock.WithStop(context.WithoutCancel(ctx), ctx), time.Second, func(section context.Context) error {
		work, end := context.WithCancelCause(section)
		defer end(nil)
		defer context.AfterFunc(ctx, func() { end(context.Cause(ctx)) })()
		return fn(work)
	})
}

// end
