/*
 * relock: a model of the lock protocol in Promela, for spin.
 *
 * One lock, one Redis server, a few clients. Each script of the server is one indivisible step, as
 * in Redis. Everything between two steps may take any time: a command on its way, a reply, a grant
 * message, a client that is paused.
 *
 * Read from top to bottom: sizes, promises, state of the server, state of a client, scripts, wires,
 * subscriptions, clock, accidents, client, watchdog, judge. docs/DESIGN.md says what the model
 * leaves out.
 *
 * -DBREAK_<rule> takes one rule away. The model must fail then.
 */

/* ------------------------------------------------------------------ sizes */

#ifndef CLIENTS
#define CLIENTS 2
#endif
#ifndef ROUNDS                  /* sections of each client, one after the other */
#define ROUNDS 1
#endif
#ifdef FIRST_RETURNS            /* only client 0 makes all its rounds, the others make one */
#define ROUNDS_OF(i) ((i) == 0 -> ROUNDS : 1)
#else
#define ROUNDS_OF(i) ROUNDS
#endif
#ifndef IDS                     /* IDs of holds for each client, see FRESH */
#define IDS 2
#endif
#ifndef TTL                     /* lease, in ticks */
#define TTL 2
#endif
#ifndef TTL_1                   /* that of client 1 */
#define TTL_1 TTL
#endif
#ifndef MARGIN                  /* taken off by the client for clocks that drift */
#define MARGIN 0
#endif

/* Budgets: how often each accident or action may happen in one run, at any time. */
#ifndef FAULTS                  /* commands or replies that are lost, or given up and run late */
#define FAULTS 0
#endif
#ifndef CUTS                    /* pub/sub connections that break */
#define CUTS 0
#endif
#ifndef CRASHES                 /* client processes that die */
#define CRASHES 0
#endif
#ifndef CANCELS                 /* waits that the caller gives up */
#define CANCELS 0
#endif
#ifndef RECHECKS                /* recheck timers that fire early */
#define RECHECKS 0
#endif
#ifndef NESTS                   /* nested entries */
#define NESTS 0
#endif
#ifndef RENEWALS                /* renewals, beside all else that the client sends */
#define RENEWALS 0
#endif
#ifndef DRAWS                   /* tokens that sections draw */
#define DRAWS 0
#endif
#ifndef PASSES                  /* passes of the lock inside client 0 */
#define PASSES 0
#endif
#ifndef PAUSES                  /* leases that run out while a live client could use them */
#define PAUSES 0
#endif
#ifndef STEPS                   /* steps back of the server's clock */
#define STEPS 0
#endif
#ifndef FORCES                  /* force unlocks of an operator */
#define FORCES 0
#endif
#ifndef FORGETS                 /* losses of the token's key */
#define FORGETS 0
#endif
#ifndef RESTORES                /* restarts of the server with older data, or with none */
#define RESTORES 0
#endif
#ifndef SLOW                    /* ticks that the clock of one client misses */
#define SLOW 0
#endif

#define HOLDS        (CLIENTS * IDS)
#define NONE         0
#define CLIENT_OF(h) (((h) - 1) / IDS)
#define TTL_OF(i)    ((i) == 1 -> TTL_1 : TTL)
#ifdef BREAK_NO_MARGIN
#define SAFE(ttl)    (ttl)
#else
#define SAFE(ttl)    ((ttl) - MARGIN)   /* counted on by a client, from before it sent the command */
#endif
#define LEASE(i)     SAFE(TTL_OF(i))

/* --------------------------------------------------------------- promises */

/*
 * Each promise is an assertion with its own name, so spin names the promise that broke.
 * -DONLY=ID_<promise> leaves one promise, to see that a broken rule breaks the very promise that
 * the rule is there for.
 */
#define ID_mutual_exclusion     1       /* never two believers */
#define ID_lease_covers_belief  2       /* a believer is the owner on the server */
#define ID_no_lost_wakeup       3       /* nobody sleeps for ever */
#define ID_fifo                 4       /* first come, first served */
#define ID_nothing_left         5       /* the lock ends free, the queue ends empty */
#define ID_token_grows          6       /* each token is larger than all before, and is the owner's */
#define ID_late_is_harmless     7       /* a command touches its own hold only */
#define ID_loss_is_told         8       /* a section whose hold was lost does not end as if nothing was */
#define ID_deaf_holds_up_nobody 9       /* repeats of a command make no lease longer */
#define ID_no_orphan            10      /* NOT promised: every hold has a client that wants it */
#define ID_revival_is_told      11      /* NOT promised: loss_is_told where the acquire runs late */

hidden byte mutual_exclusion, lease_covers_belief, no_lost_wakeup, fifo, nothing_left, token_grows;
hidden byte late_is_harmless, loss_is_told, deaf_holds_up_nobody, no_orphan, revival_is_told;

#ifndef ONLY
#define ONLY 0
#endif
#define LOOKED_AT(id)           (ONLY == id || ONLY == 0 && id < ID_no_orphan)
#define MUST(promise, holds)    promise = (!LOOKED_AT(ID_##promise) || (holds)); assert(promise)

/* ------------------------------------------------------- state of the server */

mtype = { ACQUIRE, RELEASE, RENEW, TOKEN };             /* commands */
mtype = { YES, HAD, BUSY, QUEUED, GONE };               /* replies; HAD: the hold had the lock before */
mtype = { IDLE, SENT, ANSWERED, FAILED };               /* a command connection */
mtype = { OUT, ASKING, WAITING, INSIDE, LEAVING, FINISHED, DEAD };      /* a client */

byte owner = NONE;              /* the hold in the lock's hash */
byte lease;                     /* ticks until the hash expires */
byte queue[HOLDS + 1];          /* arrival of each waiter; 0: not queued */
byte arrivals;                  /* the server's clock, as far as the queue needs it */
byte token;                     /* the last token; 0: the key is lost */
byte newest;                    /* the server's clock, as far as tokens need it */
bool listens[CLIENTS];          /* counted as a subscriber of the channel */
byte seized = NONE;             /* the hold that an operator saw, and is about to take the lock from */

#if RESTORES > 0
typedef Data {                  /* a dump, or a replica that lags */
	byte owner, lease, token;
	byte queue[HOLDS + 1]
}
Data dump;
byte saves = RESTORES;
#endif

/* -------------------------------------------------------- state of a client */

mtype phase[CLIENTS] = OUT;
byte hold[CLIENTS];             /* ID of the hold under way */
byte arrival[CLIENTS];          /* first arrival, as the server told */
byte asked[CLIENTS];            /* commands that could queue the hold, 2 at most */
bool unsure[CLIENTS];           /* an acquire of this hold may run yet */
bool repeated[CLIENTS];         /* the release was sent twice */
byte seen[CLIENTS];             /* the token of the section; 0: not drawn */
/*
 * Ticks left on the client's own clock. Inside, the hold counts as lost at the end. While the client
 * waits, these are the ticks of a lease that began when the client asked, and then its recheck timer
 * fires.
 */
byte deadline[CLIENTS];
byte since[CLIENTS];            /* the same for a lease that began before the command under way ... */
byte sent[CLIENTS];             /* ... and for one that began before its last attempt */

typedef Command {
	mtype op;
	byte hold;
	bool wait;      /* join the queue if the lock is busy */
	byte arrival;   /* first arrival, if known: keeps the place */
	byte ttl
}

mtype wire[CLIENTS] = IDLE;     /* the command connection ... */
Command cmd[CLIENTS];           /* ... the command on it ... */
mtype answer[CLIENTS];          /* ... and the reply ... */
byte told[CLIENTS];             /* ... with an arrival, a token or the rest of a lease */
Command late[CLIENTS];          /* a command that was given up and may still run */
bool unwanted[HOLDS + 1];       /* holds in cleanup: forgotten in the background */

bool wants[CLIENTS];            /* somebody needs the subscription */
bool link[CLIENTS];             /* bytes get through on the pub/sub connection */
bool subscribed[CLIENTS];       /* the client takes the subscription for confirmed */
bool leaving[CLIENTS];          /* UNSUBSCRIBE is on its way */
bool recheck[CLIENTS];          /* a note for the waiter: the subscription was confirmed, ask again */
bool message[CLIENTS];          /* a grant to this waiter is on its way, or was not read yet */

#ifdef SHARED                   /* clients 0 and 1 are calls of one process: one connection, one channel */
#define HUB(i)      ((i) == 1 -> 0 : (i))
#define HUB_WAITS(i) (WAITS(i) || (i) == 0 && WAITS(1))
#else
#define HUB(i)      (i)
#define HUB_WAITS(i) WAITS(i)
#endif
#define HEARD(h)    listens[HUB(CLIENT_OF(h))]

#if RENEWALS > 0
typedef Renewal {
	mtype state;
	byte hold, ttl, since;
	bool yes
}
Renewal side[CLIENTS];          /* a renewal under way, also when the hold has ended */
#endif

byte faults = FAULTS, cuts = CUTS, crashes = CRASHES, cancels = CANCELS, rechecks = RECHECKS;
byte nests = NESTS, renewals = RENEWALS, draws = DRAWS, passes = PASSES, pauses = PAUSES;
byte steps = STEPS, forces = FORCES, forgets = FORGETS, restores = RESTORES, slow = SLOW;

/* Ghosts: no part of the protocol. */
byte rank[HOLDS + 1];           /* order of joining, kept by the model itself */
bool steady[HOLDS + 1];         /* queued, and connected ever since */
byte ranks;
byte largest;                   /* the largest token that was drawn */
/*
 * How the server lost a hold while its client was under way. TAKEN is by force, or because older
 * data came back: the belief of this hold is not held against the protocol until the holder is told.
 * EXPIRED is by the end of its lease: its holder must not believe again.
 */
#define TAKEN   1
#define EXPIRED 2
byte lost[HOLDS + 1];

/* Scratch, no part of the state. */
hidden byte j, k, head, was, was_lease;
hidden mtype r_what;
hidden byte r_told;

/*
 * A client believes that it has the lock if it is inside, and its own clock, read now, is before
 * its deadline. A client acts only after such a look, so a client that slept past its lease is no
 * believer when it wakes.
 */
#define BELIEVES(i) (phase[i] == INSIDE && deadline[i] > 0)
#define WAITS(i)    (phase[i] == ASKING || phase[i] == WAITING)
#define LIVE(i)     (phase[i] != DEAD)
#define WANTED(h)   (hold[CLIENT_OF(h)] == h)

/* ---------------------------------------------------------------- scripts */

/* head: the first waiter in the queue. */
inline first_waiter() {
	head = NONE; k = 1;
	do
	:: k > HOLDS -> break
	:: else ->
		if
		:: queue[k] > 0 && (head == NONE || queue[k] < queue[head]) -> head = k
		:: else
		fi;
		k++
	od
}

inline leave_queue(h_) {
	queue[h_] = 0; steady[h_] = false;
	rank[h_] = (WANTED(h_) -> rank[h_] : 0)
}

inline all_believers_own() {
	k = 0;
	do
	:: k == CLIENTS -> break
	:: else ->
		MUST(lease_covers_belief, !BELIEVES(k) || hold[k] == owner || lost[hold[k]] == TAKEN);
		k++
	od
}

inline end_hold() {
	owner = NONE; lease = 0;
	all_believers_own()
}

/* A hold gets the lock, with a new lease. */
inline begin_hold(h_, ttl_) {
	k = 1;
	do
	:: k > HOLDS -> break
	:: else ->
		MUST(fifo, k == h_ || !steady[k] || rank[h_] > 0 && rank[h_] < rank[k] || !WANTED(h_));
		k++
	od;
	MUST(no_orphan, WANTED(h_));
	owner = h_; lease = ttl_;
	leave_queue(h_);
	lost[h_] = (WAITS(CLIENT_OF(h_)) -> 0 : lost[h_]);      /* not entered yet, so nothing was lost */
	all_believers_own();
	printf("server: hold %d has the lock\n", h_)
}

/* Each waiter has a lease of its own, kept in the queue. */
#ifdef BREAK_GRANT_WITH_ONE_TTL
#define GRANTED_TTL(h) TTL
#else
#define GRANTED_TTL(h) TTL_OF(CLIENT_OF(h))
#endif

/* One message, with the ID of the hold. Nobody reads a message on a broken connection. */
inline publish(h_) {
	j = CLIENT_OF(h_);
#if defined(SHARED) && defined(BREAK_GRANT_FOR_ANYBODY)
	j = (j < 2 -> (phase[1] == WAITING -> 1 : 0) : j);
	message[j] = link[HUB(j)] && listens[HUB(j)] && WAITS(j)
#else
	message[j] = message[j] || link[HUB(j)] && listens[HUB(j)] && WAITS(j) && hold[j] == h_
#endif
}

/* A free lock goes to the first waiter that is heard. The caller learns of a grant by its reply. */
inline grant(caller) {
	do
	:: owner != NONE -> break
	:: else ->
		first_waiter();
		if
		:: head == NONE -> break
		:: else ->
			if
			:: head == caller -> begin_hold(head, GRANTED_TTL(head))
#ifdef BREAK_RECEIVERS_UNCHECKED
			:: head != caller ->
#else
			:: head != caller && HEARD(head) ->
#endif
				begin_hold(head, GRANTED_TTL(head)); publish(head)
			:: else -> leave_queue(head); printf("server: hold %d is not heard, skipped\n", head)
			fi
		fi
	od
}

/* A waiter keeps the place that it has, and gets the place of its first arrival back. */
inline join(c) {
	if
#ifdef BREAK_RECHECK_LOSES_PLACE
	:: true ->
#else
	:: queue[c.hold] == 0 ->
#endif
		if
#if !defined(BREAK_RECHECK_LOSES_PLACE) && !defined(BREAK_REJOINS_AT_THE_END)
		:: c.arrival > 0 -> queue[c.hold] = c.arrival
#endif
		:: else -> arrivals++; queue[c.hold] = arrivals
		fi;
		if
		:: rank[c.hold] == 0 || c.arrival == 0 && !steady[c.hold] -> ranks++; rank[c.hold] = ranks
		:: else
		fi
	:: else
	fi;
	j = CLIENT_OF(c.hold);
	steady[c.hold] = listens[HUB(j)] && link[HUB(j)] && WAITS(j) && hold[j] == c.hold;
	r_what = QUEUED; r_told = queue[c.hold]
}

inline lengthen(ttl_) {
	lease = (ttl_ > lease -> ttl_ : lease)
}

inline acquire(c) {
	if
	:: owner == c.hold ->
#ifdef BREAK_ACQUIRE_EXTENDS
		lengthen(c.ttl);
#endif
		r_what = HAD; r_told = lease
	:: else ->
		if
#ifndef BREAK_NEWCOMER_OVERTAKES
		:: owner == NONE -> grant(c.hold)
#endif
		:: else
		fi;
		if
		:: owner == NONE -> begin_hold(c.hold, c.ttl); r_what = YES
		:: owner == c.hold -> r_what = YES
#ifdef BREAK_JOINS_UNHEARD
		:: owner != NONE && owner != c.hold && c.wait -> join(c)
#else
		:: owner != NONE && owner != c.hold && c.wait && HEARD(c.hold) -> join(c)
#endif
		:: else -> r_what = BUSY
		fi
	fi
}

inline release(h_) {
	if
#ifdef BREAK_RELEASE_UNCHECKED
	:: owner != NONE ->
#else
	:: owner == h_ ->
#endif
		end_hold();
#ifndef BREAK_RELEASE_WITHOUT_GRANT
		grant(NONE);
#endif
		r_what = YES
#ifdef BREAK_RELEASE_OF_NOTHING_IS_OK
	:: else -> r_what = YES
#else
	:: else -> r_what = GONE
#endif
	fi
}

/* Renewals, nested entries, inner exits and Extend. A lease only moves later. */
inline renew(h_, ttl_) {
	if
	:: owner == h_ ->
#ifdef BREAK_RENEWAL_SHORTENS_LEASE
		lease = ttl_;
#else
		lengthen(ttl_);
#endif
		r_what = YES
#ifdef BREAK_RENEW_RECREATES
	:: owner == NONE -> owner = h_; lease = ttl_; r_what = YES
#endif
	:: else -> r_what = GONE
	fi
}

/* A token is above the last one and not below the clock. */
inline draw(h_) {
	if
#ifdef BREAK_TOKEN_UNCHECKED
	:: true ->
#else
	:: owner == h_ ->
#endif
		newest++;
#ifdef BREAK_TOKEN_WITHOUT_CLOCK
		token++;
#elif defined(BREAK_TOKEN_IS_CLOCK)
		token = newest;
#else
		token = (newest > token + 1 -> newest : token + 1);
#endif
		MUST(token_grows, owner == h_ && token > largest);
		largest = token; newest = token;
		r_what = YES; r_told = token
	:: else -> r_what = GONE
	fi
}

/* Takes back whatever a hold may have left: the lock, or a place in the queue. */
inline forget(h_) {
	printf("server: FORGET hold %d\n", h_);
	was = owner;
	if
#ifdef BREAK_FORGET_UNCHECKED
	:: owner != NONE ->
#elif defined(BREAK_FORGET_KEEPS_GRANT)
	:: false ->
#else
	:: owner == h_ ->
#endif
		end_hold();
#ifndef BREAK_FORGET_WITHOUT_GRANT
		grant(NONE)
#endif
	:: else -> leave_queue(h_)
	fi;
	MUST(late_is_harmless, was == h_ || owner == was)
}

/* Runs one command. */
inline execute(c) {
	r_what = YES; r_told = 0; was = owner; was_lease = lease;
	if
	:: c.op == ACQUIRE -> acquire(c)
	:: c.op == RELEASE -> release(c.hold)
	:: c.op == RENEW -> renew(c.hold, c.ttl)
	:: c.op == TOKEN -> draw(c.hold)
	fi;
	printf("server: %e hold %d -> %e\n", c.op, c.hold, r_what);
	MUST(late_is_harmless, was == owner || was == c.hold || was == NONE && c.op == ACQUIRE);
	assert(owner == NONE || queue[owner] == 0)
}

inline erase(c) {
	c.op = 0; c.hold = 0; c.wait = false; c.arrival = 0; c.ttl = 0
}

/* ------------------------------------------------------------------ wires */

/* The command under way is given up, and stays on its way. */
inline make_late(i) {
	late[i].op = cmd[i].op; late[i].hold = cmd[i].hold; late[i].wait = cmd[i].wait;
	late[i].arrival = cmd[i].arrival; late[i].ttl = cmd[i].ttl
}

/*
 * Cleanup: a hold that nobody wants is forgotten until the server confirms, and again for as long as
 * a command of this hold may run late. Where nothing is left and nothing may come, a forget would
 * change nothing: the model leaves that out.
 */
#ifdef BREAK_FORGOTTEN_ONCE
#define SOMETHING_LEFT(h) (owner == h || queue[h] > 0)
#else
#define SOMETHING_LEFT(h) (owner == h || queue[h] > 0 || late[CLIENT_OF(h)].hold == h)
#endif

inline clean_up(h_) {
	d_step { unwanted[h_] && (owner == h_ || queue[h_] > 0) ->
		forget(h_);
#ifdef BREAK_FORGET_KEEPS_GRANT
		unwanted[h_] = false }
#else
		unwanted[h_] = SOMETHING_LEFT(h_) }
#endif
}

/* Commands of one client: run, lost before, run with the reply lost, or left behind. */
proctype Commands(byte me) {
end:	do
	:: atomic {
		wire[me] == SENT ->
		d_step {
			execute(cmd[me]);
#if MARGIN == 0         /* but for the ticks that the last attempt was on its way */
			MUST(deaf_holds_up_nobody, owner != was || lease <= was_lease || !LIVE(me) ||
			     lease <= since[me] + LEASE(me) - sent[me]);
#endif
			answer[me] = r_what; told[me] = r_told
		};
		if
		:: LIVE(me) -> wire[me] = ANSWERED
		:: LIVE(me) && faults > 0 ->
			faults--; wire[me] = FAILED; answer[me] = 0; told[me] = 0;
			printf("client %d: the reply is lost\n", me)
		:: !LIVE(me) -> wire[me] = IDLE; erase(cmd[me]); answer[me] = 0; told[me] = 0
		fi
	}
	:: atomic { wire[me] == SENT && LIVE(me) && faults > 0 ->
		faults--; wire[me] = FAILED;
		printf("client %d: the command is lost\n", me) }
	:: atomic { wire[me] == SENT && !LIVE(me) -> wire[me] = IDLE; erase(cmd[me]) }
	:: atomic { wire[me] == SENT && LIVE(me) && faults > 0 && late[me].op == 0 ->
		faults--; make_late(me); wire[me] = FAILED;
		printf("client %d: no reply in time, the command is still on its way\n", me) }
	:: d_step { late[me].op != 0 ->
		printf("late:\n");
		j = late[me].hold;
		execute(late[me]); erase(late[me]);
		unwanted[j] = (unwanted[j] && SOMETHING_LEFT(j)) }
	:: clean_up(me * IDS + 1)
#if IDS > 1
	:: clean_up(me * IDS + 2)
#endif
#if IDS > 2
	:: clean_up(me * IDS + 3)
#endif
	od
}

/* ---------------------------------------------------------- subscriptions */

/* The connection of a hub is over. The server may notice later. */
inline disconnect(i) {
	link[i] = false; leaving[i] = false;
	k = 1;
	do
	:: k > HOLDS -> break
	:: else -> steady[k] = (steady[k] && HUB(CLIENT_OF(k)) != i); k++
	od
}

inline drop_messages(i) {
	message[i] = false;
#ifdef SHARED
	message[1] = message[1] && i != 0
#endif
}

/* The pub/sub connection of one process, and the hub that reads it. */
proctype Pubsub(byte me) {
end:	do
	/* Connects if need be. SUBSCRIBE comes behind an UNSUBSCRIBE that is on its way. */
	:: d_step { wants[me] && !subscribed[me] ->
		leaving[me] = false; listens[me] = true; link[me] = true; subscribed[me] = true;
#if !defined(BREAK_NO_RECHECK_ON_RECONNECT) && !defined(BREAK_JOINS_UNHEARD)
		recheck[me] = WAITS(me);
#ifdef SHARED
#ifndef BREAK_ONE_WAITER_TOLD
		recheck[1] = (me == 0 -> WAITS(1) : recheck[1]);
#endif
#endif
#endif
		printf("client %d: subscribed\n", me) }
	/* Broken. The server or the client may notice first. Messages that had come may be read later. */
	:: atomic { cuts > 0 && link[me] && LIVE(me) ->
		cuts--; disconnect(me);
		if
		:: drop_messages(me)
		:: message[me] || HUB(1) == me && message[1]
		fi;
		printf("client %d: pub/sub connection cut\n", me) }
	:: d_step { listens[me] && !link[me] -> listens[me] = false }
	:: d_step { subscribed[me] && !link[me] -> subscribed[me] = false }
#ifdef UNSUBSCRIBES
	/* Nobody of this process waits. */
	:: d_step { subscribed[me] && link[me] && !leaving[me] && !HUB_WAITS(me) && LIVE(me) ->
		leaving[me] = true;
#ifndef BREAK_HEEDS_WHILE_LEAVING
		subscribed[me] = false; wants[me] = false;
#endif
		printf("client %d: UNSUBSCRIBE\n", me) }
	:: d_step { leaving[me] && link[me] ->
		leaving[me] = false; listens[me] = false;
#ifdef BREAK_HEEDS_WHILE_LEAVING
		if
		:: !HUB_WAITS(me) -> subscribed[me] = false; wants[me] = false
		:: else
		fi;
#endif
		printf("server: client %d is unsubscribed\n", me) }
#endif
	od
}

/* ------------------------------------------------------------------ clock */

/*
 * A lease that a live client could still use runs out only while there are PAUSES left: the client
 * slept past it. All other leases run out freely: of the dead, of holds that are over, of a client
 * that sleeps with a recheck timer still to fire, and of one that is inside and not yet at its own
 * deadline. With all rules kept there is no lease of the last two kinds, as is to be shown.
 */
#define HOLDER        CLIENT_OF(owner)
#define HELD_BY_LIVE  (owner != NONE && hold[HOLDER] == owner && LIVE(HOLDER) && \
		       phase[HOLDER] != LEAVING && !(phase[HOLDER] == WAITING && deadline[HOLDER] > 0) && \
		       !(phase[HOLDER] == INSIDE && deadline[HOLDER] > 1))

/* So is a client that makes its lease whole, and is not answered before that lease is over. */
#define TOO_SLOW(i)   (phase[i] == ASKING && cmd[i].op == RENEW && since[i] == 1)
#if CLIENTS > 2
#define TWO_COUNT     (deadline[2] + since[2] > 0)
#define TWO_TOO_SLOW  TOO_SLOW(2)
#else
#define TWO_COUNT     false
#define TWO_TOO_SLOW  false
#endif
#define COSTS_A_PAUSE (lease == 1 && HELD_BY_LIVE || TOO_SLOW(0) || TOO_SLOW(1) || TWO_TOO_SLOW)
#define TIME_MAY_PASS ((lease + deadline[0] + since[0] + deadline[1] + since[1] > 0 || TWO_COUNT) && \
		       (pauses > 0 || !COSTS_A_PAUSE))

#ifndef UNTIMED
#if RESTORES > 0
/* Leases in the dump end when they would have. */
inline age_dump() {
	if
	:: dump.lease > 1 -> dump.lease = dump.lease - 1
	:: dump.lease == 1 -> dump.owner = NONE; dump.lease = 0
	:: else
	fi
}
#else
inline age_dump() { skip }
#endif

inline count_down(ticks) {
	if
	:: ticks > 0 -> ticks = ticks - 1
	:: else
	fi
}

/* One tick. The clock of the laggard, if there is one, misses it. */
inline tick(laggard) {
	d_step {
		printf("-- tick --\n");
		pauses = pauses - COSTS_A_PAUSE;
		k = 0;
		do
		:: k == CLIENTS -> break
		:: k < CLIENTS && k == laggard -> k++
		:: else ->
			count_down(deadline[k]); count_down(since[k]); count_down(sent[k]);
#if RENEWALS > 0
			count_down(side[k].since);
#endif
			k++
		od;
		age_dump();
		if
		:: lease > 1 -> lease--
		:: lease == 1 ->
			printf("server: the lease of hold %d ran out\n", owner);
			if
			:: phase[HOLDER] == INSIDE && hold[HOLDER] == owner && lost[owner] == 0 -> lost[owner] = EXPIRED
			:: else
			fi;
			j = owner;
			end_hold();
			unwanted[j] = (unwanted[j] && SOMETHING_LEFT(j))
		:: else
		fi
	}
}


proctype Clock() {
	byte l;
end:	do
	:: atomic {
		TIME_MAY_PASS ->
		l = CLIENTS;
#if SLOW > 0
		if
		:: skip
		:: slow > 0 -> slow--; l = 0
		:: slow > 0 -> slow--; l = 1
		fi;
#endif
		tick(l);
		l = 0
	}
	od
}
#endif

/* -------------------------------------------------------------- accidents */

#if CRASHES + STEPS + FORCES + FORGETS + RESTORES > 0 || defined(BREAK_QUEUE_EXPIRES)

/* A client stops for ever. Its command may still run; its subscription counts for a while. */
inline die(i) {
	d_step {
		crashes--; printf("client %d: dies\n", i);
		phase[i] = DEAD; lost[hold[i]] = 0; hold[i] = NONE; arrival[i] = 0; asked[i] = 0;
		unsure[i] = false; repeated[i] = false; seen[i] = 0; deadline[i] = 0; since[i] = 0; sent[i] = 0;
		wants[i] = false; subscribed[i] = false; recheck[i] = false; message[i] = false;
		disconnect(i);
		k = 1;
		do
		:: k > HOLDS -> break
		:: else -> unwanted[k] = (unwanted[k] && CLIENT_OF(k) != i); k++
		od;
		answer[i] = 0; told[i] = 0;
#if RENEWALS > 0
		side[i].since = 0;
#endif
		if
		:: wire[i] != SENT -> wire[i] = IDLE; erase(cmd[i])
		:: else
		fi
#ifdef UNTIMED
		; listens[i] = false
#endif
	}
}

#ifdef UNTIMED
/* Without leases only a waiter may die, and the server notices at once. */
#define MAY_DIE(i) (crashes > 0 && phase[i] == WAITING && owner != hold[i])
#else
#define MAY_DIE(i) (crashes > 0 && phase[i] != DEAD && phase[i] != FINISHED)
#endif

/* Notes that the server does not have this hold any more, if its client is under way with it. */
inline take_away(h_) {
	if
	:: h_ != NONE && hold[CLIENT_OF(h_)] == h_ -> lost[h_] = TAKEN
	:: else
	fi
}

/* A force unlock names the hold that the operator saw, and takes nothing from a later one. */
inline force_release(h_) {
	printf("server: FORCE hold %d\n", h_);
	if
#ifdef BREAK_FORCE_UNCHECKED
	:: owner != NONE ->
#else
	:: owner == h_ ->
#endif
		take_away(h_);
		end_hold();
#ifndef BREAK_FORCE_WITHOUT_GRANT
		grant(NONE)
#endif
	:: else
	fi
}

#if RESTORES > 0
inline save() {
	dump.owner = owner; dump.lease = lease; dump.token = token;
	k = 1;
	do
	:: k > HOLDS -> break
	:: else -> dump.queue[k] = queue[k]; k++
	od;
	printf("server: all data is saved\n")
}

/* A restart, or a failover to a replica that lagged. All connections end. */
inline restore() {
	take_away(owner);
	owner = dump.owner; lease = dump.lease; token = dump.token;
	dump.owner = NONE; dump.lease = 0; dump.token = 0;
	k = 1;
	do
	:: k > HOLDS -> break
	:: else -> queue[k] = dump.queue[k]; dump.queue[k] = 0; k++
	od;
	j = 0;
	do
	:: j == CLIENTS -> break
	:: else -> disconnect(j); listens[j] = false; j++
	od;
	printf("server: older data is back: owner %d, token %d\n", owner, token)
}
#endif

#ifdef BREAK_QUEUE_EXPIRES
bool expired;
#endif

proctype Fate() {
end:	do
#if STEPS > 0
	:: d_step { steps > 0 && arrivals + newest > 0 ->
		steps--; arrivals = 0; newest = 0; printf("server: the clock steps back\n") }
#endif
#if FORCES > 0
	/* An operator looks, and takes the lock at any later time; twice, if a reply was lost. */
	:: d_step { forces > 0 && seized == NONE && owner != NONE ->
		forces--; seized = owner; printf("operator: sees hold %d\n", seized) }
	:: atomic { seized != NONE ->
		d_step { force_release(seized) };
		if
		:: seized = NONE
		:: faults > 0 -> faults--
		fi }
#endif
#if FORGETS > 0
	:: d_step { forgets > 0 && token > 0 -> forgets--; token = 0; printf("server: the token's key is lost\n") }
#endif
#if RESTORES > 0
	:: d_step { saves > 0 -> saves--; save() }
	:: atomic { restores > 0 -> restores--;
		if
		:: drop_messages(0); drop_messages(1)
		:: message[0] || message[1]     /* a message that had come is read later */
		fi;
		d_step { restore() } }
#endif
#ifdef BREAK_QUEUE_EXPIRES
	:: d_step { !expired && owner != NONE && arrivals > 0 ->
		expired = true; j = 1;
		do
		:: j > HOLDS -> break
		:: else -> leave_queue(j); j++
		od;
		printf("server: the queue's key expires\n") }
#endif
#if CRASHES > 0
	:: atomic { MAY_DIE(0) -> die(0) }
	:: atomic { MAY_DIE(1) -> die(1) }
#if CLIENTS > 2
	:: atomic { MAY_DIE(2) -> die(2) }
#endif
#endif
	od
}
#endif

/* ----------------------------------------------------------------- client */

#define ANSWER(what_) (wire[me] == ANSWERED && answer[me] == what_)

#define SETS_A_LEASE(op_) (op_ == ACQUIRE || op_ == RENEW)

inline send(op_, wait_, ttl_) {
	cmd[me].op = op_; cmd[me].hold = hold[me]; cmd[me].wait = wait_; cmd[me].ttl = ttl_;
	cmd[me].arrival = (wait_ -> arrival[me] : 0);
	since[me] = (SETS_A_LEASE(op_) -> SAFE(ttl_) : 0);
	transmit()
}

inline transmit() {
	asked[me] = (cmd[me].wait && asked[me] < 2 -> asked[me] + 1 : asked[me]);
	sent[me] = (SETS_A_LEASE(cmd[me].op) -> LEASE(me) : 0);
	wire[me] = SENT;
	printf("client %d: %e hold %d\n", me, cmd[me].op, cmd[me].hold)
}

/* Sends the command once more. A repeat asks for a lease that ends when that of the first attempt does. */
inline again() {
	if
#ifdef BREAK_REPEAT_EXTENDS
	:: false
#else
	:: cmd[me].op == RENEW -> cmd[me].ttl = (since[me] > 0 -> since[me] + MARGIN : 0)
#endif
	/* Nor does a hold without a place overtake anybody by a repeat. */
	:: cmd[me].op == ACQUIRE && !cmd[me].wait && since[me] > 0 -> cmd[me].ttl = since[me] + MARGIN
	:: else
	fi;
	transmit()
}

/* The reply was read. */
inline settle() {
	wire[me] = IDLE; since[me] = 0; sent[me] = 0; erase(cmd[me]); answer[me] = 0; told[me] = 0
}

/* In, or in for longer: nobody else believes so. */
inline believe(left_) {
	d_step {
		phase[me] = INSIDE;
		deadline[me] = left_;
		k = 0;
		do
		:: k == CLIENTS -> break
		:: else ->
			MUST(mutual_exclusion, k == me || !BELIEVES(k) || lost[hold[me]] == TAKEN || lost[hold[k]] == TAKEN);
			k++
		od;
		MUST(lease_covers_belief, hold[me] == owner || lost[hold[me]] == TAKEN);
		MUST(loss_is_told, lost[hold[me]] != EXPIRED)
	}
}

inline enter(left_) {
	arrival[me] = 0; asked[me] = 0; recheck[me] = false; message[me] = false;
	printf("client %d: inside, deadline in %d\n", me, left_);
	believe(left_)
}

/* Inside client 0 the lease moves to the next hold of its line. For the server it is the same hold. */
inline pass_on() {
	d_step {
		passes--; printf("client %d: passes the lock on\n", me);
#ifndef BREAK_PASS_KEEPS_TOKEN
		seen[me] = 0;
#endif
		MUST(token_grows, seen[me] == 0);       /* the next section draws its own */
#ifdef BREAK_PASS_RENEWS_DEADLINE
		deadline[me] = LEASE(me);
#endif
#ifdef BREAK_PASSED_ASK_IS_CLEANED
		unwanted[hold[me]] = unsure[me];
#endif
#ifdef BREAK_PASS_FORGETS_UNSURE
		unsure[me] = false;
#endif
	}
}

/* A deadline that has passed is not revived by a reply. */
#ifdef BREAK_LOSS_FORGOTTEN
#define STILL_MINE(since_) (deadline[me] > 0 || since_ > 0)
#else
#define STILL_MINE(since_) (deadline[me] > 0)
#endif

/* Numbers begin again where nobody remembers one, so that equal states are equal. */
inline tidy() {
	d_step {
		j = 0; k = 1;
		do
		:: k > HOLDS -> break
		:: else ->
			rank[k] = (queue[k] == 0 && hold[CLIENT_OF(k)] != k -> 0 : rank[k]);
			j = j + rank[k] + queue[k]; k++
		od;
		k = 0;
		do
		:: k == CLIENTS -> break
		:: else -> j = j + arrival[k] + cmd[k].arrival + late[k].arrival; k++
		od;
#if RESTORES > 0
		k = 1;
		do
		:: k > HOLDS -> break
		:: else -> j = j + dump.queue[k]; k++
		od;
#endif
		if
		:: j == 0 -> ranks = 0; arrivals = 0
		:: else
		fi
	}
}

/* The end of a hold, and of all that the client knows of it. Cleanup takes back what may be left. */
inline hold_ends(left_) {
	unwanted[hold[me]] = (left_) && SOMETHING_LEFT(hold[me]);
	steady[hold[me]] = false; lost[hold[me]] = 0;
	phase[me] = OUT; hold[me] = NONE; arrival[me] = 0; asked[me] = 0; unsure[me] = false;
	repeated[me] = false; seen[me] = 0; deadline[me] = 0; recheck[me] = false; message[me] = false;
	settle(); tidy()
}

inline lose() {
	printf("client %d: hold %d is lost\n", me, hold[me]);
	hold_ends(true)
}

/* The caller gave up. */
inline give_up() {
	cancels--;
	printf("client %d: gives up hold %d\n", me, hold[me]);
	if
	:: wire[me] == SENT -> make_late(me)
	:: else
	fi;
	hold_ends(true)
}

/* A command under way can be left behind if the model has room to remember it. */
#define CAN_GIVE_UP (cancels > 0 && (wire[me] != SENT || late[me].op == 0))

/* An ID is used once: nothing anywhere refers to a fresh one. The model takes them from a small pool. */
#if RESTORES > 0
#define IN_DUMP(h) (dump.owner == h || dump.queue[h] > 0)
#else
#define IN_DUMP(h) false
#endif
#if RENEWALS > 0
#define IN_RENEWAL(h) (side[CLIENT_OF(h)].hold == h)
#else
#define IN_RENEWAL(h) false
#endif
#define FRESH(h) (owner != h && queue[h] == 0 && late[CLIENT_OF(h)].hold != h && seized != h && \
		  !IN_RENEWAL(h) && !IN_DUMP(h))
#define FIRST_ID (me * IDS + 1)
#ifdef BREAK_HOLD_REUSED
#define SOME_ID_IS_FRESH true
#define FRESH_ID FIRST_ID
#elif IDS == 1
#define SOME_ID_IS_FRESH FRESH(FIRST_ID)
#define FRESH_ID FIRST_ID
#elif IDS == 2
#define SOME_ID_IS_FRESH (FRESH(FIRST_ID) || FRESH(FIRST_ID + 1))
#define FRESH_ID (FRESH(FIRST_ID) -> FIRST_ID : FIRST_ID + 1)
#else
#define SOME_ID_IS_FRESH (FRESH(FIRST_ID) || FRESH(FIRST_ID + 1) || FRESH(FIRST_ID + 2))
#define FRESH_ID (FRESH(FIRST_ID) -> FIRST_ID : (FRESH(FIRST_ID + 1) -> FIRST_ID + 1 : FIRST_ID + 2))
#endif

/* How long a renewal is good for. */
#ifdef BREAK_REPEAT_EXTENDS
#define RENEWED sent[me]
#else
#define RENEWED since[me]
#endif

proctype Client(byte me) {
	byte round, t;
	{
	round = 0;
begin:
	if
	:: atomic { round < ROUNDS_OF(me) -> round++; goto ask_anew }
	:: atomic { round == ROUNDS_OF(me) -> phase[me] = FINISHED };
		goto over
	fi;

ask_anew:
	atomic { SOME_ID_IS_FRESH ->
		hold[me] = FRESH_ID; rank[hold[me]] = 0; unwanted[hold[me]] = false;
		phase[me] = ASKING;
		send(ACQUIRE, subscribed[HUB(me)], TTL_OF(me)) };

asking: /* An acquire is under way: the first one, to join, or to confirm. */
	if
	:: atomic { ANSWER(YES) ->
#ifdef BREAK_DEADLINE_FROM_REPLY
		deadline[me] = LEASE(me);
#elif defined(BREAK_LAST_ATTEMPT_COUNTS)
		deadline[me] = sent[me];
#else
		deadline[me] = since[me];
#endif
		settle(); goto granted }
	:: atomic { ANSWER(HAD) ->      /* the reply says how long the lease lasts yet */
#ifdef BREAK_FOUND_LEASE_IS_NEW
		deadline[me] = sent[me];
#else
		deadline[me] = (told[me] + sent[me] > TTL_OF(me) -> told[me] + sent[me] - TTL_OF(me) : 0);
#endif
		settle(); goto granted }
	:: atomic { ANSWER(BUSY) && !cmd[me].wait ->
		wants[HUB(me)] = true; settle() };
		goto subscribing
	:: atomic { ANSWER(BUSY) && cmd[me].wait ->     /* not heard: the connection is made anew */
		if
		:: recheck[me]
		:: else -> disconnect(HUB(me)); subscribed[HUB(me)] = false
		fi;
		settle() };
		goto subscribing
	:: atomic { ANSWER(QUEUED) ->
		deadline[me] = since[me]; arrival[me] = told[me];
		phase[me] = WAITING;
#ifdef BREAK_NOTE_FORGOTTEN
		message[me] = false; recheck[me] = false;
#endif
		settle() };
		goto waiting
	:: atomic { wire[me] == FAILED -> unsure[me] = true; again() };
		goto asking
	:: atomic { CAN_GIVE_UP -> give_up() };
		goto begin
#ifdef BREAK_ENTERS_PAST_RECHECK
	:: atomic { wire[me] == SENT && late[me].op == 0 && message[me] && deadline[me] > 0 ->
		make_late(me); settle(); enter(deadline[me]) };
		goto inside
#endif
	fi;

subscribing:
	if
#ifdef BREAK_JOINS_UNHEARD
	:: goto check_again
#else
	:: atomic { subscribed[HUB(me)] -> goto check_again }
#endif
	:: atomic { CAN_GIVE_UP -> give_up() };
		goto begin
	fi;

waiting:
	if
	/* A message may be older than the place of a waiter that has asked again. */
#ifdef BREAK_OLD_GRANT_BELIEVED
	:: atomic { message[me] -> message[me] = false; goto granted }
#else
	:: atomic { message[me] && asked[me] == 1 -> message[me] = false; goto granted }
	:: atomic { message[me] && asked[me] > 1 -> message[me] = false; goto check_again }
#endif
	:: atomic { recheck[me] -> goto check_again }
#ifndef BREAK_NO_TIMER
	:: atomic { deadline[me] == 0 -> goto check_again }
#endif
	:: atomic { rechecks > 0 -> rechecks--; goto check_again }
	:: atomic { CAN_GIVE_UP -> give_up(); goto begin }
	fi;

check_again:
	atomic {
		recheck[me] = false; phase[me] = ASKING;
#ifndef BREAK_ENTERS_PAST_RECHECK
		deadline[me] = 0;
#endif
		send(ACQUIRE, true, TTL_OF(me)) };
	goto asking;

granted: /* Less than half of the lease may be left: that is made whole first. */
	if
#ifdef BREAK_GRANT_DEADLINE_FROM_MESSAGE
	:: atomic { true -> enter(LEASE(me)); goto inside }
#else
	:: atomic { deadline[me] > 0 -> enter(deadline[me]); goto inside }
	:: atomic { deadline[me] == 0 -> phase[me] = ASKING; send(RENEW, false, TTL_OF(me)) }
#endif
	fi;

whole:
	if
	:: atomic { ANSWER(YES) && RENEWED > 0 -> t = RENEWED; settle(); enter(t); t = 0 };
		goto inside
	:: atomic { ANSWER(GONE) || ANSWER(YES) && RENEWED == 0 ->
#ifdef BREAK_SAME_ID_AGAIN
		settle(); asked[me] = 0;
		send(ACQUIRE, subscribed[HUB(me)], TTL_OF(me)) };
		goto asking
#else
		printf("client %d: hold %d is over before it began\n", me, hold[me]);
		hold_ends(true); goto ask_anew }
#endif
	:: atomic { wire[me] == FAILED -> again() };
		goto whole
	:: atomic { CAN_GIVE_UP -> give_up() };
		goto begin
	fi;

inside: /* At rest in the section. */
	if
	:: atomic { deadline[me] == 0 -> lose() };
		goto begin
#if NESTS > 0
	:: atomic { BELIEVES(me) && nests > 0 -> nests--;
		/* The longest hold is near: the lease that it may ask for is shorter. */
		send(RENEW, false, TTL_OF(me) - 1) };
		goto working
#endif
#if DRAWS > 0
	:: atomic { BELIEVES(me) && draws > 0 && seen[me] == 0 -> draws--;
		send(TOKEN, false, TTL_OF(me)) };
		goto working
#endif
#if PASSES > 0
	:: atomic { BELIEVES(me) && me == 0 && passes > 0 -> pass_on() };
		goto inside
#endif
	:: atomic { BELIEVES(me) ->
		phase[me] = LEAVING; deadline[me] = 0;
		send(RELEASE, false, TTL_OF(me)) };
		goto released
	fi;

working: /* Inside, with a nested entry or the draw of a token under way. */
	if
	:: atomic { ANSWER(YES) && STILL_MINE(since[me]) && cmd[me].op == RENEW ->
		t = (RENEWED > deadline[me] -> RENEWED : deadline[me]);
		settle(); believe(t); t = 0 };
		goto inside
	:: atomic { ANSWER(YES) && STILL_MINE(since[me]) && cmd[me].op == TOKEN ->
		seen[me] = told[me]; settle() };
		goto inside
	:: atomic { ANSWER(GONE) || wire[me] != SENT && !STILL_MINE(since[me]) -> lose() };
		goto begin
	:: atomic { wire[me] == FAILED && STILL_MINE(since[me]) -> again() };
		goto working
	:: atomic { wire[me] == FAILED && STILL_MINE(since[me]) -> settle() };     /* the nested caller gave up */
		goto inside
	fi;

released: /* The release is under way. */
	if
	/* A client that has sent twice cannot know better: GONE may be by its own release. */
	:: atomic { ANSWER(YES) || ANSWER(GONE) && repeated[me] ->
		MUST(loss_is_told, lost[hold[me]] == 0 || unsure[me] || repeated[me] || RESTORES > 0);
		MUST(revival_is_told, lost[hold[me]] == 0 || repeated[me]);
#ifdef BREAK_UNSURE_NOT_CLEANED
		hold_ends(false) };
#else
		hold_ends(unsure[me] || repeated[me]) };
#endif
		goto begin
	:: atomic { ANSWER(GONE) && !repeated[me] -> lose() };
		goto begin
	:: atomic { wire[me] == FAILED -> repeated[me] = true; again() };
		goto released
	:: atomic { wire[me] == FAILED -> hold_ends(true) };
		goto begin
	fi;
over:	skip
	} unless { phase[me] == DEAD }
}

/* --------------------------------------------------------------- watchdog */

#if RENEWALS > 0
inline no_renewal(i) {
	side[i].state = 0; side[i].hold = 0; side[i].ttl = 0; side[i].since = 0; side[i].yes = false
}

/* Each answer counts from before its own command was sent. */
#ifdef BREAK_RENEWED_SINCE_LAST_SENT
#define RENEWED_FOR (sent[me] > side[me].since -> sent[me] : side[me].since)
#else
#define RENEWED_FOR side[me].since
#endif

#ifdef BREAK_ANSWER_FOR_ANOTHER_HOLD
#define SAME_HOLD true
#else
#define SAME_HOLD (hold[me] == side[me].hold)
#endif

/* Renewals on a connection of their own, as soon as the client is inside. One takes any time. */
proctype Watchdog(byte me) {
	byte t;
end:	do
	:: atomic { renewals > 0 && BELIEVES(me) && side[me].state == 0 ->
		renewals--;
#ifdef EXTENDS                  /* leases are fixed, and Extend asks for less or for more */
		if
		:: side[me].ttl = MARGIN + 1
		:: side[me].ttl = TTL_OF(me) + 1
		fi;
#else
		side[me].ttl = TTL_OF(me);
#endif
		side[me].hold = hold[me]; side[me].since = SAFE(side[me].ttl); side[me].state = SENT;
		printf("client %d: RENEW hold %d beside, for %d\n", me, hold[me], side[me].ttl) }
	:: atomic { side[me].state == SENT ->
		d_step {
			was = owner;
			renew(side[me].hold, side[me].ttl);
			MUST(late_is_harmless, owner == was);
			printf("server: RENEW hold %d -> %e\n", side[me].hold, r_what)
		};
		if
		:: LIVE(me) -> side[me].state = ANSWERED; side[me].yes = (r_what == YES)
		:: !LIVE(me) || faults > 0 -> faults = (LIVE(me) -> faults - 1 : faults); no_renewal(me)
		fi }
	:: atomic { side[me].state == SENT && LIVE(me) && faults > 0 -> faults--; no_renewal(me) }
	:: atomic { side[me].state == SENT && !LIVE(me) -> no_renewal(me) }
	:: atomic { side[me].state == ANSWERED ->
		if
		:: phase[me] == INSIDE && STILL_MINE(side[me].since) && SAME_HOLD ->
			if
			:: side[me].yes ->
				t = RENEWED_FOR;
				t = (t > deadline[me] -> t : deadline[me]);
				believe(t);
				t = 0
			:: else -> deadline[me] = 0
			fi
		:: else         /* the hold has ended, or is leaving */
		fi;
		no_renewal(me) }
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
	:: i == CLIENTS -> break
	:: else -> MUST(no_lost_wakeup, phase[i] == FINISHED || phase[i] == DEAD); i++
	od;
	MUST(nothing_left, owner == NONE);
	/* The dead, and older data, leave places in the queue, which grants skip and the key's TTL ends. */
	d_step { first_waiter(); MUST(nothing_left, head == NONE || CRASHES + RESTORES > 0) }
	}
}

init {
	atomic {
		run Client(0); run Commands(0); run Pubsub(0);
		run Client(1); run Commands(1);
#ifndef SHARED
		run Pubsub(1);
#endif
#if CLIENTS > 2
		run Client(2); run Commands(2); run Pubsub(2);
#endif
#ifndef UNTIMED
		run Clock();
#endif
#if CRASHES + STEPS + FORCES + FORGETS + RESTORES > 0 || defined(BREAK_QUEUE_EXPIRES)
		run Fate();
#endif
#if RENEWALS > 0
		run Watchdog(0); run Watchdog(1);
#endif
		run Judge()
	}
}
