package wire

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/attempts"
)

// serverError is an error reply, as go-redis hands it on.
type serverError string

func (e serverError) Error() string { return string(e) }
func (serverError) RedisError()     {}

func TestAnErrorReplySaysWhetherItMayPass(t *testing.T) {
	const inScript = "ERR Error running script (call to f_5b1d): @user_script:12: "
	for _, c := range []struct {
		reply, code string
		passes      bool
	}{
		{"LOADING Redis is loading the dataset in memory", "LOADING", true},
		{"READONLY You can't write against a read only replica.", "READONLY", true},
		{"READONLY You can't write against a read only replica. script: 5b1d, on @user_script:12.", "READONLY", true},
		{inScript + "-READONLY You can't write against a read only replica.", "READONLY", true},
		{inScript + "@user_script: 12: -READONLY You can't write against a read only replica.", "READONLY", true},
		{"@user_script: 22: -READONLY You can't write against a read only replica.", "READONLY", true},
		{"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", "MASTERDOWN", true},
		{"CLUSTERDOWN Hash slot not served", "CLUSTERDOWN", true},
		{"TRYAGAIN Multiple keys request during rehashing of slot", "TRYAGAIN", true},
		{"NOREPLICAS Not enough good replicas to write.", "NOREPLICAS", true},
		{"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.", "BUSY", true},
		{"MOVED 3999 127.0.0.1:6381", "MOVED", true},
		{"ASK 3999 127.0.0.1:6381", "ASK", true},
		{"UNBLOCKED force unblock from blocking operation, instance state changed", "UNBLOCKED", true},
		{"ERR max number of clients reached", "ERR", true},
		{"ERR Script attempted to access a non local key in a cluster node script: 5b1d", "ERR", true},
		{"ERR wrong: the text - says LOADING: -LOADING later", "LOADING", true},

		{"OOM command not allowed when used memory > 'maxmemory'.", "OOM", false},
		{inScript + "-OOM command not allowed when used memory > 'maxmemory'.", "OOM", false},
		{"NOAUTH Authentication required.", "NOAUTH", false},
		{"WRONGPASS invalid username-password pair or user is disabled.", "WRONGPASS", false},
		{"NOPERM this user has no permissions to run the 'evalsha' command", "NOPERM", false},
		{"WRONGTYPE Operation against a key holding the wrong kind of value", "WRONGTYPE", false},
		{inScript + "WRONGTYPE Operation against a key", "ERR", false},
		{"ERR unknown command 'EVALSHA'", "ERR", false},
		{"ERR unknown command `EVALSHA`, with args beginning with: `5b1d`", "ERR", false},
		{"ERR wrong number of arguments for 'evalsha' command", "ERR", false},
		{"ERR The user executing the script can't run this command or subcommand script: 5b1d, on @user_script:12.", "ERR", false},
		{"ERR user_script:12: a holds no token script: 5b1d, on @user_script:12.", "ERR", false},
		{"ERR invalid password", "ERR", false},
		{"ERR AUTH <password> called without any password configured for the default user.", "ERR", false},
		{"ERR This instance has cluster support disabled", "ERR", false},
		{"ERR DB index is out of range", "ERR", false},
		{"NOPROTO unsupported protocol version", "NOPROTO", false},
		{"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.", "MISCONF", false},
		{"EXECABORT Transaction discarded because of previous errors.", "EXECABORT", false},
		{"NOUPTIME the server does not say since when it runs", "NOUPTIME", false},
		{"CROSSSLOT Keys in request don't hash to the same slot", "CROSSSLOT", false},
	} {
		for _, err := range []error{serverError(c.reply), unitError(c.reply), fmt.Errorf("connecting: %w", serverError(c.reply))} {
			require.Equal(t, map[bool]verdict{true: passing, false: refused}[c.passes], judge(err), "%v", err)
			require.Equal(t, c.code, Code(err), "%v", err)
			require.Equal(t, !c.passes, Refused(err))
		}
	}
}

// TestAWordThatNobodyKnowsPasses has the words of proxies that have no server for a moment, or have
// lost its answer.
func TestAWordThatNobodyKnowsPasses(t *testing.T) {
	for _, reply := range []string{
		"upstream failure", "no upstream host", "upstream protocol error", "ERR Connection refused", "ERR Server closed connection",
		"ERR handle response, backend conn reset", "IDONTKNOW", "FAILOVER in progress", "LOADINGX is another word", "XERR a: -LOADING", "",
	} {
		for _, err := range []error{serverError(reply), fmt.Errorf("failed to initialize connection options: %w", serverError(reply))} {
			require.Equal(t, unknown, judge(err), reply)
			require.False(t, Refused(err))
		}
		require.Equal(t, refused, judge(unitError(reply)), "a script's own word: its server is there")
	}
}

func TestAnErrorOfGoRedisSaysWhetherTheCommandMayHaveRun(t *testing.T) {
	op := func(name string, err error) error { return &net.OpError{Op: name, Net: "tcp", Err: err} }
	for want, errs := range map[verdict][]error{
		answered: {nil},
		refused: {
			redis.ErrClosed, errors.Join(serverError("NOAUTH"), serverError("WRONGPASS")),
			&tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}, fmt.Errorf("dial: %w", tls.RecordHeaderError{}),
			op("remote error", errors.New("tls: certificate required")),
		},
		passing: {fmt.Errorf("%w (%w)", errKilled, serverError("ERR Script killed by user script: 5b1d, on @user_script:1."))},
		unsent: {
			op("dial", syscall.ECONNREFUSED), fmt.Errorf("redis: %w", op("dial", syscall.ETIMEDOUT)),
			redis.ErrPoolTimeout, redis.ErrPoolExhausted, fmt.Errorf("get: %w", redis.ErrPoolTimeout),
			context.DeadlineExceeded, context.Canceled, errNoConnection,
			fmt.Errorf("redis: all sentinels are unreachable: %w", errors.Join(redis.Nil)),
			fmt.Errorf("redis: all sentinels are unreachable: %w", errors.Join(redis.Nil, serverError("NOAUTH"))),
			errors.Join(serverError("NOAUTH"), op("dial", syscall.ECONNREFUSED)),
		},
		unknown: {
			io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, errors.New("a hook's"), ErrGivenUp,
			op("read", context.DeadlineExceeded), fmt.Errorf("redis: %w", op("read", os.ErrDeadlineExceeded)),
			op("write", syscall.EPIPE), op("read", syscall.ECONNRESET),
			fmt.Errorf("read: %w", context.DeadlineExceeded), fmt.Errorf("read: %w", context.Canceled),
			fmt.Errorf("%w: %w", errNoAcks, serverError("LOADING")),
		},
		broken: {errHook, errBadReply, fmt.Errorf("%w: %w", errNoAcks, serverError("NOPERM")), fmt.Errorf("%w: %w", errNoAcks, io.EOF)},
	} {
		for _, err := range errs {
			require.Equal(t, want, judge(err), "%v", err)
			require.Equal(t, want == refused, Refused(err))
		}
	}
	require.Empty(t, Code(io.EOF))
}

func TestOnlyTheEndOfAConnectionMakesItAStaleOne(t *testing.T) {
	for _, err := range []error{
		io.EOF, fmt.Errorf("redis: %w", io.EOF),
		&net.OpError{Op: "write", Net: "tcp", Err: syscall.EPIPE}, &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET},
	} {
		require.True(t, hasEnded(err), "%v", err)
	}
	for _, err := range []error{
		nil, io.ErrUnexpectedEOF, serverError("LOADING"), redis.ErrPoolTimeout, context.DeadlineExceeded, ErrGivenUp,
		&net.OpError{Op: "read", Net: "tcp", Err: os.ErrDeadlineExceeded}, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED},
	} {
		require.False(t, hasEnded(err), "%v", err)
	}
}

func TestTheFirstRetryIsAtOnceAndLaterOnesWaitLonger(t *testing.T) {
	require.Zero(t, Pause(0))
	require.Zero(t, Pause(1))
	for attempt := 2; attempt < 200; attempt++ {
		longest := min(firstPause<<min(attempt-2, 20), longPause)
		for range 50 {
			d := Pause(attempt)
			require.GreaterOrEqual(t, d, longest/2, attempt)
			require.Less(t, d, longest, attempt)
		}
	}
	require.GreaterOrEqual(t, Pause(math.MaxInt), longPause/2, "no overflow, however long it lasts")
}

func TestAContextsEndIsAStateOfTheServerOnlyAfterALongSilence(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		last error
		want bool
	}{
		{nil, false},
		{givenUp(10*time.Millisecond, false), false},
		{givenUp(silence, false), true},
		{givenUp(10*time.Millisecond, true), true},
		{serverError("LOADING"), true},
		{io.EOF, true},
	} {
		err := endedAfter(ctx, c.last)
		require.Equal(t, c.want, errors.Is(err, attempts.ErrUnavailable), "%v", c.last)
		require.ErrorIs(t, err, context.Canceled)
		if c.last != nil {
			require.EqualError(t, err, "context canceled (last: "+c.last.Error()+")")
		}
	}
}
