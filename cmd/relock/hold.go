package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

func (a *app) holdCommand() *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "hold NAME [NAME…] [flags]",
		Short: "Hold a lock, or several, until standard input ends",
		Long: `Hold a lock until standard input ends, or until a signal such as SIGTERM comes, and exit with 0. It is
for scripts that guard several commands: a script that ends, for whatever reason, closes that input.

When the lock is taken, a line on standard output says so: held, and the fencing token of each name.
If a lock is lost, relock exits with 79 at once.
If another holder has a lock and the wait (if any) is over, relock exits with 75.`,
		Example:           `  relock hold deploy:web --wait 5m <in >out &`,
		ValidArgsFunction: a.completions(true),
		Args: func(cmd *cobra.Command, args []string) error {
			switch dash := cmd.ArgsLenAtDash(); {
			case len(args) == 0:
				return usage("hold: there must be a lock name")
			case dash > 0:
				return usage("hold runs no command: relock run NAME -- COMMAND does")
			}
			return a.check(cmd.Flags(), &o)
		},
		RunE: func(_ *cobra.Command, args []string) error {
			r := newRunner(a, args, o)
			r.input, r.waits = make(chan struct{}), make(chan struct{}, 1)
			go func() {
				defer close(r.input)
				_, _ = io.Copy(io.Discard, os.Stdin) // an error is an end too
			}()
			return r.under(r.keep)
		},
	}
	a.holdFlags(cmd.Flags(), &o)
	return cmd
}

// keep is the work of hold: to hold the locks until standard input ends, a signal comes, or a lock
// is lost.
func (r *runner) keep() (code int, err error) {
	if err := r.announce(); err != nil {
		return 0, err
	}
	for {
		select {
		case <-r.section.Done():
			r.lost = true
			r.tellLost("")
			return 0, &exitError{code: codeLost} // reported
		case <-r.input:
			return 0, nil
		case s := <-r.signals:
			if sig, ok := s.(syscall.Signal); ok && ends(sig) {
				return 0, nil
			}
		}
	}
}

// announce says on standard output that the locks are taken.
func (r *runner) announce() error {
	if r.json {
		r.encode(r.stdout, r.complete(event{Event: "acquired", Holder: r.holder(), Mode: r.mode()}))
	} else {
		fmt.Fprintln(r.stdout, "held", strings.Join(r.tokenTexts(), " "))
	}
	return r.stdout.failure()
}
