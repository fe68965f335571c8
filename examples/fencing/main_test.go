package main

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestALateWriteIsRefusedWithTheTokenAndLosesADepositWithout(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var out bytes.Buffer
	require.NoError(t, run(ctx, &out, ""), "%s", &out)
	require.Regexp(t, `(?s)writes 70 with token \d+: done\n.*The deposit is gone.*`+
		`writes 70 with token \d+: refused: a later holder of the lock has written already\n  the balance is 150\n.*writes 120`, out.String())
}

func TestTheGuardAcceptsTheSameTokenAgainAndNoSmallerOne(t *testing.T) {
	db, err := sql.Open("sqlite", ":memory:")
	require.NoError(t, err)
	defer db.Close()
	db.SetMaxOpenConns(1)
	ctx := t.Context()
	_, err = db.ExecContext(ctx, schema)
	require.NoError(t, err)

	require.Error(t, setBalanceFenced(ctx, db, "fenced", 1, 0), "0 is no token")
	require.NoError(t, setBalanceFenced(ctx, db, "fenced", 1, 10))
	require.NoError(t, setBalanceFenced(ctx, db, "fenced", 2, 10), "one section may write twice")
	require.NoError(t, setBalanceFenced(ctx, db, "fenced", 3, 11))
	require.ErrorIs(t, setBalanceFenced(ctx, db, "fenced", 4, 10), errStaleToken)
	balance, err := balanceOf(ctx, db, "fenced")
	require.NoError(t, err)
	require.Equal(t, 3, balance)
}

func TestAURLThatCannotBeReadIsNotRepeatedAsItMayHaveAPassword(t *testing.T) {
	for _, url := range []string{"redis://user:secret@localhost:port", "redis://user:secret/1@localhost", "http://user:secret@localhost"} {
		err := run(t.Context(), io.Discard, url)
		require.ErrorContains(t, err, "REDIS_URL")
		require.NotContains(t, err.Error(), "secret")
	}
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
