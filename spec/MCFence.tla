------------------------------ MODULE MCFence ------------------------------
(* What TLC is given for Fence: keys may change their names. *)
EXTENDS Fence, TLC
CONSTANTS k1, k2
Alike == Permutations(Keys)
=============================================================================
