package redisstore

import (
	"fmt"
	"io/fs"
	"math"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/go-relock/relock/internal/wire"
	"github.com/go-relock/relock/store"
)

// Scripts are the scripts of both layouts, ready to be sent. Stores share them.
type Scripts struct {
	mutex    verbs
	kinds    verbs // of read-write locks and semaphores
	redisson verbs // acquire and release: Redisson's layout has renew and state of the mutex

	all                                      *wire.Script   // several mutexes
	served                                   *wire.Script   // release of a mutex behind a run
	migrating                                wire.Migrating // release of a mutex
	waiters                                  *wire.Script   // of a lock of any kind
	show, shown                              *wire.Script   // of the wait graph
	borrow, follow, giveBack, recall, accept *wire.Script

	loaded  []*wire.Script                // all of them
	delayed map[*wire.Script]*wire.Script // those that take locks, for servers with a restart delay
	sources fs.FS
}

// verbs are the scripts of one kind of lock.
type verbs struct{ acquire, release, renew, forget, token, state, broken *wire.Script }

// LoadScripts reads the scripts from the folder scripts. LoadScripts panics if a script is missing,
// as the scripts are a part of the build.
func LoadScripts(sources fs.FS) *Scripts {
	s := &Scripts{sources: sources}
	s.mutex, s.kinds = s.verbs(""), s.verbs("kinds/")
	s.redisson.acquire, s.redisson.release = s.load("redisson/acquire"), s.load("redisson/release")
	s.all, s.served = s.load("all"), s.load("served")
	s.migrating = wire.Migrating{Second: s.load("queued"), First: s.load("alone")}
	s.waiters = s.load("waiters")
	s.waiters.Again = nil // the reply is a list
	s.show, s.shown = s.load("deadlock/show"), s.load("deadlock/shown")
	s.borrow, s.follow, s.accept = s.load("loans/borrow"), s.load("loans/follow"), s.load("loans/accept")
	for _, number := range []*wire.Script{s.migrating.Second, s.borrow, s.follow, s.accept} {
		number.Again = nil // the reply is a count or a time, and asks for no other call
	}
	s.giveBack, s.recall = s.load("loans/return"), s.load("loans/recall")
	s.delayed = make(map[*wire.Script]*wire.Script)
	for _, taking := range []*wire.Script{s.mutex.acquire, s.all, s.kinds.acquire} {
		late := wire.NewScript(taking.Name, s.source("restarted")+taking.Source)
		late.Again = taking.Again
		s.delayed[taking] = late
	}
	return s
}

func (s *Scripts) verbs(folder string) verbs {
	return verbs{
		acquire: s.load(folder + "acquire"), release: s.load(folder + "release"), renew: s.load(folder + "renew"), forget: s.load(folder + "forget"),
		token: s.load(folder + "token"), state: s.load(folder + "state"), broken: s.load(folder + "break"),
	}
}

func (s *Scripts) load(name string) *wire.Script {
	script := wire.NewScript(path.Base(name), s.Text(name))
	script.Again = statusAgain
	s.loaded = append(s.loaded, script)
	return script
}

// Text returns the whole script of a verb such as "acquire" or "loans/borrow": the libraries of
// functions stand in front of the verb, or where the verb has the line "-- lib".
func (s *Scripts) Text(name string) string {
	libs := s.source("lib")
	if dir := path.Dir(name); dir == "kinds" || dir == "loans" {
		libs += s.source(dir + "/lib")
	}
	before, after, is := strings.Cut(s.source(name), "-- lib\n")
	if !is {
		before, after = "", before
	}
	return before + libs + after
}

func (s *Scripts) source(file string) string {
	source, err := fs.ReadFile(s.sources, file+".lua")
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

// of returns a user's script for a verb in scripts/user. first runs before everything else.
func (u *userScripts) of(lib *Scripts, first, verb, source string) *wire.Script {
	u.mu.Lock()
	defer u.mu.Unlock()
	key := [3]string{first, verb, source}
	s := u.ready[key]
	if s == nil {
		if len(u.ready) == mostUserScripts || u.ready == nil {
			u.ready = make(map[[3]string]*wire.Script)
		}
		s = lib.user(first, verb, source)
		u.ready[key] = s
	}
	return s
}

// user makes a user's script. The user's source stands first, so that the source sees no functions
// but its own, and line numbers in errors are the user's.
func (s *Scripts) user(first, verb, source string) *wire.Script {
	text := "local function script(KEYS, ARGV, locked) " + source + "\nend\n" + first
	if verb != "free" { // which needs no function of lib, and Redis makes each of them anew for each call
		text += s.source("lib")
	}
	text += s.source("user/lib")
	switch verb {
	case "loan":
		text += s.source("loans/lib")
	case "try":
		text += "local function acquire(KEYS, ARGV)\n" + s.source("acquire") + "\nend\n"
	}
	script := wire.NewScript("user/"+verb, text+s.source("user/"+verb))
	script.Again, script.Alone = statusAgain, true
	return script
}

// Suffixes of the keys of a lock in relock's own layout. A ticket has its ID behind ticketInfix.
const (
	queueSuffix   = ":queue"
	tokenSuffix   = ":token"
	rwSuffix      = ":rw"
	permitsSuffix = ":permits"
	loansSuffix   = ":loans"
	ticketInfix   = loansSuffix + ":"
	waitsSuffix   = ":waits" // of a hold
)

// Statuses in the replies of scripts.
const (
	statusBusy     int64 = 0
	statusOurs     int64 = 1
	statusQueued   int64 = 2
	statusAgain    int64 = 3 // only dead waiters were in the queue so far
	statusKind     int64 = 4 // the name is another kind of lock
	statusCircle   int64 = 5 // another upgrade waits for the hold around the claim
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
	lost      bool          // the place of the waiter was lost, and is back
}

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
			r.status == statusQueued && r.number != 0 && position >= 0
		r.lost, r.number = r.number < 0, max(r.number, -r.number)
	}
	if !ok {
		return acquireReply{}, badReply(script, reply)
	}
	r.remaining, r.position, r.known = fromMillis(remaining), int(position), r.owner != ""
	return r, nil
}

// toLease returns the lease that the reply gives to a hold. An existing lease, found by the script,
// counts from its end. A new lease counts from the first attempt, as a repeat sets a shorter lease.
func (r acquireReply) toLease(a store.Claim, answer wire.Answer) store.Lease {
	l := store.Lease{Claim: a, Sent: answer.First, Token: r.number, Unsure: answer.Unsure}
	if r.known {
		kept := a.Kept(a.TTL)
		l.Sent = answer.Sent.Add(min(max(r.remaining, 0), kept) - kept)
	}
	return l
}

func (r acquireReply) busy() *store.Busy {
	return &store.Busy{Owner: store.ID(r.owner), TTL: r.remaining}
}

// scan reads a list, or its only member, into variables of type int64 and string, or is false.
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
	return store.Unsure(fmt.Errorf("unexpected reply of script %s: %.200q", s.Name, fmt.Sprint(reply)))
}

// fromMillis returns the duration of ms milliseconds, or the longest duration.
func fromMillis(ms int64) time.Duration {
	return time.Duration(min(ms, math.MaxInt64/int64(time.Millisecond))) * time.Millisecond
}
