package wire

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-relock/relock/internal/attempts"
	"github.com/go-relock/relock/internal/lifetime"
)

// ErrGivenUp marks errors of an attempt that was given up without an answer.
var ErrGivenUp = errors.New("no answer from Redis")

var (
	errNoCluster    = errors.New("the server is a node of a cluster: use a redis.ClusterClient")
	errAlone        = errors.New("the server is no node of a cluster: use a redis.Client")
	errReplica      = errors.New("the server is a replica: use its master, or redis.NewFailoverClient")
	errNoMaster     = errors.New("the sentinels do not know a master of this name")
	errKilled       = errors.New("the script was ended before it wrote")
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
// replicas or time, and has not run the command. MOVED passes for a client that follows a cluster,
// see errNoCluster. RESTARTED is a code of our own, see scripts/restarted.lua.
var passingCodes = map[string]bool{
	"LOADING": true, "READONLY": true, "MASTERDOWN": true, "CLUSTERDOWN": true, "TRYAGAIN": true,
	"BUSY": true, "NOREPLICAS": true, "MOVED": true, "ASK": true, "UNBLOCKED": true,
	"RESTARTED": true,
}

// lastingCodes are the error codes of a command that a server will not run until somebody mends the
// cause. Memory (OOM) and a disk (MISCONF) may come back by themselves, but a full server is not
// helped by callers that ask again. NOUPTIME is a code of our own, see scripts/restarted.lua.
var lastingCodes = map[string]bool{
	"NOAUTH": true, "WRONGPASS": true, "NOPERM": true, "DENIED": true, "NOPROTO": true,
	"WRONGTYPE": true, "CROSSSLOT": true, "EXECABORT": true, "NOSCRIPT": true,
	"OOM": true, "MISCONF": true, "NOUPTIME": true,
}

// lastingTexts are parts of error replies without a code of their own, which last like
// lastingCodes: those of a script, and of commands, options and users that the server does not
// have.
var lastingTexts = []string{
	"user_script", "Error running script", "Error compiling script", "can't run this command",
	"unknown command", "unknown subcommand", "unsupported command", "not supported", "not allowed",
	"wrong number of arguments", "syntax error", "Protocol error",
	"invalid password", "AUTH", "unauthenticated", "cluster support disabled", "DB index is out of range", "appendonly is disabled",
}

// lasts reports whether an error reply lasts. A word that nobody knows does not: a proxy without a
// server has words of its own.
func lasts(reply string) bool {
	return lastingCodes[code(reply)] || slices.ContainsFunc(lastingTexts, func(text string) bool { return strings.Contains(reply, text) })
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
	case errors.Is(err, errNoCluster), isOfCertificates(err):
		return refused
	case errors.Is(err, errKilled):
		return passing
	case isContextEnd(err), errors.Is(err, errNoConnection),
		errors.Is(err, redis.Nil): // of a sentinel that does not know the master; see scriptCall.read
		return unsent
	case errors.Is(err, redis.ErrPoolTimeout), errors.Is(err, redis.ErrPoolExhausted),
		errors.As(err, &op) && op.Op == "dial": // of some sentinel, perhaps beside the word of another
		return unsent
	case errors.As(err, &reply):
		return judgeReply(reply)
	case errors.Is(err, redis.ErrClosed):
		return refused
	default:
		return unknown
	}
}

// judgeReply judges an error reply. Words that nobody knows may be those of a proxy that has lost
// the answer of its server. Of a unit, they are a script's.
func judgeReply(reply redis.Error) verdict {
	_, isOfUnit := reply.(unitError) // a reply, and no error around it
	switch {
	case strings.Contains(reply.Error(), "UNTOLD "): // see scripts/lib.lua: the script has run
		return broken
	case passes(reply):
		return passing
	case isOfUnit, lasts(reply.Error()):
		return refused
	default:
		return unknown
	}
}

// isOfCertificates reports whether one end of TLS refuses the certificate of the other, or the
// other end does not speak TLS.
func isOfCertificates(err error) bool {
	var op *net.OpError
	return errors.As(err, new(*tls.CertificateVerificationError)) || errors.As(err, new(tls.RecordHeaderError)) ||
		errors.As(err, &op) && op.Op == "remote error" && strings.Contains(op.Error(), "certificate")
}

// Refused reports whether err is the refusal of a server, or of a closed go-redis client, to run
// the command now or later.
func Refused(err error) bool { return judge(err) == refused }

// NotRun reports whether err says that the server has not run the command: now, or now and later.
func NotRun(err error) bool {
	v := judge(err)
	return v == refused || v == passing
}

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

// isKilled reports whether somebody has ended the script by SCRIPT KILL, which Redis allows until
// the first write.
func isKilled(err error) bool {
	return Code(err) != "" && strings.Contains(err.Error(), "killed by user")
}

// advised puts advice before the error of a server that does not serve as it should, and makes one
// line of the errors of several sentinels.
func advised(err error) error {
	if strings.Contains(err.Error(), "\n") {
		err = oneLine{err}
	}
	switch {
	case Code(err) == "READONLY":
		return fmt.Errorf("%w (%w)", errReplica, err)
	case strings.Contains(err.Error(), "cluster support disabled"):
		return fmt.Errorf("%w (%w)", errAlone, err)
	case errors.Is(err, redis.Nil):
		return fmt.Errorf("%w (%w)", errNoMaster, err)
	default:
		return err
	}
}

type oneLine struct{ error }

func (o oneLine) Error() string { return strings.ReplaceAll(o.error.Error(), "\n", "; ") }
func (o oneLine) Unwrap() error { return o.error }

// waitPasses reports whether WAIT may succeed later. A master turned replica refuses WAIT.
func waitPasses(err error) bool {
	var reply redis.Error
	return errors.As(err, &reply) &&
		(passes(reply) || strings.Contains(reply.Error(), "cannot be used with replica"))
}

func isContextEnd(err error) bool {
	return err == context.Canceled || err == context.DeadlineExceeded // bare ones
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
	if v := judge(err); v == answered || v == refused || v == broken {
		return err
	}
	return attempts.Unavailable(err)
}

// MayLackTLS reports whether err is what a client meets where TLS is spoken at one end only: a
// server with TLS ends a plain connection, and a plain server waits for more than a TLS client
// says.
func (w *Wire) MayLackTLS(err error) bool {
	isSilent := errors.Is(err, errNoConnection) || errors.Is(err, ErrGivenUp)
	return errors.Is(err, io.EOF) || isSilent && hasTLS(w.rdb)
}

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
