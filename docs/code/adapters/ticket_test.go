package adapters

import (
	"context"
	"crypto/ed25519"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/ticket"
)

// The code of ticket/README.md for gRPC.

// page: interceptor
// Borrowing serves each call in the section that the ticket in its metadata lends.
func Borrowing(v *ticket.Verifier, lockOf func(request any) *relock.Lock) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		md, _ := metadata.FromIncomingContext(ctx)
		signed, _ := ticket.FromMetadata(md) // without one Verify says so
		t, err := v.Verify(signed)
		if err != nil {
			return nil, status.Error(codes.Unauthenticated, err.Error())
		}
		lock := lockOf(request)
		section, err := ticket.Borrow(context.WithoutCancel(ctx), lock, t) // the loan lasts until next returns
		if err != nil {
			return nil, status.Error(codes.Aborted, err.Error()) // lend again
		}
		defer lock.Unlock(section)
		work, end := context.WithCancelCause(section)
		defer context.AfterFunc(ctx, func() { end(context.Cause(ctx)) })()
		return next(work, request)
	}
}

// end

func TestACallIsServedInTheSectionOfItsTicket(t *testing.T) {
	both := processes(t, 2)
	public, key, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	signer, err := ticket.NewSigner("orders", "1", key)
	require.NoError(t, err)
	verifier, err := ticket.NewVerifier("packing", ticket.Issuers{"orders": {"1": public}})
	require.NoError(t, err)
	intercept := Borrowing(verifier, func(request any) *relock.Lock { return both[1].NewLock("orders:" + request.(string)) })

	lock := both[0].NewLock("orders:42")
	section, err := lock.Lock(t.Context())
	require.NoError(t, err)
	lend := func() context.Context {
		lent, err := ticket.Lend(section, lock)
		require.NoError(t, err)
		signed, err := signer.Sign(lent, "packing")
		require.NoError(t, err)
		md := metadata.MD{}
		ticket.ToMetadata(md, signed)
		return metadata.NewIncomingContext(t.Context(), md)
	}
	pack := func(ctx context.Context, request any) (any, error) {
		require.True(t, both[1].NewLock("orders:"+request.(string)).Held(ctx))
		return "packed", ctx.Err()
	}
	lent := lend()
	reply, err := intercept(lent, "42", nil, pack)
	require.NoError(t, err)
	require.Equal(t, "packed", reply)

	_, err = intercept(lent, "42", nil, pack)
	require.Equal(t, codes.Aborted, status.Code(err), "used before")
	_, err = intercept(lend(), "43", nil, pack)
	require.Equal(t, codes.Aborted, status.Code(err), "of another lock")
	_, err = intercept(t.Context(), "42", nil, pack)
	require.Equal(t, codes.Unauthenticated, status.Code(err), "none")
	other := metadata.NewIncomingContext(t.Context(), metadata.Pairs(ticket.MetadataKey, "forged"))
	_, err = intercept(other, "42", nil, pack)
	require.Equal(t, codes.Unauthenticated, status.Code(err), "forged")

	gone, leave := context.WithCancel(lend())
	_, err = intercept(gone, "42", nil, func(ctx context.Context, _ any) (any, error) {
		leave()
		<-ctx.Done()
		return nil, ctx.Err()
	})
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, lock.Unlock(section))
}
