package relock

import (
	"embed"
	"fmt"
	"math"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/go-relock/relock/internal/wire"
	"github.com/go-relock/relock/store"
)

// This file is the scripts of both layouts, and their replies.

//go:embed scripts/*.lua scripts/redisson/*.lua scripts/shared/*.lua scripts/user/*.lua scripts/waits/*.lua scripts/loans/*.lua
var sources embed.FS

var (
	acquireScript = loadScript("acquire")
	releaseScript = loadScript("release")
	renewScript   = loadScript("renew")
	forgetScript  = loadScript("forget")
	tokenScript   = loadScript("token")
	stateScript   = loadScript("state")
	breakScript   = loadScript("break")
	allScript     = loadScript("all")

	sharedAcquireScript = loadScript("shared/acquire")
	sharedReleaseScript = loadScript("shared/release")
	sharedRenewScript   = loadScript("shared/renew")
	sharedForgetScript  = loadScript("shared/forget")
	sharedTokenScript   = loadScript("shared/token")
	sharedStateScript   = loadScript("shared/state")
	sharedBreakScript   = loadScript("shared/break")

	showScript  = loadScript("waits/show")
	shownScript = loadScript("waits/shown")

	borrowScript = repliesTime(loadScript("loans/borrow"))
	followScript = repliesTime(loadScript("loans/follow"))
	returnScript = loadScript("loans/return")
	recallScript = loadScript("loans/recall")
	acceptScript = repliesTime(loadScript("loans/accept"))

	redissonAcquireScript = loadScript("redisson/acquire")
	redissonReleaseScript = loadScript("redisson/release")
)

var scripts = []*wire.Script{
	acquireScript, releaseScript, renewScript, forgetScript, tokenScript, stateScript, breakScript, allScript,
	sharedAcquireScript, sharedReleaseScript, sharedRenewScript, sharedForgetScript, sharedTokenScript, sharedStateScript,
	sharedBreakScript, showScript, shownScript, borrowScript, followScript, returnScript, recallScript, acceptScript,
	redissonAcquireScript, redissonReleaseScript,
}

// delayedScripts are the scripts that take locks, for servers with [WithRestartDelay].
var delayedScripts = map[*wire.Script]*wire.Script{
	acquireScript:       delayed(acquireScript),
	allScript:           delayed(allScript),
	sharedAcquireScript: delayed(sharedAcquireScript),
}

// delayed puts the look at the age of the server in front of a script.
func delayed(s *wire.Script) *wire.Script {
	d := wire.NewScript(s.Name, sourceOf("restarted")+s.Source)
	d.Again = s.Again
	return d
}

// loadScript puts the libraries of functions in front of a verb.
func loadScript(name string) *wire.Script {
	files := []string{"lib", name}
	if dir := path.Dir(name); dir == "shared" || dir == "loans" {
		files = []string{"lib", dir + "/lib", name}
	}
	var source strings.Builder
	for _, file := range files {
		source.WriteString(sourceOf(file))
	}
	s := wire.NewScript(path.Base(name), source.String())
	s.Again = statusAgain
	return s
}

// repliesTime is for a script with a time as its reply, so that no number asks for another call.
func repliesTime(s *wire.Script) *wire.Script {
	s.Again = nil
	return s
}

func sourceOf(file string) string {
	source, err := sources.ReadFile("scripts/" + file + ".lua")
	if err != nil {
		panic(err) // the file is part of the build
	}
	return string(source)
}

// userScripts are the scripts of users, ready to be sent. The zero value is empty.
type userScripts struct {
	mu    sync.Mutex
	ready map[[3]string]*wire.Script
}

// mostUserScripts bounds the memory for programs that write a new script for each call.
const mostUserScripts = 256

// of returns the script of a verb in scripts/user with the source of a user. first is what runs
// before all.
func (u *userScripts) of(first, verb, source string) *wire.Script {
	u.mu.Lock()
	defer u.mu.Unlock()
	key := [3]string{first, verb, source}
	s := u.ready[key]
	if s == nil {
		if len(u.ready) == mostUserScripts || u.ready == nil {
			u.ready = make(map[[3]string]*wire.Script)
		}
		s = userScript(first, verb, source)
		u.ready[key] = s
	}
	return s
}

// userScript makes a script. The user's source stands first, so that it sees none of our functions,
// and line numbers in errors are the user's.
func userScript(first, verb, source string) *wire.Script {
	text := "local function script(KEYS, ARGV, locked) " + source + "\nend\n" + first + sourceOf("lib") + sourceOf("user/lib")
	if verb == "try" {
		text += "local function acquire(KEYS, ARGV)\n" + sourceOf("acquire") + "\nend\n"
	}
	s := wire.NewScript("user/"+verb, text+sourceOf("user/"+verb))
	s.Again, s.Alone = statusAgain, true
	return s
}

// Suffixes of the keys of a lock in relock's own layout.
const (
	queueSuffix   = ":queue"
	tokenSuffix   = ":token"
	rwSuffix      = ":rw"
	permitsSuffix = ":permits"
	loansSuffix   = ":loans"
)

// Statuses in the replies of scripts.
const (
	statusBusy     int64 = 0
	statusOurs     int64 = 1
	statusQueued   int64 = 2
	statusAgain    int64 = 3 // only dead waiters were in the queue so far
	statusKind     int64 = 4 // the name is another kind of lock
	statusCircle   int64 = 5 // another upgrade waits for the hold around the ask
	statusDeclined int64 = 6 // the script of the user declines the lock
	statusFailed   int64 = 7 // the script of the user has failed
)

// acquireReply is the reply to acquire, in both layouts.
type acquireReply struct {
	status    int64
	owner     string        // of a busy lock; or what the key of another kind is
	remaining time.Duration // of the lease of the owner
	known     bool          // owner and remaining are
	number    int64         // the arrival of a waiter, or the token of a hold
	position  int           // number of earlier waiters in the queue
}

// parseAcquireReply reads the reply to acquire.
func parseAcquireReply(script *wire.Script, reply any) (r acquireReply, err error) {
	var remaining, position int64
	ok := false
	switch fields, _ := reply.([]any); len(fields) {
	case 0:
		ok = scan(reply, &r.status) && r.status == statusOurs
	case 2:
		ok = scan(reply, &r.status, &r.owner) && r.status == statusKind
	case 3:
		ok = scan(reply, &r.status, &r.owner, &remaining) &&
			(r.status == statusBusy || r.status == statusOurs || r.status == statusCircle)
	case 4:
		ok = scan(reply, &r.status, &r.owner, &remaining, &r.number) && r.status == statusOurs && r.number >= 0
	case 5:
		ok = scan(reply, &r.status, &r.owner, &remaining, &r.number, &position) &&
			r.status == statusQueued && r.number > 0 && position >= 0
	}
	if !ok {
		return acquireReply{}, badReply(script, reply)
	}
	r.remaining, r.position, r.known = fromMillis(remaining), int(position), r.owner != ""
	return r, nil
}

// toLease returns the lease that the reply gives to a hold. An existing lease, found by the script,
// counts from its end. A new lease counts from the first attempt, as a repeat sets a shorter lease.
func (r acquireReply) toLease(a store.Ask, answer wire.Answer) store.Lease {
	l := store.Lease{Ask: a, Sent: answer.First, Token: r.number, Unsure: answer.Unsure}
	if r.known {
		kept := a.Kept(a.TTL)
		l.Sent = answer.Sent.Add(min(max(r.remaining, 0), kept) - kept)
	}
	return l
}

// busy returns the refusal of a lock of other holds.
func (r acquireReply) busy() *store.Busy {
	return &store.Busy{Owner: store.ID(r.owner), TTL: r.remaining}
}

// scan reads a list, or its only member, into variables of type int64 and string. Any other reply
// is false.
func scan(reply any, into ...any) bool {
	fields, ok := reply.([]any)
	if !ok {
		fields = []any{reply}
	}
	if len(fields) != len(into) {
		return false
	}
	for i, field := range fields {
		switch p := into[i].(type) {
		case *int64:
			*p, ok = field.(int64)
		case *string:
			*p, ok = field.(string)
		}
		if !ok {
			return false
		}
	}
	return true
}

// badReply returns the error of a script whose reply cannot be read. The script may have run.
func badReply(s *wire.Script, reply any) error {
	return store.Unsure(fmt.Errorf("unexpected reply of script %s: %.200s", s.Name, fmt.Sprint(reply)))
}

// millis returns a duration in whole milliseconds, rounded up.
func millis(d time.Duration) int64 { return int64((d + time.Millisecond - 1) / time.Millisecond) }

// fromMillis returns the duration of ms milliseconds, or the longest duration.
func fromMillis(ms int64) time.Duration {
	return time.Duration(min(ms, math.MaxInt64/int64(time.Millisecond))) * time.Millisecond
}
