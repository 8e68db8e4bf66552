"""Statements in the binary log of MySQL and MariaDB: their tokens, and their effects on tables."""
