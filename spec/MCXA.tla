-------------------------------- MODULE MCXA --------------------------------
(* What TLC is given for XA: keys may change their names. *)
EXTENDS XA, TLC
CONSTANTS k1, k2
Alike == Permutations(Keys)
=============================================================================
