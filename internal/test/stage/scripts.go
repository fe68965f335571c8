package stage

import (
	"crypto/sha1"
	"encoding/hex"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-relock/relock/internal/redisstore"
	"github.com/go-relock/relock/internal/test/redistest"
)

// ScriptNames are the scripts, as the client sends them. Faults are aimed at one of them.
var ScriptNames = []string{LuaAcquire, LuaRelease, LuaRenew, LuaForget, LuaToken, LuaState, LuaBreak, LuaAll}

// TicketScripts are the scripts of loans and moves.
var TicketScripts = []string{LuaBorrow, LuaFollow, LuaReturn, LuaRecall, LuaAccept}

// The names of scripts.
const (
	LuaAcquire = "acquire"
	LuaRelease = "release"
	LuaRenew   = "renew" // also a nested entry, an inner exit, and Extend
	LuaForget  = "forget"
	LuaToken   = "token"
	LuaState   = "state"
	LuaBreak   = "break"
	LuaAll     = "all"

	LuaBorrow = "loans/borrow"
	LuaFollow = "loans/follow"
	LuaReturn = "loans/return" // the Unlock of a loan
	LuaRecall = "loans/recall" // the Unlock of a lender
	LuaAccept = "loans/accept"
)

// LuaSource is the text of a script.
func LuaSource(t testing.TB, name string) string {
	t.Helper()
	return redisstore.LoadScripts(os.DirFS(filepath.Join(root(t), "scripts"))).Text(name)
}

// Script matches the calls of the scripts of these names.
func (w *Arena) Script(names ...string) redistest.Match {
	w.T.Helper()
	var wanted []string
	for _, name := range names {
		text := LuaSource(w.T, name)
		sum := sha1.Sum([]byte(text))
		wanted = append(wanted, text, hex.EncodeToString(sum[:]))
	}
	return func(args []string) bool {
		return ScriptCalls(args) && slices.Contains(wanted, args[1])
	}
}

// loadScripts makes EVALSHA work at once, so that every call is one command.
func (w *Arena) loadScripts() {
	w.T.Helper()
	for _, name := range slices.Concat(ScriptNames, TicketScripts) {
		require.NoError(w.T, w.Plain.ScriptLoad(w.T.Context(), LuaSource(w.T, name)).Err())
	}
}

// Counter counts the calls of a script that p sends from now on.
func (w *Arena) Counter(p *Peer, name string) func() int {
	w.T.Helper()
	return p.Faults.On(w.Script(name), redistest.Before(func([]string) {})).Hits
}

// OfInterest matches all commands but the handshake of a connection.
var OfInterest = redistest.Named("EVALSHA", "EVAL", "SUBSCRIBE", "UNSUBSCRIBE")

// ScriptCalls matches the calls of all scripts.
var ScriptCalls = redistest.Named("EVALSHA", "EVAL")

// ACLCommands is all that a Redis user needs on a server that is no cluster. A test in docs/code
// compares the list on the page with the scripts.
var ACLCommands = []string{
	"eval", "evalsha", "subscribe", "unsubscribe", "ping", // the client sends these
	"exists", "get", "hdel", "hexists", "hget", "hgetall", "hset", "pexpire", "pttl", "publish", "pubsub|numsub",
	"set", "time", "zadd", "zcard", "zpopmin", "zrank", "zrem", "zscore",
}

// root returns the top folder of the repository. A test runs in the folder of its package.
func root(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	require.NoError(t, err)
	for {
		if _, err := os.Stat(filepath.Join(dir, "scripts", "lib.lua")); err == nil {
			return dir
		}
		above := filepath.Dir(dir)
		require.NotEqual(t, dir, above, "no folder above has scripts/lib.lua")
		dir = above
	}
}
