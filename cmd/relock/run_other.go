//go:build !(linux || darwin || freebsd || netbsd || openbsd || dragonfly)

package main

import (
	"errors"

	"github.com/spf13/cobra"
)

// runCommand is missing here: without process groups and their signals it cannot keep its promises.
func (*app) runCommand() *cobra.Command {
	return &cobra.Command{
		Use: "run", Short: "Needs a Unix system", DisableFlagParsing: true,
		RunE: func(*cobra.Command, []string) error {
			return &exitError{code: codeCannotRun, err: errors.New("run needs a Unix system")}
		},
	}
}

func dieOfInterrupt(bool) {}
