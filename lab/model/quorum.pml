/*
 * relock: a model of locks over several independent stores in Promela, for spin.
 *
 * One lock, three members, a few clients. Each client takes one hold. The client asks all members
 * at once, is in with a majority, renews, draws tokens, gives the hold again to members that do not
 * have the hold, leaves, and takes back whatever its claims may have left.
 *
 * A member is a store with one lock: relock.pml has a member in detail. So a command at one member
 * and its reply are one step here, and a member has no queue. A member that is down, or cannot be
 * reached, is one at which no step happens for a while.
 *
 * Read from top to bottom: sizes, promises, state, members, client, accidents, time, judge.
 *
 * -DBREAK_<rule> takes one rule away. The model must fail then.
 */

/* ------------------------------------------------------------------ sizes */

#ifndef CLIENTS
#define CLIENTS 2
#endif
#define MEMBERS  3
#define MAJORITY 2

/* The lease in ticks. With UNTIMED no lease ends. */
#ifndef TTL
#define TTL 2
#endif

/* Budgets: how often each accident or action may happen in one run, at any time. */
#ifndef FAULTS                  /* replies to a claim, and acquires in flight, that are lost */
#define FAULTS 0
#endif
#ifndef RESTARTS                /* members that come back without their data */
#define RESTARTS 0
#endif
#ifndef FORCES                  /* force unlocks of an operator */
#define FORCES 0
#endif
#ifndef MISSES                  /* members that a force unlock does not reach */
#define MISSES 0
#endif
#ifndef RENEWALS                /* renewals; without time as many as needed */
#define RENEWALS 0
#endif
#ifndef AHEAD                   /* the last token of one member at the beginning; the others have 0 */
#define AHEAD 0
#endif
#ifndef DRAWS                   /* tokens that holders draw */
#define DRAWS 0
#endif

#define NONE         0
#define HOLD         (me + 1)
#define OF(i, m)     ((i) * MEMBERS + (m))
#define AT(m)        OF(me, m)

/* --------------------------------------------------------------- promises */

#define ID_mutual_exclusion     1       /* never two believers */
#define ID_lease_covers_belief  2       /* while a client believes, a majority refuses everybody else */
#define ID_token_grows          3       /* a token is larger than all that were returned before */
#define ID_break_is_final       4       /* a hold that all members lose by force does not come back */
#define ID_hold_is_kept         5       /* one member after the other may fail, and the hold stays */
#define ID_nothing_left         6       /* without the end of any lease, all members end free */

#define ID_missed_break_is_final 7      /* NOT promised: the same if the force unlock misses a member */
#define ID_any_break_is_final   8       /* NOT promised: the same if a member does not have the hold */

hidden byte mutual_exclusion, lease_covers_belief, token_grows, break_is_final, hold_is_kept;
hidden byte nothing_left, missed_break_is_final, any_break_is_final;

#ifndef ONLY
#define ONLY 0
#endif
#ifndef PROMISED                /* the promises below this number are kept */
#define PROMISED ID_missed_break_is_final
#endif
#define LOOKED_AT(id)           (ONLY == id || ONLY == 0 && id < PROMISED)
#define MUST(promise, holds)    promise = (!LOOKED_AT(ID_##promise) || (holds)); assert(promise)

/* ------------------------------------------------------------------ state */

mtype = { ASKS, INSIDE, LEAVES, FINISHED };             /* a client */
mtype = { NOTHING, RENEWS, DRAWS_ONCE, DRAWS_AGAIN };   /* the round of a client that is inside */

/* The members. */
byte owner[MEMBERS] = NONE;
byte lease[MEMBERS];            /* ticks until the owner is out */
byte fresh[MEMBERS];            /* ticks for which a member that has restarted gives no lock */
byte token[MEMBERS];            /* the last token */
#ifdef REMEMBERS
bool marked[MEMBERS];           /* the member was told to free the hold that is broken */
#endif

/* The clients. */
mtype phase[CLIENTS] = ASKS;
byte deadline[CLIENTS];         /* inside: ticks for which the client believes */
mtype round[CLIENTS] = NOTHING;
byte floor[CLIENTS];            /* of the second round of a draw */
bool asked[CLIENTS * MEMBERS];  /* inside: the member has answered in this round ... */
bool given[CLIENTS * MEMBERS];  /* ... and has the hold; before: the member has given the lock */
byte rest[CLIENTS * MEMBERS];   /* while the client asks: ticks of the lease that the member gave */
byte drawn[CLIENTS * MEMBERS];  /* while the client draws: the token of the member */
bool planned[CLIENTS * MEMBERS];        /* the member gets the hold again, after a tick */
#ifdef BREAK_NO_FILL
bool known[CLIENTS * MEMBERS];  /* the member is known not to have the hold */
#endif
bool late[CLIENTS * MEMBERS];   /* an acquire is in flight, behind the call that sent it */

/* The operator. */
byte seized = NONE;             /* the hold that a force unlock is about to take the lock from */
bool visited[MEMBERS];
byte freed, lost;               /* members that had that hold, and that did not */

byte faults = FAULTS, restarts = RESTARTS, forces = FORCES, misses = MISSES, draws = DRAWS;
byte renewals = RENEWALS;

/* Ghosts, no part of the protocol. */
byte forced = NONE;             /* a force unlock of this hold has begun ... */
bool whole;                     /* ... at members that all had the hold, with nothing in flight ... */
bool broken;                    /* ... and has ended well */
byte newest;                    /* the largest token that was returned */
byte above[CLIENTS];            /* the same, when the call under way began */

/* Scratch, no part of the state. A d_step must not end with a loop: hence a skip behind loops. */
hidden byte i, j, n, best;
hidden byte v[MEMBERS];

/* Without time, the delay of a member that has restarted does not outlast the leases. */
#ifdef UNTIMED
#define NO_DELAY (RESTARTS > 0)
#else
#define NO_DELAY false
#endif
#define BELIEVES(c) (phase[c] == INSIDE && deadline[c] > 0 && forced != (c) + 1)

/* ---------------------------------------------------------------- members */

#define FREE(m)     (owner[m] == NONE && fresh[m] == 0)
#ifdef REMEMBERS                /* not in the code: a member refuses a hold that was broken there */
#define GIVES(m, h) (FREE(m) && !(marked[m] && forced == h))
#else
#define GIVES(m, h) FREE(m)
#endif

/* After a break that has ended well, the hold never has a majority. */
inline broken_is_broken(h) {
	n = (owner[0] == h) + (owner[1] == h) + (owner[2] == h);
	if
	:: broken && forced == h && n >= MAJORITY ->
		printf("-- hold %d has a majority again --\n", h);
		MUST(break_is_final, !whole || misses < MISSES);
		MUST(missed_break_is_final, !whole || misses == MISSES);
		MUST(any_break_is_final, whole || misses < MISSES)
	:: else
	fi
}

/* The hold gets the lock of a member that is free. */
inline take(m) {
	owner[m] = HOLD; lease[m] = TTL;
	printf("member %d: hold %d has the lock\n", m, HOLD);
	broken_is_broken(HOLD)
}

/* Frees the lock of a hold, and of no other hold. */
inline free(m, h) {
	if
	:: owner[m] == h ->
		owner[m] = NONE; lease[m] = 0;
		printf("member %d: the lock is free\n", m)
	:: else
	fi
}

/* A member that refuses everybody else for as long as a client believes. */
#define REFUSES(m, c) (owner[m] == (c) + 1 && lease[m] >= deadline[c] || fresh[m] >= deadline[c])

inline covered() {
	i = 0;
	do
	:: i == CLIENTS -> break
	:: else ->
		MUST(lease_covers_belief,
		     NO_DELAY || !BELIEVES(i) || REFUSES(0, i) + REFUSES(1, i) + REFUSES(2, i) >= MAJORITY);
		i++
	od;
	skip
}

/* ----------------------------------------------------------------- client */

/* best: the k-th largest of the values of the members. */
#define VALUES(of) v[0] = of[AT(0)]; v[1] = of[AT(1)]; v[2] = of[AT(2)]
inline kth(k_) {
	best = 0; j = 0;
	do
	:: j == MEMBERS -> break
	:: else ->
		n = (v[0] >= v[j]) + (v[1] >= v[j]) + (v[2] >= v[j]);
		best = (n >= k_ && v[j] > best -> v[j] : best);
		j++
	od;
	skip
}

#define GIVEN   (given[AT(0)] + given[AT(1)] + given[AT(2)])
#define ASKED   (asked[AT(0)] + asked[AT(1)] + asked[AT(2)])
#define GONE    (ASKED - GIVEN)

inline new_round(r) {
	round[me] = r;
	j = 0;
	do
	:: j == MEMBERS -> break
	:: else -> asked[AT(j)] = false; given[AT(j)] = false; rest[AT(j)] = 0; drawn[AT(j)] = 0; j++
	od;
	skip
}

inline alone() {
	j = 0;
	do
	:: j == CLIENTS -> break
	:: else -> MUST(mutual_exclusion, j == me || NO_DELAY || !BELIEVES(j) || !BELIEVES(me)); j++
	od;
	skip
}

/*
 * A claim. All claims are in flight from the beginning. A member that is not free keeps the ask
 * waiting; a claim that the client does not wait for any more is late. The members are alike, so they
 * have their numbers from the order in which client 0 has their answers.
 */
#define NEXT(m) (me != 0 || (m == 0 || given[me * MEMBERS + m - 1]))
inline ask(m) {
	d_step { phase[me] == ASKS && !given[AT(m)] && NEXT(m) && (FREE(m) || owner[m] == HOLD) ->
		printf("client %d: asks member %d\n", me, m);
		if
		:: owner[m] == HOLD     /* an earlier reply was lost, and this one tells the rest */
		:: else -> take(m)
		fi;
		given[AT(m)] = true; rest[AT(m)] = lease[m] }
}

inline ask_unheard(m) {
	d_step { faults > 0 && phase[me] == ASKS && !given[AT(m)] && FREE(m) ->
		faults--;
		printf("client %d: asks member %d, and the reply is lost\n", me, m);
		take(m) }
}

/* A claim, or a fill, that runs behind its call. Cleanup knows that its effect may come late. */
inline run_late(m) {
	d_step { late[AT(m)] ->
		late[AT(m)] = false;
		printf("late: the acquire of hold %d runs at member %d\n", HOLD, m);
		if
#ifdef BREAK_FILL_OVERWRITES
		:: owner[m] != HOLD && fresh[m] == 0 -> take(m)
#else
		:: GIVES(m, HOLD) -> take(m)
#endif
		:: else
		fi }
}

inline lose_late(m) {
	d_step { faults > 0 && late[AT(m)] ->
		faults--; late[AT(m)] = false;
		printf("late: the acquire of hold %d is lost on the way to member %d\n", HOLD, m) }
}

#ifdef BREAK_MINORITY_IN
#define ENOUGH 1
#else
#define ENOUGH MAJORITY
#endif

/* Asks without an answer go on behind the call. */
inline asks_end() {
	j = 0;
	do
	:: j == MEMBERS -> break
	:: else -> late[AT(j)] = !given[AT(j)]; j++
	od;
	skip
}

/* The deadline is the end of the k-th longest lease: until then k members refuse everybody else. */
inline enter() {
	d_step { phase[me] == ASKS && GIVEN >= ENOUGH ->
#if defined(BREAK_DEADLINE_OF_THE_LONGEST) || defined(BREAK_MINORITY_IN)
		VALUES(rest); kth(1);
#else
		VALUES(rest); kth(MAJORITY);
#endif
		deadline[me] = best; phase[me] = INSIDE;
		printf("client %d: is in, for %d ticks\n", me, best);
		asks_end(); new_round(NOTHING);
		alone(); covered() }
}

/* Ends a hold: what is planned is cancelled, and the client takes back whatever may be left. */
inline end_hold() {
	new_round(NOTHING);
	deadline[me] = 0; floor[me] = 0; above[me] = 0;
#ifndef BREAK_FILL_AFTER_THE_END
	planned[AT(0)] = false; planned[AT(1)] = false; planned[AT(2)] = false;
#endif
	phase[me] = LEAVES
}

/* A client that has no majority gives up at any time. */
inline give_up() {
	d_step { phase[me] == ASKS ->
		printf("client %d: gives up\n", me);
		asks_end(); end_hold();
#ifdef BREAK_MINORITY_IS_KEPT
		phase[me] = FINISHED
#endif
	}
}

#ifdef STAYS                    /* client 0 does not leave */
#define MAY_LEAVE (me != 0)
#else
#define MAY_LEAVE true
#endif

inline leave() {
	d_step { phase[me] == INSIDE && MAY_LEAVE -> printf("client %d: leaves\n", me); end_hold() }
}

/* A deadline that has passed stays passed. */
inline notice() {
	d_step { phase[me] == INSIDE && deadline[me] == 0 ->
		printf("client %d: its deadline has passed\n", me); end_hold() }
}

/*
 * The release and the cleanup, until each member has confirmed, and again while an acquire may run
 * late. The model leaves out what changes nothing.
 */
inline forget(m) {
	d_step { phase[me] == LEAVES && owner[m] == HOLD ->
		printf("client %d: forgets hold %d at member %d\n", me, HOLD, m);
		free(m, HOLD); covered() }
}

#define EXPECTED_OF(c, m) (late[OF(c, m)] || planned[OF(c, m)])
#define EXPECTED(m) EXPECTED_OF(me, m)
#ifdef BREAK_LATE_ACQUIRE_STAYS
#define CLEAN(m) (owner[m] != HOLD)
#elif defined(BREAK_FILL_AFTER_THE_END)
#define CLEAN(m) (owner[m] != HOLD && !late[AT(m)])
#else
#define CLEAN(m) (owner[m] != HOLD && !EXPECTED(m))
#endif

inline finish() {
	d_step { phase[me] == LEAVES && CLEAN(0) && CLEAN(1) && CLEAN(2) -> phase[me] = FINISHED }
}

/* --------------------------------------------------------------- renewal */

#ifdef BREAK_NO_FILL            /* a second renewal changes nothing */
#define MISSING(m) (owner[m] != HOLD && !EXPECTED(m) && !known[AT(m)])
#else
#define MISSING(m) (owner[m] != HOLD && !EXPECTED(m))
#endif

/* Without time, the model leaves out renewals that change nothing. */
#ifdef UNTIMED
#define RENEWS_NOW (MISSING(0) || MISSING(1) || MISSING(2))
#else
#define RENEWS_NOW (deadline[me] > 0 && renewals > 0)
#endif

inline begin_renewal() {
	d_step { phase[me] == INSIDE && round[me] == NOTHING && RENEWS_NOW ->
		printf("client %d: renews\n", me);
		renewals = (renewals > 0 -> renewals - 1 : 0);
		new_round(RENEWS) }
}

inline renew(m) {
	d_step { round[me] == RENEWS && !asked[AT(m)] ->
		asked[AT(m)] = true;
		if
		:: owner[m] == HOLD ->
			lease[m] = TTL; given[AT(m)] = true;
			printf("member %d: renews hold %d\n", m, HOLD)
		:: else -> printf("member %d: does not have hold %d\n", m, HOLD)
		fi }
}

/*
 * Members that do not have the hold get the hold again, if a majority has confirmed. A force unlock
 * takes less than a tick, and a fill waits for a tick.
 */
inline plan() {
	j = 0;
	do
	:: j == MEMBERS -> break
	:: else ->
#if defined(BREAK_FILL_AT_ONCE)
		late[AT(j)] = late[AT(j)] || asked[AT(j)] && !given[AT(j)];
#elif defined(BREAK_NO_FILL)
		known[AT(j)] = known[AT(j)] || asked[AT(j)] && !given[AT(j)];
#else
		planned[AT(j)] = planned[AT(j)] || asked[AT(j)] && !given[AT(j)];
#endif
		j++
	od;
	skip
}

#ifdef BREAK_RENEWED_BY_ONE
#define CONFIRMED 1
#else
#define CONFIRMED MAJORITY
#endif
/* A round may also end without a verdict, as members cannot be reached. A tick ends a renewal. */
inline end_renewal() {
	d_step { round[me] == RENEWS && GIVEN >= CONFIRMED ->
		deadline[me] = (deadline[me] > 0 -> TTL : 0);
		printf("client %d: has renewed\n", me);
		plan(); new_round(NOTHING);
		alone(); covered() }
}

inline lose() {
	d_step { round[me] == RENEWS && GONE >= MAJORITY ->
		printf("client %d: has lost hold %d\n", me, HOLD);
#ifdef ONE_BY_ONE
		MUST(hold_is_kept, false);
#endif
#ifdef BREAK_FILL_WITHOUT_MAJORITY
		plan(); new_round(NOTHING)
#else
		end_hold();
#endif
#ifdef BREAK_MINORITY_IS_NOT_ABANDONED
		phase[me] = FINISHED
#endif
	}
}

inline no_verdict() {
	d_step { round[me] == RENEWS && GONE < MAJORITY && GIVEN < CONFIRMED -> new_round(NOTHING) }
}

/* ----------------------------------------------------------------- tokens */

/*
 * Two rounds, each with a majority. The largest token of the first round is the floor of the second.
 * There is no clock here: a token is one above the last token or above the floor, as if the clocks
 * of all members stood still.
 */
inline begin_draw() {
	d_step { draws > 0 && phase[me] == INSIDE && round[me] == NOTHING ->
		draws--; above[me] = newest; floor[me] = 0;
		printf("client %d: draws a token\n", me);
#ifdef BREAK_TOKEN_OF_ONE_ROUND
		new_round(DRAWS_AGAIN)
#else
		new_round(DRAWS_ONCE)
#endif
	}
}

inline draw(m) {
	d_step { (round[me] == DRAWS_ONCE || round[me] == DRAWS_AGAIN) && !asked[AT(m)] ->
		asked[AT(m)] = true;
		if
		:: owner[m] == HOLD ->
			token[m] = (token[m] > floor[me] -> token[m] : floor[me]) + 1;
			drawn[AT(m)] = token[m]; given[AT(m)] = true;
			printf("member %d: gives token %d to hold %d\n", m, token[m], HOLD)
		:: else
		fi }
}

#ifdef BREAK_TOKEN_OF_ONE_MEMBER
#define DRAWN 1
#else
#define DRAWN MAJORITY
#endif

inline second_round() {
	d_step { round[me] == DRAWS_ONCE && GIVEN >= DRAWN ->
		VALUES(drawn); kth(1);
#ifndef BREAK_TOKEN_WITHOUT_FLOOR
		floor[me] = best;
#endif
		new_round(DRAWS_AGAIN) }
}

inline end_draw() {
	d_step { round[me] == DRAWS_AGAIN && GIVEN >= DRAWN ->
#ifdef BREAK_TOKEN_IS_THE_LARGEST
		VALUES(drawn); kth(1);
#else
		VALUES(drawn); kth(DRAWN);
#endif
		printf("client %d: has token %d\n", me, best);
		MUST(token_grows, best > above[me]);
		newest = (best > newest -> best : newest);
		floor[me] = 0; above[me] = 0; new_round(NOTHING) }
}

inline draw_fails() {
	d_step { (round[me] == DRAWS_ONCE || round[me] == DRAWS_AGAIN) && GONE >= MAJORITY ->
		floor[me] = 0; above[me] = 0; new_round(NOTHING) }
}

proctype Client(byte me) {
end:	do
	:: ask(0) :: ask(1) :: ask(2)
	:: ask_unheard(0) :: ask_unheard(1) :: ask_unheard(2)
	:: enter()
	:: give_up()
	:: begin_renewal()
	:: renew(0) :: renew(1) :: renew(2)
	:: end_renewal()
	:: lose()
	:: no_verdict()
	:: begin_draw()
	:: draw(0) :: draw(1) :: draw(2)
	:: second_round()
	:: end_draw()
	:: draw_fails()
	:: notice()
	:: leave()
	:: forget(0) :: forget(1) :: forget(2)
	:: run_late(0) :: run_late(1) :: run_late(2)
	:: lose_late(0) :: lose_late(1) :: lose_late(2)
	:: finish()
	od
}

/* -------------------------------------------------------------- accidents */

/* A member comes back empty, and gives no lock until all leases that it has forgotten are over. */
inline restart(m) {
	restarts--;
	owner[m] = NONE; lease[m] = 0;
#ifdef TOKENS_ARE_LOST
	token[m] = 0;
#endif
#if defined(BREAK_DELAY_BELOW_THE_TTL)
	fresh[m] = TTL - 1;
#elif !defined(BREAK_NO_RESTART_DELAY)
	fresh[m] = TTL;
#endif
	printf("-- member %d restarts without its data --\n", m);
	covered()
}

/* With ONE_BY_ONE a member restarts when nothing else can happen: the last failure is mended. */
#ifdef ONE_BY_ONE
#define MAY_RESTART (timeout && restarts > 0 && phase[0] == INSIDE)
#else
#define MAY_RESTART (restarts > 0)
#endif

proctype Fate() {
end:	do
	:: atomic { MAY_RESTART -> d_step { restart(0) } }
	:: atomic { MAY_RESTART -> d_step { restart(1) } }
	:: atomic { MAY_RESTART -> d_step { restart(2) } }
	od
}

/* A force unlock frees the hold of client 0 at one member after the other. */
inline visit(m) {
	d_step { seized != NONE && !visited[m] ->
		visited[m] = true;
		printf("operator: frees hold %d at member %d\n", seized, m);
#ifdef REMEMBERS
		marked[m] = true;
#endif
		freed = freed + (owner[m] == seized); lost = lost + (owner[m] != seized);
		free(m, seized) }
}

inline miss(m) {
	d_step { misses > 0 && seized != NONE && !visited[m] ->
		misses--; visited[m] = true;
		printf("operator: does not reach member %d\n", m) }
}

#define HAS(m) (owner[m] == 1 && !EXPECTED_OF(0, m))
#define WHOLE  (HAS(0) && HAS(1) && HAS(2))

proctype Operator() {
end:	do
	:: d_step { forces > 0 && seized == NONE && phase[0] == INSIDE ->
		forces--; seized = 1; forced = 1;
		whole = (WHOLE && round[0] == NOTHING);
		printf("operator: begins to free hold %d\n", seized) }
	:: visit(0) :: visit(1) :: visit(2)
	:: miss(0) :: miss(1) :: miss(2)
	:: d_step { seized != NONE && visited[0] && visited[1] && visited[2] ->
		broken = (freed > 0 && lost < MAJORITY && freed + lost >= MAJORITY);
		printf("operator: has freed hold %d at %d members\n", seized, freed);
		broken_is_broken(seized);
		seized = NONE; freed = 0; lost = 0;
		visited[0] = false; visited[1] = false; visited[2] = false }
	od
}

/* ------------------------------------------------------------------- time */

#define LESS(ticks) ticks = (ticks > 0 -> ticks - 1 : 0)

/* A tick lowers all leases and countdowns at once. */
inline tick() {
	i = 0;
	do
	:: i == MEMBERS -> break
	:: else ->
#ifndef UNTIMED
		LESS(lease[i]);
		owner[i] = (lease[i] == 0 -> NONE : owner[i]);
#endif
		LESS(fresh[i]);
		i++
	od;
	i = 0;
	do
	:: i == CLIENTS * MEMBERS -> break
	:: else ->
#ifndef UNTIMED
		LESS(rest[i]);
#endif
		late[i] = late[i] || planned[i]; planned[i] = false;
		i++
	od;
#ifndef UNTIMED
	i = 0;
	do
	:: i == CLIENTS -> break
	:: else -> LESS(deadline[i]); i++
	od;
#endif
	covered()
}

/* Without time, a tick ends what waits: a fill, or the delay of a member that has restarted. */
#ifdef UNTIMED
#define PLANNED(c) (planned[OF(c, 0)] || planned[OF(c, 1)] || planned[OF(c, 2)])
#define DELAYED    (fresh[0] + fresh[1] + fresh[2] > 0)
#define TICKS      (DELAYED || PLANNED(0) || PLANNED(1) || PLANNED(CLIENTS - 1))
#else
#define TICKS      true
#endif

/*
 * A force unlock takes less than a tick, and so does a renewal: one that takes longer counts as one
 * without a verdict. Whoever asks gives up before its first lease ends.
 */
#define LASTS(c, m) (!given[OF(c, m)] || rest[OF(c, m)] > 1)
#define GOES_ON(c) (phase[c] != ASKS || LASTS(c, 0) && LASTS(c, 1) && LASTS(c, 2))
#define IN_TIME(c) (round[c] != RENEWS && GOES_ON(c))

proctype Time() {
end:	do
	:: d_step { TICKS && seized == NONE && IN_TIME(0) && IN_TIME(1) && IN_TIME(CLIENTS - 1) ->
		printf("-- tick --\n"); tick() }
	od
}

/* ------------------------------------------------------------------ judge */

/* Nothing can happen any more, not even a tick. */
#if defined(UNTIMED) && !defined(STAYS)
proctype Judge() {
end:	atomic { timeout -> d_step {
	MUST(nothing_left, owner[0] == NONE && owner[1] == NONE && owner[2] == NONE) } }
}
#endif

init {
	atomic {
#if AHEAD > 0
		if
		:: token[0] = AHEAD
		:: token[1] = AHEAD
		:: token[2] = AHEAD
		fi;
#endif
		run Client(0); run Client(1);
#if CLIENTS > 2
		run Client(2);
#endif
#if RESTARTS > 0
		run Fate();
#endif
#if FORCES > 0
		run Operator();
#endif
		run Time();
#if defined(UNTIMED) && !defined(STAYS)
		run Judge()
#endif
	}
}
