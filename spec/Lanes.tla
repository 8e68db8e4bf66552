------------------------------- MODULE Lanes -------------------------------
(* Two lanes beside each other: splits are read and written while the log is followed, each lane in epochs of its own.

   THE SOURCE. A transaction is logged first and becomes visible to SELECTs some time later. It holds its keys until then, so
   two transactions of one key become visible in log order; those of different keys become visible in any order.
   TRUNCATE is a transaction that changes all keys of a table at once.
   Source = "replay" is MySQL: low is what was visible before the SELECT, high is the log's end after it, and the log between
   is replayed over the rows. Source = "exact" is PostgreSQL and MariaDB: the watermark is the very set that the SELECT saw.

   A SPLIT. Its base is where the log lane stood when the split was planned. Everything up to the base is visible by then, so
   the SELECT contains it. While the split is read and written, the log lane withholds its keys. The first epoch of the log lane
   that is planned after the split was written backfills it: from the base on, whatever its high does not cover. From then on
   the split is live. So the log is followed from the first minute on, and read twice is only the log of the time a split took.

   READING AGAIN (a signal, a repair, a parked table). The copy has rows already, and the log lane withholds the split's keys
   from the base on. The epoch that takes the new rows in reaches beyond all that they contain. It emits the withheld changes
   that the rows contain (so that a changelog stays whole), then the rows, then the rest.

   TABLES THAT JOIN. The log lacks the changes of a table up to the moment when the table is added (to the publication, to what
   is captured), and those of transactions that were open at that moment, whenever they commit. So the job waits until
   those have ended and then takes the log's end as the table's start. Its splits are planned when the log lane is beyond it.

   THE COPY is the last state of each key. A state is named by the transaction that left it; 0 is the state before all.
   Every write is compared with the source's history: one that leaves a change out, repeats one or goes back is remembered.

   WRONG DESIGNS, one switch each; TLC finds an error for each:
     Hasty     a split is planned though the log lane is ahead of what is visible
     Early     the base is where the log lane is when the split is written
     Blind     rows that were read again are taken in before the log lane has passed what they contain
     Whole     TRUNCATE empties the whole table in the copy, also splits that are not live
     Unlocked  PostgreSQL: the SELECT's snapshot is older than its lock. TRUNCATE ignores snapshots: a SELECT that waited
               for it finds the table empty, though its snapshot does not cover the TRUNCATE
     Impatient a joining table's start is taken while transactions are open that the log lacks

   NOT MODELLED: transactions of several keys other than TRUNCATE, keys that move from one split to another, schema changes,
   parts of an epoch, the sink's ledger and the fence (Fence.tla), XA (XA.tla), what is read again because a row changed while
   pages were read, and reading again across a join. *)
EXTENDS Integers, Sequences, FiniteSets
CONSTANTS Keys, Splits, SplitOf, TableOf, Source, Joining, MaxTx, MaxTruncate, MaxAgain, MaxCrash
CONSTANTS Hasty, Early, Blind, Whole, Unlocked, Impatient

VARIABLES log,      \* sequence of [keys, cut: is it a TRUNCATE?, lacks: are its changes not in the log?]
          visible,  \* the transactions that a SELECT sees
          added,    \* joining tables whose changes are logged from now on
          open,     \* keys held by transactions that were open when their table was added
          start,    \* joining table -> where its splits may have their base; None: not known yet
          st,       \* split -> "unread" | "planned" | "low" | "selected" | "published" | "written" | "live"
          low, rows, high, base,
          again,    \* split -> is it being read again?
          at,       \* what the log lane has committed: everything up to here is emitted, withheld or contained
          epoch,    \* the log lane's running epoch, fixed by its plan: its range is (at, to], `live` splits are emitted, `due` ones backfilled
          out,      \* what the epoch's task read: key -> set of changes; NotRead: it did not run yet
          copy,     \* key -> the last state written; None: no row was written yet
          lost, twice, stale,   \* did a write ever leave out a change? repeat one or go back? did rows read again bring another state?
          agains, crashes
vars == <<log, visible, added, open, start, st, low, rows, high, base, again, at, epoch, out, copy, lost, twice, stale, agains, crashes>>
source == <<log, visible, added, open, start>>
splits == <<st, low, rows, high, base, again, agains>>
lane == <<at, epoch, out>>
target == <<copy, lost, twice, stale>>

None == 0 - 1
NotRead == <<>>
NoEpoch == [to |-> None, live |-> {}, due |-> {}]
Max(S) == IF S = {} THEN 0 ELSE CHOOSE x \in S : \A y \in S : y <= x
All == 1..Len(log)
Of(k) == {i \in All : k \in log[i].keys}
State(k, T) == Max(T \intersect Of(k))
KeysOf(s) == {k \in Keys : SplitOf[k] = s}
Tables == {TableOf[s] : s \in Splits}
KeysOfTable(t) == {k \in Keys : TableOf[SplitOf[k]] = t}
Prefix == Max({n \in 0..Len(log) : 1..n \subseteq visible})     \* everything up to here is visible

Init == /\ log = <<>> /\ visible = {} /\ added = {} /\ open = {} /\ start = [t \in Tables |-> IF t \in Joining THEN None ELSE 0]
        /\ st = [s \in Splits |-> "unread"] /\ low = [s \in Splits |-> {}] /\ high = [s \in Splits |-> {}] /\ base = [s \in Splits |-> 0]
        /\ rows = [k \in Keys |-> 0] /\ again = [s \in Splits |-> FALSE] /\ agains = 0 /\ crashes = 0
        /\ at = 0 /\ epoch = NoEpoch /\ out = NotRead /\ copy = [k \in Keys |-> None] /\ lost = FALSE /\ twice = FALSE /\ stale = FALSE

\* The source.
Free(k) == Of(k) \subseteq visible
Entry(S, cut) == LET t == TableOf[SplitOf[CHOOSE k \in S : TRUE]] IN
                   [keys |-> S, cut |-> cut, lacks |-> t \in Joining /\ (t \notin added \/ S \intersect open # {})]
Write == /\ Len(log) < MaxTx
         /\ \E k \in Keys : Free(k) /\ log' = Append(log, Entry({k}, FALSE)) /\ open' = open \ {k}
         /\ UNCHANGED <<visible, added, start, splits, lane, target, crashes>>
Truncate == /\ Len(log) < MaxTx /\ Cardinality({i \in All : log[i].cut}) < MaxTruncate
            /\ \E t \in Tables :
                 /\ \A k \in KeysOfTable(t) : Free(k) /\ k \notin open
                 \* It waits for the lock of a reader that locked the table before it took its snapshot.
                 /\ Source = "exact" /\ ~Unlocked => \A s \in Splits : TableOf[s] = t => st[s] # "low"
                 /\ log' = Append(log, Entry(KeysOfTable(t), TRUE))
            /\ UNCHANGED <<visible, added, open, start, splits, lane, target, crashes>>
Show == /\ \E i \in All \ visible : visible' = visible \union {i}
        /\ UNCHANGED <<log, added, open, start, splits, lane, target, crashes>>

\* Tables that join.
Add == /\ \E t \in Joining \ added : added' = added \union {t} /\ \E S \in SUBSET {k \in KeysOfTable(t) : Free(k)} : open' = open \union S
       /\ UNCHANGED <<log, visible, start, splits, lane, target, crashes>>
RollBack == /\ \E k \in open : open' = open \ {k}
            /\ UNCHANGED <<log, visible, added, start, splits, lane, target, crashes>>
Join == /\ \E t \in added : /\ start[t] = None /\ (Impatient \/ open \intersect KeysOfTable(t) = {})
                            /\ start' = [start EXCEPT ![t] = Len(log)]
        /\ UNCHANGED <<log, visible, added, open, splits, lane, target, crashes>>

\* The split lane. A first reading may be planned at any time: its keys are in no epoch yet.
\* MySQL's replay reaches back to whatever the low lacks, so it needs no wait; but it cannot replay what the log lacks.
Seen(s) == Hasty \/ (Source = "replay" /\ TableOf[s] \notin Joining) \/ Prefix >= at
Plan(s) == /\ st[s] = "unread" /\ start[TableOf[s]] # None /\ at >= start[TableOf[s]] /\ Seen(s)
           /\ st' = [st EXCEPT ![s] = "planned"] /\ base' = [base EXCEPT ![s] = at]
           /\ UNCHANGED <<source, low, rows, high, again, agains, crashes, lane, target>>
\* Between two epochs of the log lane, once it has passed all that the split's rows contain (its report is dropped by then):
\* from now on it withholds the split's keys.
PlanAgain(s) == /\ st[s] = "live" /\ epoch = NoEpoch /\ agains < MaxAgain /\ high[s] = {} /\ Seen(s)
                /\ st' = [st EXCEPT ![s] = "planned"] /\ base' = [base EXCEPT ![s] = at] /\ again' = [again EXCEPT ![s] = TRUE] /\ agains' = agains + 1
                /\ UNCHANGED <<source, low, rows, high, crashes, lane, target>>
\* PostgreSQL locks the table first, which waits for a TRUNCATE that holds it, and takes the snapshot then.
Holding(s) == \E i \in All \ visible : log[i].cut /\ KeysOf(s) \subseteq log[i].keys
Low(s) == /\ st[s] = "planned" /\ st' = [st EXCEPT ![s] = "low"] /\ low' = [low EXCEPT ![s] = visible]
          /\ Source = "exact" /\ ~Unlocked => ~Holding(s)
          /\ UNCHANGED <<source, rows, high, base, again, agains, crashes, lane, target>>
\* What a SELECT finds. A snapshot hides what came after it, but no TRUNCATE.
Found(s, k) == IF Source = "replay" THEN State(k, visible)
               ELSE LET cuts == {i \in Of(k) \intersect visible : log[i].cut /\ i \notin low[s]} IN
                      IF cuts = {} THEN State(k, low[s]) ELSE Max(cuts)
Select(s) == /\ st[s] = "low" /\ st' = [st EXCEPT ![s] = "selected"]
             /\ ~Holding(s)
             /\ rows' = [k \in Keys |-> IF k \in KeysOf(s) THEN Found(s, k) ELSE rows[k]]
             /\ UNCHANGED <<source, low, high, base, again, agains, crashes, lane, target>>
\* high, normalise, publish: in one step, for only the published file counts.
Replayed(s, k) == LET later == {i \in Of(k) \ low[s] : ~log[i].lacks} IN IF later = {} THEN rows[k] ELSE Max(later)
Publish(s) == /\ st[s] = "selected" /\ st' = [st EXCEPT ![s] = "published"]
              /\ high' = [high EXCEPT ![s] = IF Source = "exact" THEN low[s] ELSE All]
              /\ rows' = [k \in Keys |-> IF k \in KeysOf(s) /\ Source = "replay" THEN Replayed(s, k) ELSE rows[k]]
              /\ low' = [low EXCEPT ![s] = {}]
              /\ UNCHANGED <<source, base, again, agains, crashes, lane, target>>
\* The sink takes a split's rows and its ledger entry in one transaction, beside whatever the log lane does.
WriteSplit(s) == /\ st[s] = "published" /\ ~again[s] /\ st' = [st EXCEPT ![s] = "written"]
                 /\ copy' = [k \in Keys |-> IF k \in KeysOf(s) THEN rows[k] ELSE copy[k]]
                 /\ rows' = [k \in Keys |-> IF k \in KeysOf(s) THEN 0 ELSE rows[k]]
                 /\ base' = IF Early THEN [base EXCEPT ![s] = at] ELSE base
                 /\ UNCHANGED <<source, low, high, again, agains, crashes, lane, lost, twice, stale>>

\* The log lane. Its epoch's range, and what becomes of each split in it, are fixed by its plan.
PlanLog == /\ epoch = NoEpoch
           /\ \E n \in at..Len(log) :
                LET live == {s \in Splits : st[s] = "live"}
                    due == {s \in Splits : st[s] = "written" \/ (st[s] = "published" /\ again[s] /\ (Blind \/ n >= Max(high[s])))}
                IN /\ n > at \/ due # {}
                   /\ epoch' = [to |-> n, live |-> live, due |-> due]
           /\ UNCHANGED <<source, splits, at, out, target, crashes>>
Begin(s) == IF s \in epoch.due THEN base[s] ELSE at
Emits(i, k) == LET s == SplitOf[k] IN
                 /\ ~log[i].lacks /\ i <= epoch.to
                 /\ \/ /\ s \in epoch.live \union epoch.due /\ i > Begin(s)
                       /\ i \notin high[s] \/ (s \in epoch.due /\ again[s])      \* what rows read again contain is emitted before them
                    \/ Whole /\ log[i].cut /\ i > at
ReadLog == /\ epoch # NoEpoch /\ out = NotRead /\ out' = [k \in Keys |-> {i \in Of(k) : Emits(i, k)}]
           /\ UNCHANGED <<source, splits, at, epoch, target, crashes>>
\* The place of rows read again in their key's history: after the changes that they contain.
Before(k) == Max({i \in Of(k) : i <= epoch.to /\ (i <= base[SplitOf[k]] \/ i \in high[SplitOf[k]])})
Commit == /\ epoch # NoEpoch /\ out # NotRead /\ at' = epoch.to /\ epoch' = NoEpoch /\ out' = NotRead
          /\ LET Has(k) == copy[k] # None
                 Holes(k) == {i \in Of(k) : copy[k] < i /\ i < Max(out[k]) /\ i \notin out[k]}
                 Taken(s) == s \in epoch.due /\ again[s]
             IN /\ copy' = [k \in Keys |-> IF Has(k) /\ out[k] # {} THEN Max(out[k]) ELSE copy[k]]
                /\ lost' = (lost \/ \E k \in Keys : Has(k) /\ Holes(k) # {})
                /\ twice' = (twice \/ \E k \in Keys : Has(k) /\ \E i \in out[k] : i <= copy[k])
                /\ stale' = (stale \/ \E k \in Keys : Taken(SplitOf[k]) /\ rows[k] # Before(k))
                /\ rows' = [k \in Keys |-> IF Taken(SplitOf[k]) THEN 0 ELSE rows[k]]
          /\ st' = [s \in Splits |-> IF s \in epoch.due THEN "live" ELSE st[s]] /\ again' = [s \in Splits |-> again[s] /\ s \notin epoch.due]
          \* A report is dropped once the log lane has passed all that it contains.
          /\ LET Passed(s) == (s \in epoch.due \/ st[s] = "live") /\ epoch.to >= Max(high[s]) IN
               /\ high' = [s \in Splits |-> IF Passed(s) THEN {} ELSE high[s]]
               /\ base' = [s \in Splits |-> IF s \in epoch.due THEN 0 ELSE base[s]]
          /\ UNCHANGED <<source, low, agains, crashes>>

\* Plans, published files and the copy remain. Tasks run again.
Crash == /\ crashes < MaxCrash /\ crashes' = crashes + 1 /\ out' = NotRead
         /\ \E s \in Splits : st[s] \in {"low", "selected"} \/ out # NotRead
         /\ LET Again(s) == st[s] \in {"low", "selected"} IN
              /\ st' = [s \in Splits |-> IF Again(s) THEN "planned" ELSE st[s]] /\ low' = [s \in Splits |-> {}]
              /\ rows' = [k \in Keys |-> IF Again(SplitOf[k]) THEN 0 ELSE rows[k]]
         /\ UNCHANGED <<source, high, base, again, agains, at, epoch, target>>

Next == \/ Write \/ Truncate \/ Show \/ Add \/ RollBack \/ Join
        \/ \E s \in Splits : Plan(s) \/ PlanAgain(s) \/ Low(s) \/ Select(s) \/ Publish(s) \/ WriteSplit(s)
        \/ PlanLog \/ ReadLog \/ Commit \/ Crash
Spec == /\ Init /\ [][Next]_vars
        /\ WF_vars(Show) /\ WF_vars(Add) /\ WF_vars(RollBack) /\ WF_vars(Join) /\ WF_vars(PlanLog) /\ WF_vars(ReadLog) /\ WF_vars(Commit)
        /\ \A s \in Splits : WF_vars(Plan(s)) /\ WF_vars(Low(s)) /\ WF_vars(Select(s)) /\ WF_vars(Publish(s)) /\ WF_vars(WriteSplit(s))

\* Every change of a live key that the log lane has passed is in the copy, and none was left out on the way.
NothingLost == ~lost /\ \A k \in Keys : st[SplitOf[k]] = "live" => copy[k] >= State(k, 1..at)
\* No change is written twice, and nothing goes back in time.
NothingTwice == ~twice
\* Rows that were read again bring the state that their place in the history has.
NeverStale == ~stale
\* Every split gets live in the end.
Ends == <>[](\A s \in Splits : st[s] = "live")
=============================================================================
