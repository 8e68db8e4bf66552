"""Arrow columns to rows of bytes: SQL literals, PostgreSQL's binary COPY, JSON Lines, by compiled loops."""
