"""Reading PostgreSQL: snapshots exact by the server's own, and the log by logical decoding."""
