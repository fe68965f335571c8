/*
 * relock: a model of locks that stay with their client (WithKeep) in Promela, for spin.
 *
 * One lock, one Redis server, two clients that keep it, with some calls each. Each call takes the
 * lock once. The calls of a client stand in a line: its head asks the server, and the end of the head
 * gives the lease to the next call, or keeps it. A call that is refused by a kept hold sends a request
 * to the client of that hold.
 *
 * A command and its reply are one step here, a message comes at any later time, and time is no number:
 * relock.pml has these in detail, and runs.pml the other way to pass a lease on. A lease ends only
 * with LAPSES, so that requests alone must do.
 *
 * Read from top to bottom: sizes, promises, state, server, line, requests, call, accidents, judge.
 *
 * -DBREAK_<rule> takes one rule away. The model must fail then.
 */

/* ------------------------------------------------------------------ sizes */

#ifndef FIRST                   /* calls of client 0 */
#define FIRST 3
#endif
#ifndef SECOND                  /* calls of client 1 */
#define SECOND 1
#endif
#ifndef PLAIN                   /* of the last calls of client 0: without the option */
#define PLAIN 0
#endif

/* Budgets: how often each accident or action may happen in one run, at any time. */
#ifndef FAULTS                  /* claims, or replies to them, that are lost */
#define FAULTS 0
#endif
#ifndef CUTS                    /* connections that break, with the requests on them */
#define CUTS 0
#endif
#ifndef CANCELS                 /* calls whose context ends before they are in */
#define CANCELS 0
#endif
#ifndef ENDS                    /* times of a keep that end */
#define ENDS 0
#endif
#ifndef SLOW                    /* releases without an answer for long */
#define SLOW 0
#endif
#ifndef LAPSES                  /* leases that end, as the client knows by its clock */
#define LAPSES 0
#endif

#define CALLS        (FIRST + SECOND)
#define NONE         0
#define KEPT         (CALLS + 1)                /* a head without a section */
#define CLIENT(h)    ((h) <= FIRST -> 0 : 1)
#define MINE         CLIENT(me)                 /* of a call, which asks for the hold of its number */
#define KEEPS(h)     ((h) <= FIRST - PLAIN || (h) > FIRST)
#define EVERY(p)     (p(1) && p(2) && p(3) && FOURTH(p))
#if CALLS > 3
#define FOURTH(p)    p(4)
#else
#define FOURTH(p)    true
#endif

/* --------------------------------------------------------------- promises */

#define ID_mutual_exclusion     1       /* never two inside */
#define ID_lease_is_there       2       /* whoever enters has the lock on the server */
#define ID_no_lost_wakeup       3       /* nobody waits for ever beside a lock that is kept, or free */
#define ID_others_come_first    4       /* a lease is passed on beside a waiter only while its request is on its way */
#define ID_nothing_left         5       /* the lock ends free, the queue ends empty */

hidden byte mutual_exclusion, lease_is_there, no_lost_wakeup, others_come_first, nothing_left;

#ifndef ONLY
#define ONLY 0
#endif
#define LOOKED_AT(id)           (ONLY == id || ONLY == 0)
#define MUST(promise, holds)    promise = (!LOOKED_AT(ID_##promise) || (holds)); assert(promise)

/* ------------------------------------------------------------------ state */

mtype = { OUT, STANDS, ASKS, HEARS, WAITS, INSIDE, LEAVES, LEFT, FINISHED };     /* a call */

/* The server. */
byte owner = NONE;
byte place[CALLS + 1];          /* in the queue, by arrival; 0: none */
byte arrivals;

/* The calls, by their holds. */
mtype phase[CALLS + 1] = OUT;
byte lease[CALLS + 1];          /* the hold of the store that the call works with */
byte stands[CALLS + 1];         /* place in the line; 0: none */
bool unsure[CALLS + 1];         /* a claim may have run without an answer */
byte told[CALLS + 1];           /* the owner in an answer that is on its way */
bool granted[CALLS + 1];        /* a grant is on its way */
bool unwanted[CALLS + 1];       /* cleanup forgets the hold in the background */
bool request[CALLS + 1];        /* for a kept hold, on its way to its client */

/* The clients. */
byte head[2] = NONE;            /* of the line: a call, or KEPT */
byte kept[2] = NONE;            /* the ID of the head */
bool freed[2];                  /* the present head is not kept: its time is over, or a request may be lost */
byte freeing[2] = NONE;         /* a kept hold that is released in the background */
bool hears[2];                  /* the client is connected */
bool missed[2];                 /* the client will hear that it may have missed requests */
byte lined;                     /* calls that have come to a line */
#ifdef BREAK_A_LEASE_GOES_TO_A_CALL_THAT_HAS_ENDED
bool ended[CALLS + 1];
#endif

byte faults = FAULTS, cuts = CUTS, cancels = CANCELS, ends = ENDS, slow = SLOW, lapses = LAPSES;

/* Scratch, no part of the state. */
hidden byte k, first, next;

/* ----------------------------------------------------------------- server */

/* first: the first waiter of the queue. */
inline look_at_queue() {
	first = NONE; k = 1;
	do
	:: k > CALLS -> break
	:: else -> first = (place[k] != 0 && (first == NONE || place[k] < place[first]) -> k : first); k++
	od
}

/* A free lock goes to the first waiter, which a message tells. */
inline serve() {
	if
	:: owner == NONE ->
		look_at_queue();
		owner = first;
		if
		:: first != NONE -> place[first] = 0; granted[first] = true; printf("server: grants hold %d\n", first)
		:: else
		fi
	:: else
	fi
}

inline claim(h) {
	serve();
	if
	:: owner == NONE -> owner = h; place[h] = 0; printf("server: hold %d has the lock\n", h)
	:: owner == h -> place[h] = 0
	:: else ->
		if
		:: place[h] == 0 -> arrivals++; place[h] = arrivals; printf("server: hold %d queues\n", h)
		:: else
		fi
	fi
}

/* Takes back whatever a hold has: the lock, and its place. */
inline forget(h) {
	place[h] = 0; granted[h] = false;
	if
	:: owner == h -> owner = NONE; printf("server: hold %d is released\n", h)
	:: else
	fi;
	serve()
}

/* ------------------------------------------------------------------- line */

#define IS_IN(h)     (phase[h] == INSIDE)
#define IS_ABOUT(h)  (phase[h] != OUT && phase[h] != FINISHED)
#define OUT_OF_0(h)  (CLIENT(h) != 0 || !IS_ABOUT(h))
#define OUT_OF_1(h)  (CLIENT(h) != 1 || !IS_ABOUT(h))
/* Calls of a client that are alike come in the order of their numbers. */
#define MY_TURN      (me == 1 || me == FIRST + 1 || KEEPS(me) != KEEPS(me - 1) || phase[me - 1] != OUT)
#define NOBODY(c)    (freeing[c] == NONE && (c == 0 && EVERY(OUT_OF_0) || c == 1 && EVERY(OUT_OF_1)))

inline lead(h) {
	head[CLIENT(h)] = h; kept[CLIENT(h)] = h; freed[CLIENT(h)] = false;
	phase[h] = ASKS; stands[h] = 0
}

/* first: the first call in the line of a client. */
inline look_at_line(c) {
	first = NONE; k = 1;
	do
	:: k > CALLS -> break
	:: else ->
		first = (CLIENT(k) == c && stands[k] != 0 && (first == NONE || stands[k] < stands[first]) -> k : first);
		k++
	od
}

/* Ends the line behind the head: all who stand there ask the server. A kept lock is freed. */
inline yield(c) {
	if
	:: head[c] == NONE
	:: else ->
		printf("client %d: the head of the line yields\n", c);
		freeing[c] = (head[c] == KEPT -> kept[c] : freeing[c]);
		head[c] = NONE; kept[c] = NONE; freed[c] = false; k = 1;
		do
		:: k > CALLS -> break
		:: else ->
			phase[k] = (CLIENT(k) == c && phase[k] == STANDS -> ASKS : phase[k]);
			stands[k] = (CLIENT(k) == c -> 0 : stands[k]);
			k++
		od
	fi
}

/* A head is over: the next call in the line becomes the head. */
inline leave_line(h) {
	stands[h] = 0;
	if
	:: head[CLIENT(h)] == h ->
		head[CLIENT(h)] = NONE; kept[CLIENT(h)] = NONE; freed[CLIENT(h)] = false;
#ifndef BREAK_THE_LINE_ENDS_WITH_ITS_HEAD
		look_at_line(CLIENT(h));
		if
		:: first != NONE -> lead(first)
		:: else
		fi
#endif
	:: else
	fi
}

/* A waiter of another client has asked: its request is on its way, or is made up for. */
inline check_order(c) {
	k = 1;
	do
	:: k > CALLS -> break
	:: else ->
		MUST(others_come_first, !(CLIENT(k) != c && place[k] != 0 && phase[k] == WAITS &&
		     !request[kept[c]] && hears[c] && !missed[c]));
		k++
	od
}

/* The head gives its lease to another call. */
inline hand_over(c, to) {
	check_order(c);
	printf("client %d: lease %d goes to call %d\n", c, kept[c], to);
	head[c] = to; lease[to] = kept[c]; stands[to] = 0
}

inline enter(h) {
	phase[h] = INSIDE; unsure[h] = false; granted[h] = false;
	printf("call %d: inside with lease %d\n", h, lease[h]);
	MUST(lease_is_there, owner == lease[h]);
	k = 1;
	do
	:: k > CALLS -> break
	:: else -> MUST(mutual_exclusion, k == h || !IS_IN(k)); k++
	od
}

/* --------------------------------------------------------------- requests */

/* The client of a kept hold hears that somebody wants its lock. */
inline asked(h) {
#if defined(BREAK_A_HEAD_IS_FOUND_FROM_ITS_GRANT_ON)
#define FOUND(c, h)  (kept[c] == h && (head[c] == KEPT || phase[head[c]] != ASKS && phase[head[c]] != HEARS))
#elif defined(BREAK_A_REQUEST_SPARES_THE_LINE)
#define FOUND(c, h)  (kept[c] == h && head[c] == KEPT)
#else
#define FOUND(c, h)  (kept[c] == h)
#endif
	if
	:: FOUND(CLIENT(h), h) -> yield(CLIENT(h))
	:: else
	fi
}

/* The call h is refused by a hold. */
inline refused(h, by) {
	if
	:: head[CLIENT(h)] == h -> yield(CLIENT(h))
	:: else
	fi;
	if
#ifndef BREAK_A_CALL_OF_THE_CLIENT_DOES_NOT_ASK
	:: KEEPS(by) && CLIENT(by) == CLIENT(h) -> asked(by)
#endif
#ifndef BREAK_A_WAITER_DOES_NOT_ASK
	:: KEEPS(by) && CLIENT(by) != CLIENT(h) -> request[by] = hears[CLIENT(by)]
#endif
	:: else
	fi
}

/* The requests for a hold, and what cleanup does about it. */
proctype Hold(byte me) {
end:	do
	:: d_step { request[me] -> request[me] = false; printf("client %d: hold %d is wanted\n", MINE, me); asked(me) }
	:: d_step { unwanted[me] -> unwanted[me] = false; forget(me) }
	od
}

proctype Client(byte me) {
end:	do
	:: d_step { !hears[me] && head[me] != NONE ->
		hears[me] = true; printf("client %d: is connected\n", me);
#ifndef BREAK_NO_SIGN_AFTER_A_CONNECTION
		missed[me] = true
#endif
		}
	/* What is kept is freed, and the present head will not be kept. */
	:: d_step { missed[me] ->
		missed[me] = false; printf("client %d: may have missed requests\n", me);
		if
		:: head[me] == KEPT -> yield(me)
#ifndef BREAK_A_SIGN_SPARES_A_SECTION
		:: head[me] != KEPT && head[me] != NONE -> freed[me] = true
#endif
		:: else
		fi }
	:: d_step { freeing[me] != NONE -> forget(freeing[me]); freeing[me] = NONE }
#if CUTS > 0
	:: d_step { cuts > 0 && hears[me] ->
		cuts--; hears[me] = false; printf("client %d: its connection breaks\n", me); k = 1;
		do
		:: k > CALLS -> break
		:: else -> request[k] = request[k] && CLIENT(k) != me; k++
		od;
		skip }
#endif
#if ENDS > 0
	:: d_step { ends > 0 && head[me] != NONE && !freed[me] ->
		ends--; freed[me] = true; printf("client %d: the time of the keep ends\n", me);
		if
		:: head[me] == KEPT -> yield(me)
		:: else
		fi }
#endif
	od
}

/* ------------------------------------------------------------------- call */

inline arrive() {
	printf("call %d: comes\n", me);
	if
	:: !KEEPS(me) -> phase[me] = ASKS
#ifdef BREAK_A_LOCK_IS_TAKEN_WHILE_IT_IS_FREED
	:: KEEPS(me) && head[MINE] == NONE && freeing[MINE] != NONE -> lease[me] = freeing[MINE]; enter(me)
#endif
	:: KEEPS(me) && head[MINE] == KEPT -> hand_over(MINE, me); enter(me)
	:: KEEPS(me) && head[MINE] != NONE && head[MINE] != KEPT -> lined++; stands[me] = lined; phase[me] = STANDS
	:: else ->
		if
		:: NOBODY(MINE) -> lead(me)
		:: else -> phase[me] = ASKS
		fi
	fi
}

/* A lease of the server begins. If others may be in the queue behind it, the head yields. */
inline begin(woken) {
	lease[me] = me;
	if
#ifdef BREAK_A_LEASE_IN_DOUBT_IS_KEPT
	:: head[MINE] == me && woken -> yield(MINE)
#else
	:: head[MINE] == me && (woken || unsure[me]) -> yield(MINE)
#endif
	:: else
	fi;
	enter(me)
}

/* The answer to a claim. A grant that has come meanwhile is seen later. */
inline hear() {
	if
	:: told[me] == me -> begin(false)
	:: else -> phase[me] = WAITS; refused(me, told[me])
	fi;
	told[me] = NONE
}

/* The last Unlock of a section: for the next call in the line, or for the next one to come. */
inline unlock() {
	look_at_line(MINE);
	if
	:: head[MINE] != me || freed[MINE] -> phase[me] = LEAVES
	:: head[MINE] == me && !freed[MINE] && first != NONE ->
		phase[me] = FINISHED; next = first; hand_over(MINE, next); enter(next)
	:: head[MINE] == me && !freed[MINE] && first == NONE ->
		phase[me] = FINISHED; head[MINE] = KEPT; printf("client %d: keeps the lock\n", MINE)
	fi
}

proctype Call(byte me) {
end:	do
	:: d_step { phase[me] == OUT && MY_TURN -> arrive() }
	:: d_step { phase[me] == ASKS -> claim(me); told[me] = owner; phase[me] = HEARS }
	:: d_step { phase[me] == HEARS -> hear() }
	:: d_step { phase[me] == ASKS && faults > 0 ->
		faults--; unsure[me] = true; printf("call %d: the reply is lost\n", me); claim(me) }
	:: d_step { phase[me] == WAITS && granted[me] ->
		granted[me] = false;
		if
		:: unsure[me] -> phase[me] = ASKS       /* an older message may have come */
		:: else -> begin(true)
		fi }
	:: d_step { phase[me] == INSIDE -> unlock() }
	:: d_step { phase[me] == LEAVES -> forget(lease[me]); phase[me] = LEFT }
	:: d_step { phase[me] == LEAVES && head[MINE] == me && slow > 0 ->
		slow--; printf("call %d: the answer to its release is late\n", me); yield(MINE) }
	:: d_step { phase[me] == LEFT -> phase[me] = FINISHED; leave_line(me) }
#if CANCELS > 0
	:: d_step { cancels > 0 && (phase[me] == ASKS || phase[me] == HEARS || phase[me] == WAITS) ->
		cancels--; printf("call %d: gives up\n", me);
		unwanted[me] = true; phase[me] = FINISHED; told[me] = NONE; leave_line(me) }
#ifdef BREAK_A_LEASE_GOES_TO_A_CALL_THAT_HAS_ENDED
	:: d_step { cancels > 0 && phase[me] == STANDS -> cancels--; ended[me] = true }
	:: d_step { ended[me] && IS_ABOUT(me) ->
		unwanted[me] = true; phase[me] = FINISHED; leave_line(me) }
#else
	:: d_step { cancels > 0 && phase[me] == STANDS ->
		cancels--; printf("call %d: leaves the line\n", me); phase[me] = FINISHED; leave_line(me) }
#endif
#endif
	od
}

/* -------------------------------------------------------------- accidents */

#if LAPSES > 0
/* The lease of the owner ends. Its client knows by its clock, and the waiters look by themselves. */
inline lapse() {
	printf("server: the lease of hold %d ends\n", owner);
	k = 1;
	do
	:: k > CALLS -> break
	:: else ->
		granted[k] = false;
		phase[k] = (phase[k] == WAITS || phase[k] == HEARS -> ASKS : phase[k]); told[k] = NONE;
		phase[k] = ((phase[k] == INSIDE || phase[k] == LEAVES) && lease[k] == owner -> LEFT : phase[k]);
		k++
	od;
	if
#ifndef BREAK_A_LEASE_IS_KEPT_BEYOND_ITS_END
	:: head[CLIENT(owner)] == KEPT && kept[CLIENT(owner)] == owner ->
		head[CLIENT(owner)] = NONE; kept[CLIENT(owner)] = NONE; freed[CLIENT(owner)] = false
#endif
	:: else
	fi;
	owner = NONE
}

proctype Clock() {
end:	do
	:: d_step { lapses > 0 && owner != NONE -> lapses--; lapse() }
	od
}
#endif

/* ------------------------------------------------------------------ judge */

/* Nothing can happen any more. Then the clients are closed, which frees what they keep. */
proctype Judge() {
	byte i = 1;
end:	atomic {
	timeout ->
	do
	:: i > CALLS -> break
	:: else -> MUST(no_lost_wakeup, phase[i] == FINISHED); i++
	od;
	d_step { yield(0); yield(1) }
	}
	atomic {
	timeout ->
	MUST(nothing_left, owner == NONE);
	d_step { look_at_queue(); MUST(nothing_left, first == NONE) }
	}
}

init {
	byte i = 1;
	atomic {
		do
		:: i > CALLS -> break
		:: else -> run Call(i); run Hold(i); i++
		od;
		run Client(0); run Client(1);
#if LAPSES > 0
		run Clock();
#endif
		run Judge()
	}
}
