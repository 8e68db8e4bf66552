"""Sources lose the log that a job needs."""

import time

from tests.support.servers import Database

PURGE_SECONDS = 20


def purge_log(database: Database) -> None:
    """MySQL, MariaDB: purges all files but the newest. MariaDB keeps older ones until it has noted that no crash can need
    them."""
    deadline = time.monotonic() + PURGE_SECONDS
    while len(files := database.query("SHOW BINARY LOGS")) > 1:
        assert time.monotonic() < deadline, files
        database.execute(f"PURGE BINARY LOGS TO '{files[-1][0]}'")


def lose_log(database: Database) -> None:
    """The log up to now is gone. PostgreSQL: with the slot of `source_of`, and those that keep older log."""
    if database.kind == "postgres":
        drop_kept_slots(database)
        database.query("SELECT pg_drop_replication_slot(%s)", (database.name,))
        return
    database.execute("FLUSH BINARY LOGS")
    purge_log(database)


def drop_kept_slots(database: Database, slot: str | None = None) -> None:
    """PostgreSQL: drops the slots of `checkpoints.keep`."""
    for name in kept_slots(database, slot):
        database.query("SELECT pg_drop_replication_slot(%s)", (name,))


def kept_slots(database: Database, slot: str | None = None) -> list[str]:
    """PostgreSQL: the names of the slots that keep older log than the job's, by default that of `source_of`, the oldest
    first."""
    found = database.query("SELECT slot_name FROM pg_replication_slots ORDER BY confirmed_flush_lsn, slot_name")
    return [name for (name,) in found if name.startswith(f"{(slot or database.name)[:31]}_")]


def end_of_log(database: Database) -> tuple[str, int]:
    """MySQL, MariaDB."""
    file, size, *_ = database.query("SHOW BINARY LOGS")[-1]
    return file, size


def grow_log(database: Database, end: tuple[str, int]) -> None:
    """MySQL, MariaDB: until the log is longer than `end`. Needs a table `t` with a column `note`."""
    while end_of_log(database) <= end:
        rotates = end_of_log(database)[0] < end[0]
        database.execute("FLUSH BINARY LOGS" if rotates else "INSERT INTO t (note) VALUES (REPEAT('x', 5000))")


def reset_log(database: Database) -> None:
    """MySQL, MariaDB: resets the log, at least a second after it began: files that were begun in one second look alike."""
    mysql = database.kind == "mysql"
    database.execute("DO SLEEP(1.1)", "RESET BINARY LOGS AND GTIDS" if mysql else "RESET MASTER")
