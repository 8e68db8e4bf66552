"""The known ways in which change data capture loses, repeats or corrupts data, by number.

A test that shows that one does not happen here carries `@pytest.mark.pitfall(number)`; `make pitfalls` prints which
have one. `reason` says why an entry needs none yet.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pitfall:
    """`title` is what goes wrong. `reason` None: a test must show that it does not go wrong here."""

    number: int
    title: str
    reason: str | None = None


RE_SNAPSHOT = "later: the log is read only after all splits, and nothing is read anew"

CHAPTERS: dict[str, tuple[Pitfall, ...]] = {
    "A. Snapshot and watermarks": (
        Pitfall(1, "MySQL: a row lies before a file:pos low, but the SELECT after it does not see it yet"),
        Pitfall(2, "MariaDB: every published position runs ahead of what a SELECT sees"),
        Pitfall(3, "PostgreSQL: a commit is in the WAL before it is visible"),
        Pitfall(4, "changes between low and high are not replayed over a split's rows"),
        Pitfall(5, "positions ordered by time or server id end a replay early"),
        Pitfall(6, "an idle server never shows a high, and the job hangs"),
        Pitfall(7, "a snapshot that is tried again starts from another position"),
        Pitfall(8, "a crash loses finished splits' highs, or reads the splits twice"),
        Pitfall(9, "the log reader starts after some split's high"),
        Pitfall(10, "the transaction that ends exactly at a high comes twice or never"),
        Pitfall(11, "rows of one server, positions of another"),
        Pitfall(12, "a DDL while a split is read"),
        Pitfall(13, "a split's row overwrites a newer change of it"),
    ),
    "B. Splitting and keys": (
        Pitfall(14, "strings in another order than the database's collation: changes go to the wrong split"),
        Pitfall(15, "keys that are equal by case or trailing spaces"),
        Pitfall(16, "BIGINT UNSIGNED keys beyond 2^63 - 1"),
        Pitfall(17, "BINARY(n) keys lose trailing zero bytes in the log"),
        Pitfall(18, "composite keys compared by their first column"),
        Pitfall(19, "NULLs in a unique key are skipped"),
        Pitfall(20, "an update that moves a row to another key or another split"),
        Pitfall(21, "a last split without an end, one giant split over a gap"),
        Pitfall(22, "bounds rounded on their way through the client"),
        Pitfall(23, "SELECT * leaves out invisible columns and generated keys"),
        Pitfall(24, "equal rows of a table without a key collapse"),
    ),
    "C. MySQL and MariaDB log": (
        Pitfall(25, "compressed transactions of MySQL are dropped"),
        Pitfall(26, "compressed events of MariaDB are dropped"),
        Pitfall(27, "a restart within a transaction drops the rest of it"),
        Pitfall(28, "a reconnect replays, or tries for ever"),
        Pitfall(29, "a GTID counts as read when its transaction begins"),
        Pitfall(30, "MariaDB is read from its first binlog whatever position was asked for"),
        Pitfall(31, "table maps without names, signs and labels"),
        Pitfall(32, "row images that lack columns: absent is not NULL"),
        Pitfall(33, "partial JSON updates are dropped"),
        Pitfall(34, "DML logged as a statement is passed over"),
        Pitfall(35, "zero dates, TIMESTAMP 0 and YEAR 0 differ between SELECT and log"),
        Pitfall(36, "TIMESTAMP in the session's time zone"),
        Pitfall(37, "one value, two forms: by SELECT and by log"),
        Pitfall(38, "text decoded with another charset than the column's"),
        Pitfall(39, "foreign-key cascades are not in the log"),
        Pitfall(40, "XA: rows are logged when prepared, not when committed"),
        Pitfall(41, "TRUNCATE and DROP PARTITION log no rows"),
        Pitfall(42, "a table replaced by RENAME (online schema change)"),
        Pitfall(43, "today's columns applied to yesterday's events"),
        Pitfall(44, "binlog names compared as text"),
        Pitfall(45, "RESET, a restored server, a fail-over: positions begin anew"),
        Pitfall(46, "GTID sets without their gaps; purged transactions skipped"),
        Pitfall(47, "tagged GTIDs; SHOW MASTER STATUS is gone"),
        Pitfall(48, "stopped before the first event, then started at the newest one"),
        Pitfall(49, "two readers with one server id throw each other out"),
        Pitfall(50, "a slow reader is thrown out by net_write_timeout"),
        Pitfall(51, "rows over max_allowed_packet, positions over 4 GiB"),
        Pitfall(52, "INCIDENT events, wrong checksums, table ids used again"),
        Pitfall(53, "changes that are never logged (filters, replicas that do not log)"),
    ),
    "D. PostgreSQL": (
        Pitfall(54, "commits acknowledged that were never taken"),
        Pitfall(55, "acknowledged before sink and checkpoint are durable"),
        Pitfall(56, "a start below what was confirmed is moved forward silently"),
        Pitfall(57, "a new slot with old progress"),
        Pitfall(58, "several events share one LSN"),
        Pitfall(59, "a slot is lost and made anew silently"),
        Pitfall(60, "idle tables hold back the WAL"),
        Pitfall(61, "unchanged TOAST values become NULL"),
        Pitfall(62, "replica identity without the key"),
        Pitfall(63, "streamed and two-phase sub-transactions"),
        Pitfall(64, "a table joins a publication while transactions are open"),
        Pitfall(65, "row filters, column lists, unlogged tables: silently a part"),
        Pitfall(66, "partitions attached without events"),
        Pitfall(67, "generated columns are absent"),
        Pitfall(68, "NaN, infinity and dates BC"),
        Pitfall(69, "a relation's description is outdated after DDL"),
    ),
    "E. Checkpoint and exactly-once": (
        Pitfall(70, "a split that spans checkpoints comes twice"),
        Pitfall(71, "the source's position is kept though the sink failed"),
        Pitfall(72, "counting within a transaction forgets skipped rows"),
        Pitfall(73, "missing state is read as `snapshot complete`"),
        Pitfall(74, "a repeated, retried or speculative task reads a split's rows anew and gets others"),
    ),
    "F. Sinks": (
        Pitfall(75, "upserts and deletes of a batch applied apart from each other"),
        Pitfall(76, "chains of keys: UPDATE … SET id = id + 1"),
        Pitfall(77, "parallel writers change the order of a key's changes"),
        Pitfall(78, "several changes of one key in one merge"),
        Pitfall(79, "rows that swap the values of a secondary unique key"),
        Pitfall(80, "a deadlock's retry applies a part of a batch"),
        Pitfall(81, "unsafe schema changes; '' taken for NULL; composite keys glued together"),
    ),
    "G. Operation": (
        Pitfall(82, "a hundred thousand splits: minutes before the first row, memory without bound"),
        Pitfall(83, "one huge transaction or split in memory"),
        Pitfall(84, "secrets or rows in logs; TLS silently off"),
        Pitfall(85, "a restart after the log was purged"),
        Pitfall(86, "engines without transactions"),
        Pitfall(87, "log read beside splits of its epoch; re-snapshots behind the log", RE_SNAPSHOT),
        Pitfall(88, "compiled code reads beyond the end of damaged input"),
    ),
}

PITFALLS = {pitfall.number: pitfall for chapter in CHAPTERS.values() for pitfall in chapter}
