--------------------------------- MODULE XA ---------------------------------
(* Watermarks of MySQL without GTIDs, and of MariaDB, on a source that has XA transactions.

   THE SOURCE. An XA transaction is in the log twice: XA PREPARE with its changes, and later XA COMMIT or XA ROLLBACK, which
   only names it. Its changes count from XA COMMIT on. Each record that changes rows becomes visible to SELECTs some time after
   it was logged; until then its key is locked. XA RECOVER lists what is prepared, and goes on listing it until its end is visible.

   Method = "position": MySQL. performance_schema.log_status gives the log's end at a moment when every ordinary commit up to
   it is visible. It does not wait for an XA COMMIT: such a commit is logged, at or below that place, and still invisible. The
   SELECT comes later, then high, the log's end; the log from low to high is replayed.
   Method = "snapshot": MariaDB. START TRANSACTION WITH CONSISTENT SNAPSHOT gives a snapshot and its place in the log together,
   exact for ordinary commits. An XA COMMIT of another session may be before that place and be missing in the snapshot.

   THE REMEDY. The job starts at a place of the log after which XA RECOVER lists nothing. Everything up to it is visible, and
   every XA COMMIT behind it has its XA PREPARE behind it too. This place is settled. A place is settled by a look at the log
   between the last settled place and it: what XA COMMITs it names must be gone from XA RECOVER. A low counts only if it is
   settled: "position" waits until its low is; "snapshot" settles a place first, and begins again if there is
   an XA COMMIT between that place and the snapshot's. (It settles again each time: taking only another snapshot may go on for ever.)
   A replay that meets an XA COMMIT whose XA PREPARE is before its low has no rows for it: the split is read again.
   The log lane starts at the job's start, remembers what is prepared, and stops at an XA COMMIT of something unknown.

   WRONG DESIGNS, one switch each; TLC finds an error for each:
     Naive     a low counts as the server gives it
     Unasked   the job's start is any place where ordinary commits are visible; nobody looks at XA RECOVER
     Skipping  a replay passes over an XA COMMIT whose rows it does not know

   NOT MODELLED: GTIDs (gtid_executed has an XA COMMIT only once it is visible), several splits and their backfill (Lanes.tla:
   here one split has all keys), crashes, transactions of several keys, an XID used a second time. That XA RECOVER lists a
   transaction until its end is visible is an assumption about the server, to be held by a test. *)
EXTENDS Integers, Sequences, FiniteSets
CONSTANTS Keys, MaxTx, MaxXa, Method, Naive, Unasked, Skipping

VARIABLES log,      \* sequence of [kind: "tx" | "prepare" | "commit" | "rollback", key, of: the place of its XA PREPARE]
          visible,  \* places whose effect SELECTs and XA RECOVER show
          from,     \* the job's start; None: not taken yet
          settled,  \* everything up to here is known to be visible
          st,       \* the split: "unread" | "settled" | "low" | "selected" | "published"
          low, high,
          seen,     \* "snapshot": what the snapshot has
          rows,     \* key -> state
          at,       \* the log lane: everything up to here is emitted, or contained in the rows
          prepared, \* XA PREPAREs that the log lane remembers
          copy,     \* key -> the last state written; None: no row was written yet
          stopped   \* the log lane met the commit of an unknown transaction
vars == <<log, visible, from, settled, st, low, high, seen, rows, at, prepared, copy, stopped>>
source == <<log, visible>>
split == <<st, low, high, seen, rows>>
lane == <<at, prepared, copy, stopped>>

None == 0 - 1
Max(S) == IF S = {} THEN 0 ELSE CHOOSE x \in S : \A y \in S : y <= x
All == 1..Len(log)
Kind(i) == log[i].kind
Of(k) == {i \in All : log[i].key = k /\ Kind(i) \in {"tx", "commit"}}      \* what changes a key's state
State(k, T) == Max(T \intersect Of(k))
Ended(i) == \E j \in All : log[j].of = i                                   \* logged, visible or not
Listed == {i \in All : Kind(i) = "prepare" /\ ~\E j \in visible : log[j].of = i}     \* XA RECOVER
Free(k) == \A i \in All : log[i].key = k => IF Kind(i) = "prepare" THEN i \notin Listed ELSE i \in visible

Init == /\ log = <<>> /\ visible = {} /\ from = None /\ settled = None /\ st = "unread" /\ low = 0 /\ high = 0 /\ seen = {}
        /\ rows = [k \in Keys |-> 0] /\ at = 0 /\ prepared = {} /\ copy = [k \in Keys |-> None] /\ stopped = FALSE

\* The source.
Log(kind, k, i) == log' = Append(log, [kind |-> kind, key |-> k, of |-> i]) /\ UNCHANGED <<visible, from, settled, split, lane>>
Write == Len(log) < MaxTx /\ \E k \in Keys : Free(k) /\ Log("tx", k, 0)
Prepare == /\ Len(log) < MaxTx /\ Cardinality({i \in All : Kind(i) = "prepare"}) < MaxXa
           /\ \E k \in Keys : Free(k) /\ Log("prepare", k, 0)
XaCommit == \E i \in All : Kind(i) = "prepare" /\ ~Ended(i) /\ Log("commit", log[i].key, i)
XaRollback == \E i \in All : Kind(i) = "prepare" /\ ~Ended(i) /\ Log("rollback", log[i].key, i)
Show == /\ \E i \in All \ visible : Kind(i) # "prepare" /\ visible' = visible \union {i}
        /\ UNCHANGED <<log, from, settled, split, lane>>

\* log_status, and the place of a consistent snapshot: ordinary commits are visible up to it.
Orderly == \A i \in All : Kind(i) = "tx" => i \in visible
\* XA COMMITs between a settled place and another that XA RECOVER still lists.
Pending(a, b) == \E i \in All : a < i /\ i <= b /\ Kind(i) = "commit" /\ log[i].of \in Listed

Begin == /\ from = None /\ Orderly /\ (Unasked \/ Listed = {})
         /\ from' = Len(log) /\ settled' = Len(log) /\ at' = Len(log)
         /\ UNCHANGED <<source, split, prepared, copy, stopped>>

\* "position": low; the SELECT, some time later; high and the replay.
LowPosition == /\ Method = "position" /\ from # None /\ st = "unread" /\ Orderly
               /\ low' = Len(log) /\ st' = "low" /\ UNCHANGED <<source, from, settled, high, seen, rows, lane>>
Settle == /\ st = "low" /\ Method = "position" /\ settled < low /\ ~Pending(settled, low)
          /\ settled' = low /\ UNCHANGED <<source, from, split, lane>>
SelectPosition == /\ Method = "position" /\ st = "low" /\ (Naive \/ settled = low)
                  /\ rows' = [k \in Keys |-> State(k, visible)] /\ st' = "selected"
                  /\ UNCHANGED <<source, from, settled, low, high, seen, lane>>
\* The rows that the replay has for a key between low and the log's end.
Known(i) == Kind(i) = "tx" \/ log[i].of > low
Window(k) == {i \in Of(k) : i > low /\ Known(i)}
Publish == /\ st = "selected" /\ Method = "position"
           /\ IF Skipping \/ \A i \in All : i > low /\ Kind(i) = "commit" => Known(i)
              THEN /\ st' = "published" /\ high' = Len(log) /\ UNCHANGED low
                   /\ rows' = [k \in Keys |-> IF Window(k) = {} THEN rows[k] ELSE Max(Window(k))]
              ELSE /\ st' = "unread" /\ low' = 0 /\ rows' = [k \in Keys |-> 0] /\ UNCHANGED high
           /\ UNCHANGED <<source, from, settled, seen, lane>>

\* "snapshot": the snapshot and its place; the SELECT sees the snapshot.
SettleFirst == /\ Method = "snapshot" /\ from # None /\ st = "unread" /\ Orderly /\ ~Pending(settled, Len(log))
               /\ settled' = Len(log) /\ st' = "settled" /\ UNCHANGED <<source, from, low, high, seen, rows, lane>>
\* Simplified: it is taken when no ordinary commit is on its way, so its place is the log's end.
Snapshot == /\ Method = "snapshot" /\ from # None /\ Orderly
            /\ st = "settled" \/ (Naive /\ st = "unread")
            /\ low' = Len(log) /\ seen' = visible /\ st' = "low" /\ UNCHANGED <<source, from, settled, high, rows, lane>>
SelectSnapshot == /\ Method = "snapshot" /\ st = "low"
                  /\ LET certain == ~\E i \in settled + 1..low : Kind(i) = "commit" IN
                       IF Naive \/ certain
                       THEN st' = "published" /\ high' = low /\ rows' = [k \in Keys |-> State(k, seen)] /\ UNCHANGED low
                       ELSE st' = "unread" /\ low' = 0 /\ UNCHANGED <<high, rows>>
                  /\ seen' = {} /\ UNCHANGED <<source, from, settled, lane>>

WriteRows == /\ st = "published" /\ \A k \in Keys : copy[k] = None
             /\ copy' = rows /\ UNCHANGED <<source, from, settled, split, at, prepared, stopped>>
\* The log lane, one record at a time. It emits what the rows do not contain.
Follow == /\ \A k \in Keys : copy[k] # None
          /\ ~stopped /\ at < Len(log)
          /\ LET i == at + 1  r == log[at + 1]
                 unknown == r.kind = "commit" /\ i > high /\ r.of \notin prepared
             IN /\ stopped' = unknown
                /\ at' = IF unknown THEN at ELSE i
                /\ prepared' = IF r.kind = "prepare" THEN prepared \union {i} ELSE prepared \ {r.of}
                /\ copy' = IF r.kind \in {"tx", "commit"} /\ i > high /\ ~unknown THEN [copy EXCEPT ![r.key] = i] ELSE copy
          /\ UNCHANGED <<source, from, settled, split>>

Next == \/ Write \/ Prepare \/ XaCommit \/ XaRollback \/ Show \/ Begin \/ LowPosition \/ Settle \/ SelectPosition \/ Publish
        \/ SettleFirst \/ Snapshot \/ SelectSnapshot \/ WriteRows \/ Follow
Spec == /\ Init /\ [][Next]_vars
        /\ WF_vars(XaCommit \/ XaRollback) /\ WF_vars(Show) /\ WF_vars(Begin) /\ WF_vars(LowPosition) /\ WF_vars(Settle)
        /\ WF_vars(SelectPosition) /\ WF_vars(Publish) /\ WF_vars(SettleFirst) /\ WF_vars(Snapshot) /\ WF_vars(SelectSnapshot)
        /\ WF_vars(WriteRows) /\ WF_vars(Follow)

\* Rows are the exact state after the first `high` records of the log, whatever was prepared, committed or invisible meanwhile.
TrueRows == st = "published" => \A k \in Keys : rows[k] = State(k, 1..high)
\* The copy has every change up to where the log lane is.
NothingLost == \A k \in Keys : copy[k] # None => copy[k] = State(k, 1..(IF at > high THEN at ELSE high))
NeverStopped == ~stopped
Ends == <>[](st = "published" /\ at = Len(log))
=============================================================================
