------------------------------- MODULE Lease -------------------------------
(* The state machine of one lock: S(L) = (holder, count), with a lease and a fencing token.   *)
(* A client may sleep at any step. A command may run twice, or long after its client has      *)
(* forgotten it, and a reply or a message may be lost.                                        *)
EXTENDS Naturals, Sequences, TLC

CONSTANTS
  Clients,
  TTL, Margin, \* in ticks; the clock of a client misses at most one tick in a hold
  Holds,       \* the number of holds in a run; a hold is a number that is never used again
  Faults,      \* the number of accidents in a run, crashes among them
  Accidents,   \* of commands, see Send
  Mutant       \* the rule that is taken away; "none" is the protocol as it is

VARIABLES
  owner, count, lease, queue,       \* the store: the hold that has the lock, its entries, the rest of its lease
  token, written, highest,          \* the last token; at the resource the token of the last write, and the largest
  late, last, faults,               \* commands that may run yet; the last hold; accidents so far
  state, hold, depth, mine,         \* a client: what it does, for which hold, its open entries, its token
  cur, answer, age, left, slow      \* its command, the reply, ticks since it was sent, ticks to the deadline

store    == <<owner, count, lease, queue>>
resource == <<written, highest>>
client   == <<state, hold, depth, mine, cur, answer, age, left, slow>>
vars     == <<store, token, resource, late, last, faults, client>>

Nobody     == 0
None       == <<"none", Nobody, 0>> \* a command is its verb, its hold, and the count
Max(a, b)  == IF a > b THEN a ELSE b
Less(a, b) == IF a > b THEN a - b ELSE 0
All(value) == [p \in Clients |-> value]

Init ==
  /\ owner = Nobody /\ count = 0 /\ lease = 0 /\ queue = <<>> /\ token = 0 /\ written = 0 /\ highest = 0
  /\ late = {} /\ last = 0 /\ faults = 0 /\ state = All("idle") /\ hold = All(Nobody) /\ depth = All(0)
  /\ mine = All(0) /\ cur = All(None) /\ answer = All("none") /\ age = All(0) /\ left = All(0) /\ slow = All(FALSE)

---------------------------------------------------------------------------- \* The store
Grant(q) == IF q = <<>> THEN owner' = Nobody /\ count' = 0 /\ lease' = 0 /\ queue' = q
            ELSE owner' = Head(q) /\ count' = 1 /\ lease' = TTL /\ queue' = Tail(q)

Acquire(h) == LET q == IF h = owner \/ (\E i \in DOMAIN queue : queue[i] = h) THEN queue ELSE Append(queue, h)
              IN IF owner = Nobody THEN Grant(q) ELSE queue' = q /\ UNCHANGED <<owner, count, lease>>
Renew(h, c) == IF owner = h THEN count' = c /\ lease' = TTL /\ UNCHANGED <<owner, queue>> ELSE UNCHANGED store
Release(h) == IF owner = h \/ Mutant = "release unchecked" THEN Grant(queue) ELSE UNCHANGED store

Execute(cmd) == CASE cmd[1] = "acquire" -> Acquire(cmd[2])
                  [] cmd[1] = "renew"   -> Renew(cmd[2], cmd[3])
                  [] cmd[1] = "release" -> Release(cmd[2])

\* A refused acquire is not answered: its hold is in the queue, and a message tells of the grant.
Reply(cmd) == IF cmd[1] = "acquire" THEN IF owner' = cmd[2] THEN "ok" ELSE "none"
              ELSE IF owner = cmd[2] THEN "ok" ELSE "gone"
Messages == [p \in Clients |-> IF owner' # owner /\ cur[p] = <<"acquire", owner', 1>> THEN "ok" ELSE answer[p]]
RunsLate(cmd) == /\ cmd \in late /\ late' = late \ {cmd} /\ Execute(cmd) /\ answer' = Messages
                 /\ UNCHANGED <<token, resource, last, faults, state, hold, depth, mine, cur, age, left, slow>>

---------------------------------------------------------------------------- \* A client
Send(p, cmd, since) == \E accident \in Accidents \cup {"none"} :
  /\ faults' = faults + (IF accident = "none" THEN 0 ELSE 1) /\ faults' <= Faults
  /\ late' = IF accident \in {"runs again", "runs late"} THEN late \cup {cmd} ELSE late
  /\ IF accident = "runs late" THEN UNCHANGED store ELSE Execute(cmd)
  /\ cur' = [cur EXCEPT ![p] = cmd] /\ age' = [age EXCEPT ![p] = since]
  /\ answer' = [(IF accident = "nobody hears" THEN answer ELSE Messages) EXCEPT
                 ![p] = IF accident \in {"none", "runs again"} THEN Reply(cmd) ELSE "none"]

Done(p) == /\ cur' = [cur EXCEPT ![p] = None] /\ answer' = [answer EXCEPT ![p] = "none"]
           /\ age' = [age EXCEPT ![p] = 0] /\ UNCHANGED <<store, late, faults>>

Ask(p) == /\ state[p] = "idle" /\ last < Holds /\ last' = last + 1
          /\ hold' = [hold EXCEPT ![p] = last'] /\ mine' = [mine EXCEPT ![p] = 0]
          /\ state' = [state EXCEPT ![p] = "asking"] /\ Send(p, <<"acquire", last', 1>>, 0)
          /\ UNCHANGED <<token, resource, depth, left, slow>>

Repeat(p) == /\ cur[p] # None /\ answer[p] = "none" /\ Send(p, cur[p], age[p])
             /\ UNCHANGED <<token, resource, last, state, hold, depth, mine, left, slow>>

Believes(p) == state[p] = "in" /\ left[p] > 0
Deadline(p) == Less(TTL - Margin, IF Mutant = "deadline from the reply" THEN 0 ELSE age[p])

Enters(p) ==  \* A lease that is over by now is renewed before the section begins.
  /\ state[p] = "asking" /\ answer[p] = "ok"
  /\ IF Deadline(p) > 0
     THEN /\ state' = [state EXCEPT ![p] = "in"] /\ depth' = [depth EXCEPT ![p] = 1]
          /\ left' = [left EXCEPT ![p] = Deadline(p)] /\ Done(p)
     ELSE Send(p, <<"renew", hold[p], 1>>, 0) /\ UNCHANGED <<state, depth, left>>
  /\ UNCHANGED <<token, resource, last, hold, mine, slow>>

Works(p, d) ==  \* A renewal, a nested entry or an inner exit: each sets the count and the lease.
  /\ Believes(p) /\ cur[p] = None /\ d \in 1..2
  /\ depth' = [depth EXCEPT ![p] = d] /\ Send(p, <<"renew", hold[p], d>>, 0)
  /\ UNCHANGED <<token, resource, last, state, hold, mine, left, slow>>

Renewed(p) == /\ Believes(p) /\ answer[p] = "ok" /\ left' = [left EXCEPT ![p] = Max(left[p], Deadline(p))]
              /\ Done(p) /\ UNCHANGED <<token, resource, last, state, hold, depth, mine, slow>>

Leave(p) ==  \* The last exit: the section ends before the command is sent.
  /\ Believes(p) /\ cur[p] = None /\ depth[p] = 1 /\ state' = [state EXCEPT ![p] = "leaving"]
  /\ left' = [left EXCEPT ![p] = 0] /\ depth' = [depth EXCEPT ![p] = 0] /\ Send(p, <<"release", hold[p], 0>>, 0)
  /\ UNCHANGED <<token, resource, last, hold, mine, slow>>

Stops(p, next) == /\ state' = [state EXCEPT ![p] = next] /\ hold' = [hold EXCEPT ![p] = Nobody]
                  /\ left' = [left EXCEPT ![p] = 0] /\ depth' = [depth EXCEPT ![p] = 0]
                  /\ slow' = [slow EXCEPT ![p] = FALSE] /\ UNCHANGED <<token, resource, last, mine>>

Ends(p) == /\ \/ state[p] = "leaving" /\ answer[p] # "none"        \* left
              \/ state[p] = "in" /\ left[p] = 0                    \* lost at the deadline
              \/ state[p] \in {"asking", "in"} /\ answer[p] = "gone"
           /\ Stops(p, "idle") /\ Done(p)

Crashes(p) == /\ state[p] \in {"asking", "in", "leaving"} /\ faults < Faults /\ faults' = faults + 1
              /\ Stops(p, "dead") /\ cur' = [cur EXCEPT ![p] = None]
              /\ answer' = [answer EXCEPT ![p] = "none"] /\ age' = [age EXCEPT ![p] = 0] /\ UNCHANGED <<store, late>>

Draws(p) == /\ Believes(p) /\ mine[p] = 0 /\ owner = hold[p] /\ token' = token + 1 /\ mine' = [mine EXCEPT ![p] = token']
            /\ UNCHANGED <<store, resource, late, last, faults, state, hold, depth, cur, answer, age, left, slow>>

Writes(p) ==  \* also behind the end of the hold: the process slept before it wrote
  /\ mine[p] > 0 /\ (mine[p] >= highest \/ Mutant = "token not compared")
  /\ written' = mine[p] /\ highest' = Max(highest, mine[p])
  /\ UNCHANGED <<store, token, late, last, faults, client>>

Tick == /\ lease' = Less(lease, 1) /\ UNCHANGED queue
        /\ IF lease <= 1 THEN owner' = Nobody /\ count' = 0 ELSE UNCHANGED <<owner, count>>
        /\ \E s \in SUBSET {p \in Clients : ~slow[p] /\ (left[p] > 0 \/ cur[p] # None)} :
             /\ left' = [p \in Clients |-> IF p \in s THEN left[p] ELSE Less(left[p], 1)]
             /\ age' = [p \in Clients |-> IF p \in s \/ cur[p] = None \/ age[p] = TTL THEN age[p] ELSE age[p] + 1]
             /\ slow' = [p \in Clients |-> slow[p] \/ p \in s]
        /\ UNCHANGED <<token, resource, late, last, faults, state, hold, depth, mine, cur, answer>>

----------------------------------------------------------------------------
Steps(p) == Repeat(p) \/ Enters(p) \/ Renewed(p) \/ Ends(p)
Next == \/ Tick \/ \E cmd \in late : RunsLate(cmd)
        \/ \E p \in Clients : \/ Ask(p) \/ Steps(p) \/ Leave(p) \/ Draws(p) \/ Writes(p) \/ Crashes(p)
                              \/ \E d \in {depth[p] - 1, depth[p], depth[p] + 1} : Works(p, d)

\* A client is not too slow for ever, and leaves what it has entered.
Spec == /\ Init /\ [][Next]_vars /\ WF_vars(Tick)
        /\ \A p \in Clients : /\ WF_vars(Steps(p)) /\ SF_vars(Enters(p) /\ Deadline(p) > 0)
                              /\ SF_vars(Works(p, depth[p] - 1)) /\ SF_vars(Leave(p))

Alike              == Permutations(Clients)
MutualExclusion    == \A p, q \in Clients : Believes(p) /\ Believes(q) => p = q
LeaseCovers        == \A p \in Clients : Believes(p) => owner = hold[p] /\ lease >= left[p]
CountIsZeroIffFree == (count = 0) <=> (owner = Nobody)
NoStaleWrite       == written = highest
TokenGrows         == [][token' >= token /\ \A p \in Clients : mine'[p] # mine[p] => mine'[p] \in {0, token + 1}]_vars
WaiterEnters       == \A p \in Clients : state[p] = "asking" ~> state[p] # "asking"
=============================================================================
