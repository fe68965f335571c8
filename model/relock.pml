/*
 * relock: a model of the lock protocol in Promela, for spin.
 *
 * One lock, one Redis server, a few clients. Each script of the server is one
 * indivisible step, as in Redis. Everything between two steps may take any
 * time: a command on its way, a reply, a grant message, a client that is paused.
 *
 * Read it from top to bottom: sizes, what is checked, what the server keeps,
 * what a client keeps, the scripts, the wires, the clock, the client, the judge.
 * README.md says how each promise is expressed and what the model leaves out.
 *
 * -DBREAK_... takes one rule away; then the model must fail (see the README).
 */

/* ------------------------------------------------------------------ sizes */

#ifndef CLIENTS
#define CLIENTS 2
#endif
#ifndef ROUNDS                  /* stays in the lock that each client makes; 1 or 2 */
#define ROUNDS 1
#endif
#ifdef FIRST_RETURNS            /* only client 0 makes all its rounds, the others one */
#define ROUNDS_OF(i) ((i) == 0 -> ROUNDS : 1)
#else
#define ROUNDS_OF(i) ROUNDS
#endif
#ifndef TTL                     /* lease, in ticks */
#define TTL 2
#endif
#ifndef TTL_1                   /* that of client 1 */
#define TTL_1 TTL
#endif
#ifndef MARGIN                  /* what the client takes off for clocks that drift */
#define MARGIN 0
#endif

/* How much may go wrong, or be done, in one run. All of it may happen anywhere. */
#ifndef FAULTS                  /* commands or replies lost, given up, run late or twice */
#define FAULTS 0
#endif
#ifndef CUTS                    /* pub/sub connections broken */
#define CUTS 0
#endif
#ifndef CRASHES                 /* client processes that die */
#define CRASHES 0
#endif
#ifndef CANCELS                 /* waits given up by the caller */
#define CANCELS 0
#endif
#ifndef RECHECKS                /* recheck timers that fire early (they may: any time up to a TTL) */
#define RECHECKS 0
#endif
#ifndef NESTS                   /* nested entries */
#define NESTS 0
#endif
#ifndef RENEWALS                /* renewals */
#define RENEWALS 0
#endif
#ifndef BESIDE                  /* renewals that run beside whatever else their client sends */
#define BESIDE 0
#endif
#ifndef PAUSES                  /* times that a client sleeps past a lease that it holds */
#define PAUSES 0
#endif
#ifndef STEPS                   /* steps back of the server's clock */
#define STEPS 0
#endif
#ifndef FORCES                  /* times that an operator takes the lock from whoever has it */
#define FORCES 0
#endif
#ifndef FORGETS                 /* times that the key of the last token is lost */
#define FORGETS 0
#endif
#ifndef RESTORES                /* times that the server comes back with older data, or with none */
#define RESTORES 0
#endif
#ifndef PASSES                  /* times that client 0 passes the lock on inside itself, in one stay; the tokens are set aside */
#define PASSES 0
#endif
#ifndef SLOW                    /* ticks that the clock of one client misses */
#define SLOW 0
#endif

#ifndef UNREAD                  /* grants that can be on their way to one client; more would stop the run with an error */
#define UNREAD 3
#endif

#define HOLDS        (CLIENTS * ROUNDS)
#define NONE         0
#ifdef BREAK_NO_MARGIN
#define SAFE(ttl)    (ttl)
#else
#define SAFE(ttl)    ((ttl) - MARGIN)   /* what a client counts on, from before it sent */
#endif
#define TTL_OF(i)    ((i) == 1 -> TTL_1 : TTL)
#define LEASE(i)     SAFE(TTL_OF(i))
#ifdef EXTENDS                          /* leases are fixed: nested entries leave them alone, what runs beside is Extend */
#define NEST_TTL(i)  0
#else
#define NEST_TTL(i)  (TTL_OF(i) - 1)    /* a nested entry may ask for a shorter lease */
#endif

/* A hold field is used for one stay and never again; hold numbers say whose it is. */
#ifdef BREAK_HOLD_REUSED
#define HOLD_FIELD(i, round)  ((i) + 1)
#define CLIENT_OF(h)          ((h) - 1)
#else
#define HOLD_FIELD(i, round)  ((i) * ROUNDS + (round))
#define CLIENT_OF(h)          (((h) - 1) / ROUNDS)
#endif

/* ------------------------------------------------------- what is checked */

/*
 * Each promise is an assertion with its own name, so that spin names the one
 * that broke. -DONLY=ID_<promise> leaves that one: so it is seen that a broken
 * rule breaks the very promise that it is there for.
 */
#define ID_mutual_exclusion     1       /* never two believers */
#define ID_lease_covers_belief  2       /* a believer is the owner on the server */
#define ID_no_lost_wakeup       3       /* nobody sleeps for ever */
#define ID_fifo                 4       /* first come, first served */
#define ID_no_hold_left         5       /* the lock ends free, its queue empty */
#define ID_token_grows          6       /* larger for every stay, the same through a stay */
#define ID_stale_is_harmless    7       /* a late command touches no newer stay, and only a first entry makes one */
#define ID_count_is_true        8       /* the count on the server is what the holder did */
#define ID_loss_is_told         9       /* whose lock was taken by force is not told that it has released it */
#define ID_no_orphan            10      /* NOT promised, see the README: every hold has a client that wants it */

hidden byte mutual_exclusion, lease_covers_belief, no_lost_wakeup, fifo, no_hold_left;
hidden byte token_grows, stale_is_harmless, count_is_true, loss_is_told, no_orphan;

#ifndef ONLY
#define ONLY 0
#endif
#define LOOKED_AT(id)           (ONLY == id || ONLY == 0 && id != ID_no_orphan)
#define MUST(promise, holds)    promise = (!LOOKED_AT(ID_##promise) || (holds)); assert(promise)

/* -------------------------------------------------------------- messages */

mtype = { ACQUIRE, RELEASE, RENEW };                    /* commands */
mtype = { IDLE, SENT, ANSWERED, FAILED };               /* a client's command connection */
mtype = { OK, BUSY, QUEUED, NOT_YOURS, STALE };         /* replies */
mtype = { OUT, ASKING, WAITING, INSIDE, LEAVING, FINISHED, GONE };      /* a client */

typedef Command {
	mtype op;
	byte hold;      /* the hold field */
	byte stay;      /* ghost: the stay it was sent for (tells late from current if fields are reused) */
	byte target;    /* the count to set */
	byte step;      /* grows with each operation of the hold */
	bool wait;      /* join the queue if busy */
	byte arrival;   /* first arrival, if known: keeps the place */
	byte ttl;
#if PASSES > 0
	byte used;      /* the last token used ... */
	byte unused;    /* ... and how many behind it are left of those that were set aside */
#endif
	bool watched    /* given up, but its end will be seen: then abandon once more */
}

typedef Reply {
	mtype what;
	byte token;     /* OK: of the hold; QUEUED: the last one given, to anybody */
	byte arrival
}

/* ---------------------------------------------------- what the server has */

byte owner = NONE;              /* the hold field in the lock's hash */
byte count;                     /* its value */
byte recorded;                  /* the step of the last operation that was let through */
byte lease;                     /* ticks until the hash expires */
byte token;                     /* the last fencing token that was drawn or set aside; 0: the key is lost */
#if FORGETS + RESTORES > 0
byte newest;                    /* TIME, as far as tokens need it: no token is ahead of it, whatever the key says */
#else
#define newest token
#endif
byte heir = NONE;               /* the next hand-over, if it is prepared: to whom, "next" in the hash ... */
byte kept;                      /* ... and its token */
byte noted;                     /* "token" in the hash: what its owner has, once one was drawn for the next; 0: not noted */
byte queue[HOLDS + 1];          /* arrival of each waiter, and perhaps of the owner as the first; 0: not queued */
byte arrivals;                  /* the server's TIME, as far as the queue needs it */
#if STEPS > 0
bool behind;                    /* TIME is behind the last token */
#endif

/* Whether the next hand-over may be prepared. */
#ifdef UNPREPARED               /* never: sharded pub/sub, tokens that are set aside */
#define MAY_PREPARE false
#elif STEPS > 0
#define MAY_PREPARE (!behind)   /* not with a token ahead of TIME */
#else
#define MAY_PREPARE true
#endif

/* Tokens that are set aside beyond the hold's own: for those to which its client passes the lock without asking. */
#if PASSES > 0
#define ASIDE(h) (CLIENT_OF(h) == 0 -> PASSES : 0)
#else
#define ASIDE(h) 0
#endif
#if RESTORES > 0
typedef Data {                  /* what a dump has, or a replica that lags */
	byte owner, count, recorded, lease, token, heir, kept, noted;
	byte queue[HOLDS + 1]
}
Data dump;
byte saves = RESTORES;
#endif
byte seized = NONE;             /* the hold that an operator saw, and is about to take the lock from */
bool listens[CLIENTS];          /* counted as a receiver of PUBLISH */

/* Grants on their way to a client: hold, token. */
chan grants[CLIENTS] = [UNREAD] of { byte, byte };

/* ---------------------------------------------------- what a client keeps */

mtype phase[CLIENTS] = OUT;
byte hold[CLIENTS];             /* field of the stay under way */
byte stay[CLIENTS];             /* ghost: number of the stay under way */
byte step[CLIENTS];
byte frames[CLIENTS];           /* the count that it believes */
byte seen[CLIENTS];             /* inside: the token; waiting: the last token given when it was told to wait */
byte arrival[CLIENTS];          /* first arrival, as the server told */
/*
 * Ticks left on its own clock. Inside: until the hold is to be taken as lost.
 * Waiting: until that would be so if the grant had come just after the client
 * was last told "no"; the recheck timer fires at its end.
 */
byte deadline[CLIENTS];
byte since_sent[CLIENTS];       /* the same for the command under way: LEASE less what passed since before it was sent */
bool abandons[HOLDS + 1];       /* holds that it gives up in the background */
bool traces[CLIENTS];           /* something of its hold may be left where that is gone: a place in the queue, a late first entry */
#if BESIDE > 0
bool told[CLIENTS];             /* a renewal was told that the hold is not there */
bool owes[CLIENTS];             /* the server is to be told the count: a nested entry or its exit was given up */

typedef Renewal {
	mtype state;
	byte hold, ttl;
	byte stay;      /* ghost */
	byte since;     /* as since_sent */
	bool yes
}
Renewal side[CLIENTS];          /* under way beside all else, also when the hold has ended */
#define OWES(i) owes[i]
#else
#define OWES(i) false
#endif

mtype wire[CLIENTS] = IDLE;     /* its command connection ... */
Command cmd[CLIENTS];           /* ... the command on it ... */
Reply answer[CLIENTS];          /* ... and the reply */
Command late[CLIENTS];          /* a command that was given up and may still run */

bool wants[CLIENTS];            /* it needs the subscription */
bool link[CLIENTS];             /* bytes get through on the pub/sub connection */
bool subscribed[CLIENTS];       /* the client takes itself for subscribed */
bool recheck[CLIENTS];          /* (re)subscribed: ask again */

/* The same in the steps that it takes, see Pubsub. Then wants, subscribed and recheck are not used. */
#ifdef STEPWISE
mtype = { NOT_ASKED, TO_ASK, ASKED, CONFIRMED, TO_RENEW };
mtype stage[CLIENTS] = NOT_ASKED;       /* the subscription, as the client has it */
chan commands[CLIENTS] = [2] of { bool };       /* on their way on the pub/sub connection: SUBSCRIBE, or UNSUBSCRIBE */
bool stale[CLIENTS];            /* one of its connections that is over is counted as a receiver */
bool heeds[CLIENTS];            /* there is a waiter that hears what comes ... */
bool word[CLIENTS];             /* ... and what it was told first, until it looks: */
byte word_token[CLIENTS];       /* a grant's token; 0: ask the server */
#ifdef SHARED                   /* clients 0 and 1 are calls of one process, and have one connection, and one channel */
#define HUB(i)      ((i) == 1 -> 0 : (i))
#define HEEDED(hub) (heeds[hub] || hub == 0 && heeds[1])
#else
#define HUB(i)      (i)
#define HEEDED(hub) heeds[hub]
#endif
#define HEARD(i)    (listens[HUB(i)] || stale[HUB(i)])
#define REACHED(i)  (listens[HUB(i)] && link[HUB(i)])
#else
#define HUB(i)      (i)
#define HEARD(i)    listens[i]
#define REACHED(i)  link[i]
#endif
#if PASSES > 0                  /* of client 0: */
byte spare;                     /* tokens left of those that were set aside */
bool doubt;                     /* the end of a command is not known: the lock is not passed on */
#ifdef BREAK_PASSED_GRANT_ABANDONED
bool passed;                    /* it was */
#endif
#endif

/* What may still happen. */
byte faults = FAULTS, cuts = CUTS, crashes = CRASHES, cancels = CANCELS;
byte rechecks = RECHECKS, nests = NESTS, renewals = RENEWALS, beside = BESIDE, pauses = PAUSES, slow = SLOW, steps = STEPS;
byte forces = FORCES, forgets = FORGETS, restores = RESTORES;

/* Ghosts: who joined when, and who has been queued and connected ever since. */
byte rank[HOLDS + 1];
bool steady[HOLDS + 1];
byte ranks;
byte largest;                   /* the last token that a stay has had */
/*
 * Somebody has taken the lock away from this hold, or older data came back while it was under way.
 * Until it is told, or the server has again what it believes, its own belief is not held against
 * the protocol; that of all others is.
 */
#if FORCES + RESTORES > 0
bool taken[HOLDS + 1];
#define TAKEN(h) taken[h]
#else
#define TAKEN(h) false
#endif
/*
 * The heir of older data may be given its token once more. And, see the README, a release may give it
 * that token for the first time, although later ones were given before the data came back.
 */
#if RESTORES > 0
byte kept_then;
hidden byte by_release;
#ifdef BREAK_OLD_HEIR
#define IS_OLD(token_) (token_ == kept_then && token_ == largest)
#else
#define IS_OLD(token_) (token_ == kept_then && (by_release || token_ == largest))
#endif
#else
#define IS_OLD(token_) false
#endif
#ifdef BREAK_HOLD_REUSED
byte owner_stay;
#define OWNER_STAY owner_stay
#else
#define OWNER_STAY owner
#endif

/* Scratch, no part of the state. */
hidden byte j, k, head, was, old;
hidden byte changed;
hidden mtype r_what;
hidden byte r_token, r_arrival;

/*
 * What "believes" means: it is inside and its own clock, looked at now, is
 * before its deadline. A client acts only after such a look; so a client that
 * slept past its lease is no believer when it wakes.
 */
#define BELIEVES(i) (phase[i] == INSIDE && deadline[i] > 0)
#define WAITS(i)    (phase[i] == ASKING || phase[i] == WAITING)
#define LIVE(i)     (phase[i] != GONE)

/* ------------------------------------------------------------ the scripts */

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
	queue[h_] = 0; steady[h_] = false
}

inline all_believers_own() {
	k = 0;
	do
	:: k == CLIENTS -> break
	:: else -> MUST(lease_covers_belief, !BELIEVES(k) || hold[k] == owner || TAKEN(hold[k])); k++
	od
}

/* The lock has no hold any more: deleted, or its lease ran out. The queue may still have the place of who had it. */
inline free_lock() {
	owner = NONE; count = 0; recorded = 0; lease = 0; heir = NONE; kept = 0; noted = 0;
#ifdef BREAK_HOLD_REUSED
	owner_stay = 0;
#endif
#ifdef BREAK_TOKEN_IN_HASH
	token = 0;
#endif
	all_believers_own()
}

/* A new stay: hold and lease are written. Its token, and its place in the queue, are the caller's business. */
inline begin_stay(h_, step_, ttl_, token_) {
	k = 1;
	do
	:: k > HOLDS -> break
	:: else ->
		MUST(fifo, k == h_ || !steady[k] || (rank[h_] > 0 && rank[h_] < rank[k]));
		k++
	od;
	owner = h_; count = 1; recorded = step_; lease = ttl_;
	assert(token < 100);    /* the model's numbers do not wrap */
	MUST(token_grows, token_ > largest || IS_OLD(token_));
	largest = token_;
	MUST(no_orphan, hold[CLIENT_OF(h_)] == h_);
#ifdef BREAK_HOLD_REUSED
	owner_stay = stay[CLIENT_OF(h_)];
#endif
	steady[h_] = false;
	all_believers_own();
	printf("server: hold %d owns the lock, token %d\n", h_, token_)
}

/* A token is above the last one, and not below the clock, so it grows though its key was lost. */
inline draw(aside_) {
#ifdef BREAK_TOKEN_WITHOUT_CLOCK
	token = token + 1 + aside_
#else
	newest = newest + 1 + aside_; token = newest
#endif
}

/* The same with a token drawn now. Nothing is prepared, nothing noted. */
inline own(h_, step_, ttl_) {
	draw(ASIDE(h_)); heir = NONE; kept = 0; noted = 0;
	begin_stay(h_, step_, ttl_, token - ASIDE(h_));
	leave_queue(h_)
}

#ifdef BREAK_NOTES_NO_TOKEN
#define OWNER_HAS_TOKEN true
#else
#define OWNER_HAS_TOKEN token > 0       /* or else that of the next would be taken for it */
#endif

/* The queue has changed: the hand-over to its first is prepared, or it is noted that none is. */
inline prepare() {
	first_waiter();
	if
	:: heir == head
#ifdef BREAK_HEIR_STAYS
	:: heir != head && heir != NONE
	:: heir == NONE && MAY_PREPARE && (OWNER_HAS_TOKEN) ->
#else
	:: heir != head && MAY_PREPARE && ASIDE(head) == 0 && (OWNER_HAS_TOKEN) ->
#endif
		noted = (noted > 0 -> noted : token);
		draw(0); heir = head; kept = token;
		printf("server: hold %d is the next, token %d\n", heir, kept)
	:: else -> heir = NONE; kept = 0
	fi
}

/* Each waiter has a lease of its own, which stands in the queue. */
#ifdef BREAK_GRANT_WITH_ONE_TTL
#define GRANTED_TTL(h) TTL
#else
#define GRANTED_TTL(h) TTL_OF(CLIENT_OF(h))
#endif

/* Takes the head out of the queue and gives it the free lock, if its client listens. */
inline grant_to_head() {
	leave_queue(head);
#ifdef BREAK_RECEIVERS_UNCHECKED
	if
	:: true ->
#else
	if
	:: HEARD(CLIENT_OF(head)) ->            /* PUBLISH returned 1 */
#endif
		own(head, 0, GRANTED_TTL(head));
		if
		:: REACHED(CLIENT_OF(head)) -> grants[HUB(CLIENT_OF(head))]!head, token - ASIDE(head)
		:: else                         /* nobody reads what was counted as received */
		fi
	:: else -> printf("server: hold %d has no listener, passed over\n", head)
	fi
}

/* What release and abandon share: to the first who listens, or to nobody. The owner itself may stand first. */
inline hand_over() {
	old = owner;
	free_lock();
#ifndef BREAK_RELEASE_WITHOUT_GRANT
	do
	:: owner != NONE -> break
	:: else ->
		first_waiter();
		if
		:: head == NONE -> break
#ifndef BREAK_SERVED_NOT_SKIPPED
		:: head != NONE && head == old -> leave_queue(head)
#endif
		:: else -> grant_to_head()
		fi
	od
#endif
}

/* The end of a stay: to the heir if it listens, whose place in the queue stays as it is. Otherwise as above. */
inline leave_lock() {
	if
#ifdef BREAK_RELEASE_WITHOUT_GRANT
	:: false ->
#elif defined(BREAK_HEIR_UNHEARD)
	:: heir != NONE ->
#else
	:: heir != NONE && HEARD(CLIENT_OF(heir)) ->
#endif
		head = heir;
#ifndef BREAK_NOTE_STAYS
		noted = kept;
#endif
		begin_stay(head, 0, GRANTED_TTL(head), kept);
		if
		:: REACHED(CLIENT_OF(head)) -> grants[HUB(CLIENT_OF(head))]!head, kept
		:: else                         /* nobody reads what was counted as received */
		fi;
		heir = NONE; kept = 0
	:: else -> hand_over()
	fi
}

/* Only a release gives what was prepared. What may come much later, or where the data is older, draws a token. */
#ifdef BREAK_PREPARED_FOR_ALL
#define HAND_OVER_ANEW() leave_lock()
#else
#define HAND_OVER_ANEW() hand_over()
#endif

/* The server's TIME, but never before the last in the queue: the clock may step back. */
inline next_arrival() {
	arrivals++;
#ifndef BREAK_ARRIVAL_IS_BARE_TIME
	k = 1;
	do
	:: k > HOLDS -> break
	:: else -> arrivals = (queue[k] >= arrivals -> queue[k] + 1 : arrivals); k++
	od
#endif
}

/* Stays in, or joins, the queue. A client that brings its first arrival gets its place back. */
inline join(c) {
	changed = false;
#ifndef BREAK_SERVED_NOT_SWEPT
	first_waiter();
	if
	:: head == owner -> leave_queue(head); changed = true   /* its hand-over had been prepared */
	:: else
	fi;
#endif
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
		:: else -> next_arrival(); queue[c.hold] = arrivals
		fi;
		changed = true;
		if
		:: rank[c.hold] == 0 || c.arrival == 0 && !steady[c.hold] -> ranks++; rank[c.hold] = ranks
		:: else
		fi
	:: else
	fi;
	j = CLIENT_OF(c.hold);
	steady[c.hold] = REACHED(j) && WAITS(j) && hold[j] == c.hold;
	r_what = QUEUED; r_arrival = queue[c.hold];
#ifdef BREAK_LOST_TOKEN_IS_NONE
	r_token = token;
#else
	r_token = (token > 0 -> token : newest);        /* the key is lost: what was granted before was before now */
#endif
	printf("server: hold %d queued, arrival %d\n", c.hold, queue[c.hold]);
	if
#ifdef BREAK_RECHECK_LOSES_PLACE
	:: heir == c.hold -> prepare()
#elif defined(BREAK_HEIR_TOLD_ITS_OWN)
	:: heir == c.hold
#else
	:: heir == c.hold -> r_token = kept - 1         /* the grant to come has kept */
#endif
	:: heir != c.hold && changed -> prepare()
	:: else
	fi
}

inline lengthen(ttl_) {
#ifdef BREAK_ENTRY_SHORTENS_LEASE
	lease = ttl_
#else
	lease = (ttl_ > lease -> ttl_ : lease)
#endif
}

#ifdef BREAK_NO_STEP
#define STALE_STEP(c) false
#else
#define STALE_STEP(c) (c.step < recorded)
#endif

inline acquire(c) {
	if
	:: owner == c.hold ->                   /* ours: set the count */
		if
#ifdef BREAK_PASS_RESTARTS_STEPS
		:: STALE_STEP(c) -> r_what = OK         /* the client takes it for that */
#else
		:: STALE_STEP(c) -> r_what = STALE
#endif
		:: else ->
			MUST(stale_is_harmless, c.stay == OWNER_STAY);
#ifdef BREAK_COUNTS_BY_INCR
			count++;
#else
			count = c.target;
#endif
			recorded = c.step; lengthen(c.ttl); r_what = OK
		fi
#ifdef BREAK_NESTED_ENTERS_FREE
	:: owner != c.hold && c.target > 1 && owner != NONE -> r_what = NOT_YOURS
#else
	:: owner != c.hold && c.target > 1 -> r_what = NOT_YOURS        /* an outer entry was broken: touch nothing */
#endif
	:: else ->
#ifdef BREAK_NEWCOMER_OVERTAKES
		if
		:: owner == NONE -> own(c.hold, c.step, c.ttl); r_what = OK
		:: else
		fi;
#endif
		do
		:: owner != NONE -> break
		:: else ->                      /* free: those who queue were first */
			first_waiter();
			if
			:: head == NONE || head == c.hold ->
				own(c.hold, c.step, c.ttl); r_what = OK
			:: else -> grant_to_head()
			fi
		od;
		if
		:: owner == c.hold              /* just now */
#ifdef STEPWISE
		:: owner != c.hold && c.wait && !HEARD(CLIENT_OF(c.hold)) -> r_what = BUSY      /* it would wait in vain */
		:: owner != c.hold && c.wait && HEARD(CLIENT_OF(c.hold)) -> join(c)
#else
		:: owner != c.hold && c.wait -> join(c)
#endif
		:: else -> r_what = BUSY
		fi
	fi;
#ifndef BREAK_LOST_TOKEN_NOT_DRAWN
	if
	:: r_what == OK && noted == 0 && token == 0 -> draw(ASIDE(c.hold))   /* the key was lost */
	:: else
	fi;
#endif
	if
#ifdef BREAK_OWNER_TOLD_THE_LAST
	:: r_what == OK -> r_token = token - ASIDE(c.hold)
#else
	:: r_what == OK -> r_token = (noted > 0 -> noted : token) - ASIDE(c.hold)
#endif
	:: else
	fi
}

inline release(c) {
#ifdef BREAK_RELEASE_UNCHECKED
	if
	:: owner != NONE ->
#else
	if
	:: owner == c.hold && STALE_STEP(c) -> r_what = STALE
	:: owner == c.hold && !STALE_STEP(c) ->
#endif
		MUST(stale_is_harmless, c.stay == OWNER_STAY);
		r_what = OK;
#ifdef BREAK_COUNTS_BY_INCR
		if
		:: count > 1 -> count--
		:: else -> leave_lock()
		fi
#else
		if
		:: c.target > 0 -> count = c.target; recorded = c.step; lengthen(c.ttl)
		:: else ->
#if PASSES > 0
			if
#ifdef BREAK_GIVEN_BACK_UNCHECKED
			:: c.unused > 0 -> token = c.used
#else
			:: c.unused > 0 && token == c.used + c.unused -> token = c.used         /* nobody has drawn since */
#endif
			:: else
			fi;
#endif
			leave_lock()
		fi
#endif
#ifdef BREAK_RELEASE_OF_NOTHING_IS_OK
	:: else -> r_what = OK
#else
	:: else -> r_what = NOT_YOURS
#endif
	fi
}

inline renew(c) {
	if
	:: owner == c.hold ->
		MUST(stale_is_harmless, c.stay == OWNER_STAY);
#ifdef BREAK_RENEWAL_SHORTENS_LEASE
		lease = c.ttl;
#else
		lengthen(c.ttl);
#endif
		r_what = OK
#ifdef BREAK_RENEW_RECREATES
	:: owner == NONE -> owner = c.hold; count = 1; lease = c.ttl; r_what = OK
#endif
	:: else -> r_what = NOT_YOURS
	fi
}

/* A waiter that gave up: out of the queue, and no heir any more; if the grant had come, on to the next. */
inline abandon(h_) {
	if
	:: owner != h_ ->
		leave_queue(h_);
#ifndef BREAK_ABANDON_KEEPS_HEIR
		if
		:: heir == h_ -> heir = NONE; kept = 0
		:: else
		fi
#endif
#ifdef BREAK_ABANDON_KEEPS_GRANT
	:: else
#else
	:: else -> HAND_OVER_ANEW()
#endif
	fi
}

/* By an operator. It names the hold that was seen, so it takes nothing from a later one. */
#if FORCES > 0
inline force_release(h_) {
	printf("server: FORCE hold %d\n", h_);
	if
#ifdef BREAK_FORCE_UNCHECKED
	:: owner != NONE ->
#else
	:: owner == h_ ->
#endif
		taken[h_] = (hold[CLIENT_OF(h_)] == h_);
#ifdef BREAK_FORCE_WITHOUT_GRANT
		free_lock()
#else
		HAND_OVER_ANEW()
#endif
	:: else
	fi
}
#endif

/* Runs one command. Whatever ran, late or not: the count of a holder at rest is what it did. */
inline execute(c) {
	r_what = OK; r_token = 0; r_arrival = 0;
	was = owner;
	if
	:: c.op == ACQUIRE -> acquire(c)
#if RESTORES > 0
	:: c.op == RELEASE -> by_release = true; release(c); by_release = false
#else
	:: c.op == RELEASE -> release(c)
#endif
	:: c.op == RENEW -> renew(c)
	fi;
	printf("server: %e hold %d target %d step %d -> %e\n", c.op, c.hold, c.target, c.step, r_what);
	/* only a first entry makes a hold */
	MUST(stale_is_harmless, (c.op == ACQUIRE && c.target == 1) || owner != c.hold || was == c.hold);
	k = 0;
	do
	:: k == CLIENTS -> break
	:: else ->
		MUST(count_is_true, !(BELIEVES(k) && wire[k] == IDLE && !OWES(k) && owner == hold[k]) || count == frames[k] || TAKEN(hold[k]));
		k++
	od
}

inline forget(c) {
	c.op = 0; c.hold = 0; c.stay = 0; c.target = 0; c.step = 0; c.wait = false;
#if PASSES > 0
	c.used = 0; c.unused = 0;
#endif
	c.arrival = 0; c.ttl = 0; c.watched = false
}

/* What was sent is given up; it stays on its way. */
inline make_late(me) {
	late[me].op = cmd[me].op; late[me].hold = cmd[me].hold; late[me].stay = cmd[me].stay;
#if PASSES > 0
	late[me].used = cmd[me].used; late[me].unused = cmd[me].unused;
#endif
	late[me].target = cmd[me].target; late[me].step = cmd[me].step; late[me].wait = cmd[me].wait;
	late[me].arrival = cmd[me].arrival; late[me].ttl = cmd[me].ttl
}

/* -------------------------------------------------------------- the wires */

/* Sent again until it is confirmed, so a lost command is only a later one. */
inline give_up_in_background(h_) {
	atomic { abandons[h_] ->
		d_step {
			printf("server: ABANDON hold %d\n", h_);
			abandon(h_)
		};
		if
		:: abandons[h_] = false
		:: faults > 0 -> faults--
		fi
	}
}

/* Commands of one client: run, lost before, run with the reply lost, or left behind. */
proctype Commands(byte me) {
end:	do
	:: atomic {
		wire[me] == SENT ->
		d_step {
			execute(cmd[me]);
			answer[me].what = r_what; answer[me].token = r_token; answer[me].arrival = r_arrival;
		};
		if
		:: LIVE(me) -> wire[me] = ANSWERED
		:: LIVE(me) && faults > 0 ->
			faults--; wire[me] = FAILED;
			answer[me].what = 0; answer[me].token = 0; answer[me].arrival = 0;
			printf("client %d: the reply is lost\n", me)
		:: !LIVE(me) ->
			wire[me] = IDLE; forget(cmd[me]);
			answer[me].what = 0; answer[me].token = 0; answer[me].arrival = 0
		fi
	}
	:: atomic { wire[me] == SENT && LIVE(me) && faults > 0 ->
		faults--; wire[me] = FAILED;
		printf("client %d: the command is lost\n", me) }
	:: atomic { wire[me] == SENT && !LIVE(me) ->
		wire[me] = IDLE; forget(cmd[me]) }
#ifndef UNTIMED
	:: atomic { wire[me] == SENT && LIVE(me) && faults > 0 && late[me].op == 0 ->
		faults--; make_late(me); wire[me] = FAILED;
		printf("client %d: no reply in time, the command is still on its way\n", me) }
#endif
	:: d_step { late[me].op != 0 ->
		printf("late:\n");
		execute(late[me]);
		if
#ifndef BREAK_ABANDON_ONCE
		:: late[me].watched && LIVE(me) -> abandons[late[me].hold] = true
#endif
		:: else
		fi;
		forget(late[me]) }
	:: give_up_in_background(HOLD_FIELD(me, 1))
#if ROUNDS > 1 && !defined(BREAK_HOLD_REUSED)
	:: give_up_in_background(HOLD_FIELD(me, 2))
#endif
	od
}

inline drop_messages(me) {
	do
	:: len(grants[me]) > 0 -> grants[me]?_, _
	:: else -> break
	od
}

#ifdef STEPWISE
inline drop_commands(me) {
	do
	:: len(commands[me]) > 0 -> commands[me]?_
	:: else -> break
	od
}

/* The connection is over. The server may count it for some time. */
inline disconnect(me) {
	link[me] = false; steady[hold[me]] = false; drop_commands(me);
#ifdef SHARED
	steady[hold[1]] = (me > 0 && steady[hold[1]])
#endif
}

/* What was on it is lost, and asked for again if somebody waits. */
inline forget_connection(me) {
	drop_messages(me);
	stage[me] = (HEEDED(me) -> TO_ASK : NOT_ASKED)
}

/* Leaves a word for the waiter, if there is none yet. */
inline tell(i, token_) {
	if
	:: heeds[i] && !word[i] -> word[i] = true; word_token[i] = token_
	:: else
	fi
}

/*
 * The pub/sub connection of one client, which other locks may use as well, and the hub that reads it. Commands and what comes
 * back keep their order. 0 in place of a grant confirms a SUBSCRIBE.
 */
proctype Pubsub(byte me) {
	byte h, t;
end:	do
	:: d_step { stage[me] == TO_ASK ->
		stage[me] = ASKED;
		if
		:: !link[me] ->
			link[me] = true;
			if
			:: listens[me] -> listens[me] = false; stale[me] = true
			:: else
			fi
		:: else
		fi;
		commands[me]!true;
		printf("client %d: SUBSCRIBE\n", me) }
	:: d_step { link[me] && commands[me]?[true] ->
		commands[me]?_; listens[me] = true; grants[me]!0, 0;
		printf("server: client %d is subscribed\n", me) }
	:: d_step { link[me] && commands[me]?[false] ->
		commands[me]?_; listens[me] = false;
#ifdef BREAK_HEEDS_WHILE_LEAVING
		stage[me] = (HEEDED(me) -> stage[me] : NOT_ASKED);
#endif
		printf("server: client %d is unsubscribed\n", me) }
	/* Broken. Whether the server or the client notices first is open. */
	:: atomic { cuts > 0 && link[me] && LIVE(me) ->
		cuts--;
		if
		:: commands[me]?[true] -> listens[me] = true    /* it had come */
		:: true
		fi;
		disconnect(me);
		if
		:: nempty(grants[me]) -> drop_messages(me)
		:: true         /* what had come is read later */
		fi;
		printf("client %d: pub/sub connection cut\n", me) }
	:: d_step { listens[me] && !link[me] -> listens[me] = false }
	:: d_step { stale[me] -> stale[me] = false }
	:: d_step { !link[me] && (stage[me] == ASKED || stage[me] == CONFIRMED || stage[me] == TO_RENEW) -> forget_connection(me) }
	/* The server has said that nobody hears the channel. */
	:: d_step { link[me] && stage[me] == TO_RENEW -> disconnect(me); forget_connection(me); printf("client %d: connects anew\n", me) }
	/* Nobody of this client waits for this lock: it may unsubscribe, or linger; or for any lock: the connection ends. */
	:: atomic { link[me] && stage[me] == CONFIRMED && !HEEDED(me) && LIVE(me) && empty(commands[me]) ->
		if
		:: commands[me]!false;
#ifndef BREAK_HEEDS_WHILE_LEAVING
			stage[me] = NOT_ASKED;
#endif
			printf("client %d: UNSUBSCRIBE\n", me)
		:: disconnect(me); forget_connection(me); printf("client %d: disconnects\n", me)
		fi }
	:: d_step { nempty(grants[me]) ->
		grants[me]?h, t;
		if
		:: h == 0 ->
			stage[me] = (stage[me] == ASKED -> CONFIRMED : stage[me]);
			tell(me, 0);
#if defined(SHARED) && !defined(BREAK_ONE_WAITER_TOLD)
			if
			:: me == 0 -> tell(1, 0)
			:: else
			fi
#endif
#ifdef BREAK_GRANT_FOR_ANYBODY
		:: h != 0 && heeds[me] -> tell(me, t)
#endif
		:: h != 0 && h == hold[CLIENT_OF(h)] -> tell(CLIENT_OF(h), t)   /* if it does not wait: a recheck was quicker */
		:: else -> abandons[h] = true
		fi;
		h = 0; t = 0 }
	od
}
#else
/* The pub/sub connection of one client, and the hub that reads it. */
proctype Pubsub(byte me) {
	byte h;
end:	do
	:: d_step { wants[me] && !subscribed[me] ->
		listens[me] = true; link[me] = true; subscribed[me] = true;
#if !defined(BREAK_NO_RECHECK_ON_RECONNECT) && !defined(BREAK_JOIN_BEFORE_SUBSCRIBED)
		recheck[me] = true;
#endif
		printf("client %d: subscribed\n", me) }
	/* Broken. Whether the server or the client notices first is open. */
	:: atomic { cuts > 0 && link[me] && LIVE(me) ->
		cuts--; link[me] = false;
		if
		:: len(grants[me]) > 0 -> drop_messages(me)
		:: true         /* what had come is read later */
		fi;
		steady[hold[me]] = false;
		printf("client %d: pub/sub connection cut\n", me) }
	:: d_step { listens[me] && !link[me] -> listens[me] = false }
	:: d_step { subscribed[me] && !link[me] -> subscribed[me] = false }
#ifdef UNSUBSCRIBES
	/* Nobody of this client waits: it may unsubscribe, or linger. */
	:: d_step { subscribed[me] && link[me] && !WAITS(me) ->
		wants[me] = false; link[me] = false; subscribed[me] = false; listens[me] = false;
		recheck[me] = false; drop_messages(me);
		printf("client %d: unsubscribed\n", me) }
#endif
	/* A grant that the waiter at hand is not waiting for. */
	:: d_step { nempty(grants[me]) && !(grants[me]?[eval(hold[me]), _] && WAITS(me)) ->
		grants[me]?h, _;
		if
#ifdef BREAK_PASSED_GRANT_ABANDONED
		:: h == hold[me] && !passed
#elif !defined(BREAK_OWN_GRANT_ABANDONED)
		:: h == hold[me]                /* inside already: a recheck was quicker */
#endif
		:: else -> abandons[h] = true
		fi;
		h = 0 }
	od
}
#endif

/* ------------------------------------------------------------- older data */

#if RESTORES > 0
inline save() {
	dump.owner = owner; dump.count = count; dump.recorded = recorded; dump.lease = lease;
	dump.token = token; dump.heir = heir; dump.kept = kept; dump.noted = noted;
	k = 1;
	do
	:: k > HOLDS -> break
	:: else -> dump.queue[k] = queue[k]; k++
	od;
	printf("server: what is there is saved\n")
}

/* Leases end when they would have. */
inline age_dump() {
	if
	:: dump.lease > 1 -> dump.lease = dump.lease - 1
	:: dump.lease == 1 ->
		dump.owner = NONE; dump.count = 0; dump.recorded = 0; dump.lease = 0;
		dump.heir = NONE; dump.kept = 0; dump.noted = 0
	:: else
	fi
}

/* A restart, or a failover to a replica that lagged: all connections end. If nothing was saved, nothing is there. */
inline restore() {
	owner = dump.owner; count = dump.count; recorded = dump.recorded; lease = dump.lease;
	token = dump.token; heir = dump.heir; kept = dump.kept; noted = dump.noted;
	k = 1;
	do
	:: k > HOLDS -> break
	:: else -> queue[k] = dump.queue[k]; dump.queue[k] = 0; steady[k] = false; k++
	od;
	dump.owner = NONE; dump.count = 0; dump.recorded = 0; dump.lease = 0;
	dump.token = 0; dump.heir = NONE; dump.kept = 0; dump.noted = 0;
	kept_then = kept;
	k = 0;
	do
	:: k == CLIENTS -> break
	:: else ->
#ifdef STEPWISE
		stale[k] = false; drop_commands(k);
#endif
		listens[k] = false; link[k] = false; taken[hold[k]] = hold[k] != NONE; k++
	od;
	printf("server: older data is back: owner %d, token %d, next %d with token %d\n", owner, token, heir, kept)
}
#endif

/* -------------------------------------------------------------- the clock */

/*
 * A lease that a live client could still use runs out only while there are
 * PAUSES left: the client slept past it. All other leases run out freely: of
 * the dead, of stays that are over, of a client that sleeps with a recheck timer
 * still to fire, and of one that is inside and not yet at its own deadline
 * (with all rules kept there is no such lease; that is what is to be shown).
 */
#define HOLDER        CLIENT_OF(owner)
#define HELD_BY_LIVE  (owner != NONE && hold[HOLDER] == owner && LIVE(HOLDER) && phase[HOLDER] != LEAVING && \
		       !(phase[HOLDER] == WAITING && deadline[HOLDER] > 0) && \
		       !(phase[HOLDER] == INSIDE && deadline[HOLDER] > 1))

#ifndef UNTIMED
/* One tick; the clock of the laggard, if there is one, misses it. */
inline tick(laggard) {
	d_step {
		k = 0; was = HELD_BY_LIVE;
		do
		:: k == CLIENTS -> break
		:: else ->
			if
			:: k != laggard && deadline[k] > 0 -> deadline[k] = deadline[k] - 1
			:: else
			fi;
			if
			:: k != laggard && since_sent[k] > 0 -> since_sent[k] = since_sent[k] - 1
			:: else
			fi;
#if BESIDE > 0
			if
			:: k != laggard && side[k].since > 0 -> side[k].since = side[k].since - 1
			:: else
			fi;
#endif
			k++
		od;
		printf("-- tick --\n");
#if RESTORES > 0
		age_dump();
#endif
		if
		:: lease > 1 -> lease--
		:: lease == 1 ->
			if
			:: was -> pauses--
			:: else
			fi;
			printf("server: the lease of hold %d ran out\n", owner);
			free_lock()
		:: else
		fi
	}
}

#if CLIENTS > 2
#define A_CLIENT_COUNTS (deadline[0] + since_sent[0] + deadline[1] + since_sent[1] + deadline[2] + since_sent[2] > 0)
#else
#define A_CLIENT_COUNTS (deadline[0] + since_sent[0] + deadline[1] + since_sent[1] > 0)
#endif
#define TIME_MAY_PASS   (lease == 0 && A_CLIENT_COUNTS || lease > 1 || \
			 lease == 1 && (!HELD_BY_LIVE || pauses > 0))

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

/* ---------------------------------------------------------------- crashes */

inline die(i) {
	d_step {
		crashes--; printf("client %d: dies\n", i);
		phase[i] = GONE; hold[i] = NONE; stay[i] = 0; step[i] = 0; frames[i] = 0; seen[i] = 0;
		arrival[i] = 0; deadline[i] = 0; since_sent[i] = 0;
		wants[i] = false; subscribed[i] = false; recheck[i] = false; link[i] = false;
		drop_messages(i);
#ifdef STEPWISE
		stage[i] = NOT_ASKED; heeds[i] = false; word[i] = false; word_token[i] = 0; drop_commands(i);
#endif
		k = 1;
		do
		:: k > HOLDS -> break
		:: CLIENT_OF(k) == i && k <= HOLDS ->
			abandons[k] = false; steady[k] = false;
#if FORCES + RESTORES > 0
			taken[k] = false;
#endif
			k++
		:: else -> k++
		od;
		answer[i].what = 0; answer[i].token = 0; answer[i].arrival = 0; traces[i] = false;
#if BESIDE > 0
		told[i] = false; owes[i] = false; side[i].since = 0;
#endif
		if
		:: wire[i] != SENT -> wire[i] = IDLE; forget(cmd[i])
		:: else         /* on its way */
		fi
#ifdef UNTIMED
		; listens[i] = false
#ifdef STEPWISE
		; stale[i] = false
#endif
#endif
	}
}

#ifdef UNTIMED
/* Without leases only a waiter may die, and its end is noticed by the server. */
#define MAY_DIE(i) (crashes > 0 && phase[i] == WAITING && owner != hold[i])
#else
#define MAY_DIE(i) (crashes > 0 && phase[i] != GONE && phase[i] != FINISHED)
#endif

#if CRASHES + STEPS + FORCES + FORGETS + RESTORES > 0 || defined(BREAK_QUEUE_EXPIRES)
#ifdef BREAK_QUEUE_EXPIRES
bool expired;
#endif
proctype Fate() {
end:	do
#if STEPS > 0
	:: d_step { steps > 0 && arrivals > 0 -> steps--; arrivals = 0; behind = true; printf("server: the clock steps back\n") }
	:: d_step { behind -> behind = false }
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
	:: d_step { forgets > 0 && token > 0 -> forgets--; token = 0; printf("server: the last token is lost\n") }
#endif
#if RESTORES > 0
	:: d_step { saves > 0 -> saves--; save() }
	:: atomic { restores > 0 -> restores--;
		if
		:: drop_messages(0); drop_messages(1)
		:: true         /* what had come is read later */
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
		printf("server: the queue key expires\n") }
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

/* ------------------------------------------------------------- the client */

#define ANSWER(what_) (wire[me] == ANSWERED && answer[me].what == what_)

inline send(op_, target_, wait_, ttl_) {
	cmd[me].op = op_; cmd[me].hold = hold[me]; cmd[me].stay = stay[me]; cmd[me].target = target_;
#if PASSES > 0
	cmd[me].used = (op_ == RELEASE && target_ == 0 && me == 0 && spare > 0 -> seen[me] : 0);
	cmd[me].unused = (cmd[me].used > 0 -> spare : 0);
#endif
	cmd[me].step = step[me]; cmd[me].wait = wait_; cmd[me].arrival = arrival[me]; cmd[me].ttl = ttl_;
	again()
}

/* The same command once more: what it sets is the same, so is its step. */
inline again() {
	since_sent[me] = LEASE(me);
	wire[me] = SENT;
	printf("client %d: %e hold %d target %d step %d\n", me, cmd[me].op, cmd[me].hold, cmd[me].target, cmd[me].step)
}

/* The reply has been read. */
inline settle() {
	wire[me] = IDLE; since_sent[me] = 0; forget(cmd[me]);
	answer[me].what = 0; answer[me].token = 0; answer[me].arrival = 0
}

/* How long a reply that says "yours" is good for. */
#ifdef BREAK_DEADLINE_FROM_REPLY
#define GOOD_FOR LEASE(me)
#else
#define GOOD_FOR since_sent[me]
#endif

/* The wait is over, whatever more is said. */
#ifdef STEPWISE
inline heed_no_more() {
	heeds[me] = false; word[me] = false; word_token[me] = 0
}
#define HEARS heeds[me]
#else
inline heed_no_more() {
	skip
}
#define HEARS true
#endif

/* In, or longer in: nobody else believes so, and the token is that of this very stay. */
inline believe(left_) {
	d_step {
		phase[me] = INSIDE;
		deadline[me] = left_;
#if FORCES + RESTORES > 0
		taken[hold[me]] = taken[hold[me]] &&
			(hold[me] != owner || seen[me] != largest || lease < left_ || count != frames[me]);
#endif
		k = 0;
		do
		:: k == CLIENTS -> break
		:: else -> MUST(mutual_exclusion, k == me || !BELIEVES(k) || TAKEN(hold[me]) || TAKEN(hold[k])); k++
		od;
		MUST(lease_covers_belief, hold[me] == owner || TAKEN(hold[me]));
		MUST(token_grows, seen[me] == largest || TAKEN(hold[me]))
	}
}

inline enter(left_, token_) {
#if FORGETS > 0
	largest = (token_ > largest -> token_ : largest);       /* drawn anew for a stay that had not entered */
#endif
	traces[me] = traces[me] || arrival[me] > 0;
	heed_no_more();
	seen[me] = token_; frames[me] = 1; arrival[me] = 0; recheck[me] = false;
	printf("client %d: inside with token %d, deadline in %d\n", me, token_, left_);
#if PASSES > 0
	spare = (me == 0 -> PASSES : spare);
#endif
	believe(left_)
}

/*
 * Inside client 0 the lock goes on to the next hold of its line: a section with a token of its own.
 * For the server it is the same stay, with the same lease, and the steps go on.
 */
#if PASSES > 0
inline pass_on() {
	d_step {
		spare--; seen[me]++;
		MUST(token_grows, seen[me] > largest || TAKEN(hold[me]));
		largest = (seen[me] > largest -> seen[me] : largest);
#ifdef BREAK_PASS_RESTARTS_STEPS
		step[me] = 1;
#endif
#ifdef BREAK_PASS_RENEWS_DEADLINE
		deadline[me] = LEASE(me);
#endif
#ifdef BREAK_PASSED_GRANT_ABANDONED
		passed = true;
#endif
		printf("client %d: passes the lock on, token %d\n", me, seen[me])
	}
}
#define DOUBT() if :: me == 0 && cmd[me].op != RENEW -> doubt = true :: else fi
#else
#define DOUBT() skip
#endif

/* A deadline that has passed is not revived by a reply that says "yours". */
#ifdef BREAK_LOSS_FORGOTTEN
#define STILL_MINE (deadline[me] > 0 || since_sent[me] > 0)
#else
#define STILL_MINE (deadline[me] > 0)
#endif

/* The end of a stay or of a wait: nothing of it is kept. */
inline stay_ends() {
#if PASSES > 0
	if
	:: me == 0 ->
		spare = 0; doubt = false
#ifdef BREAK_PASSED_GRANT_ABANDONED
		; passed = false
#endif
	:: else
	fi;
#endif
	steady[hold[me]] = false; traces[me] = false;
	heed_no_more();
#if BESIDE > 0
	told[me] = false; owes[me] = false;
#endif
#if FORCES + RESTORES > 0
	taken[hold[me]] = false;
#endif
	phase[me] = OUT; hold[me] = NONE; stay[me] = 0; step[me] = 0; frames[me] = 0; seen[me] = 0;
	arrival[me] = 0; deadline[me] = 0; since_sent[me] = 0; recheck[me] = false
}

/*
 * The hold is lost. Its place may still be first in the queue, a renewal or a grant may have made its lease longer. Whom the
 * server has told that the hold is not there need not tell the server, unless something else of it may be.
 */
inline lose(told_) {
	printf("client %d: hold %d is lost\n", me, hold[me]);
	abandons[hold[me]] = abandons[hold[me]] || !(told_) || traces[me];
	stay_ends()
}
#if BESIDE > 0
#define WAS_TOLD told[me]
#else
#define WAS_TOLD false
#endif

/* The caller gave up: gone at once; what is left behind is abandoned in the background. */
inline give_up() {
	cancels--;
	printf("client %d: gives up hold %d\n", me, hold[me]);
	if
	:: wire[me] == SENT -> make_late(me); late[me].watched = true
	:: else
	fi;
	abandons[hold[me]] = true;
	settle();
	stay_ends()
}

/* A command under way can be left behind if the model has room to remember it. */
#define CAN_GIVE_UP (cancels > 0 && (wire[me] != SENT || late[me].op == 0))

proctype Client(byte me) {
	byte round, t;
#ifdef STEPWISE
	bool anew;      /* it is to be subscribed anew */
#endif
	{
	round = 0;
begin:
	if
	:: atomic { round < ROUNDS_OF(me) ->
		round++;
		hold[me] = HOLD_FIELD(me, round); stay[me] = me * ROUNDS + round;
		phase[me] = ASKING; step[me] = 1;
#ifdef STEPWISE
		heeds[me] = (stage[HUB(me)] == CONFIRMED);
		send(ACQUIRE, 1, heeds[me], TTL_OF(me)) };
#else
		send(ACQUIRE, 1, false, TTL_OF(me)) };
#endif
		goto asking
	:: atomic { round == ROUNDS_OF(me) -> phase[me] = FINISHED };
		goto over
	fi;

asking: /* An acquire is under way: the first attempt, to join, or to check again. */
	if
	:: atomic { ANSWER(OK) && GOOD_FOR > 0 ->
		t = GOOD_FOR;
		enter(t, answer[me].token);
		t = 0;
		settle() };
		goto inside
	:: atomic { ANSWER(OK) && GOOD_FOR == 0 ->      /* the lease may be over: ask again */
		again() };
		goto asking
#ifdef STEPWISE
	:: atomic { ANSWER(BUSY) && !heeds[me] ->
		settle(); heeds[me] = true;
		if
		:: stage[HUB(me)] == NOT_ASKED -> stage[HUB(me)] = TO_ASK; goto subscribing
		:: stage[HUB(me)] == CONFIRMED -> goto check_again
		:: else -> goto subscribing
		fi }
	:: atomic { ANSWER(BUSY) && heeds[me] ->        /* nobody hears us, the server says */
		settle(); anew = true;
		if
		:: stage[HUB(me)] == CONFIRMED && !word[me] -> stage[HUB(me)] = TO_RENEW
		:: else
		fi };
		goto subscribing
#else
	:: atomic { ANSWER(BUSY) -> settle(); wants[me] = true };
		goto subscribing
#endif
	:: atomic { ANSWER(QUEUED) ->
		deadline[me] = since_sent[me];
		seen[me] = answer[me].token; arrival[me] = answer[me].arrival;
		phase[me] = WAITING;
#ifdef BREAK_WORD_FORGOTTEN
		word[me] = false; word_token[me] = 0;
#endif
		settle() };
		goto waiting
	:: atomic { wire[me] == FAILED -> DOUBT(); traces[me] = true; again() };
		goto asking
	:: atomic { CAN_GIVE_UP -> give_up() };
		goto begin
#ifdef BREAK_ENTERS_PAST_RECHECK
	:: atomic { wire[me] == SENT && late[me].op == 0 && grants[me]?[eval(hold[me]), _] && deadline[me] > 0 ->
		grants[me]?_, t;
		make_late(me); settle();
		enter(deadline[me], t);
		t = 0 };
		goto inside
#endif
	fi;

subscribing:
	if
#ifdef STEPWISE
	:: atomic { word[me] -> anew = false; word[me] = false; word_token[me] = 0 };  /* confirmed, or more */
		goto check_again
	:: atomic { rechecks > 0 ->             /* not in time: whoever had no subscription yet does not wait for it */
		rechecks--;
		if
		:: !anew -> heed_no_more()
		:: else -> anew = false
		fi };
		goto check_again
#else
#ifdef BREAK_JOIN_BEFORE_SUBSCRIBED
	:: atomic { true ->
#else
	:: atomic { subscribed[me] ->           /* confirmed */
#endif
		recheck[me] = false;
		send(ACQUIRE, 1, true, TTL_OF(me)) };
		goto asking
#endif
	:: atomic { CAN_GIVE_UP ->
#ifdef STEPWISE
		anew = false;
#endif
		give_up() };
		goto begin
	fi;

waiting:
	if
#ifdef STEPWISE
	:: atomic { word[me] ->
		t = word_token[me]; word[me] = false; word_token[me] = 0;
		if
		:: t > seen[me] && deadline[me] > 0 -> enter(deadline[me], t); t = 0; goto inside
		:: else -> t = 0; goto check_again
		fi }
#else
	:: atomic { grants[me]?[eval(hold[me]), _] ->
		grants[me]?_, t;
		if
#ifndef BREAK_OLD_GRANT_BELIEVED
		/*
		 * Made before the server last said "wait". The code asks again then; here only where a new
		 * grant may look like that: its token may be one that was set aside and came back.
		 */
#if PASSES > 0 && !defined(BREAK_OLD_GRANT_NOT_ASKED_ABOUT)
		:: t <= seen[me] -> t = 0; goto check_again
#else
		:: t <= seen[me] -> t = 0; goto waiting
#endif
#endif
		:: else
		fi;
#ifdef BREAK_GRANT_DEADLINE_FROM_MESSAGE
		deadline[me] = LEASE(me);
#endif
		if
		:: deadline[me] > 0 -> enter(deadline[me], t); t = 0; goto inside
		:: else -> t = 0; goto check_again              /* too little is left: confirm first */
		fi }
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
		recheck[me] = false;
		phase[me] = ASKING;
#ifndef BREAK_ENTERS_PAST_RECHECK
		deadline[me] = 0;
#endif
		seen[me] = 0;
		send(ACQUIRE, 1, HEARS, TTL_OF(me)) };
	goto asking;

inside: /* At rest in the critical section. */
	if
	:: atomic { deadline[me] == 0 -> lose(WAS_TOLD) };
		goto begin
	:: atomic { BELIEVES(me) && nests > 0 && frames[me] == 1 ->
		nests--; step[me]++;
		send(ACQUIRE, 2, false, NEST_TTL(me)) };
		goto working
	:: atomic { BELIEVES(me) && frames[me] == 2 ->
		step[me]++;
		send(RELEASE, 1, false, NEST_TTL(me)) };
		goto working
	:: atomic { BELIEVES(me) && renewals > 0 ->
		renewals--;
		send(RENEW, 0, false, TTL_OF(me)) };
		goto working
#if BESIDE > 0
	:: atomic { BELIEVES(me) && owes[me] ->
		step[me]++;
		send(RELEASE, frames[me], false, NEST_TTL(me)) };
		goto working
#endif
#if PASSES > 0
	:: atomic { BELIEVES(me) && frames[me] == 1 && me == 0 && spare > 0 && !doubt -> pass_on() };
		goto inside
#endif
	:: atomic { BELIEVES(me) && frames[me] == 1 ->
		phase[me] = LEAVING; deadline[me] = 0;
		step[me]++;
		send(RELEASE, 0, false, TTL_OF(me)) };
		goto leaving
	fi;

working: /* Inside, with a renewal, a nested entry or its exit under way. */
	if
	:: atomic { ANSWER(OK) && STILL_MINE ->
		if
		:: cmd[me].op != RENEW ->
			frames[me] = cmd[me].target
#if BESIDE > 0
			; owes[me] = false
#endif
		:: else
		fi;
		if
		:: cmd[me].op != RENEW -> MUST(count_is_true, owner != hold[me] || count == frames[me] || TAKEN(hold[me]))
		:: else
		fi;
		t = GOOD_FOR;
		if
		:: cmd[me].ttl < TTL_OF(me) -> t = (t > TTL_OF(me) - cmd[me].ttl -> t - (TTL_OF(me) - cmd[me].ttl) : 0)
		:: else
		fi;
		t = (t > deadline[me] -> t : deadline[me]);
		believe(t);
		t = 0;
		settle() };
		goto inside
	:: atomic { wire[me] == ANSWERED && (answer[me].what == NOT_YOURS || !STILL_MINE) ->
		t = (answer[me].what == NOT_YOURS || WAS_TOLD);
		settle(); lose(t); t = 0 };
		goto begin
	:: atomic { wire[me] == FAILED && !STILL_MINE -> settle(); lose(WAS_TOLD) };
		goto begin
#if BESIDE > 0
	/* A command that hangs holds up nobody. The hold ends: its lease is over, a renewal has found it gone ... */
	:: atomic { wire[me] == SENT && !STILL_MINE && late[me].op == 0 -> make_late(me); settle(); lose(WAS_TOLD) };
		goto begin
	/* ... or the section does; what is left is abandoned. */
	:: atomic { wire[me] == SENT && STILL_MINE && late[me].op == 0 ->
		make_late(me); settle(); abandons[hold[me]] = true; stay_ends() };
		goto begin
#endif
	:: atomic { wire[me] == FAILED && STILL_MINE -> DOUBT(); again() };
		goto working
	:: atomic { wire[me] == FAILED && STILL_MINE && cmd[me].op == RENEW -> settle() };
		goto inside
#if BESIDE > 0
	/* A nested caller gave up, or an exit could not be told: the server is told the count when there is time. */
	:: atomic { wire[me] == FAILED && STILL_MINE && cmd[me].op != RENEW ->
		DOUBT();
		if
		:: cmd[me].op == RELEASE ->
#ifndef BREAK_EXIT_NOT_SETTLED
			owes[me] = true;
#endif
			frames[me] = cmd[me].target
		:: else
#ifndef BREAK_NESTED_NOT_UNDONE
			-> owes[me] = true
#endif
		fi;
		settle() };
		goto inside
#else
	:: atomic { wire[me] == FAILED && STILL_MINE && cmd[me].op == ACQUIRE ->
		/* the nested caller gave up, its entry may have run: set the count back */
		DOUBT(); settle(); step[me]++;
#ifdef BREAK_NESTED_NOT_UNDONE
		goto inside };
#else
		send(RELEASE, 1, false, NEST_TTL(me)) };
#endif
		goto working
#endif
	fi;

leaving:
	if
	:: atomic { wire[me] == ANSWERED ->
		/* sent twice, or beside a late command, it cannot know */
		MUST(loss_is_told, !TAKEN(hold[me]) || answer[me].what == NOT_YOURS || FAULTS + RESTORES > 0);
		settle(); stay_ends() };
		goto begin
	:: atomic { wire[me] == FAILED -> again() };
		goto leaving
#ifndef UNTIMED
	:: atomic { wire[me] == FAILED -> settle(); abandons[hold[me]] = true; stay_ends() };
		goto begin
#endif
	fi;
over:	skip
	} unless { phase[me] == GONE }
}

/* ----------------------------------------------------------- the watchdog */

#if BESIDE > 0
inline no_renewal(i) {
	side[i].state = 0; side[i].hold = 0; side[i].ttl = 0; side[i].stay = 0; side[i].since = 0; side[i].yes = false
}

/* Each answer counts from before its own command was sent. */
#ifdef BREAK_RENEWED_SINCE_LAST_SENT
#define RENEWED_FOR (since_sent[me] > side[me].since -> since_sent[me] : side[me].since)
#else
#define RENEWED_FOR side[me].since
#endif

/* Renewals on a connection of their own, as soon as the client is inside. One takes any time. */
proctype Watchdog(byte me) {
	byte t;
end:	do
	:: atomic { beside > 0 && BELIEVES(me) && side[me].state == 0 ->
		beside--;
#ifdef EXTENDS
		if
		:: side[me].ttl = MARGIN + 1
		:: side[me].ttl = TTL_OF(me) + 1
		fi;
#else
		side[me].ttl = TTL_OF(me);
#endif
		side[me].hold = hold[me]; side[me].stay = stay[me]; side[me].since = SAFE(side[me].ttl);
		side[me].state = SENT;
		printf("client %d: RENEW hold %d beside, for %d\n", me, hold[me], side[me].ttl) }
	:: atomic { side[me].state == SENT ->
		d_step {
			was = owner;
			renew(side[me]);
			MUST(stale_is_harmless, owner == was);
			printf("server: RENEW hold %d -> %e\n", side[me].hold, r_what)
		};
		if
		:: LIVE(me) -> side[me].state = ANSWERED; side[me].yes = (r_what == OK)
		:: !LIVE(me) || faults > 0 -> faults = (LIVE(me) -> faults - 1 : faults); no_renewal(me)
		fi }
	:: atomic { side[me].state == SENT && LIVE(me) && faults > 0 -> faults--; no_renewal(me) }
	:: atomic { side[me].state == SENT && !LIVE(me) -> no_renewal(me) }
	:: atomic { side[me].state == ANSWERED ->
		if
		:: phase[me] == INSIDE &&
#ifndef BREAK_ANSWER_FOR_ANOTHER_STAY
			hold[me] == side[me].hold &&
#endif
			STILL_MINE ->
			if
			:: side[me].yes ->
				t = RENEWED_FOR;
				t = (t > deadline[me] -> t : deadline[me]);
				believe(t);
				t = 0
			:: else -> deadline[me] = 0; told[me] = true
			fi
		:: else         /* the hold has ended, or is leaving */
		fi;
		no_renewal(me) }
	od
}
#endif

/* -------------------------------------------------------------- the judge */

/* Nothing can happen any more, not even a tick. */
proctype Judge() {
	byte i;
end:	atomic {
	timeout ->
	do
	:: i == CLIENTS -> break
	:: else -> MUST(no_lost_wakeup, phase[i] == FINISHED || phase[i] == GONE); i++
	od;
	MUST(no_hold_left, owner == NONE);
#ifdef UNTIMED
	/* Without leases: nor is anything left for a key's TTL to sweep. */
	d_step { first_waiter(); MUST(no_hold_left, head == NONE) }
#endif
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
#if BESIDE > 0
		run Watchdog(0); run Watchdog(1);
#endif
		run Judge()
	}
}
