"""Finds the position from which a job goes on where that is not the end of its newest epoch: after a failover, a lost log,
or a restore of the target."""
