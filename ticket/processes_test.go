package ticket_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock"
	"github.com/go-relock/relock/internal/test/redistest"
	"github.com/go-relock/relock/ticket"
)

// This file has services that are processes of their own, which send tickets over HTTP, and are
// killed at each step.

// lease is the TTL of all locks of the services.
const lease = 2 * time.Second

// names are the services. The key of each is its number.
var names = []string{"a", "b", "c"}

// service is one process.
type service struct {
	name     string
	rdb      *redis.Client
	locks    *relock.Client
	signer   *ticket.Signer
	verifier *ticket.Verifier
	out      io.Writer

	mu    sync.Mutex
	stays map[string]*stay // by order: the sections that outlast a request
	goOn  chan struct{}    // closed by POST /go
}

var _ = func() bool {
	redistest.RegisterChild("service", func(args []string, in *bufio.Reader, out io.Writer) {
		if err := serve(args[0], args[1], in, out); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	})
	return true
}()

// serve prints "at" and the URL of a service, and serves until its input ends.
func serve(addr, name string, in io.Reader, out io.Writer) error {
	s := &service{name: name, rdb: redis.NewClient(&redis.Options{Addr: addr}), out: out, stays: map[string]*stay{}, goOn: make(chan struct{})}
	issuers := ticket.Issuers{}
	var err error
	for i, issuer := range names {
		issuers[issuer] = ticket.Keys{"k": publicOf(keyOf(byte(i)))}
		if issuer == name {
			if s.signer, err = ticket.NewSigner(name, "k", keyOf(byte(i))); err != nil {
				return err
			}
		}
	}
	if s.verifier, err = ticket.NewVerifier(name, issuers); err != nil {
		return err
	}
	if s.locks, err = relock.New(s.rdb, relock.WithTTL(lease), relock.WithOwner(name)); err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "at http://%s\n", listener.Addr())
	web := &http.Server{Handler: s.routes(), ReadHeaderTimeout: time.Minute}
	go func() { _ = web.Serve(listener) }() // it ends with the process
	_, err = io.Copy(io.Discard, in)
	return err
}

func (s *service) routes() http.Handler {
	mux := http.NewServeMux()
	answer := func(f func(*http.Request) (string, error)) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			text, err := f(r)
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			fmt.Fprint(w, text)
		}
	}
	mux.HandleFunc("POST /lock/{order}", answer(s.lock))
	mux.HandleFunc("POST /unlock/{order}", answer(s.unlock))
	mux.HandleFunc("POST /lend/{order}", answer(s.lend))
	mux.HandleFunc("POST /handoff/{order}", answer(s.handOff))
	mux.HandleFunc("POST /go", answer(func(*http.Request) (string, error) { close(s.goOn); return "", nil }))
	mux.Handle("POST /orders/{order}", s.verifier.Handler(s.lockOf, answer(s.work)))
	return mux
}

func (s *service) lockOf(r *http.Request) *relock.Lock { return s.locks.NewLock(r.PathValue("order")) }

// stay is a section. It keeps in Redis the time until which it counts on the lock.
type stay struct {
	s       *service
	lock    *relock.Lock
	section context.Context
	stop    func()
}

// entering counts an entry, and an overlap for each other hold that counts on the lock at the time
// of the entry. A lender and its borrowers have one token. A process that was killed counts on the
// lock until the end of its lease. The times are microseconds of the clock of the machine.
var entering = redis.NewScript(`
	local fields = redis.call('HGETALL', KEYS[1])
	for i = 1, #fields, 2 do
		local token, untilTime = string.match(fields[i + 1], '(%d+) (%d+)')
		if fields[i] ~= ARGV[1] and token ~= ARGV[2] and tonumber(untilTime) > tonumber(ARGV[3]) then
			redis.call('INCR', KEYS[2])
		end -- if
	end
	return redis.call('INCR', KEYS[3])`)

func (s *service) begin(lock *relock.Lock, section context.Context) (*stay, error) {
	entered := time.Now()
	token, err := lock.Token(section)
	if err != nil {
		return nil, err
	}
	inside := "inside:" + lock.Name()
	show := func() error {
		until := time.Now().Add(lock.Remaining(section)).UnixMicro()
		return s.rdb.HSet(context.Background(), inside, s.name, fmt.Sprint(token, " ", until)).Err()
	}
	keys := []string{inside, "overlaps:" + lock.Name(), "entries:" + lock.Name()}
	if err := errors.Join(show(), entering.Run(context.Background(), s.rdb, keys, s.name, token, entered.UnixMicro()).Err()); err != nil {
		return nil, err
	}
	shown, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(shown)
		for section.Err() == nil {
			select {
			case <-time.After(20 * time.Millisecond):
				_ = show()
			case <-section.Done():
			case <-ended:
				return
			}
		}
	}()
	return &stay{s: s, lock: lock, section: section, stop: sync.OnceFunc(func() {
		close(ended)
		<-shown
		s.rdb.HDel(context.Background(), inside, s.name)
	})}, nil
}

func (s *service) lock(r *http.Request) (string, error) {
	lock := s.lockOf(r)
	section, err := lock.Lock(context.WithoutCancel(r.Context()))
	if err != nil {
		return "", err
	}
	st, err := s.begin(lock, section)
	if err != nil {
		return "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stays[lock.Name()] = st
	return "", nil
}

func (s *service) of(r *http.Request) *stay {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stays[r.PathValue("order")]
}

func (s *service) unlock(r *http.Request) (string, error) {
	st := s.of(r)
	st.stop()
	return "", st.lock.Unlock(st.section)
}

// sign signs for the service in the query.
func (s *service) sign(r *http.Request, t relock.Ticket, err error) (string, error) {
	if err != nil {
		return "", err
	}
	signed, err := s.signer.Sign(t, r.FormValue("to"))
	return signed.Text(), err
}

func (s *service) lend(r *http.Request) (string, error) {
	st := s.of(r)
	t, err := st.lock.Lend(st.section)
	return s.sign(r, t, err)
}

func (s *service) handOff(r *http.Request) (string, error) {
	st := s.of(r)
	st.stop()
	t, err := st.lock.HandOff(st.section)
	return s.sign(r, t, err)
}

// work is in the section of a ticket. It prints "in" and the order, and does what the query says:
// wait for POST /go or the end of the section; hang until POST /go, whatever the section does; or
// pass the order on to the service in the query.
func (s *service) work(r *http.Request) (string, error) {
	section, lock := r.Context(), s.lockOf(r)
	st, err := s.begin(lock, section)
	if err != nil {
		return "", err
	}
	defer st.stop()
	fmt.Fprintln(s.out, "in", lock.Name())
	switch r.FormValue("do") {
	case "wait":
		select {
		case <-s.goOn:
		case <-section.Done():
			fmt.Fprintln(s.out, "ended", kindOf(context.Cause(section)))
		}
	case "hang":
		context.AfterFunc(section, func() { fmt.Fprintln(s.out, "ended", kindOf(context.Cause(section))) })
		<-s.goOn
	case "pass":
		st.stop()
		t, err := lock.HandOff(section)
		signed, err := s.sign(r, t, err)
		if err != nil {
			return "", err
		}
		status, text, err := post(context.WithoutCancel(section), r.FormValue("at")+"/orders/"+lock.Name()+"?"+r.FormValue("then"), signed)
		return fmt.Sprint(s.name, ", then ", text), errors.Join(err, isOK(status))
	}
	return s.name, nil
}

func kindOf(cause error) string {
	switch {
	case errors.Is(cause, relock.ErrRecalled):
		return "recalled"
	case errors.Is(cause, relock.ErrLockLost):
		return "lost"
	default:
		return fmt.Sprint(cause)
	}
}

func isOK(status int) error {
	if status != http.StatusOK {
		return fmt.Errorf("status %d", status)
	}
	return nil
}

// post sends a request, with a signed ticket unless the text is empty.
func post(ctx context.Context, url, signed string) (status int, text string, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, nil)
	if err != nil {
		return 0, "", err
	}
	if signed != "" {
		ticket.Set(r.Header, ticket.Signed(signed))
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response.StatusCode, string(body), err
}

// town has the three services, and Redis.
type town struct {
	*testing.T
	rdb     *redis.Client
	a, b, c *resident
}

// resident is a service as the test sees it.
type resident struct {
	*redistest.Process
	t   *testing.T
	url string
}

const (
	startUp = 30 * time.Second
	limit   = 20 * time.Second
)

func newTown(t *testing.T) *town {
	t.Helper()
	server := redistest.Start(t)
	w := &town{T: t, rdb: server.Client()}
	all := []**resident{&w.a, &w.b, &w.c}
	for i, name := range names {
		*all[i] = &resident{Process: redistest.Child(t, "service", server.Addr(), name), t: t}
	}
	for _, r := range all {
		(*r).url = (*r).Expect("at ", startUp)
	}
	return w
}

// ask sends a request that is to succeed.
func (r *resident) ask(path string) string {
	r.t.Helper()
	status, text := r.send(path, "")
	require.Equal(r.t, http.StatusOK, status, text)
	return text
}

func (r *resident) send(path, signed string) (status int, text string) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), limit)
	defer cancel()
	status, text, err := post(ctx, r.url+path, signed)
	require.NoError(r.t, err)
	return status, text
}

// works sends a ticket, and returns when the service is in the section. The status comes later; it
// is 0 if the service was killed.
func (r *resident) works(path, signed string) (status <-chan int) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.t.Context()), 2*limit)
	result := make(chan int, 1)
	go func() {
		defer cancel()
		status, _, err := post(ctx, r.url+path, signed)
		if err != nil {
			status = 0
		}
		result <- status
	}()
	r.Expect("in ", limit)
	return result
}

// requireNext has service c wait for the lock, which it gets after least, and within a lease.
func (w *town) requireNext(since time.Time, least time.Duration) {
	w.Helper()
	w.c.ask("/lock/7")
	took := time.Since(since)
	require.GreaterOrEqual(w, took, least)
	require.Less(w, took, lease+noise)
	w.c.ask("/unlock/7")
}

// requireFree says that the lock is free at once, and not at the end of a lease.
func (w *town) requireFree() {
	w.Helper()
	locks, err := relock.New(w.rdb)
	require.NoError(w, err)
	defer locks.Close()
	lock := locks.NewLock("7")
	section, err := lock.TryLock(w.Context())
	require.NoError(w, err)
	require.NoError(w, lock.Unlock(section))
}

// noise is what a busy machine may add.
const noise = time.Second

// requireOne says that no two holds have been in at once, and that so many sections have been in.
func (w *town) requireOne(entries int) {
	w.Helper()
	overlaps, err := w.rdb.Exists(w.Context(), "overlaps:7").Result()
	require.NoError(w, err)
	require.Zero(w, overlaps, "two were in")
	n, err := w.rdb.Get(w.Context(), "entries:7").Int()
	require.NoError(w, err)
	require.Equal(w, entries, n)
}

func received[T any](t *testing.T, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(limit):
		require.Fail(t, "nothing came")
	}
	return v
}

func TestAnOverlapIsCounted(t *testing.T) {
	t.Parallel()
	w := newTown(t)
	w.a.ask("/lock/7")
	fields := strings.Fields(w.rdb.HGet(t.Context(), "inside:7", "a").Val())
	require.Len(t, fields, 2, "a token and a time")
	keys := []string{"inside:7", "overlaps:7", "entries:7"}
	enter := func(token string, at time.Time) {
		require.NoError(t, entering.Run(t.Context(), w.rdb, keys, "b", token, at.UnixMicro()).Err())
	}
	enter(fields[0], time.Now())
	enter("1", time.Now().Add(time.Hour))
	w.requireOne(3)
	enter("1", time.Now())
	require.Equal(t, "1", w.rdb.Get(t.Context(), "overlaps:7").Val())
}

func TestALoanOverHTTP(t *testing.T) {
	t.Parallel()
	w := newTown(t)
	w.a.ask("/lock/7")
	signed := w.a.ask("/lend/7?to=b")
	status, text := w.b.send("/orders/7", signed)
	require.Equal(t, http.StatusOK, status, text)
	w.b.Expect("in 7", limit)

	status, text = w.b.send("/orders/7", signed)
	require.Equal(t, http.StatusConflict, status, "replayed: %s", text)
	status, text = w.c.send("/orders/7", w.a.ask("/lend/7?to=b"))
	require.Equal(t, http.StatusForbidden, status, "to another service: %s", text)
	status, text = w.b.send("/orders/8", w.a.ask("/lend/7?to=b"))
	require.Equal(t, http.StatusForbidden, status, "for another lock: %s", text)
	w.a.ask("/unlock/7")
	w.requireFree()
	w.requireOne(2)
}

func TestAHandOffThroughThreeProcesses(t *testing.T) {
	t.Parallel()
	w := newTown(t)
	w.a.ask("/lock/7")
	waits := make(chan int, 1)
	go func() { // before c gets the order, a waits for the next turn
		status, _, _ := post(context.WithoutCancel(t.Context()), w.a.url+"/lock/7", "")
		waits <- status
	}()
	status, text := w.b.send("/orders/7?do=pass&to=c&at="+w.c.url+"&then=do%3Ddone", w.a.ask("/handoff/7?to=b"))
	require.Equal(t, http.StatusOK, status, text)
	require.Equal(t, "b, then c", text)
	require.Equal(t, http.StatusOK, received(t, waits))
	w.requireOne(4)
}

func TestALenderIsKilledBeforeTheLoan(t *testing.T) {
	t.Parallel()
	w := newTown(t)
	w.a.ask("/lock/7")
	signed := w.a.ask("/lend/7?to=b")
	w.a.Kill()
	w.requireNext(time.Now(), 0)
	status, text := w.b.send("/orders/7", signed)
	require.Equal(t, http.StatusConflict, status)
	require.Contains(t, text, ticket.TypeLost)
	w.requireOne(2)
}

func TestALenderIsKilledInTheLoan(t *testing.T) {
	t.Parallel()
	w := newTown(t)
	w.a.ask("/lock/7")
	status := w.b.works("/orders/7?do=wait", w.a.ask("/lend/7?to=b"))
	w.a.Kill()
	w.requireNext(time.Now(), 0)
	w.b.Expect("ended lost", limit)
	require.Equal(t, http.StatusOK, received(t, status))
	w.requireOne(3)
}

func TestABorrowerIsKilledInTheLoan(t *testing.T) {
	t.Parallel()
	w := newTown(t)
	w.a.ask("/lock/7")
	status := w.b.works("/orders/7?do=wait", w.a.ask("/lend/7?to=b"))
	w.b.Kill()
	require.Zero(t, received(t, status))
	w.a.ask("/unlock/7")
	w.requireNext(time.Now(), 0)
	w.requireOne(3)
}

func TestASenderIsKilledAfterTheHandOff(t *testing.T) {
	t.Parallel()
	w := newTown(t)
	w.a.ask("/lock/7")
	signed := w.a.ask("/handoff/7?to=b")
	w.a.Kill()
	status := w.b.works("/orders/7?do=wait", signed)
	<-time.After(2 * lease)
	w.b.ask("/go")
	require.Equal(t, http.StatusOK, received(t, status), "the receiver renews the lease")
	w.requireFree()
	w.requireOne(2)
}

func TestAReceiverIsKilledBeforeItAccepts(t *testing.T) {
	t.Parallel()
	w := newTown(t)
	w.a.ask("/lock/7")
	signed := w.a.ask("/handoff/7?to=b")
	handed := time.Now()
	w.b.Kill()
	w.requireNext(handed, lease/4)
	status, _ := w.c.send("/orders/7", signed)
	require.Equal(t, http.StatusForbidden, status, "the ticket is of no use to another service")
	w.requireOne(2)
}

func TestAReceiverIsKilledInTheSection(t *testing.T) {
	t.Parallel()
	w := newTown(t)
	w.a.ask("/lock/7")
	signed := w.a.ask("/handoff/7?to=b")
	status := w.b.works("/orders/7?do=wait", signed)
	w.b.Kill()
	require.Zero(t, received(t, status))
	w.requireNext(time.Now(), 0)
	w.requireOne(3)
}

func TestARecallOfALoanThatHangs(t *testing.T) {
	t.Parallel()
	w := newTown(t)
	w.a.ask("/lock/7")
	status := w.b.works("/orders/7?do=hang", w.a.ask("/lend/7?to=b"))
	<-time.After(lease) // the lease is renewed
	w.a.ask("/unlock/7")
	unlocked := time.Now()
	w.requireNext(unlocked, lease/4)
	w.b.Expect("ended recalled", limit)
	w.b.ask("/go")
	require.Equal(t, http.StatusOK, received(t, status))
	w.requireOne(3)
}

// Each goroutine has an order of its own, so that a service has many sections at once.
func TestManyTicketsTravelAtOnce(t *testing.T) {
	t.Parallel()
	w := newTown(t)
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			order := fmt.Sprint("many", i)
			steps := []string{"/lock/" + order, "/lend/" + order + "?to=b", "/lend/" + order + "?to=b", "/handoff/" + order + "?to=b"}
			if i%2 == 0 {
				steps = []string{"/lock/" + order, "/handoff/" + order + "?to=b"}
			}
			for _, step := range steps {
				status, text, err := post(t.Context(), w.a.url+step, "")
				if strings.HasPrefix(step, "/handoff") && len(steps) == 4 { // it was lent
					if err != nil || status != http.StatusInternalServerError || !strings.Contains(text, "was lent") {
						t.Errorf("%s: %d %s %v", step, status, text, err)
					}
					continue
				}
				if err == nil && text != "" {
					status, text, err = post(t.Context(), w.b.url+"/orders/"+order, text)
				}
				if err != nil || status != http.StatusOK {
					t.Errorf("%s: %d %s %v", step, status, text, err)
				}
			}
		})
	}
	wg.Wait()
}
