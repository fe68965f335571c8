package stage

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-relock/relock/store"
)

// A Command names a method of [store.Store] that talks to the server.
type Command string

// The commands of a store. The last three are of tickets.
const (
	CmdTry      Command = "Try"
	CmdWait     Command = "Wait"
	CmdEnter    Command = "Enter"
	CmdRelease  Command = "Release"
	CmdRenew    Command = "Renew"
	CmdForget   Command = "Forget"
	CmdToken    Command = "Token"
	CmdLook     Command = "Look"
	CmdBreak    Command = "Break"
	CmdWant     Command = "Want"
	CmdAnnounce Command = "Announce"

	CmdTryAll     Command = "TryAll"
	CmdReleaseAll Command = "ReleaseAll"

	CmdBorrow Command = "Borrow"
	CmdFollow Command = "Follow"
	CmdAccept Command = "Accept"
)

// An Action is the fate of a command. run sends the command, and may be called any number of times.
type Action func(ctx context.Context, f *Fault, run func() error) error

// A Fault is what happens to some commands of a link.
type Fault struct {
	Hits atomic.Int64 // commands that it has met
	End  func()       // ends the fault

	act      Action
	commands []Command // empty: all
	left     int       // so many commands more; below 0: until the end
	silent   bool      // messages do not arrive either
	over     chan struct{}
}

// On makes the action happen to all commands of these kinds; to every command if no kind is given.
func (k *Link) On(act Action, commands ...Command) *Fault { return k.add(-1, act, commands) }

// Once makes the action happen to the next command of these kinds.
func (k *Link) Once(act Action, commands ...Command) *Fault { return k.add(1, act, commands) }

func (k *Link) add(times int, act Action, commands []Command) *Fault {
	f := &Fault{act: act, commands: commands, left: times, over: make(chan struct{})}
	f.End = sync.OnceFunc(func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.faults = slices.DeleteFunc(k.faults, func(other *Fault) bool { return other == f })
		close(f.over)
	})
	k.mu.Lock()
	defer k.mu.Unlock()
	k.faults = append(k.faults, f)
	return f
}

// Cut makes the link silent: no command of these kinds arrives until the fault ends, and no message
// either.
func (k *Link) Cut(commands ...Command) *Fault {
	f := k.On(Silence, commands...)
	k.mu.Lock()
	defer k.mu.Unlock()
	f.silent = true
	return f
}

// Deaf lets commands through, and loses the messages that a hold is gone.
func (k *Link) Deaf() {
	f := k.On(func(_ context.Context, _ *Fault, run func() error) error { return run() }, CmdRenew)
	k.mu.Lock()
	defer k.mu.Unlock()
	f.silent = true
}

// silent returns a channel that is closed at the end of the silence; nil if the link is not silent.
func (k *Link) silent(v Command) <-chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, f := range slices.Backward(k.faults) {
		if f.silent && f.matches(v) {
			return f.over
		}
	}
	return nil
}

// Heal ends all faults.
func (k *Link) Heal() {
	k.mu.Lock()
	faults := slices.Clone(k.faults)
	k.mu.Unlock()
	for _, f := range faults {
		f.End()
	}
}

func (f *Fault) matches(v Command) bool {
	return len(f.commands) == 0 || slices.Contains(f.commands, v)
}

// Silence keeps a command until the fault ends.
func Silence(ctx context.Context, f *Fault, run func() error) error {
	select {
	case <-f.over:
		return run()
	case <-ctx.Done():
		return store.Unsure(store.Unavailable(ctx.Err()))
	}
}

// Mute runs the command, and keeps the answer until the fault ends.
func Mute(ctx context.Context, f *Fault, run func() error) error {
	err := run()
	select {
	case <-f.over:
		return err
	case <-ctx.Done():
		return store.Unsure(store.Unavailable(ctx.Err()))
	}
}

// Refuse does not run the command. The store says why.
func Refuse(err error) Action {
	return func(context.Context, *Fault, func() error) error { return err }
}

// LoseAnswer runs the command, and loses the answer for good.
func LoseAnswer(err error) Action {
	return func(_ context.Context, _ *Fault, run func() error) error {
		_ = run()
		return store.Unsure(err)
	}
}

// SendTwice runs the command twice, as a store does after an attempt without an answer.
func SendTwice(_ context.Context, _ *Fault, run func() error) error {
	_ = run()
	err := run()
	if errors.Is(err, store.ErrGone) {
		return store.Unsure(err)
	}
	return err
}

// Delay makes a command take time: before the store runs the command, and before the answer
// arrives.
func Delay(before, after time.Duration) Action {
	pause := func(ctx context.Context, d time.Duration) error {
		if d == 0 {
			return nil
		}
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
			return nil
		case <-ctx.Done():
			return store.Unsure(ctx.Err())
		}
	}
	return func(ctx context.Context, _ *Fault, run func() error) error {
		if err := pause(ctx, before); err != nil {
			return err
		}
		err := run()
		if late := pause(ctx, after); late != nil {
			return late
		}
		return err
	}
}

// Errors of a store that the core does not know.
var (
	ErrBroken  = errors.New("broken")
	ErrRefused = errors.New("MISCONF no snapshots")
	ErrOdd     = errors.New("the store says something odd")
)

// Outages are ways in which a store does not confirm a renewal.
var Outages = map[string]func(k *Link) *Fault{
	"the server is down": func(k *Link) *Fault { return k.On(Refuse(store.Unavailable(ErrBroken))) },
	"an odd error":       func(k *Link) *Fault { return k.On(Refuse(ErrBroken)) },
	"silence":            func(k *Link) *Fault { return k.Cut() },
	"lost answers":       func(k *Link) *Fault { return k.On(LoseAnswer(ErrBroken)) },
}
