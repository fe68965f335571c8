package main

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestALateWriteIsRefusedWithTheTokenAndLosesADepositWithout(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), &out, ""), "%s", &out)
	require.Regexp(t, `(?s)writes 70 with token \d+: done\n.*The deposit is gone.*`+
		`writes 70 with token \d+: refused: a later holder of the lock has written already\n  the balance is 150\n.*writes 120`, out.String())
}

func TestTheGuardAcceptsTheSameTokenAgainAndNoSmallerOne(t *testing.T) {
	a := new(account)
	require.Error(t, a.setFenced(1, 0), "0 is no token")
	require.NoError(t, a.setFenced(1, 10))
	require.NoError(t, a.setFenced(2, 10), "one section may write twice")
	require.NoError(t, a.setFenced(3, 11))
	require.ErrorIs(t, a.setFenced(4, 10), errStaleToken)
	require.Equal(t, 3, a.get())
}

func TestAnInterruptIsNotTakenForTheEndOfTheLateWrite(t *testing.T) {
	ctx, interrupt := context.WithCancelCause(t.Context())
	cause := errors.New("interrupted")
	withdrawals := 0
	err := run(ctx, writerFunc(func(line []byte) (int, error) {
		if bytes.Contains(line, []byte("now stands still")) {
			if withdrawals++; withdrawals == 2 { // the one with the token; the deposit is about to wait
				interrupt(cause)
			}
		}
		return len(line), nil
	}), "")
	require.Equal(t, cause, err)
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
