package ticket_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/store/mem"
	"github.com/go-relock/relock/ticket"
)

// stage is the service orders, which has locks and sends tickets, and the service shipping, which
// gets them. Both keep their locks in one store.
type stage struct {
	*testing.T
	store            *mem.Store
	orders, shipping *relock.Client
	signer           *ticket.Signer
	verifier         *ticket.Verifier
}

func newStage(t *testing.T) *stage {
	t.Helper()
	s := &stage{T: t, store: mem.New(), signer: newSigner(t), verifier: newVerifier(t)}
	s.orders, s.shipping = s.open(), s.open()
	return s
}

func (s *stage) open() *relock.Client {
	s.Helper()
	client, err := relock.Open(s.store)
	require.NoError(s, err)
	s.Cleanup(func() { require.NoError(s, client.Close()) })
	return client
}

// enter returns the lock of an order in the service orders, and a section.
func (s *stage) enter(order string) (*relock.Lock, context.Context) {
	s.Helper()
	l := s.orders.NewLock(order)
	section, err := l.Lock(s.Context())
	require.NoError(s, err)
	return l, section
}

// sign signs what Lend or HandOff has returned.
func (s *stage) sign(t ticket.Ticket, err error) ticket.Signed {
	s.Helper()
	require.NoError(s, err)
	signed, err := s.signer.Sign(t, "shipping")
	require.NoError(s, err)
	return signed
}

// serve returns the service shipping: next runs in the section of a ticket for the order in the
// path, and the response is 201.
func (s *stage) serve(next func(section context.Context)) http.Handler {
	mux := http.NewServeMux()
	lockOf := func(r *http.Request) *relock.Lock { return s.shipping.NewLock(r.PathValue("order")) }
	mux.Handle("POST /orders/{order}/ship", s.verifier.Handler(lockOf, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next(r.Context())
		w.WriteHeader(http.StatusCreated)
	})))
	return mux
}

func (s *stage) ship(h http.Handler, order string, tickets ...ticket.Signed) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(s.Context(), http.MethodPost, "/orders/"+order+"/ship", nil)
	for _, signed := range tickets {
		r.Header.Add(ticket.Header, signed.Text())
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func (s *stage) requireProblem(w *httptest.ResponseRecorder, status int, problemType string) {
	s.Helper()
	require.Equal(s, status, w.Code, w.Body)
	require.Equal(s, "application/problem+json", w.Header().Get("Content-Type"))
	require.Equal(s, status == http.StatusUnauthorized, w.Header().Get("WWW-Authenticate") != "")
	var p struct {
		Type, Title string
		Status      int
	}
	require.NoError(s, json.Unmarshal(w.Body.Bytes(), &p))
	require.Equal(s, problemType, p.Type)
	require.Equal(s, status, p.Status)
	require.NotEmpty(s, p.Title)
}

func (s *stage) requireFree(order string) {
	s.Helper()
	l := s.open().NewLock(order)
	section, err := l.TryLock(s.Context())
	require.NoError(s, err)
	require.NoError(s, l.Unlock(section))
}

func TestHandlerRunsInTheSectionOfALoan(t *testing.T) {
	s := newStage(t)
	l, section := s.enter("7")
	lent, err := ticket.Lend(section, l)
	ran := false
	w := s.ship(s.serve(func(ctx context.Context) {
		ran = true
		there := s.shipping.NewLock("7")
		require.True(t, there.Held(ctx))
		token, err := there.Token(ctx)
		require.NoError(t, err)
		require.Equal(t, lent.Token, token)
	}), "7", s.sign(lent, err))
	require.Equal(t, http.StatusCreated, w.Code)
	require.True(t, ran)
	require.NoError(t, section.Err())
	require.NoError(t, l.Unlock(section))
	s.requireFree("7") // the loan was returned
}

func TestHandlerContinuesAHoldThatWasHandedOff(t *testing.T) {
	s := newStage(t)
	l, section := s.enter("7")
	signed := s.sign(ticket.HandOff(section, l))
	w := s.ship(s.serve(func(ctx context.Context) {
		require.True(t, s.shipping.NewLock("7").Held(ctx))
		_, err := l.TryLock(t.Context())
		require.ErrorIs(t, err, relock.ErrLocked)
	}), "7", signed)
	require.Equal(t, http.StatusCreated, w.Code)
	s.requireFree("7")
}

func TestHandlerMayHandOff(t *testing.T) {
	s := newStage(t)
	l, section := s.enter("7")
	signed := s.sign(ticket.HandOff(section, l))
	var next ticket.Ticket
	s.ship(s.serve(func(ctx context.Context) {
		var err error
		next, err = ticket.HandOff(ctx, s.shipping.NewLock("7"))
		require.NoError(t, err)
	}), "7", signed)
	_, err := l.TryLock(t.Context())
	require.ErrorIs(t, err, relock.ErrLocked, "the end of the request has not freed the lock")
	last := s.open().NewLock("7")
	section, err = ticket.Accept(t.Context(), last, next)
	require.NoError(t, err)
	require.NoError(t, last.Unlock(section))
}

func TestHandlerUnlocksAfterAPanic(t *testing.T) {
	s := newStage(t)
	l, section := s.enter("7")
	signed := s.sign(ticket.HandOff(section, l))
	require.PanicsWithValue(t, "broken", func() {
		s.ship(s.serve(func(context.Context) { panic("broken") }), "7", signed)
	})
	s.requireFree("7")
}

func TestTheContextOfAHandlerEnds(t *testing.T) {
	ends := func(how func(s *stage, l *relock.Lock, section context.Context), want error) {
		t.Helper()
		s := newStage(t)
		l, section := s.enter("7")
		var cause error
		s.ship(s.serve(func(ctx context.Context) {
			how(s, l, section)
			select {
			case <-ctx.Done():
				cause = context.Cause(ctx)
			case <-time.After(20 * time.Second):
			}
		}), "7", s.sign(ticket.Lend(section, l)))
		require.ErrorIs(t, cause, want)
		s.requireFree("7")
	}
	old := func() { <-time.After(500 * time.Millisecond) } // a short section is not watched
	ends(func(_ *stage, l *relock.Lock, section context.Context) {
		old()
		require.NoError(t, l.Unlock(section))
	}, relock.ErrRecalled)
	ends(func(s *stage, l *relock.Lock, _ context.Context) {
		old()
		s.store.Lose(l.Key())
	}, relock.ErrLockLost)
}

func TestAHandlerThatOutlivesItsClientKeepsItsLock(t *testing.T) {
	for name, handOff := range map[string]bool{"a loan": false, "a hold that was handed off": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStage(t)
				l, section := s.enter("7")
				signed := ticket.Signed("")
				if handOff {
					signed = s.sign(ticket.HandOff(section, l))
				} else {
					signed = s.sign(ticket.Lend(section, l))
				}
				ctx, leave := context.WithCancelCause(t.Context())
				gone := errors.New("gone")
				h := s.serve(func(ctx context.Context) {
					<-ctx.Done()
					require.Equal(t, gone, context.Cause(ctx))
					<-time.After(5 * relock.DefaultTTL) // deaf to its context
					require.True(t, s.shipping.NewLock("7").Held(ctx))
				})
				r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/orders/7/ship", nil)
				ticket.Set(r.Header, signed)
				w := httptest.NewRecorder()
				time.AfterFunc(time.Second, func() { leave(gone) })
				h.ServeHTTP(w, r)
				require.Equal(t, http.StatusCreated, w.Code)
				if !handOff {
					require.NoError(t, l.Unlock(section))
				}
				s.requireFree("7")
				for _, c := range []*relock.Client{s.orders, s.shipping} {
					require.NoError(t, c.Close())
				}
			})
		})
	}
}

func TestARequestWithoutAValidTicketAsksForNoLock(t *testing.T) {
	s := newStage(t)
	l, section := s.enter("7")
	asked := 0
	lockOf := func(*http.Request) *relock.Lock { asked++; return nil }
	h := s.verifier.Handler(lockOf, http.NotFoundHandler())
	late, err := ticket.Lend(section, l)
	late.Expires = time.Now().Add(-time.Minute)
	for _, bad := range []ticket.Signed{"", "no ticket", s.sign(late, err)} {
		s.ship(h, "7", bad)
		require.Zero(t, asked)
	}
	s.ship(h, "7")
	require.Zero(t, asked)
	s.requireProblem(s.ship(h, "7", s.sign(ticket.Lend(section, l))), http.StatusInternalServerError, ticket.TypeInternal)
	require.Equal(t, 1, asked)
	require.NoError(t, l.Unlock(section))
}

func TestHandlerRefuses(t *testing.T) {
	s := newStage(t)
	l, section := s.enter("7")
	h := s.serve(func(context.Context) { t.Error("the handler has run") })
	good := s.sign(ticket.Lend(section, l))
	s.requireProblem(s.ship(h, "7"), http.StatusBadRequest, ticket.TypeMissing)
	s.requireProblem(s.ship(h, "7", ""), http.StatusBadRequest, ticket.TypeMissing)
	s.requireProblem(s.ship(h, "7", good, good), http.StatusUnauthorized, ticket.TypeSignature)
	s.requireProblem(s.ship(h, "7", good+"A"), http.StatusUnauthorized, ticket.TypeSignature)
	s.requireProblem(s.ship(h, "8", good), http.StatusForbidden, ticket.TypeOther)
	late, err := ticket.Lend(section, l)
	late.Expires = time.Now().Add(-time.Minute)
	s.requireProblem(s.ship(h, "7", s.sign(late, err)), http.StatusUnauthorized, ticket.TypeExpired)
	late.Expires = time.Now().Add(-time.Second) // the leeway of the Verifier, and not of the store
	s.requireProblem(s.ship(h, "7", s.sign(late, nil)), http.StatusConflict, ticket.TypeUsed)
	one, err := ticket.Lend(section, l)
	require.NoError(t, err)
	other, err := s.signer.Sign(one, "billing")
	require.NoError(t, err)
	s.requireProblem(s.ship(h, "7", other), http.StatusForbidden, ticket.TypeOther)

	require.Equal(t, http.StatusCreated, s.ship(s.serve(func(context.Context) {}), "7", good).Code, "nothing has used the ticket")
	s.requireProblem(s.ship(h, "7", good), http.StatusConflict, ticket.TypeUsed)
	unused := s.sign(ticket.Lend(section, l))
	require.NoError(t, l.Unlock(section))
	s.requireProblem(s.ship(h, "7", unused), http.StatusConflict, ticket.TypeLost)

	_, section = s.enter("7")
	handed := s.sign(ticket.HandOff(section, l))
	require.Equal(t, http.StatusCreated, s.ship(s.serve(func(context.Context) {}), "7", handed).Code)
	s.requireProblem(s.ship(h, "7", handed), http.StatusConflict, ticket.TypeLost)

	_, section = s.enter("7")
	unused = s.sign(ticket.Lend(section, l))
	semaphore := s.verifier.Handler(func(*http.Request) *relock.Lock { return s.shipping.NewSemaphore("7", 2) }, h)
	s.requireProblem(s.ship(semaphore, "7", unused), http.StatusInternalServerError, ticket.TypeInternal)
	none := s.verifier.Handler(func(*http.Request) *relock.Lock { return nil }, h)
	s.requireProblem(s.ship(none, "7", unused), http.StatusInternalServerError, ticket.TypeInternal)
	s.shipping = s.open()
	require.NoError(t, s.shipping.Close())
	s.requireProblem(s.ship(h, "7", unused), http.StatusServiceUnavailable, ticket.TypeUnavailable)
	require.NoError(t, l.Unlock(section))
}

func TestTicketsTravelInMetadata(t *testing.T) {
	signed, err := newSigner(t).Sign(loan(), "shipping")
	require.NoError(t, err)
	type metadata map[string][]string // as metadata.MD of gRPC
	md := metadata{"other": {"x"}}
	_, err = ticket.FromMetadata(md)
	require.ErrorIs(t, err, ticket.ErrMissing)
	_, err = ticket.FromMetadata(nil)
	require.ErrorIs(t, err, ticket.ErrMissing)
	ticket.ToMetadata(md, "former")
	ticket.ToMetadata(md, signed)
	got, err := ticket.FromMetadata(md)
	require.NoError(t, err)
	require.Equal(t, signed.Text(), got.Text())
	md[ticket.MetadataKey] = append(md[ticket.MetadataKey], "another")
	_, err = ticket.FromMetadata(md)
	require.ErrorIs(t, err, ticket.ErrSignature)
}
