"""Arrow columns to bytes, row by row, in compiled loops: SQL literals, PostgreSQL's binary COPY, JSON Lines."""
