/*
 * relock: a model of read-write locks and semaphores in Promela, for spin.
 *
 * One lock, one Redis server, a few clients. Several holds may be in at once. Each client takes one
 * hold, and perhaps one more inside of it: a writer in its own reader (an upgrade), or a reader in
 * its own writer, which may outlive the writer (a downgrade). Each run picks what each client does.
 *
 * Commands, replies, messages and deadlines are those of the mutex: relock.pml has them in detail.
 * So a command and its reply are one step here, a message comes at any later time, and time is no
 * number: a lease ends at any moment, and its client does not believe in the hold from then on.
 *
 * Read from top to bottom: sizes, promises, state, the rule, scripts, client, accidents, judge.
 *
 * -DBREAK_<rule> takes one rule away. The model must fail then.
 */

/* ------------------------------------------------------------------ sizes */

#ifndef CLIENTS
#define CLIENTS 3
#endif

/* Budgets: how often each accident or action may happen in one run, at any time. */
#ifndef CRASHES                 /* clients that die */
#define CRASHES 0
#endif
#ifndef PAUSES                  /* leases that end although their client lives */
#define PAUSES 0
#endif
#ifndef CANCELS                 /* waits that the caller gives up */
#define CANCELS 0
#endif
#ifndef FAULTS                  /* replies to a claim that are lost, so the client asks again */
#define FAULTS 0
#endif
#ifndef CUTS                    /* connections of waiters that break, so that the server takes them for dead */
#define CUTS 0
#endif
#ifndef STAYS                   /* clients that stay in for ever */
#define STAYS 0
#endif

#define UNLIMITED    9          /* the limit of a reader; that of a writer is 1 */
#define NONE         0
#define HOLDS        (CLIENTS * 2)
#define OUTER        (me * 2 + 1)
#define INNER        (me * 2 + 2)
#define CLIENT_OF(h) (((h) - 1) / 2)
#define WITH(h)      ((h) % 2 == 0 -> (h) - 1 : NONE)   /* the hold around this one */
#define NESTED(h)    ((h) % 2 == 0)
#define UPGRADE(h)   (NESTED(h) && limit[h] == 1)

/* --------------------------------------------------------------- promises */

#define ID_exclusion            1       /* a hold is in with no more strangers than its limit allows */
#define ID_no_lost_wakeup       2       /* nobody waits who could be in */
#define ID_fifo                 3       /* first come, first served */
#define ID_nothing_left         4       /* the lock ends free, the queue ends empty */
#define ID_lease_is_ones_own    5       /* the end of a lease costs nobody else's hold */
#define ID_one_upgrade_waits    6       /* never two that wait for each other */
#define ID_no_write_between     7       /* nobody writes between a hold and the hold inside of it */

#define ID_queue_is_kept        8       /* NOT promised: fifo for a claim whose surrounding hold was lost */
#define ID_refused_in_need      9       /* NOT promised: a refused ask would have been a deadlock */

hidden byte exclusion, no_lost_wakeup, fifo, nothing_left, lease_is_ones_own, one_upgrade_waits;
hidden byte no_write_between, queue_is_kept, refused_in_need;

#ifndef ONLY
#define ONLY 0
#endif
#define LOOKED_AT(id)           (ONLY == id || ONLY == 0 && id < ID_queue_is_kept)
#define MUST(promise, holds)    promise = (!LOOKED_AT(ID_##promise) || (holds)); assert(promise)

/* ------------------------------------------------------------------ state */

mtype = { YES, WAIT, DEADLOCK };                        /* replies */
mtype = { ASKS, WAITS, INSIDE, STAYING, FINISHED, DEAD };       /* a client */

/* The server. */
bool in[HOLDS + 1];
bool over[HOLDS + 1];           /* in, and the lease has ended: the next script takes the hold out */
byte place[HOLDS + 1];          /* in the queue; 0: not queued */
byte arrivals;                  /* the last place */
byte head = NONE;               /* the first in the queue */
byte holds_in, holds_over;

/* The clients. */
mtype state[CLIENTS] = ASKS;
byte limit[HOLDS + 1];          /* how many may be in with this hold; 0: the client does not ask for it */
bool held[HOLDS + 1];           /* the client knows that the hold is in */
bool message[HOLDS + 1];        /* on its way: the hold was let in */
bool deaf[CLIENTS];             /* no message comes, until the client notices */

byte crashes = CRASHES, pauses = PAUSES, cancels = CANCELS, faults = FAULTS, cuts = CUTS;
byte stays = STAYS;

/* A ghost, no part of the protocol: somebody else wrote since the outer hold got in. */
bool written[CLIENTS];

/* Scratch, no part of the state. */
hidden byte j, k, others, least;
hidden byte fit;
hidden mtype reply;

#define LIVE(h)      (state[CLIENT_OF(h)] != DEAD)
#define HEARD(h)     (LIVE(h) && !deaf[CLIENT_OF(h)])
#define STRANGERS(a, b) ((a) != (b) && WITH(a) != (b) && WITH(b) != (a))

/* --------------------------------------------------------------- the rule */

#ifdef BREAK_AROUND_COUNTS
#define COUNTS(k, h) in[k]
#else
#define COUNTS(k, h) (in[k] && (k) != WITH(h))
#endif

/*
 * fit: the smallest limit bounds the number of holds, h included. The hold around h does not count.
 * With only_staying, none counts but those of clients that stay for ever.
 */
inline fits(h_, only_staying) {
#ifdef BREAK_OWN_LIMIT_IGNORED
	least = UNLIMITED;
#else
	least = limit[h_];
#endif
	others = 0; k = 1;
	do
	:: k > HOLDS -> break
	:: else ->
		if
		:: COUNTS(k, h_) && (!only_staying || state[CLIENT_OF(k)] == STAYING) ->
			others++;
#ifndef BREAK_LIMIT_OF_OTHERS_IGNORED
			least = (limit[k] < least -> limit[k] : least)
#endif
		:: else
		fi;
		k++
	od;
	fit = (others + 1 <= least)
}

/* ---------------------------------------------------------------- scripts */

/* head: the first in the queue. Places are counted from one again when nobody is left. */
inline find_head() {
	head = NONE; k = 1;
	do
	:: k > HOLDS -> break
	:: else ->
		head = (place[k] > 0 && (head == NONE || place[k] < place[head]) -> k : head);
		k++
	od;
	arrivals = (head == NONE -> 1 : arrivals)
}

inline take_out(h_) {
	holds_in = holds_in - in[h_]; holds_over = holds_over - over[h_];
	in[h_] = false; over[h_] = false
}

/* Each hold is in with no more strangers than its limit allows. */
inline all_fit() {
	j = 1;
	do
	:: j > HOLDS -> break
	:: j <= HOLDS && !in[j] -> j++
	:: else ->
		others = 0; k = 1;
		do
		:: k > HOLDS -> break
		:: else -> others = others + (in[k] && STRANGERS(j, k)); k++
		od;
		MUST(exclusion, others + 1 <= limit[j]);
		j++
	od
}

/* The place of h is before that of k, if k waits for anything. */
#define FIRST(h, k) (h == k || place[k] == 0 || !HEARD(k) || place[h] > 0 && place[h] < place[k])

inline let_in(h_) {
	k = 1;
	do
	:: k > HOLDS -> break
	:: else ->
		MUST(fifo, NESTED(h_) || FIRST(h_, k));
		MUST(queue_is_kept, NESTED(h_) && in[WITH(h_)] || FIRST(h_, k));
		k++
	od;
	k = 0;
	do
	:: k == CLIENTS -> break
	:: else ->
		written[k] = (k == CLIENT_OF(h_) -> NESTED(h_) && written[k] : written[k] || limit[h_] == 1);
		k++
	od;
	in[h_] = true; holds_in++; place[h_] = 0;
	printf("server: hold %d is in, limit %d\n", h_, limit[h_]);
	all_fit()
}

/* Lets in whoever is first and fits, then the next. Who is not heard is dropped, fit or not. */
inline serve() {
	do
	:: find_head();
		if
		:: head == NONE -> break
		:: else
		fi;
		fits(head, false);
		if
#ifdef BREAK_DEAD_DROPPED_AT_THEIR_TURN
		:: !HEARD(head) && fit ->
#elif defined(BREAK_DEAD_KEEP_THEIR_PLACE)
		:: false ->
#else
		:: !HEARD(head) ->
#endif
			printf("server: nobody hears for hold %d, dropped\n", head);
			place[head] = 0
		:: HEARD(head) && fit ->
#ifndef BREAK_LET_IN_WITHOUT_MESSAGE
			message[head] = true;
#endif
			let_in(head)
#ifdef BREAK_ONE_IS_SERVED
			; find_head(); break
#endif
		:: else -> break
		fi
	od
}

inline end_leases() {
	j = 1;
	do
	:: j > HOLDS -> break
	:: else ->
		if
#ifdef BREAK_LEASES_END_TOGETHER
		:: in[j] && holds_over > 0 ->
#else
		:: in[j] && over[j] ->
#endif
			MUST(lease_is_ones_own, over[j]);
			take_out(j);
			printf("server: the lease of hold %d ends\n", j)
		:: else
		fi;
		j++
	od
}

/* Ordinary claims go to the end. A claim inside another hold goes to the head. */
inline join(h_) {
	if
#ifndef BREAK_UPGRADE_AT_THE_END
	:: NESTED(h_) -> place[h_] = 1
#endif
	:: else -> arrivals++; place[h_] = arrivals
	fi;
	printf("server: hold %d is queued\n", h_);
	find_head();
	k = 1;
	do
	:: k > HOLDS -> break
	:: else -> MUST(one_upgrade_waits, k == h_ || !UPGRADE(h_) || !UPGRADE(k) || place[k] == 0); k++
	od
}

#ifdef BREAK_ALL_OBEY_THE_QUEUE
#define PASSES_THE_QUEUE(h) false
#elif defined(BREAK_READERS_PASS_THE_QUEUE)
#define PASSES_THE_QUEUE(h) (NESTED(h) || limit[h] == UNLIMITED)
#else
#define PASSES_THE_QUEUE(h) NESTED(h)
#endif

/* Asked once more, a hold that is in stays in, and a hold in the queue keeps its place. */
inline acquire(h_) {
	end_leases();
#ifndef BREAK_ACQUIRE_SERVES_NOBODY
	serve();
#endif
	if
	:: in[h_] -> reply = YES
	:: place[h_] > 0 -> reply = WAIT
	:: else ->
		fits(h_, false);
		if
		:: fit && (head == NONE || PASSES_THE_QUEUE(h_)) -> let_in(h_); reply = YES
#ifndef BREAK_TWO_UPGRADES_WAIT
		:: !fit && UPGRADE(h_) && head != NONE && UPGRADE(head) && WITH(head) != WITH(h_) ->
			MUST(refused_in_need, in[WITH(h_)] && in[WITH(head)]);
			reply = DEADLOCK
#endif
		:: else -> join(h_); reply = WAIT
		fi
	fi;
	printf("client %d: asks for hold %d: %e\n", CLIENT_OF(h_), h_, reply)
}

inline release(h_) {
	printf("client %d: releases hold %d\n", CLIENT_OF(h_), h_);
	end_leases();
	take_out(h_);
#if defined(BREAK_RELEASE_SERVES_NOBODY)
	find_head();
#elif defined(BREAK_LAST_ONE_OUT_SERVES)
	if
	:: holds_in == 0 -> serve()
	:: else
	fi;
#else
	serve();
#endif
	reply = YES
}

/* Takes back whatever a claim may have left: the lock, or a place in the queue. */
inline forget(h_) {
	printf("client %d: forgets hold %d\n", CLIENT_OF(h_), h_);
	end_leases();
#ifndef BREAK_FORGET_KEEPS_LOCK
	take_out(h_);
#endif
	place[h_] = 0; message[h_] = false;
#ifdef BREAK_FORGET_SERVES_NOBODY
	find_head();
#else
	serve();
#endif
	reply = YES
}

/* ----------------------------------------------------------------- client */

/*
 * A waiter asks again when the first of the leases that are in should have ended. The model leaves
 * out asks that change nothing: that lease goes on, and the head of the queue lives.
 */
#if defined(BREAK_DEAD_DROPPED_AT_THEIR_TURN) || defined(BREAK_DEAD_KEEP_THEIR_PLACE)
#define DEAD_HEAD false
#else
#define DEAD_HEAD (head != NONE && !HEARD(head))
#endif
#ifdef BREAK_TIMER_AWAY
#define TIMER false
#elif defined(BREAK_TIMER_OF_THE_LAST_LEASE)
#define TIMER (holds_over > 0 && holds_over == holds_in || DEAD_HEAD)
#else
#define TIMER (holds_over > 0 || DEAD_HEAD)
#endif

/* A claim ends with the hold around it. */
#ifdef BREAK_ASK_OUTLIVES_ITS_HOLD
#define LOST_AROUND(h) false
#else
#define LOST_AROUND(h) (NESTED(h) && !held[WITH(h)])
#endif

/* A message is good for as long as the lease: relock.pml shows how the client knows. */
#define STANDS(h)   (in[h] && !over[h])
#define WAKES(h)    (TIMER || message[h] && !STANDS(h))
#define ASKS_NOW(h) (!deaf[me] && (state[me] == ASKS || state[me] == WAITS && WAKES(h)))
#define INNER_COMES (h == OUTER && limit[INNER] > 0)    /* the client has yet to ask for it */
#define LEAVES      (state[me] == INSIDE && !(INNER_COMES && held[OUTER]))

inline begin(h_) {
	MUST(no_write_between, !NESTED(h_) || !written[me]);
	held[h_] = true; message[h_] = false; state[me] = INSIDE
}

proctype Client(byte me) {
	byte h = OUTER;         /* the hold that the client asks for */
	{
end:	do
	:: d_step { ASKS_NOW(h) ->
		message[h] = false;
		acquire(h);
		if
		:: reply == YES && !LOST_AROUND(h) -> begin(h)
		:: reply == DEADLOCK -> state[me] = INSIDE
		:: else -> state[me] = WAITS
		fi }
	:: d_step { ASKS_NOW(h) && faults > 0 ->
		faults--; message[h] = false; acquire(h); state[me] = ASKS;
		printf("client %d: the reply is lost\n", me) }
	:: d_step { state[me] == WAITS && message[h] && STANDS(h) && !LOST_AROUND(h) ->
		printf("client %d: learns that hold %d is in\n", me, h);
		begin(h) }
	:: d_step { deaf[me] ->
		deaf[me] = false; state[me] = (state[me] == WAITS -> ASKS : state[me]);
		printf("client %d: is connected again\n", me) }
	:: d_step { state[me] == WAITS && (cancels > 0 || LOST_AROUND(h)) ->
		cancels = (LOST_AROUND(h) -> cancels : cancels - 1);
		forget(h); state[me] = INSIDE }
	:: atomic { state[me] == INSIDE && INNER_COMES && held[OUTER] -> h = INNER; state[me] = ASKS }
	/* Leaves in any order: a reader may outlive the writer around it. */
	:: d_step { LEAVES && held[OUTER] -> held[OUTER] = false; release(OUTER) }
	:: d_step { LEAVES && held[INNER] -> held[INNER] = false; release(INNER) }
	:: atomic { LEAVES && stays > 0 && (held[OUTER] || held[INNER]) ->
		stays--; state[me] = STAYING; printf("client %d: stays\n", me) }
	:: atomic { LEAVES && !held[OUTER] && !held[INNER] -> state[me] = FINISHED; break }
	od
	} unless { state[me] == DEAD }
}

/* -------------------------------------------------------------- accidents */

/* A client does not believe in a hold whose lease has ended: its own deadline is earlier. */
inline lease_ends(h_) {
	d_step { in[h_] && !over[h_] && (!LIVE(h_) || pauses > 0) ->
		pauses = pauses - LIVE(h_);
		over[h_] = true; holds_over++; held[h_] = false;
		printf("-- hold %d is not renewed in time --\n", h_) }
}

proctype Fate(byte me) {
end:	do
	:: lease_ends(OUTER)
	:: lease_ends(INNER)
	:: d_step { cuts > 0 && state[me] == WAITS && !deaf[me] ->
		cuts--; deaf[me] = true; message[OUTER] = false; message[INNER] = false;
		printf("client %d: its connection breaks\n", me) }
	:: d_step { crashes > 0 && state[me] != DEAD && state[me] != FINISHED ->
		crashes--; state[me] = DEAD;
		held[OUTER] = false; held[INNER] = false; message[OUTER] = false; message[INNER] = false;
		deaf[me] = false;
		printf("client %d: dies\n", me) }
	od
}

/* ------------------------------------------------------------------ judge */

/*
 * Nothing can happen any more. Whoever waits then waits for those that stay, or behind somebody who
 * does, but not behind the dead.
 */
proctype Judge() {
	byte i;
end:	atomic { timeout -> d_step {
	i = 1;
	do
	:: i > HOLDS -> break
	:: else -> place[i] = (LIVE(i) -> place[i] : 0); i++
	od;
	find_head();
	fits(head, true);
	i = 0;
	do
	:: i == CLIENTS -> break
	:: else ->
		MUST(no_lost_wakeup, state[i] == FINISHED || state[i] == DEAD || state[i] == STAYING ||
		     state[i] == WAITS && !fit && place[i * 2 + 1] + place[i * 2 + 2] > 0);
		i++
	od;
	MUST(nothing_left, STAYS > 0 || holds_in == holds_over && head == NONE)
	} }
}

inline choose(i) {
	if
#ifdef SEMAPHORE
	:: limit[i * 2 + 1] = 2; printf("client %d: limit 2\n", i)
	:: limit[i * 2 + 1] = 3; printf("client %d: limit 3\n", i)
#else
	:: limit[i * 2 + 1] = UNLIMITED; printf("client %d: a reader\n", i)
	:: limit[i * 2 + 1] = 1; printf("client %d: a writer\n", i)
	:: limit[i * 2 + 1] = UNLIMITED; limit[i * 2 + 2] = 1; printf("client %d: a writer in a reader\n", i)
	:: limit[i * 2 + 1] = 1; limit[i * 2 + 2] = UNLIMITED; printf("client %d: a reader in a writer\n", i)
#endif
	fi
}

init {
	atomic {
		arrivals = 1;
		/* A run may have fewer accidents. */
		do
		:: crashes > 0 -> crashes--
		:: pauses > 0 -> pauses--
		:: cancels > 0 -> cancels--
		:: cuts > 0 -> cuts--
		:: break
		od;
		choose(0); choose(1);
#if CLIENTS > 2
		choose(2);
#endif
#if CLIENTS > 3
		choose(3);
#endif
#if CLIENTS > 4
		choose(4);
#endif
		run Client(0); run Fate(0);
		run Client(1); run Fate(1);
#if CLIENTS > 2
		run Client(2); run Fate(2);
#endif
#if CLIENTS > 3
		run Client(3); run Fate(3);
#endif
#if CLIENTS > 4
		run Client(4); run Fate(4);
#endif
		run Judge()
	}
}
