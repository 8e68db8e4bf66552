"""Reads PostgreSQL: splits under exact snapshots, the log by logical decoding."""
