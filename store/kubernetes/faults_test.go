package relockk8s_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	api "k8s.io/api/coordination/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/bound"
	"github.com/go-relock/relock/internal/test/holds"
	"github.com/go-relock/relock/store"
	relockk8s "github.com/go-relock/relock/store/kubernetes"
)

const minute = time.Minute

// What a test does with holds.
var (
	claim   = holds.Claim
	wait    = holds.Wait
	nothing = holds.Nothing
	take    = holds.Take
	forget  = holds.Forget

	requireOwner = holds.RequireOwner
)

func TestNewRefusesNil(t *testing.T) {
	_, err := relockk8s.New(nil)
	require.ErrorContains(t, err, "nil")
}

func TestALostReplyLeavesOneHold(t *testing.T) {
	s := shared(t)
	var w wire
	st := s.store(&w)
	a := claim("lost-reply", minute)
	w.loseReply(http.MethodPost)
	l, err := st.Wait(t.Context(), a, nothing)
	require.NoError(t, err)
	require.True(t, l.Unsure)
	w.loseReply(http.MethodPut)
	_, err = st.Enter(t.Context(), l, 2)
	require.NoError(t, err)
	state, err := s.store().Look(t.Context(), a)
	require.NoError(t, err)
	require.Equal(t, 2, state.Count)
	require.Equal(t, l.Token, state.Token)
	require.NoError(t, st.Release(t.Context(), l))

	a = claim("lost-reply", minute)
	w.loseReply(http.MethodPost)
	_, err = st.Try(t.Context(), a)
	require.ErrorIs(t, err, store.ErrUnsure)
	require.ErrorIs(t, err, store.ErrUnavailable)
	l = take(t, st, a)
	require.True(t, l.Unsure)
	w.loseReply(http.MethodPut)
	err = st.Renew(t.Context(), []store.Renewal{{Lease: l, TTL: minute, Count: 1}})[0]
	require.ErrorIs(t, err, store.ErrUnsure)
	require.NoError(t, st.Renew(t.Context(), []store.Renewal{{Lease: l, TTL: minute, Count: 1}})[0])
	forget(t, st, a)
}

func TestAReleaseThatIsSentAgainSparesTheNextHold(t *testing.T) {
	s := shared(t)
	var w wire
	st, other := s.store(&w), s.store()
	l := take(t, st, claim("sent-again", minute))
	next := wait(t, other, claim("sent-again", minute))
	w.loseReply(http.MethodDelete)
	err := st.Release(t.Context(), l)
	require.ErrorIs(t, err, store.ErrGone)
	require.ErrorIs(t, err, store.ErrUnsure)
	second := next.Get(t)
	require.ErrorIs(t, st.Release(t.Context(), l), store.ErrGone)
	forget(t, st, l.Claim)
	requireOwner(t, st, "sent-again", second.ID)
	require.NoError(t, other.Release(t.Context(), second))
}

func TestACreateThatComesLateIsForgottenAgain(t *testing.T) {
	s := shared(t)
	var w wire
	st := s.store(&w)
	a := claim("late-create", minute)
	late := w.delay(http.MethodPost)
	_, err := st.Try(t.Context(), a)
	require.ErrorIs(t, err, store.ErrUnsure)
	forget(t, st, a)
	require.Equal(t, http.StatusCreated, late.deliver())
	requireOwner(t, st, a.Name, a.ID)
	forget(t, st, a)

	late = w.delay(http.MethodPost)
	a = claim("late-create", minute)
	_, err = st.Try(t.Context(), a)
	require.ErrorIs(t, err, store.ErrUnsure)
	next := take(t, st, claim("late-create", minute))
	require.Equal(t, http.StatusConflict, late.deliver())
	requireOwner(t, st, a.Name, next.ID)
	require.NoError(t, st.Release(t.Context(), next))
}

// TestAnUpdateThatComesLateMakesNoLease delivers a renewal when the hold is released. Without the UID the update would make
// the Lease of the old hold anew.
func TestAnUpdateThatComesLateMakesNoLease(t *testing.T) {
	s := shared(t)
	var w wire
	st := s.store(&w)
	l := take(t, st, claim("late-update", minute))
	late := w.delay(http.MethodPut)
	require.ErrorIs(t, st.Renew(t.Context(), []store.Renewal{{Lease: l, TTL: minute, Count: 1}})[0], store.ErrUnsure)
	require.NoError(t, st.Release(t.Context(), l))
	require.Equal(t, http.StatusConflict, late.deliver())
	s.requireNone()

	lease := &api.Lease{ObjectMeta: meta.ObjectMeta{Name: "late-update", ResourceVersion: fmt.Sprint(l.Token)}}
	lease, err := s.leases().Update(t.Context(), lease, meta.UpdateOptions{})
	require.NoError(t, err, "the API server has begun to check the resourceVersion of an update without an object")
	require.NoError(t, s.leases().Delete(t.Context(), lease.Name, meta.DeleteOptions{}))
}

func TestADeleteThatComesLateSparesTheNextHold(t *testing.T) {
	s := shared(t)
	var w wire
	st := s.store(&w)
	l := take(t, st, claim("late-delete", minute))
	late := w.delay(http.MethodDelete)
	require.ErrorIs(t, st.Forget(t.Context(), []store.Claim{l.Claim})[0], store.ErrUnsure)
	forget(t, st, l.Claim)
	next := take(t, st, claim("late-delete", minute))
	require.Equal(t, http.StatusConflict, late.deliver())
	requireOwner(t, st, l.Name, next.ID)
	require.NoError(t, st.Release(t.Context(), next))
}

func TestOneOfTwoHoldsTakesOverAnExpiredLease(t *testing.T) {
	s := shared(t)
	var w wire
	st, other := s.store(&w), s.store()
	dead := take(t, s.store(), claim("takeover", 500*time.Millisecond))
	for _, st := range []store.Store{st, other} { // begin to count the lease
		requireOwner(t, st, dead.Name, dead.ID)
	}
	<-time.After(600 * time.Millisecond)
	requireOwner(t, st, dead.Name, "")
	a := claim("takeover", minute)
	late := w.delay(http.MethodPut)
	_, err := st.Try(t.Context(), a)
	require.ErrorIs(t, err, store.ErrUnsure)
	next := take(t, other, claim("takeover", minute))
	require.Greater(t, next.Token, dead.Token)
	require.Equal(t, http.StatusConflict, late.deliver())
	var busy *store.Busy
	_, err = st.Try(t.Context(), a)
	require.ErrorAs(t, err, &busy)
	require.Equal(t, next.ID, busy.Owner)
	require.NoError(t, other.Release(t.Context(), next))
}

func TestAChangeByAnotherProgramIsNoLoss(t *testing.T) {
	s := shared(t)
	st, leases := s.store(), s.leases()
	l := take(t, st, claim("touched", minute))
	touch := func() {
		lease, err := leases.Get(t.Context(), l.Name, meta.GetOptions{})
		require.NoError(t, err)
		lease.Annotations["touched"] = time.Now().String()
		_, err = leases.Update(t.Context(), lease, meta.UpdateOptions{})
		require.NoError(t, err)
	}
	touch()
	require.NoError(t, st.Renew(t.Context(), []store.Renewal{{Lease: l, TTL: minute, Count: 3}})[0])
	state, err := st.Look(t.Context(), l.Claim)
	require.NoError(t, err)
	require.Equal(t, 3, state.Count)
	touch()
	require.NoError(t, st.Release(t.Context(), l))
}

func TestALeaseOfAnotherProgramExcludes(t *testing.T) {
	s := shared(t)
	st, leases := s.store(), s.leases()
	holder, seconds := "pod-1", int32(1)
	lease := &api.Lease{
		ObjectMeta: meta.ObjectMeta{Name: "foreign"},
		Spec:       api.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds},
	}
	_, err := leases.Create(t.Context(), lease, meta.CreateOptions{})
	require.NoError(t, err)
	begun := time.Now()
	var busy *store.Busy
	_, err = st.Try(t.Context(), claim("foreign", minute))
	require.ErrorAs(t, err, &busy)
	require.Equal(t, store.ID("kubernetes:pod-1:0"), busy.Owner)
	l := wait(t, st, claim("foreign", minute)).Get(t)
	require.GreaterOrEqual(t, time.Since(begun), time.Second)
	requireOwner(t, s.store(), "foreign", l.ID)

	lease, err = leases.Get(t.Context(), "foreign", meta.GetOptions{}) // takes the Lease, as an operator may
	require.NoError(t, err)
	lease.Spec.HolderIdentity = &holder
	_, err = leases.Update(t.Context(), lease, meta.UpdateOptions{})
	require.NoError(t, err)
	require.ErrorIs(t, st.Renew(t.Context(), []store.Renewal{{Lease: l, TTL: minute, Count: 1}})[0], store.ErrGone)
	require.ErrorIs(t, st.Release(t.Context(), l), store.ErrGone)
	requireOwner(t, st, "foreign", busy.Owner)
	require.NoError(t, st.Break(t.Context(), store.Claim{Name: "foreign", ID: busy.Owner, Limit: 1}))
}

func TestALeaseWithoutADurationIsNoLock(t *testing.T) {
	s := shared(t)
	holder := "pod-1"
	lease := &api.Lease{ObjectMeta: meta.ObjectMeta{Name: "endless"}, Spec: api.LeaseSpec{HolderIdentity: &holder}}
	_, err := s.leases().Create(t.Context(), lease, meta.CreateOptions{})
	require.NoError(t, err)
	_, err = s.store().Wait(t.Context(), claim("endless", minute), nothing)
	require.ErrorIs(t, err, store.ErrKind)
	s.lose("endless")
}

func TestATokenStaysTheSameThroughRenewals(t *testing.T) {
	s := shared(t)
	st := s.store()
	l := take(t, st, claim("token", minute))
	for range 3 {
		require.NoError(t, st.Renew(t.Context(), []store.Renewal{{Lease: l, TTL: minute, Count: 1}})[0])
	}
	for _, st := range []store.Store{st, s.store()} {
		token, err := st.Token(t.Context(), l)
		require.NoError(t, err)
		require.Equal(t, l.Token, token)
	}
	again := take(t, s.store(), l.Claim)
	require.Equal(t, l.Token, again.Token)
	require.NoError(t, st.Release(t.Context(), l))
}

func TestAPairIsTwoCommandsAndARenewalIsOne(t *testing.T) {
	s := shared(t)
	var w wire
	st := s.store(&w)
	l := take(t, st, claim("commands", minute))
	require.EqualValues(t, 1, w.requests.Load())
	require.NoError(t, st.Renew(t.Context(), []store.Renewal{{Lease: l, TTL: minute, Count: 1}})[0])
	require.EqualValues(t, 2, w.requests.Load())
	require.NoError(t, st.Release(t.Context(), l))
	require.EqualValues(t, 3, w.requests.Load())
}

func TestAWaiterWatchesAndSendsNothingWhileItWaits(t *testing.T) {
	s := shared(t)
	var w wire
	st := s.store()
	const ttl = 2 * time.Second
	l := take(t, st, claim("quiet", ttl))
	next := wait(t, s.store(&w), claim("quiet", minute))
	for range 6 { // longer than a lease
		<-time.After(ttl / 5)
		require.NoError(t, st.Renew(t.Context(), []store.Renewal{{Lease: l, TTL: ttl, Count: 1}})[0])
	}
	require.EqualValues(t, 3, w.requests.Load(), "create, get, watch")
	require.NoError(t, st.Release(t.Context(), l))
	second := next.Get(t)
	require.Equal(t, store.WakeReleased, second.Woken)
	require.EqualValues(t, 4, w.requests.Load(), "create")
	require.NoError(t, st.Release(t.Context(), second))
}

func TestASilentWatchEndsWithTheLease(t *testing.T) {
	s := shared(t)
	var w wire
	w.silent.Store(true)
	st := s.store()
	l := take(t, st, claim("silent", 2*time.Second))
	next := wait(t, s.store(&w), claim("silent", minute))
	begun := time.Now()
	require.NoError(t, st.Release(t.Context(), l))
	second := next.Get(t)
	require.Equal(t, store.WakeRecheck, second.Woken)
	require.Greater(t, time.Since(begun), time.Second)
	require.NoError(t, st.Release(t.Context(), second))
}

// TestAnErrorThatMayPassEndsNoWait has the API server refuse commands for a second.
func TestAnErrorThatMayPassEndsNoWait(t *testing.T) {
	s := shared(t)
	for says, f := range map[string]refusal{
		"Unauthorized": {code: http.StatusUnauthorized, body: "Unauthorized"},
		"too many concurrent requests to increment quota": {
			code: http.StatusForbidden, body: `leases "x" is forbidden: too many concurrent requests to increment quota`,
		},
		"exceeded quota: few":           {code: http.StatusForbidden, body: `leases "x" is forbidden: exceeded quota: few, requested: count/leases=1`},
		"the object has been modified":  {http.MethodPost, http.StatusConflict, `cannot be fulfilled on resourcequotas "few": the object has been modified`},
		"could not find":                {code: http.StatusNotFound, body: "<html>no backend</html>"},
		"blocked":                       {code: http.StatusForbidden, body: "<html>blocked</html>"},
		"new in a later version":        {code: http.StatusTeapot, body: "new in a later version"},
		"etcdserver: request timed out": {code: http.StatusInternalServerError, body: "etcdserver: request timed out"},
		"too many requests":             {code: http.StatusTooManyRequests, body: "too many requests"},
	} {
		t.Run(says, func(t *testing.T) {
			t.Parallel()
			name := strings.NewReplacer(" ", "-", ":", "").Replace(strings.ToLower(says))
			var w wire
			st, other := s.store(&w), s.store()
			hold, busy := take(t, st, claim("hold-"+name, minute)), take(t, other, claim(name, minute))
			w.refuse.Store(&f)
			if f.verb == "" {
				err := st.Renew(t.Context(), []store.Renewal{{Lease: hold, TTL: minute, Count: 1}})[0]
				require.ErrorIs(t, err, store.ErrUnavailable)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := st.Wait(ctx, claim(name, minute), nothing)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.ErrorIs(t, err, store.ErrUnavailable)
			require.ErrorContains(t, err, says, "the last word of the API server")
			w.refuse.Store(nil)
			require.NoError(t, st.Release(t.Context(), hold))
			next := wait(t, st, claim(name, minute))
			require.NoError(t, other.Release(t.Context(), busy))
			require.NoError(t, st.Release(t.Context(), next.Get(t)))
		})
	}
}

func TestARefusalThatStaysEndsAWait(t *testing.T) {
	s := shared(t)
	for name, f := range map[string]refusal{
		"rights":  {code: http.StatusForbidden, body: `leases "quota" is forbidden: User "quota" cannot create resource "leases" in the namespace "quota"`},
		"name":    {code: http.StatusUnprocessableEntity, body: "invalid"},
		"webhook": {code: http.StatusBadRequest, body: "admission webhook denied the request"},
	} {
		t.Run(name, func(t *testing.T) {
			var w wire
			st := s.store(&w)
			w.refuse.Store(&f)
			_, err := st.Wait(t.Context(), claim("staying", minute), nothing)
			require.ErrorContains(t, err, f.body)
			require.NotErrorIs(t, err, store.ErrUnavailable)
		})
	}
}

func TestCheckServerNamesTheVerbThatFails(t *testing.T) {
	s := shared(t)
	for verb, step := range map[string]string{
		"WATCH":           "watch the Lease relock-check-",
		http.MethodPost:   "take the lock relock-check-",
		http.MethodGet:    "wait for the lock relock-check-",
		http.MethodPut:    "renew a hold of relock-check-",
		http.MethodDelete: "release the lock relock-check-",
	} {
		for _, code := range []int{http.StatusForbidden, http.StatusUnauthorized} {
			t.Run(fmt.Sprint(step, code), func(t *testing.T) {
				var w wire
				st := s.store(&w)
				w.refuse.Store(&refusal{verb, code, "no rights"})
				begun := time.Now()
				err := st.CheckServer(t.Context(), claim("checked", minute))
				require.ErrorContains(t, err, step)
				require.ErrorContains(t, err, "no rights")
				require.NotContains(t, err.Error(), "\n")
				require.Less(t, time.Since(begun), bound.Of(10*time.Second))
				if verb == http.MethodDelete {
					require.NoError(t, s.leases().DeleteCollection(t.Context(), meta.DeleteOptions{}, meta.ListOptions{}))
				}
				s.requireNone()
			})
		}
	}
	require.NoError(t, s.store().CheckServer(t.Context(), claim("checked", minute)))
}

// TestACrowdOfTriesCostsNoHold has a client whose requests client-go limits, as the limit serves
// tries and renewals in the order in which they come.
func TestACrowdOfTriesCostsNoHold(t *testing.T) {
	s := shared(t)
	config := &rest.Config{Host: s.url(), QPS: 10, Burst: 1}
	clients, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	st, err := relockk8s.New(clients.CoordinationV1().Leases(s.namespace))
	require.NoError(t, err)
	client, err := relock.Open(st, relock.WithTTL(6*time.Second))
	require.NoError(t, err)
	other := s.store()
	busy := take(t, other, claim("crowded", minute))
	lock := client.NewLock("calm")
	section, err := lock.Lock(t.Context())
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(15*time.Second, cancel)
	var crowd sync.WaitGroup
	for range 100 {
		crowd.Go(func() {
			for ctx.Err() == nil {
				_, _ = client.NewLock("crowded").TryLock(ctx)
			}
		})
	}
	crowd.Wait()
	require.NoError(t, lock.Unlock(section), "the hold is not lost")
	require.NoError(t, client.Close())
	require.NoError(t, other.Release(t.Context(), busy))
}

func TestATakeoverTellsTheClientOfTheOldHold(t *testing.T) {
	s := shared(t)
	st, other, leases := s.store(), s.store(), s.leases()
	dead := take(t, st, claim("told", 500*time.Millisecond))
	doubts := make(chan store.ID, 10)
	client, _, _ := strings.Cut(string(dead.ID), ":")
	stop := st.Watch(client, func(id store.ID) { doubts <- id })
	defer stop()
	require.Empty(t, <-doubts, "the watch begins")
	l := wait(t, other, claim("told", minute)).Get(t)
	require.Equal(t, dead.ID, <-doubts)
	require.NoError(t, other.Release(t.Context(), l))

	a := claim("told", minute)
	a.ID = dead.ID + "1" // of the same client
	l = take(t, st, a)
	lease, err := leases.Get(t.Context(), a.Name, meta.GetOptions{})
	require.NoError(t, err)
	holder := "pod-1"
	lease.Spec.HolderIdentity = &holder
	_, err = leases.Update(t.Context(), lease, meta.UpdateOptions{})
	require.NoError(t, err)
	require.Empty(t, <-doubts, "another program has the Lease")
	require.ErrorIs(t, st.Release(t.Context(), l), store.ErrGone)
	s.lose(a.Name)
}

// TestAHoldThatHasExpiredLeavesNoLease renews too late.
func TestAHoldThatHasExpiredLeavesNoLease(t *testing.T) {
	st := shared(t).store()
	l := take(t, st, claim("expired", 100*time.Millisecond))
	<-time.After(200 * time.Millisecond)
	require.ErrorIs(t, st.Renew(t.Context(), []store.Renewal{{Lease: l, TTL: minute, Count: 1}})[0], store.ErrGone)
}

func TestAThousandLocksLeaveNothing(t *testing.T) {
	s := shared(t)
	client, err := relock.Open(s.store())
	require.NoError(t, err)
	var group sync.WaitGroup
	errs := make([]error, 10)
	for i := range errs {
		group.Go(func() {
			for n := range 100 {
				errs[i] = errors.Join(errs[i], client.NewLock(fmt.Sprintf("once-%d-%d", i, n)).Do(t.Context(),
					func(context.Context) error { return nil }))
			}
		})
	}
	group.Wait()
	require.NoError(t, errors.Join(errs...))
	require.NoError(t, client.Close())
}
