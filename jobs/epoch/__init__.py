"""One epoch: its plan, and the reading and writing of its tasks."""
