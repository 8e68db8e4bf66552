----------------------------- MODULE MCTidemark -----------------------------
(* What TLC is given for Tidemark: which key is in which split. *)
EXTENDS Tidemark, TLC
CONSTANTS k1, k2, s1, s2
MCSplitOf == k1 :> s1 @@ k2 :> s2
\* The two splits may change their names.
Alike == {k1 :> k1 @@ k2 :> k2 @@ s1 :> s1 @@ s2 :> s2, k1 :> k2 @@ k2 :> k1 @@ s1 :> s2 @@ s2 :> s1}
=============================================================================
