"""The tables of a job: which of them join, leave and come back, and how changes of their columns are followed."""
