------------------------------- MODULE Fence -------------------------------
(* Writers that come late, and a target that is set back: what the target's own record has to refuse.

   THE CHECKPOINT holds plans, each created once (create-if-absent): the plan of log epoch e is the same for every driver. It
   also gives each driver a number of its own, always greater. Drivers and executors may freeze and wake at any time: nothing
   of a driver is ever certain to be dead. So a task that was ever started may write later, and more than once.

   THE TARGET holds the copy, the ledger (splits written; parts written of the log epoch in progress) and the fence (owner; the last log
   epoch done). Each task writes its part in one transaction, with its entry in the ledger; what the ledger holds is skipped. A
   driver that takes over first puts its number into the fence. The transaction compares, before it writes:
     - the owner is the task's driver, no other;
     - the log epoch is the next one after the last one done;
     - the ledger holds the splits that this log epoch backfills.
   The driver ends a log epoch in a transaction of its own, which sees that the ledger holds all parts, whatever tasks said.
   The ledger forgets the parts of an epoch that is done. It forgets a split when a new owner takes over, and not before: a late task
   of the same owner may still come.

   SET BACK: all of the target is as it was in a backup. A transaction that is refused, or a driver that starts, notices. The
   log epochs since then are applied again if the source's log still has them (and splits, if their files are still there). Else the
   job stops. The plans are the same, so the same is written.

   EACH KEY is a part of every log epoch and has a split of its own. Each log epoch changes each key once, so a key's state is the
   number of an epoch. The split's rows are state `rows`; the epoch that backfills it brings what is behind.

   WRONG DESIGNS, one switch each; TLC finds an error for each:
     Fence = FALSE      the owner is not compared: a late driver writes a split that the ledger forgot
     Ordered = FALSE    the log epoch is not compared: a late task puts an old epoch over newer states; a target that was set back
                        goes on with a hole
     Trusting = TRUE    the driver believes tasks that a part or a split was written: it may have been set back since
     Forgetful = TRUE   the ledger forgets a split as soon as it is live
   Late = FALSE: tasks die with their epoch and their driver (to see what is left when there are no late writers).

   NOT MODELLED: where states come from and what rows contain (Lanes.tla), reading again, a target whose backup is of another moment in
   each table, sinks without transactions (files, Kafka), two jobs that write into one table. *)
EXTENDS Integers, Sequences, FiniteSets
CONSTANTS Keys, MaxEpoch, MaxOwner, MaxBack, Late, Fence, Ordered, Trusting, Forgetful

VARIABLES plans,    \* the checkpoint: sequence of the sets of splits that each log epoch backfills
          rows,     \* the checkpoint: split -> the state in its published file; None: not published
          newest,   \* the checkpoint: the greatest driver's number
          released, \* the source's log is gone up to this epoch, and so are the files of the splits that it backfilled
          d,        \* driver -> [st, done: the last log epoch that it knows to be done, now: the one it runs, splits, parts: what tasks told it]
          ran,      \* log tasks that were started: set of <<driver, epoch>>
          sent,     \* split tasks that were started: set of <<driver, split>>
          target,   \* [copy, splits, parts, owner, last]
          backup, backs,
          lost, back  \* did a write ever leave out a change? did one repeat a state or go back?
vars == <<plans, rows, newest, released, d, ran, sent, target, backup, backs, lost, back>>
checkpoint == <<plans, rows, newest, released>>
tasks == <<ran, sent>>

None == 0 - 1
Owners == 1..MaxOwner
Epochs == 1..MaxEpoch
Due(e) == plans[e]
DueOf(k) == {e \in 1..Len(plans) : k \in plans[e]}          \* the epoch that backfills a split, if there is one
Parts(e) == UNION {plans[i] : i \in 1..e}                   \* live or backfilled in it

Idle == [st |-> "none", done |-> 0, now |-> 0, splits |-> {}, parts |-> {}]
Init == /\ plans = <<>> /\ rows = [k \in Keys |-> None] /\ newest = 0 /\ released = 0
        /\ d = [o \in Owners |-> Idle] /\ ran = {} /\ sent = {}
        /\ target = [copy |-> [k \in Keys |-> None], splits |-> {}, parts |-> {}, owner |-> 0, last |-> 0]
        /\ backup = target /\ backs = 0 /\ lost = FALSE /\ back = FALSE

\* A driver starts: it takes a number, and with it the fence. Nothing says that earlier drivers have ended.
Take == /\ newest < MaxOwner /\ newest' = newest + 1 /\ d' = [d EXCEPT ![newest + 1] = [Idle EXCEPT !.st = "starting"]]
        /\ UNCHANGED <<plans, rows, released, tasks, target, backup, backs, lost, back>>
\* What is missing can be brought again: the log since then is there, and the files of the splits that are missing.
CanHeal == released <= target.last
\* What the checkpoint knows to be done: the plan of an epoch is made when the one before is done.
Sure == IF plans = <<>> THEN 0 ELSE Len(plans) - 1
Claim(o) == /\ d[o].st = "starting" /\ target.owner < o
            /\ LET live == {k \in target.splits : \E e \in DueOf(k) : e <= target.last}
                   from == IF Ordered \/ target.last > Sure THEN target.last ELSE Sure
                   goes == ~Ordered \/ target.last >= Sure \/ CanHeal
               IN /\ target' = [target EXCEPT !.owner = o, !.splits = @ \ live]
                  /\ d' = [d EXCEPT ![o] = [st |-> IF goes THEN "running" ELSE "stopped", done |-> from, now |-> 0,
                                            splits |-> target.splits \union UNION {plans[e] : e \in 1..from}, parts |-> {}]]
            /\ UNCHANGED <<checkpoint, tasks, backup, backs, lost, back>>

\* The driver publishes a split's rows, or takes the file that was published, and sends a task that writes it.
HasFile(k) == rows[k] # None /\ \A e \in DueOf(k) : e > released
SendSplit(o, k) == /\ d[o].st = "running" /\ k \notin d[o].splits /\ <<o, k>> \notin sent
                   /\ rows[k] = None \/ HasFile(k)
                   /\ rows' = IF rows[k] = None THEN [rows EXCEPT ![k] = Len(plans)] ELSE rows
                   /\ sent' = sent \union {<<o, k>>}
                   /\ UNCHANGED <<plans, newest, released, d, ran, target, backup, backs, lost, back>>
\* It goes on with the next log epoch: the one that was planned already, or a new one.
Run(o) == /\ d[o].st = "running" /\ d[o].now = 0 /\ d[o].done < MaxEpoch
          /\ LET e == d[o].done + 1 IN
               /\ IF e <= Len(plans) THEN UNCHANGED plans
                  ELSE plans' = Append(plans, d[o].splits \ Parts(Len(plans)))
               /\ e <= Len(plans) \/ e = Len(plans) + 1
               /\ d' = [d EXCEPT ![o].now = e, ![o].parts = {}] /\ ran' = ran \union {<<o, e>>}
          /\ UNCHANGED <<rows, newest, released, sent, target, backup, backs, lost, back>>

\* Transactions in the target.
Owns(o) == Fence => target.owner = o
Alive(o) == Late \/ (newest = o /\ d[o].st = "running")
WriteSplit(o, k) ==
  /\ <<o, k>> \in sent /\ Alive(o) /\ Owns(o)
  /\ IF k \in target.splits THEN UNCHANGED <<target, back>>
     ELSE /\ target' = [target EXCEPT !.copy[k] = rows[k], !.splits = @ \union {k}]
          /\ back' = (back \/ target.copy[k] # None)
  /\ d' = IF d[o].st = "running" THEN [d EXCEPT ![o].splits = @ \union {k}] ELSE d
  /\ UNCHANGED <<checkpoint, tasks, backup, backs, lost>>
WriteLog(o, e, k) ==
  /\ <<o, e>> \in ran /\ k \in Parts(e) /\ Alive(o) /\ Owns(o)
  /\ Late \/ d[o].now = e
  /\ Ordered => e = target.last + 1
  /\ Trusting \/ k \in Due(e) => k \in target.splits
  /\ IF <<e, k>> \in target.parts THEN UNCHANGED <<target, lost, back>>
     ELSE LET behind == IF k \in Due(e) THEN rows[k] ELSE e - 1 IN      \* it brings the changes behind this state, up to e
            /\ target' = [target EXCEPT !.copy[k] = IF behind < e THEN e ELSE @, !.parts = @ \union {<<e, k>>}]
            /\ lost' = (lost \/ target.copy[k] < behind)
            /\ back' = (back \/ target.copy[k] > behind)
  /\ d' = IF d[o].st = "running" /\ d[o].now = e THEN [d EXCEPT ![o].parts = @ \union {k}] ELSE d
  /\ UNCHANGED <<checkpoint, tasks, backup, backs>>
Finish(o) ==
  /\ d[o].st = "running" /\ d[o].now # 0 /\ Alive(o) /\ Owns(o)
  /\ LET e == d[o].now IN
       /\ Ordered => target.last = e - 1
       /\ \A k \in Parts(e) : IF Trusting THEN k \in d[o].parts ELSE <<e, k>> \in target.parts
       /\ target' = [target EXCEPT !.last = e, !.parts = {}]
       /\ d' = [d EXCEPT ![o].done = e, ![o].now = 0, ![o].parts = {}]
  /\ UNCHANGED <<checkpoint, tasks, backup, backs, lost, back>>
Forget == /\ Forgetful
          /\ \E k \in target.splits : /\ \E e \in DueOf(k) : e <= target.last
                                      /\ target' = [target EXCEPT !.splits = @ \ {k}]
          /\ UNCHANGED <<checkpoint, d, tasks, backup, backs, lost, back>>

\* The source need not keep the log of epochs that are done, nor the checkpoint their files.
Release(o) == /\ d[o].st = "running" /\ released < d[o].done /\ released' = d[o].done
              /\ UNCHANGED <<plans, rows, newest, d, tasks, target, backup, backs, lost, back>>

BackUp == /\ MaxBack > 0 /\ backs = 0 /\ backup' = target
          /\ UNCHANGED <<checkpoint, d, tasks, target, backs, lost, back>>
SetBack == /\ backs < MaxBack /\ target # backup /\ target' = backup /\ backs' = backs + 1
           /\ UNCHANGED <<checkpoint, d, tasks, backup, lost, back>>
\* A running driver's transactions are refused though nobody took over, for the target lacks what it once had: it puts its number into the
\* fence again and goes on behind the last epoch that the target has, or stops.
Missing(o) == \/ target.owner # o
              \/ target.last < d[o].done
              \/ \E k \in d[o].splits : k \notin target.splits /\ \A e \in DueOf(k) : e > target.last
              \/ d[o].now # 0 /\ \E k \in d[o].parts : <<d[o].now, k>> \notin target.parts
Notice(o) == /\ Ordered /\ d[o].st = "running" /\ target.owner <= o /\ Missing(o)
             /\ target' = [target EXCEPT !.owner = o]
             /\ d' = [d EXCEPT ![o] = [st |-> IF CanHeal THEN "running" ELSE "stopped", done |-> target.last, now |-> 0,
                                       splits |-> target.splits \union UNION {plans[e] : e \in 1..target.last}, parts |-> {}]]
             /\ UNCHANGED <<checkpoint, tasks, backup, backs, lost, back>>

Next == \/ Take \/ Forget \/ BackUp \/ SetBack
        \/ \E o \in Owners : Claim(o) \/ Run(o) \/ Finish(o) \/ Release(o) \/ Notice(o)
        \/ \E o \in Owners, k \in Keys : SendSplit(o, k) \/ WriteSplit(o, k)
        \/ \E o \in Owners, e \in Epochs, k \in Keys : WriteLog(o, e, k)
Spec == /\ Init /\ [][Next]_vars
        /\ WF_vars(Take)
        /\ \A o \in Owners : WF_vars(Claim(o)) /\ WF_vars(Run(o)) /\ WF_vars(Finish(o)) /\ WF_vars(Notice(o))
        /\ \A o \in Owners, k \in Keys : WF_vars(SendSplit(o, k)) /\ WF_vars(WriteSplit(o, k))
        /\ \A o \in Owners, e \in Epochs, k \in Keys : WF_vars(WriteLog(o, e, k))

\* No write leaves out a change: it finds the state that its first change was made on.
NothingLost == ~lost
\* No state is written twice, and nothing goes back in time, but where the target is set back as a whole.
NeverBack == ~back
\* What fence and ledger say is what the copy has: no more, no less.
Says(k) == IF <<target.last + 1, k>> \in target.parts THEN target.last + 1
           ELSE IF k \in Parts(target.last) THEN target.last
           ELSE IF k \in target.splits THEN rows[k] ELSE None
Honest == \A k \in Keys : target.copy[k] = Says(k)
\* In the end the copy has all, or the job has stopped: it never says that it is done when it is not.
Ends == <>[](d[MaxOwner].st = "stopped" \/ (target.last = MaxEpoch /\ \A k \in Parts(MaxEpoch) : target.copy[k] = MaxEpoch))
=============================================================================
