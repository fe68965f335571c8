/*
 * relock: a model of runs of the queue in Promela, for spin.
 *
 * One lock, one Redis server, one process with a few calls, and another process. A grant names the
 * waits of the same process that stand directly behind the granted one. Each Unlock passes the lease
 * on in the process, and the release of the last one takes the places of the others out. Each call
 * takes the lock once. relock.pml has all that is not about runs in more detail.
 *
 * Read from top to bottom: sizes, promises, state, server, wires, passing, call, accidents, clock,
 * judge.
 *
 * -DBREAK_<rule> takes one rule away. The model must fail then.
 */

/* ------------------------------------------------------------------ sizes */

#ifndef LOCAL                   /* calls of process 0 */
#define LOCAL 3
#endif
#ifndef OTHERS                  /* other processes, with a call each */
#define OTHERS 1
#endif
#ifndef TTL                     /* lease, in ticks; with UNTIMED no lease ends, and no timer fires */
#define TTL 2
#endif

/* Budgets: how often each accident or action may happen in one run, at any time. */
#ifndef FAULTS                  /* commands or replies that are lost */
#define FAULTS 0
#endif
#ifndef CUTS                    /* pub/sub connections of process 0 that break, with all messages on them */
#define CUTS 0
#endif
#ifndef CANCELS                 /* waits whose context ends */
#define CANCELS 0
#endif
#ifndef RECHECKS                /* recheck timers that fire early */
#define RECHECKS 0
#endif
#ifndef FORCES                  /* force unlocks of an operator */
#define FORCES 0
#endif
#ifndef STOPS                   /* runs that end though the next wait sleeps: a ticket, a loan, half a lease */
#define STOPS 0
#endif
#ifndef CRASHES                 /* process 0 dies */
#define CRASHES 0
#endif
#ifndef PAUSES                  /* leases that run out while a live process could use them */
#define PAUSES 0
#endif

#define CALLS        (LOCAL + OTHERS)
#define NONE         0
#define HOLD         (me + 1)                   /* of the own place of a call */
#define CALL_OF(h)   ((h) - 1)
#define PROCESS(h)   ((h) <= LOCAL -> 0 : (h))
#define IN(set, h)   (((set) >> (h)) & 1)

/* --------------------------------------------------------------- promises */

#define ID_mutual_exclusion     1       /* never two believers */
#define ID_lease_covers_belief  2       /* the lease of a believer is the owner on the server */
#define ID_no_lost_wakeup       3       /* nobody sleeps for ever */
#define ID_fifo                 4       /* first come, first served, by a grant and by a pass */
#define ID_nothing_left         5       /* the lock ends free, the queue ends empty */
#define ID_served_once          6       /* a release grants the lock to nobody who has had it */
#define ID_over_is_over         7       /* a lease that the process knows to be over is not used */

hidden byte mutual_exclusion, lease_covers_belief, no_lost_wakeup, fifo, nothing_left, served_once;
hidden byte over_is_over;

#ifndef ONLY
#define ONLY 0
#endif
#define LOOKED_AT(id)           (ONLY == id || ONLY == 0)
#define MUST(promise, holds)    promise = (!LOOKED_AT(ID_##promise) || (holds)); assert(promise)

/* ------------------------------------------------------------------ state */

mtype = { ACQUIRE, RELEASE, CONFIRM };                  /* commands */
mtype = { YES, HAD, QUEUED, GONE };                     /* replies; HAD: the hold had the lock before */
mtype = { IDLE, SENT, ANSWERED, FAILED };               /* the command of a call */
mtype = { OUT, ASKING, WAITING, WHOLE, INSIDE, LEAVING, FINISHED, DEAD };     /* a call */

/* The server. */
byte owner = NONE;
byte lease;                     /* ticks until the owner is out */
bool queued[CALLS + 1];
byte came[CALLS + 1];           /* first arrival of a hold: its place, whenever it is queued */
byte arrivals;

/* The calls. */
mtype phase[CALLS] = OUT;
byte id[CALLS];                 /* of the lease that the call counts on: its own hold, or the first of a run */
byte deadline[CALLS];           /* inside: ticks of belief; waiting: until the recheck timer fires */
byte sent[CALLS];               /* ticks of a lease that began before the command under way */
bool unsure[CALLS];             /* an acquire may have run, or may run yet, without an answer */
bool repeated[CALLS];           /* the call has asked for its place, or sent its release, more than once */
bool asleep[CALLS];             /* the call may be passed a lease */
byte passed[CALLS];             /* the lease that it was passed, and has not seen yet */
bool crossed[CALLS];            /* the server has granted the lock to a call that was passed a lease */
bool recheck[CALLS];            /* the connection is new: ask again */
bool message[CALLS];            /* a grant is on its way, or was not read yet */
bool late[CALLS];               /* an acquire that was given up may run yet */
mtype wire[CALLS] = IDLE;
mtype op[CALLS];
mtype answer[CALLS];
byte told[CALLS];

/* The process that has a run, by the first hold of the run. */
byte behind[CALLS + 1];         /* the holds that may be passed the lease, as a set: came has their order */
byte served[CALLS + 1];         /* the holds that had it, with their places */
byte named_by[CALLS + 1];             /* the run that names a hold */
bool given[CALLS + 1];        /* the server has given the lock to the hold itself */
bool stays[CALLS + 1];          /* the process knows the wait of the hold, or what cleanup does about it */
bool unwanted[CALLS + 1];       /* holds in cleanup: forgotten in the background */
bool gone;                      /* process 0 has died */

byte faults = FAULTS, cuts = CUTS, cancels = CANCELS, rechecks = RECHECKS, forces = FORCES;
byte stops = STOPS, crashes = CRASHES, pauses = PAUSES;

/* Ghosts: no part of the protocol. */
bool taken[CALLS + 1];          /* an operator took the lock from this lease, and its holder is not told */

/* Scratch, no part of the state. A d_step must not end with a loop: hence a skip behind loops. */
hidden byte j, k, head, last, next, set;
hidden mtype r_what;
hidden byte r_told;

#ifdef UNTIMED
#define LEASES_STAY true
#else
#define LEASES_STAY false
#endif
#define WAITS(c)     (phase[c] == ASKING || phase[c] == WAITING)
#define BELIEVES(c)  (phase[c] == INSIDE && deadline[c] > 0)
#define HEARD(h)     (PROCESS(h) != 0 || !gone)

/* ----------------------------------------------------------------- server */

/* head: the first waiter behind an arrival. */
inline first_behind(arrival) {
	head = NONE; k = 1;
	do
	:: k > CALLS -> break
	:: else ->
		head = (queued[k] && came[k] > arrival && (head == NONE || came[k] < came[head]) -> k : head);
		k++
	od
}

/* behind: the waiters of the same process that stand directly behind h. */
inline name_run(h_) {
	set = 0; last = 0;
	do
	:: first_behind(last);
		if
		:: head == NONE -> break
#ifdef BREAK_NAMES_PAST_OTHERS
		:: head != NONE && PROCESS(head) != PROCESS(h_) -> last = came[head]
#else
		:: head != NONE && PROCESS(head) != PROCESS(h_) -> break
#endif
		:: else -> set = set | (1 << head); last = came[head];
#ifdef BREAK_PLACES_LEAVE_WITH_THE_GRANT
			queued[head] = false
#endif
		fi
	od;
	behind[h_] = set; served[h_] = 0
}

inline covered() {
	k = 0;
	do
	:: k == CALLS -> break
	:: else -> MUST(lease_covers_belief, !BELIEVES(k) || id[k] == owner || taken[id[k]]); k++
	od
}

inline begin_hold(h_) {
	owner = h_; lease = TTL; queued[h_] = false; taken[h_] = false;
	covered();
	printf("server: hold %d has the lock\n", h_)
}

/* A free lock goes to the first waiter that is heard. The caller learns of its grant by the reply. */
inline grant(caller) {
	do
	:: owner != NONE -> break
	:: else ->
		first_behind(0);
		if
		:: head == NONE -> break
		:: head != NONE && (head == caller || !HEARD(head)) ->
			queued[head] = false;
			if
			:: head == caller -> begin_hold(caller)
			:: else
			fi
		:: else ->
			next = head;
			begin_hold(next); name_run(next);
			message[CALL_OF(next)] = true
		fi
	od
}

inline end_hold() {
	owner = NONE; lease = 0;
	covered()
}

inline acquire(h_) {
	if
	:: owner == h_ -> r_what = HAD; r_told = lease
	:: else ->
		if
		:: owner == NONE -> grant(h_)
		:: else
		fi;
		if
		:: owner == NONE -> begin_hold(h_); r_what = YES
		:: owner == h_ -> r_what = YES
		:: else ->
			if
			:: came[h_] == 0 -> arrivals++; came[h_] = arrivals
			:: else
			fi;
			queued[h_] = true; r_what = QUEUED
		fi
	fi
}

inline take_out(set_) {
	k = 1;
	do
	:: k > CALLS -> break
	:: else -> queued[k] = queued[k] && !IN(set_, k); k++
	od
}

/* Takes the places of a run out, and frees the lock of its lease. */
inline release(h_) {
#ifndef BREAK_RELEASE_WITHOUT_SERVED
	take_out(served[h_]);
#endif
	if
	:: owner == h_ ->
		end_hold(); grant(NONE);
		MUST(served_once, owner == NONE || !IN(served[h_], owner));
		r_what = YES
	:: else -> r_what = GONE
	fi
}

inline confirm(h_) {
	if
	:: owner == h_ -> lease = TTL; r_what = YES
	:: else -> r_what = GONE
	fi
}

/* Takes back whatever a hold may have left. */
inline forget(h_) {
	printf("server: FORGET hold %d\n", h_);
	queued[h_] = false;
	if
	:: owner == h_ -> end_hold()
	:: else
	fi;
	grant(NONE)
}

/* ------------------------------------------------------------------ wires */

inline execute(c_) {
	r_what = 0; r_told = 0;
	if
	:: op[c_] == ACQUIRE -> acquire(c_ + 1)
	:: op[c_] == RELEASE -> release(id[c_])
	:: op[c_] == CONFIRM -> confirm(id[c_])
	fi;
	printf("server: %e of call %d -> %e\n", op[c_], c_, r_what)
}

/* Where nothing is left and nothing may come, a forget would change nothing. It serves a lock that is free. */
#define ANY(p)         (p(0) || p(1) || p(2) || THIRD(p))
#if CALLS > 3
#define THIRD(p)       p(3)
#else
#define THIRD(p)       false
#endif
#define PLACE(c)       queued[(c) + 1]
#define CHANGES(h)     (owner == (h) || queued[h] || owner == NONE && ANY(PLACE))
#define SOMETHING_LEFT(h) (CHANGES(h) || late[CALL_OF(h)])

/* The commands of a call: run, lost before, run with the reply lost. */
proctype Commands(byte me) {
end:	do
	:: atomic { wire[me] == SENT && phase[me] != DEAD ->
		d_step { execute(me) };
		if
		:: wire[me] = ANSWERED; answer[me] = r_what; told[me] = r_told
		:: faults > 0 -> faults--; wire[me] = FAILED; printf("call %d: the reply is lost\n", me)
		fi }
	:: d_step { wire[me] == SENT && phase[me] != DEAD && faults > 0 ->
		faults--; wire[me] = FAILED; printf("call %d: the command is lost\n", me) }
	:: d_step { wire[me] == SENT && faults > 0 && op[me] == ACQUIRE && phase[me] == ASKING && !late[me] ->
		faults--; wire[me] = FAILED; late[me] = true;
		printf("call %d: no reply in time, the command is on its way\n", me) }
	:: d_step { late[me] -> late[me] = false; printf("late:\n"); acquire(HOLD) }
	:: d_step { unwanted[HOLD] && CHANGES(HOLD) ->
		forget(HOLD); unwanted[HOLD] = SOMETHING_LEFT(HOLD) }
	/* A grant to a wait that is over. The client gives back what no wait, and no cleanup, knows of. */
	:: d_step { message[me] && !WAITS(me) && phase[me] != DEAD ->
		message[me] = false; behind[HOLD] = 0;
#ifndef BREAK_UNHEARD_GRANT_IS_KEPT
		unwanted[HOLD] = unwanted[HOLD] || !stays[HOLD];
#endif
		printf("call %d: a grant to a wait that is over\n", me) }
	od
}

/* ---------------------------------------------------------------- passing */

/* Whether the next hold may have the lease of me, and which: next is the call, CALLS if there is none. */
inline choose_next() {
	next = CALLS; set = behind[id[me]]; last = 0;
	do
	:: next != CALLS || set == 0 -> break
	:: else ->
		head = NONE; k = 1;
		do
		:: k > CALLS -> break
		:: else -> head = (IN(set, k) && (head == NONE || came[k] < came[head]) -> k : head); k++
		od;
		set = set - (1 << head);
		if
		/* The wait is over: it has ended, or another lease was passed to it. */
#ifndef BREAK_PASSED_TO_A_WAIT_THAT_IS_OVER
		:: !WAITS(CALL_OF(head)) || !stays[head]
#endif
#if defined(BREAK_PASSED_TO_A_WAIT_THAT_IS_OVER)
		:: !WAITS(CALL_OF(head)) || asleep[CALL_OF(head)] -> next = CALL_OF(head)
		:: WAITS(CALL_OF(head)) && !asleep[CALL_OF(head)] -> set = 0
#elif defined(BREAK_A_WAIT_THAT_ASKS_IS_PASSED_BY)
		:: WAITS(CALL_OF(head)) && stays[head] -> next = (asleep[CALL_OF(head)] -> CALL_OF(head) : CALLS)
#else
		:: WAITS(CALL_OF(head)) && stays[head] && asleep[CALL_OF(head)] -> next = CALL_OF(head)
		:: WAITS(CALL_OF(head)) && stays[head] && !asleep[CALL_OF(head)] -> set = 0     /* the run ends */
#endif
		fi
	od;
	behind[id[me]] = set
}

/* The last Unlock of a section gives its lease to the next wait, without a command. */
inline pass() {
	k = 0;
	do
	:: k == CALLS -> break
	:: else ->
		MUST(over_is_over, !(phase[k] == INSIDE && PROCESS(k + 1) == 0 && k != me && taken[id[me]]));
		k++
	od;
	passed[next] = id[me]; stays[next + 1] = false;
	served[id[me]] = served[id[me]] | (1 << (next + 1));
#ifdef BREAK_PASS_NEW_DEADLINE
	deadline[next] = TTL;
#else
	deadline[next] = deadline[me];
#endif
	printf("call %d: passes lease %d on to call %d\n", me, id[me], next)
}

/* ------------------------------------------------------------------- call */

#define ANSWER(what_) (wire[me] == ANSWERED && answer[me] == what_)

inline send(op_) {
	op[me] = op_; sent[me] = (op_ == RELEASE -> 0 : TTL); wire[me] = SENT;
	printf("call %d: %e\n", me, op_)
}

inline settle() {
	wire[me] = IDLE; op[me] = 0; answer[me] = 0; told[me] = 0; sent[me] = 0
}

inline enter() {
	d_step {
		phase[me] = INSIDE; recheck[me] = false; asleep[me] = false; crossed[me] = false;
		repeated[me] = false;
		printf("call %d: inside with lease %d\n", me, id[me]);
		k = 0;
		do
		:: k == CALLS -> break
		:: else ->
			MUST(mutual_exclusion, k == me || !BELIEVES(k) || !BELIEVES(me) || taken[id[k]] || taken[id[me]]);
			MUST(fifo, !LEASES_STAY || FORCES > 0 || came[HOLD] == 0 || !(WAITS(k) && queued[k + 1] &&
			     came[k + 1] < came[HOLD] && k != me && passed[k] == 0));
			k++
		od;
		MUST(lease_covers_belief, !BELIEVES(me) || id[me] == owner || taken[id[me]])
	}
}

/* The end of a call. Cleanup takes back what its lease, or its place, may have left. */
inline finish(left_) {
	unwanted[left_] = SOMETHING_LEFT(left_);
	phase[me] = FINISHED; id[me] = NONE; deadline[me] = 0; unsure[me] = false; repeated[me] = false;
	asleep[me] = false; passed[me] = NONE; crossed[me] = false; recheck[me] = false;
	settle()
}

inline leave_for_good() {
	phase[me] = FINISHED; id[me] = NONE; deadline[me] = 0; unsure[me] = false; repeated[me] = false;
	settle()
}

/* The context of a wait has ended, and nothing was passed to it. Its command may run yet. */
inline give_up() {
	cancels--;
	late[me] = late[me] || wire[me] == SENT && op[me] == ACQUIRE;
	printf("call %d: gives up\n", me);
	finish(HOLD)
}

#define CAN_GIVE_UP (cancels > 0 && !(wire[me] == SENT && late[me]))

/*
 * Whatever ends a sleep asks first whether a lease was passed: one of the two wins. A grant of the
 * server at the same time is given back, and says that the lease of the run is over.
 */
inline wake() {
	asleep[me] = false; recheck[me] = false;
	id[me] = (passed[me] != NONE -> passed[me] : HOLD);
	if
	:: passed[me] != NONE && message[me] ->
		message[me] = false; behind[HOLD] = 0; unwanted[HOLD] = SOMETHING_LEFT(HOLD);
#ifdef BREAK_CROSSED_LEASE_IS_BELIEVED
		MUST(over_is_over, owner == id[me])
#else
		crossed[me] = true
#endif
	:: else
	fi;
	passed[me] = NONE
}

#ifdef BREAK_TIMER_AND_PASS_WIN         /* the timer, or the end of the context, does not look */
#define WINS(me_) true
#else
#define WINS(me_) (passed[me_] == NONE)
#endif

/* The server has given the lock: the lease of the run that names this hold is over there. */
inline granted_by_server() {
#ifndef BREAK_GRANT_KEEPS_THE_RUN
	behind[named_by[HOLD]] = (named_by[HOLD] != NONE -> 0 : behind[named_by[HOLD]]);
	given[HOLD] = true;
#endif
	named_by[HOLD] = NONE
}

/* A message begins a run: the waits that it names know of it. If one has the lock already, the run is over. */
inline begin_run() {
	k = 1;
	do
	:: k > CALLS -> break
	:: else ->
		named_by[k] = (IN(behind[HOLD], k) && WAITS(CALL_OF(k)) && stays[k] -> HOLD : named_by[k]);
#ifndef BREAK_RUN_BEGINS_LATE
		behind[HOLD] = (IN(behind[HOLD], k) && given[k] -> 0 : behind[HOLD]);
#endif
		k++
	od;
	skip
}

/* The calls of a process are alike: they ask in the order of their numbers. */
#define MY_TURN (me == 0 || me >= LOCAL || phase[me - 1] != OUT)

proctype Call(byte me) {
	{
	atomic { MY_TURN -> phase[me] = ASKING; id[me] = HOLD; stays[HOLD] = true; send(ACQUIRE) };

asking:
	if
	:: atomic { ANSWER(YES) || ANSWER(HAD) ->
		deadline[me] = (answer[me] == YES -> sent[me] : (told[me] + sent[me] > TTL -> told[me] + sent[me] - TTL : 0));
		d_step { granted_by_server() };
		behind[HOLD] = 0;       /* only a message names a run */
		settle(); goto granted }
	:: atomic { ANSWER(QUEUED) ->
		deadline[me] = sent[me]; phase[me] = WAITING;
		asleep[me] = !unsure[me];
		settle(); goto waiting }
	:: atomic { wire[me] == FAILED -> unsure[me] = true; send(ACQUIRE); goto asking }
	:: atomic { CAN_GIVE_UP -> give_up(); goto over }
	fi;

waiting: /* With a message and a pass, either is seen first, and wake decides. */
	if
	:: atomic { message[me] && WINS(me) && passed[me] == NONE ->
		d_step { wake() };
		message[me] = false;
		if
		/* An older message may have come: only the one grant that can be is believed. */
		:: !repeated[me] && !unsure[me] -> d_step { granted_by_server(); begin_run() }; goto granted
		:: else -> behind[HOLD] = 0; goto ask_again
		fi }
	:: atomic { passed[me] != NONE -> d_step { wake() }; goto passed_on }
	:: atomic { (recheck[me] || rechecks > 0 || deadline[me] == 0) && WINS(me) ->
		rechecks = (recheck[me] || deadline[me] == 0 -> rechecks : rechecks - 1);
		recheck[me] = false; asleep[me] = false; passed[me] = NONE;
		goto ask_again }
	:: atomic { CAN_GIVE_UP && WINS(me) -> give_up(); goto over }
	/* The context ends as the lease is passed: the call has it, and gives it back. */
	:: atomic { cancels > 0 && passed[me] != NONE ->
		cancels--; d_step { wake() }; printf("call %d: gives the lease back\n", me);
		finish(id[me]); goto over }
	fi;

ask_again:
	atomic { phase[me] = ASKING; id[me] = HOLD; deadline[me] = 0; repeated[me] = true; send(ACQUIRE); goto asking };

passed_on:
	atomic {
		if
		:: crossed[me] -> deadline[me] = 0
		:: else
		fi;
		goto granted };

granted: /* A lease that is over, or may be, is made whole first. */
	if
	:: atomic { deadline[me] > 0 -> enter(); goto inside }
	:: atomic { deadline[me] == 0 -> phase[me] = WHOLE; send(CONFIRM) }
	fi;

whole:
	if
	:: atomic { ANSWER(YES) && sent[me] > 0 -> deadline[me] = sent[me]; settle(); enter(); goto inside }
	:: atomic { ANSWER(GONE) || ANSWER(YES) && sent[me] == 0 ->
		printf("call %d: its lease was over before it began\n", me);
		finish(id[me]); goto over }
	:: atomic { wire[me] == FAILED -> send(CONFIRM); goto whole }
	fi;

inside:
	if
	:: atomic { deadline[me] == 0 || taken[id[me]] ->
		printf("call %d: its lease is lost\n", me);
		behind[id[me]] = 0; finish(id[me]); goto over }
	:: atomic { BELIEVES(me) -> d_step { choose_next() };
		if
		:: next != CALLS -> d_step { pass() }; leave_for_good(); goto over
		:: next == CALLS || stops > 0 ->
			stops = (next != CALLS -> stops - 1 : stops);
			phase[me] = LEAVING; deadline[me] = 0; send(RELEASE)
		fi }
	fi;

released:
	if
	:: atomic { ANSWER(YES) && !repeated[me] && !unsure[me] -> leave_for_good(); goto over }
	:: atomic { ANSWER(GONE) || ANSWER(YES) -> finish(id[me]); goto over }
	:: atomic { wire[me] == FAILED -> repeated[me] = true; send(RELEASE); goto released }
	:: atomic { wire[me] == FAILED -> finish(id[me]); goto over }
	fi;
over:	skip
	} unless { phase[me] == DEAD }
}

/* -------------------------------------------------------------- accidents */

#if CUTS + FORCES + CRASHES > 0
proctype Fate() {
end:	do
#if CUTS > 0
	/*
	 * The messages of process 0 are lost, and its waits ask again. A lost grant to a wait that is over
	 * costs a lease, so without time none is lost.
	 */
	:: d_step { cuts > 0 && !gone ->
		cuts--; printf("process 0: pub/sub connection cut\n"); j = 0;
		do
		:: j == LOCAL -> break
		:: else ->
			behind[j + 1] = (message[j] -> 0 : behind[j + 1]);
			message[j] = message[j] && !WAITS(j) && LEASES_STAY; recheck[j] = WAITS(j);
			j++
		od;
		skip }
#endif
#if FORCES > 0
	:: d_step { forces > 0 && owner != NONE ->
		forces--; printf("operator: takes the lock from hold %d\n", owner);
		taken[owner] = true; end_hold(); grant(NONE); skip }
#endif
#if CRASHES > 0
	:: d_step { crashes > 0 && !gone ->
		crashes--; gone = true; printf("process 0: dies\n"); j = 0;
		do
		:: j == LOCAL -> break
		:: else ->
			phase[j] = DEAD; id[j] = NONE; deadline[j] = 0; sent[j] = 0; wire[j] = IDLE; op[j] = 0; answer[j] = 0;
			told[j] = 0; message[j] = false; recheck[j] = false; asleep[j] = false; passed[j] = NONE;
			crossed[j] = false; unsure[j] = false; repeated[j] = false; late[j] = false;
			unwanted[j + 1] = false; behind[j + 1] = 0; served[j + 1] = 0; named_by[j + 1] = NONE; stays[j + 1] = false;
			given[j + 1] = false;
			taken[j + 1] = false;
			j++
		od;
		skip }
#endif
	od
}
#endif

/* ------------------------------------------------------------------ clock */

/*
 * A lease that a live call could still use runs out only while there are PAUSES left. All other leases
 * run out freely: of the dead, of calls that are over, of a call that sleeps with its recheck timer
 * still to fire, and of one that is inside and not yet at its own deadline.
 */
#define USES(c)       (phase[c] != DEAD && phase[c] != FINISHED && phase[c] != LEAVING && phase[c] != OUT && \
		       (id[c] == owner || passed[c] == owner) && \
		       !(phase[c] == WAITING && passed[c] == NONE && deadline[c] > 0) && \
		       !(phase[c] == INSIDE && deadline[c] > 1))
#define TOO_SLOW(c)   (phase[c] == WHOLE && sent[c] == 1)
#define COUNTS(c)     (deadline[c] + sent[c] > 0)
#define COSTS_A_PAUSE (lease == 1 && ANY(USES) || ANY(TOO_SLOW))

#ifndef UNTIMED
proctype Clock() {
end:	do
	:: d_step { (lease > 0 || ANY(COUNTS)) && (pauses > 0 || !COSTS_A_PAUSE) ->
		printf("-- tick --\n");
		pauses = pauses - COSTS_A_PAUSE;
		j = 0;
		do
		:: j == CALLS -> break
		:: else ->
			deadline[j] = (deadline[j] > 0 -> deadline[j] - 1 : 0);
			sent[j] = (sent[j] > 0 -> sent[j] - 1 : 0);
			j++
		od;
		if
		:: lease > 1 -> lease--
		:: lease == 1 ->
			printf("server: the lease of hold %d ran out\n", owner);
			j = owner;
			end_hold();
			unwanted[j] = unwanted[j] && SOMETHING_LEFT(j)
		:: else
		fi }
	od
}
#endif

/* ------------------------------------------------------------------ judge */

/* Nothing can happen any more, not even a tick. */
proctype Judge() {
	byte i;
end:	atomic {
	timeout ->
	do
	:: i == CALLS -> break
	:: else -> MUST(no_lost_wakeup, phase[i] == FINISHED || phase[i] == DEAD); i++
	od;
	MUST(nothing_left, owner == NONE);
	/* The dead leave places in the queue, which grants skip and the key's TTL ends. */
	d_step { first_behind(0); MUST(nothing_left, head == NONE || CRASHES > 0) }
	}
}

init {
	byte i;
	atomic {
		do
		:: i == CALLS -> break
		:: else -> run Call(i); run Commands(i); i++
		od;
#if CUTS + FORCES + CRASHES > 0
		run Fate();
#endif
#ifndef UNTIMED
		run Clock();
#endif
		run Judge()
	}
}
