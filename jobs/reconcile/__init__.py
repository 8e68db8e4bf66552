"""Compares source and copy while both move (docs/adr/0028)."""

EXAMPLES = 5
"""How many keys are told for each table, unless something else is asked for."""
