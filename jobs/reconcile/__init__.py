"""Compares source and copy while both move (docs/adr/0028)."""

EXAMPLES = 5
"""The number of keys that are printed for each table by default."""
