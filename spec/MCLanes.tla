------------------------------ MODULE MCLanes ------------------------------
(* What TLC is given for Lanes: which key is in which split, and which split is of which table. *)
EXTENDS Lanes, TLC
CONSTANTS k1, k2, s1, s2, t1, t2
SplitEach == k1 :> s1 @@ k2 :> s2
SplitBoth == k1 :> s1 @@ k2 :> s1
OneTable == s1 :> t1 @@ s2 :> t1
TwoTables == s1 :> t1 @@ s2 :> t2
\* Two splits of one table may change their names.
Alike == {k1 :> k1 @@ k2 :> k2 @@ s1 :> s1 @@ s2 :> s2, k1 :> k2 @@ k2 :> k1 @@ s1 :> s2 @@ s2 :> s1}
=============================================================================
