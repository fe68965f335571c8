package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-relock/relock/internal/lifetime"
)

// Kinds of errors, for [errors.Is].
var (
	// ErrUnavailable marks errors of a server that could not be reached, or does not serve now.
	ErrUnavailable = errors.New("the Redis server is unavailable")
	// ErrGivenUp marks errors of an attempt that was given up without an answer.
	ErrGivenUp = errors.New("no answer from Redis")
)

var (
	errNoCluster    = errors.New("the server is a node of a cluster: use a redis.ClusterClient")
	errNoAcks       = errors.New("the script has run, and WAIT or WAITAOF failed")
	errBadReply     = errors.New("unexpected reply")
	errHook         = errors.New("a hook of the go-redis client panicked, or ended its goroutine")
	errNoAnswer     = fmt.Errorf("no answer for %s", silence)
	errNoConnection = errors.New("no connection to Redis in time")
)

// unitError is the error reply for one unit in a call of several.
type unitError string

func (e unitError) Error() string { return string(e) }

func (unitError) RedisError() {}

// verdict is the meaning of an error for the command.
type verdict int

const (
	answered verdict = iota
	refused          // no server will run the command, now or later
	passing          // the command has not run, and may later
	unsent           // the command did not reach a server
	unknown          // the command may have run, or may run yet
	broken           // the command may have run, and sending it again is of no use
)

// passingCodes are the error codes of a server that starts, fails over, or is out of connections,
// replicas or time. MOVED passes for a client that follows a cluster, see errNoCluster. RESTARTED
// is a code of our own, see scripts/restarted.lua. Errors such as NOAUTH, NOPERM, WRONGTYPE or OOM
// last until somebody mends the cause.
var passingCodes = map[string]bool{
	"LOADING": true, "READONLY": true, "MASTERDOWN": true, "CLUSTERDOWN": true, "TRYAGAIN": true,
	"BUSY": true, "NOREPLICAS": true, "MOVED": true, "ASK": true, "UNBLOCKED": true,
	"RESTARTED": true,
}

func judge(err error) verdict {
	if err == nil {
		return answered
	}
	var reply redis.Error
	var op *net.OpError
	switch {
	case errors.Is(err, errHook), errors.Is(err, errBadReply):
		return broken
	case errors.Is(err, errNoAcks):
		if waitPasses(err) {
			return unknown
		}
		return broken
	case errors.Is(err, errNoCluster):
		return refused
	case isContextEnd(err), errors.Is(err, errNoConnection):
		return unsent
	case errors.As(err, &reply):
		if passes(reply) {
			return passing
		}
		return refused
	case errors.Is(err, redis.ErrClosed):
		return refused
	case errors.Is(err, redis.ErrPoolTimeout), errors.Is(err, redis.ErrPoolExhausted),
		errors.As(err, &op) && op.Op == "dial":
		return unsent
	default:
		return unknown
	}
}

// Refused reports whether err is the refusal of a server, or of a closed go-redis client, to run
// the command now or later.
func Refused(err error) bool { return judge(err) == refused }

// Code is the first word of an error reply, such as "NOPERM"; empty for other errors.
func Code(err error) string {
	if err == nil { // a variable for errors.As is on the heap
		return ""
	}
	var reply redis.Error
	if !errors.As(err, &reply) {
		return ""
	}
	return code(reply.Error())
}

// code finds the first word of an error reply. Redis before 7 wraps the error of a command in a
// script: "ERR Error running script (call to f_...): @user_script:1: -OOM command not allowed". An
// error that a script returns lacks the first half.
func code(msg string) string {
	wrapped := strings.HasPrefix(msg, "ERR ") || strings.HasPrefix(msg, "@user_script: ")
	if i := strings.Index(msg, ": -"); wrapped && i >= 0 {
		msg = msg[i+len(": -"):]
	}
	word, _, _ := strings.Cut(msg, " ")
	return word
}

func passes(reply redis.Error) bool {
	msg := reply.Error()
	return passingCodes[code(msg)] || strings.Contains(msg, "max number of clients reached") ||
		strings.Contains(msg, "non local key") // from a script, while the slot migrates
}

// waitPasses reports whether WAIT may succeed later. A master turned replica refuses WAIT.
func waitPasses(err error) bool {
	var reply redis.Error
	return errors.As(err, &reply) &&
		(passes(reply) || strings.Contains(reply.Error(), "cannot be used with replica"))
}

func isContextEnd(err error) bool {
	return err == context.Canceled || err == context.DeadlineExceeded //nolint:errorlint // bare ones
}

// believed checks an error of go-redis for a command with ctx. go-redis returns a bare context
// error only for a command that was never sent. But if ctx has not ended, the error comes from a
// context of a hook or a dialer, and the command may have been sent.
func believed(ctx context.Context, err error) error {
	if isContextEnd(err) && ctx.Err() == nil {
		return fmt.Errorf("%w, though the call goes on", err)
	}
	return err
}

// hasEnded reports whether a command failed because its connection ended. A timeout does not count.
func hasEnded(err error) bool {
	if err == nil {
		return false
	}
	var op *net.OpError
	return errors.Is(err, io.EOF) || errors.As(err, &op) && op.Op != "dial" && !op.Timeout()
}

// unavailable marks an error, unless the server has answered or the command is broken.
func unavailable(err error) error {
	if v := judge(err); v == answered || v == refused || v == broken || errors.Is(err, ErrUnavailable) {
		return err
	}
	return &marked{err}
}

type marked struct{ err error }

func (m *marked) Error() string        { return m.err.Error() }
func (m *marked) Unwrap() error        { return m.err }
func (m *marked) Is(target error) bool { return target == ErrUnavailable }

// silence is longer than any server in service takes for an answer.
const silence = time.Second

// givenUp is the error of an attempt without an answer. The server counts as unavailable after a
// long silence, and if the patience of the call was over.
func givenUp(waited time.Duration, patienceOver bool) error {
	err := fmt.Errorf("%w for %s", ErrGivenUp, waited.Round(time.Microsecond))
	if patienceOver || waited >= silence {
		err = unavailable(err)
	}
	return err
}

// endedAfter is [lifetime.Ended] with the error of the last attempt, if there is one.
func endedAfter(ctx context.Context, last error) error {
	if last == nil || isContextEnd(last) {
		return lifetime.Ended(ctx)
	}
	if !errors.Is(last, ErrGivenUp) { // else givenUp has decided
		last = unavailable(last)
	}
	return fmt.Errorf("%w (last: %w)", lifetime.Ended(ctx), last)
}
