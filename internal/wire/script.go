package wire

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/go-relock/relock/internal/attempts"
	"github.com/go-relock/relock/internal/lifetime"
)

// Script is a Lua script for any number of units in one call. KEYS are the keys of unit 1, of unit
// 2 and so on. ARGV is a part that all units share, then the arguments of unit 1, of unit 2 and so
// on. The reply to one unit is the reply of the script: Redis takes much longer to write a list.
// The reply to several units is a list with one reply a unit. A unit that fails alone in a call of
// several has a reply of "-" and the error's text. A call with one unit fails as a script error.
//
// Scripts set state and never add to it, so that running one again is safe. Scripts of users may do
// otherwise, see [Call.NoRepeat].
type Script struct {
	Name   string // for logs and errors
	Source string
	Hash   string // for EVALSHA
	// Again is a reply to a unit that asks for the same unit once more, at once. nil: none does.
	Again any
	// Alone says that the script takes one unit a call.
	Alone bool

	hash any // Hash as an argument
}

func (s *Script) asksAgain(reply any) bool { return s.Again != nil && reply == s.Again }

// NewScript makes a Script of Lua source.
func NewScript(name, source string) *Script {
	sum := sha1.Sum([]byte(source))
	hash := hex.EncodeToString(sum[:])
	return &Script{Name: name, Source: source, Hash: hash, hash: hash}
}

// Unit is one lock in a script call. The keys of a unit share a slot of a cluster.
type Unit struct {
	Keys []string
	Args []any
}

// command is a command that go-redis must not repeat. After a broken connection go-redis would, and
// nobody would know that the command may have run already.
type command struct{ *redis.Cmd }

// NoRetry makes go-redis send the command once.
func (command) NoRetry() bool { return true }

func (c command) Clone() redis.Cmder { return command{c.Cmd.Clone().(*redis.Cmd)} }

// scriptCall is one call of a script for one or more units, with the reply.
type scriptCall struct {
	*spec
	flights []*flight // one for each unit
	room    []any     // for the arguments, if they fit

	cmd, wait command
	acked     int
	err       error
}

var evalSHA, evalText any = "EVALSHA", "EVAL"

// fewKeys is the number of keys up to which the keys of a call are strings, so that a hook of
// go-redis can print them. More go by pointer, as a string in an any costs an allocation.
const fewKeys = 8

// prepare appends the command of the call, with eval the whole source.
func (c *scriptCall) prepare(ctx context.Context, eval bool, cmds []redis.Cmder) []redis.Cmder {
	size, keys := 3+len(c.common), 0
	for _, f := range c.flights {
		keys += len(f.unit.Keys)
		size += len(f.unit.Keys) + len(f.unit.Args)
	}
	args := c.room
	if cap(args) < size {
		args = make([]any, 0, size)
	}
	if eval {
		args = append(args, evalText, c.script.Source, keys)
	} else {
		args = append(args, evalSHA, c.script.hash, keys)
	}
	for _, f := range c.flights {
		for i, key := range f.unit.Keys {
			if keys > fewKeys {
				args = append(args, &f.unit.Keys[i])
			} else {
				args = append(args, key)
			}
		}
	}
	args = append(args, c.common...)
	for _, f := range c.flights {
		args = append(args, f.unit.Args...)
	}
	c.cmd = command{redis.NewCmd(ctx, args...)}
	return append(cmds, c.cmd)
}

// waitFor makes the command that waits for the confirmations.
func waitFor(ctx context.Context, a attempts.Acks) command {
	if a.Disk {
		return command{redis.NewCmd(ctx, "WAITAOF", 1, a.Replicas, lifetime.Millis(a.Timeout))}
	}
	return command{redis.NewCmd(ctx, "WAIT", a.Replicas, lifetime.Millis(a.Timeout))}
}

// confirmations reads how many servers have confirmed. The server itself is one of them with Disk.
func confirmations(a attempts.Acks, reply command) (int, error) {
	if !a.Disk {
		return reply.Int()
	}
	n, err := reply.Int64Slice()
	if err == nil && len(n) != 2 {
		err = fmt.Errorf("%w of WAITAOF: %v", errBadReply, n)
	}
	if err != nil {
		return 0, err
	}
	return int(n[0]) + min(int(n[1]), a.Replicas), nil
}

func (c *scriptCall) read() {
	c.err = c.cmd.Err()
	list, ok := c.cmd.Val().([]any)
	switch alone := len(c.flights) == 1; {
	case c.err != nil && c.err != redis.Nil: // a reply; the error of a sentinel has it inside
		return
	case c.err != nil || !alone && (!ok || len(list) != len(c.flights)):
		c.err = fmt.Errorf("%w of script %s: %.200q", errBadReply, c.script.Name, fmt.Sprint(c.cmd.Val()))
	case c.acks.Wanted() > 0:
		if c.acked, c.err = confirmations(c.acks, c.wait); c.err != nil {
			c.err = fmt.Errorf("%w: %w", errNoAcks, c.err)
		}
	}
}

func (c *scriptCall) outcome(unit int) outcome {
	if c.err != nil {
		return outcome{err: advised(c.err)}
	}
	reply := c.cmd.Val()
	if len(c.flights) > 1 {
		reply = reply.([]any)[unit]
		if text, ok := reply.(string); ok && strings.HasPrefix(text, "-") {
			return outcome{err: advised(unitError(text[1:]))}
		}
	}
	return outcome{reply: reply, acked: c.acked}
}

// exchange lets go-redis send script calls in one round trip, and sets the reply or error of each.
// If the server lacks scripts, the calls of these scripts are sent in another, with the source. The
// calls demand the same confirmations, and share one WAIT.
//
// Hooks of go-redis run here. The panic of a hook becomes an error. A hook can also end the
// goroutine with runtime.Goexit: see sendAsync.
func (w *Wire) exchange(ctx context.Context, calls []*scriptCall) {
	defer func() {
		if reason := recover(); reason != nil {
			for _, c := range calls {
				c.err = fmt.Errorf("%w: %v", errHook, reason)
			}
		}
	}()
	rdb := w.rdb
	acks := calls[0].acks
	if acks.Wanted() > 0 { // WAIT has no key: a cluster client would choose any node
		var err error
		if _, rdb, err = w.Node(ctx, calls[0].flights[0].unit.Keys[0], false); err != nil {
			for _, c := range calls {
				c.err = err
			}
			return
		}
	}
	for eval := false; len(calls) > 0; eval = true {
		cmds := make([]redis.Cmder, 0, len(calls)+1)
		for _, c := range calls {
			cmds = c.prepare(ctx, eval, cmds)
		}
		if acks.Wanted() > 0 {
			wait := waitFor(ctx, acks)
			cmds = append(cmds, wait)
			for _, c := range calls {
				c.wait = wait
			}
		}
		if len(cmds) == 1 {
			cmds[0].SetErr(believed(ctx, rdb.Process(ctx, cmds[0])))
		} else {
			pipeline(ctx, rdb, cmds)
		}
		var unknown []*scriptCall
		for _, c := range calls {
			switch c.read(); {
			case c.err == nil:
				w.noteAnswer()
			case !eval && redis.HasErrorPrefix(c.err, "NOSCRIPT"):
				unknown = append(unknown, c)
			case w.cluster == nil && Code(c.err) == "MOVED":
				c.err = fmt.Errorf("%w (%w)", errNoCluster, c.err)
			case !c.script.Alone && isKilled(c.err): // a user's own script may be without an end
				c.err = fmt.Errorf("%w (%w)", errKilled, c.err)
			}
		}
		calls = unknown
	}
}

func pipeline(ctx context.Context, rdb redis.UniversalClient, cmds []redis.Cmder) {
	pipe := rdb.Pipeline()
	for _, cmd := range cmds {
		_ = pipe.Process(ctx, cmd) // queued
	}
	_, err := pipe.Exec(ctx)
	for _, cmd := range cmds {
		// go-redis sets no error if a hook sends nothing, or if the server refuses a connection.
		if cmd.Err() == nil && cmd.(command).Val() == nil {
			cmd.SetErr(err)
		}
		cmd.SetErr(believed(ctx, cmd.Err()))
	}
}
