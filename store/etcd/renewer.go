package relocketcd

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/go-relock/relock/internal/attempts"
	"github.com/go-relock/relock/internal/group"
	"github.com/go-relock/relock/store"
)

const (
	// answerLimit bounds the time for which a request may wait for its answer, and for which the
	// first stream may take to open.
	answerLimit = time.Second
	// longestOpening bounds the time for which any stream may take to open: etcd may be busy with
	// passwords.
	longestOpening = 8 * time.Second
	// inFlightMost is the number of requests in flight in a stream. The others take turns.
	inFlightMost = 100
)

var errSilent = fmt.Errorf("no answer to a renewal in %s", answerLimit)

// renewer renews etcd leases over one stream, which is open from the first renewal until close. The
// etcd client authenticates anew for each stream of a user, and a password costs etcd a hundred
// times as much as a renewal.
type renewer struct {
	client *clientv3.Client

	mu       sync.Mutex
	stream   *stream // nil: none is open, or opening
	failures int     // the number of streams that have ended, from the last one with an answer on
	closed   bool

	pause attempts.Pause // before the next stream; used by run
}

// stream is one LeaseKeepAlive stream. etcd answers to the requests of a stream in their order.
type stream struct {
	requests chan request
	free     chan struct{} // has an element for each request in flight
	end      context.CancelCauseFunc
	ended    chan struct{} // closed when nothing of the stream is left
	err      error         // of the end, set before ended is closed

	calls int // that use the stream; guarded by renewer.mu

	mu       sync.Mutex
	inFlight []request   // the oldest first
	silence  *time.Timer // ends the stream if the oldest request gets no answer
}

// request asks etcd to renew one lease.
type request struct {
	id     clientv3.LeaseID
	index  int // in the call
	answer chan<- answer
}

type answer struct {
	index int
	err   error
}

// renew resets etcd leases to their whole length. renew leaves out the leases with number 0, and
// writes ErrGone to errs for a lease that has ended. If the stream breaks, renew asks again in a
// new stream, until ctx is done.
func (r *renewer) renew(ctx context.Context, ids []clientv3.LeaseID, errs []error) error {
	var last error
	for {
		err := r.attempt(ctx, ids, errs)
		switch {
		case err == nil || isRefusal(err) || r.client.Ctx().Err() != nil:
			return err
		case ctx.Err() != nil:
			return cmp.Or(last, err)
		}
		last = err
	}
}

// attempt renews in one stream.
func (r *renewer) attempt(ctx context.Context, ids []clientv3.LeaseID, errs []error) error {
	st := r.join()
	defer r.leave(st)
	answers, open := make(chan answer, len(ids)), 0
	for i, id := range ids {
		if id == clientv3.NoLease {
			continue
		}
		select {
		case st.requests <- request{id, i, answers}:
			open++
		case <-st.ended:
			return st.err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for ; open > 0; open-- {
		select {
		case a := <-answers:
			errs[a.index] = a.err
		case <-st.ended:
			return st.err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// join returns the stream for a call. The call ends with leave.
func (r *renewer) join() *stream {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stream == nil {
		ctx, end := context.WithCancelCause(context.Background())
		r.stream = &stream{
			requests: make(chan request), free: make(chan struct{}, inFlightMost), end: end, ended: make(chan struct{}),
			silence: time.AfterFunc(time.Hour, func() { end(errSilent) }),
		}
		r.stream.silence.Stop()
		go r.run(ctx, r.stream, r.failures)
	}
	r.stream.calls++
	return r.stream
}

// leave ends a call. After close, the stream ends with its last call.
func (r *renewer) leave(st *stream) {
	r.mu.Lock()
	st.calls--
	last := r.closed && st.calls == 0
	r.mu.Unlock()
	if last {
		st.end(nil)
		<-st.ended
	}
}

// close ends the stream. A call that is in flight keeps the stream until the call has its answers,
// and a later call opens a stream of its own.
func (r *renewer) close() {
	r.mu.Lock()
	r.closed = true
	st := r.stream
	unused := st != nil && st.calls == 0
	r.mu.Unlock()
	if unused {
		st.end(nil)
	}
	if st != nil {
		<-st.ended
	}
}

// run serves a stream until its end. The more streams have failed, the later run opens the next
// one. An interceptor that panics ends its stream.
func (r *renewer) run(ctx context.Context, st *stream, failures int) {
	if failures > 0 {
		r.pause.Wait(ctx.Done())
	}
	answered := false
	err := attempts.Apart(func() error { return r.serve(ctx, st, failures, &answered) })
	st.silence.Stop()
	st.err = rpctypes.Error(cmp.Or(context.Cause(ctx), err))
	st.end(nil)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stream, r.failures = nil, min(failures+1, 6); answered {
		r.failures, r.pause = 1, attempts.Pause{}
	}
	close(st.ended)
}

// serve opens a stream, and serves the stream until its end. The more streams have failed, the
// longer may the opening take.
func (r *renewer) serve(ctx context.Context, st *stream, failures int, answered *bool) error {
	opening := min(answerLimit<<failures, longestOpening)
	late := time.AfterFunc(opening, func() { st.end(fmt.Errorf("no stream for renewals in %s", opening)) })
	rpc, err := pb.NewLeaseClient(r.client.ActiveConnection()).LeaseKeepAlive(clientv3.WithRequireLeader(ctx))
	late.Stop()
	if err != nil {
		return err
	}
	var sender group.Group
	sender.Go(func() { st.send(ctx, rpc) })
	for err = st.receive(rpc); err == nil; err = st.receive(rpc) {
		*answered = true
	}
	st.end(err)
	sender.Close()
	sender.Wait()
	return err
}

// send sends the requests of a stream.
func (st *stream) send(ctx context.Context, rpc pb.Lease_LeaseKeepAliveClient) {
	for {
		select {
		case st.free <- struct{}{}:
		case <-ctx.Done():
			return
		}
		select {
		case q := <-st.requests:
			st.mu.Lock()
			if st.inFlight = append(st.inFlight, q); len(st.inFlight) == 1 {
				st.silence.Reset(answerLimit)
			}
			st.mu.Unlock()
			if rpc.Send(&pb.LeaseKeepAliveRequest{ID: int64(q.id)}) != nil {
				return // receive has the error
			}
		case <-ctx.Done():
			return
		}
	}
}

// receive takes in an answer to the oldest request.
func (st *stream) receive(rpc pb.Lease_LeaseKeepAliveClient) error {
	resp, err := rpc.Recv()
	if err != nil {
		return err
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	if len(st.inFlight) == 0 || int64(st.inFlight[0].id) != resp.ID {
		return fmt.Errorf("an answer about the lease %x, which is not due", resp.ID)
	}
	q := st.inFlight[0]
	if st.inFlight = st.inFlight[1:]; len(st.inFlight) > 0 {
		st.silence.Reset(answerLimit)
	} else {
		st.silence.Stop()
	}
	<-st.free
	a := answer{index: q.index}
	if resp.TTL <= 0 {
		a.err = store.ErrGone
	}
	q.answer <- a
	return nil
}
