"""The kinds of DDL that a live table may meet, with the writes before and after them: one table each."""

from collections.abc import Sequence
from dataclasses import dataclass

COLUMNS = "id INT PRIMARY KEY, v INT, name VARCHAR(20)"
ROWS = "INSERT INTO {t} (id, v, name) VALUES (1, 10, 'a'), (2, 20, 'b'), (3, NULL, NULL), (4, 40, 'd')"
BEFORE = (
    "UPDATE {t} SET v = v + 1 WHERE id < 3",
    "INSERT INTO {t} (id, v) VALUES (5, 50)",
    "DELETE FROM {t} WHERE id = 4",
)
AFTER = (
    "UPDATE {t} SET name = 'after' WHERE id = 2",
    "INSERT INTO {t} (id) VALUES (6)",
    "DELETE FROM {t} WHERE id = 1",
)


@dataclass(frozen=True, slots=True)
class Kind:
    """`what` is for people. Statements have `{t}` for the table. `columns` None: the table does not exist at first. `gone`: it
    does not exist in the end. `parked`: its copy stays as it was. `now`: the tables that take its place, as suffixes of its
    name."""

    what: str
    ddl: tuple[str, ...]
    columns: str | None = COLUMNS
    setup: tuple[str, ...] = ()
    rows: str = ROWS
    before: tuple[str, ...] = BEFORE
    after: tuple[str, ...] = AFTER
    gone: bool = False
    parked: bool = False
    now: tuple[str, ...] = ()


def kind(what: str, *ddl: str, **more: object) -> Kind:
    return Kind(what, ddl, **more)  # type: ignore[arg-type]


_GONE = {"after": (), "gone": True}
_SAME: Sequence[Kind] = (
    kind("ADD COLUMN, nullable", "ALTER TABLE {t} ADD COLUMN more INT", "UPDATE {t} SET more = 1 WHERE id = 5"),
    kind(
        "ADD COLUMN, twice",
        "ALTER TABLE {t} ADD COLUMN more INT",
        "UPDATE {t} SET more = id",
        "ALTER TABLE {t} ADD COLUMN note VARCHAR(9)",
        "UPDATE {t} SET note = 'x' WHERE id = 2",
    ),
    kind("ADD COLUMN with a DEFAULT", "ALTER TABLE {t} ADD COLUMN more INT DEFAULT 5"),
    kind("ADD COLUMN, NOT NULL with a DEFAULT", "ALTER TABLE {t} ADD COLUMN more VARCHAR(9) DEFAULT 'x' NOT NULL"),
    kind(
        "ADD COLUMN with a DEFAULT, twice",
        "ALTER TABLE {t} ADD COLUMN more BIGINT DEFAULT -5",
        "UPDATE {t} SET v = 99 WHERE id = 3",
        "UPDATE {t} SET more = NULL WHERE id = 2",
        "ALTER TABLE {t} ADD COLUMN price DECIMAL(8, 2) NOT NULL DEFAULT 1.5, ADD COLUMN note VARCHAR(9)",
        "UPDATE {t} SET note = 'x', more = more + 1 WHERE id = 5",
    ),
    kind(
        "ADD COLUMN with a DEFAULT of each simple type",
        "ALTER TABLE {t} ADD COLUMN c1 SMALLINT DEFAULT 0, ADD COLUMN c2 DATE NOT NULL DEFAULT '2024-02-29', "
        "ADD COLUMN c3 BOOLEAN DEFAULT TRUE, ADD COLUMN c4 VARCHAR(40) DEFAULT '', "
        "ADD COLUMN c5 DECIMAL(38, 10) DEFAULT 12345678901234567890.5, ADD COLUMN c6 DOUBLE PRECISION DEFAULT 0.25",
    ),
    kind(
        "ADD COLUMN with a DEFAULT that is another one since",
        "ALTER TABLE {t} ADD COLUMN more INT DEFAULT 5",
        "INSERT INTO {t} (id) VALUES (7)",
        "ALTER TABLE {t} ALTER COLUMN more SET DEFAULT 6",
    ),
    kind(
        "ADD COLUMN with a DEFAULT that is NULL since",
        "ALTER TABLE {t} ADD COLUMN more INT DEFAULT 5",
        "ALTER TABLE {t} ALTER COLUMN more SET DEFAULT NULL",
    ),
    kind(
        "ADD COLUMN with a DEFAULT, dropped and added again",
        "ALTER TABLE {t} ADD COLUMN more INT DEFAULT 5",
        "UPDATE {t} SET v = 77 WHERE id = 5",
        "ALTER TABLE {t} DROP COLUMN more",
        "ALTER TABLE {t} ADD COLUMN more INT DEFAULT 5",
    ),
    kind("ADD COLUMN, generated", "ALTER TABLE {t} ADD COLUMN more INT GENERATED ALWAYS AS (id + 1) STORED"),
    kind("ADD COLUMN and DROP COLUMN", "ALTER TABLE {t} ADD COLUMN more INT, DROP COLUMN v"),
    kind("DROP COLUMN", "ALTER TABLE {t} DROP COLUMN v"),
    kind(
        "DROP COLUMN, twice",
        "ALTER TABLE {t} DROP COLUMN v",
        "UPDATE {t} SET name = 'x' WHERE id = 3",
        "ALTER TABLE {t} DROP COLUMN w",
        columns=COLUMNS + ", w INT NOT NULL DEFAULT 3",
    ),
    kind(
        "DROP COLUMN and ADD COLUMN of another name",
        "ALTER TABLE {t} ADD COLUMN more INT NOT NULL DEFAULT 5",
        "UPDATE {t} SET name = 'x', more = 6 WHERE id = 3",
        "ALTER TABLE {t} DROP COLUMN v",
        "INSERT INTO {t} (id) VALUES (7)",
    ),
    kind("DROP COLUMN of the key", "ALTER TABLE {t} DROP CONSTRAINT {t}_pkey", "ALTER TABLE {t} DROP COLUMN k",
         "ALTER TABLE {t} ADD PRIMARY KEY (id)", "INSERT INTO {t} (id) VALUES (7)",
         columns="id INT NOT NULL, k INT NOT NULL DEFAULT 0, v INT, name VARCHAR(20), CONSTRAINT {t}_pkey PRIMARY KEY (id, k)"),
    kind(
        "DROP COLUMN and ADD COLUMN of the same name",
        "ALTER TABLE {t} DROP COLUMN v",
        "ALTER TABLE {t} ADD COLUMN v INT",
        "UPDATE {t} SET v = 7 WHERE id = 5",
    ),
    kind("RENAME COLUMN", "ALTER TABLE {t} RENAME COLUMN v TO w"),
    kind("ALTER COLUMN … SET DEFAULT", "ALTER TABLE {t} ALTER COLUMN v SET DEFAULT 3"),
    kind("CHECK constraint", "ALTER TABLE {t} ADD CONSTRAINT {t}_c CHECK (id > 0)"),
    kind("CREATE INDEX", "CREATE INDEX {t}_i ON {t} (v)"),
    kind("DROP INDEX of a key that is not the job's", "ALTER TABLE {t} DROP CONSTRAINT {t}_u", setup=(
        "ALTER TABLE {t} ADD CONSTRAINT {t}_u UNIQUE (v)",)),
    kind("TRUNCATE", "TRUNCATE TABLE {t}"),
    kind("TRUNCATE, and the same rows again", "TRUNCATE TABLE {t}", ROWS),
    kind("DROP TABLE", "DROP TABLE {t}", **_GONE),
    kind("CREATE TABLE", "CREATE TABLE {t} (" + COLUMNS + ")", ROWS, columns=None),
    kind("DROP TABLE and CREATE TABLE", "DROP TABLE {t}", "CREATE TABLE {t} (" + COLUMNS + ")", ROWS),
    kind("DROP TABLE and CREATE TABLE with other columns", "DROP TABLE {t}",
         "CREATE TABLE {t} (id INT PRIMARY KEY, name VARCHAR(20), other DATE)",
         "INSERT INTO {t} VALUES (1, 'x', '2024-05-05'), (2, 'y', NULL)"),
    kind("RENAME TABLE", "ALTER TABLE {t} RENAME TO {t}_new", after=(), gone=True, now=("_new",)),
    kind("RENAME TABLE and back", "ALTER TABLE {t} RENAME TO {t}_away", "ALTER TABLE {t}_away RENAME TO {t}"),
    kind(
        "Another table takes the name",
        "CREATE TABLE {t}_other (id INT PRIMARY KEY, v INT, name VARCHAR(20))",
        "INSERT INTO {t}_other VALUES (2, 222, 'other'), (9, 999, NULL)",
        "ALTER TABLE {t} RENAME TO {t}_old",
        "ALTER TABLE {t}_other RENAME TO {t}",
        now=("_old",),
    ),
    kind("Another primary key", "ALTER TABLE {t} DROP CONSTRAINT {t}_pkey", "ALTER TABLE {t} ADD PRIMARY KEY (k)",
         columns="id INT NOT NULL, k INT NOT NULL, v INT, name VARCHAR(20), CONSTRAINT {t}_pkey PRIMARY KEY (id)",
         rows="INSERT INTO {t} VALUES (1, 101, 10, 'a'), (2, 102, 20, 'b')",
         before=("INSERT INTO {t} VALUES (3, 103, 30, 'c')",),
         after=("INSERT INTO {t} VALUES (3, 104, 30, 'c')", "DELETE FROM {t} WHERE k = 101")),
)  # fmt: skip

_PARTITIONED_MYSQL = "id INT PRIMARY KEY, v INT, name VARCHAR(20)) PARTITION BY RANGE (id) (" \
    "PARTITION p0 VALUES LESS THAN (3), PARTITION p1 VALUES LESS THAN MAXVALUE"  # fmt: skip
MYSQL: Sequence[Kind] = (
    *(same for same in _SAME if same.what not in {"Another primary key", "DROP INDEX of a key that is not the job's",
      "DROP COLUMN of the key"}),
    kind("DROP COLUMN of the key", "ALTER TABLE {t} DROP PRIMARY KEY, DROP COLUMN k, ADD PRIMARY KEY (id)",
         "INSERT INTO {t} (id) VALUES (7)",
         columns="id INT NOT NULL, k INT NOT NULL DEFAULT 0, v INT, name VARCHAR(20), PRIMARY KEY (id, k)"),
    kind("Another primary key", "ALTER TABLE {t} DROP PRIMARY KEY, ADD PRIMARY KEY (k)",
         columns="id INT NOT NULL, k INT NOT NULL, v INT, name VARCHAR(20), PRIMARY KEY (id)",
         rows="INSERT INTO {t} VALUES (1, 101, 10, 'a'), (2, 102, 20, 'b')",
         before=("INSERT INTO {t} VALUES (3, 103, 30, 'c')",),
         after=("INSERT INTO {t} VALUES (3, 104, 30, 'c')", "DELETE FROM {t} WHERE k = 101")),
    kind("DROP INDEX of a key that is not the job's", "ALTER TABLE {t} DROP INDEX u",
         setup=("ALTER TABLE {t} ADD UNIQUE u (v)",)),
    kind("ADD COLUMN … FIRST", "ALTER TABLE {t} ADD COLUMN more INT FIRST", "UPDATE {t} SET more = 1 WHERE id = 5"),
    kind("ADD COLUMN … AFTER", "ALTER TABLE {t} ADD (more INT, note TEXT), ADD INDEX (more)"),
    kind("ADD COLUMN, NOT NULL without a DEFAULT",
         "ALTER TABLE {t} ADD COLUMN more INT NOT NULL, ADD COLUMN note VARCHAR(9) NOT NULL, ADD e ENUM('x', 'y') NOT NULL",
         after=("UPDATE {t} SET name = 'after' WHERE id = 2", "INSERT INTO {t} (id, more, note, e) VALUES (6, 1, 'n', 'y')")),
    kind("ADD COLUMN with a DEFAULT, ENUM and DATETIME",
         "ALTER TABLE {t} ADD e ENUM('x', 'y') DEFAULT 'y', ADD at DATETIME(3) NOT NULL DEFAULT '2024-02-29 01:02:03' FIRST, "
         "ADD b BIGINT UNSIGNED DEFAULT '18446744073709551615', ADD i INT UNSIGNED NOT NULL DEFAULT 4294967295"),
    kind("ADD COLUMN with an expression as DEFAULT", "ALTER TABLE {t} ADD COLUMN more INT DEFAULT (5 + 1)"),
    kind("ADD COLUMN, virtual", "ALTER TABLE {t} ADD COLUMN more INT AS (id + 1) VIRTUAL"),
    kind("ADD COLUMN TIMESTAMP", "ALTER TABLE {t} ADD COLUMN more TIMESTAMP DEFAULT CURRENT_TIMESTAMP"),
    kind("CHANGE COLUMN", "ALTER TABLE {t} CHANGE v w BIGINT"),
    kind("MODIFY to a wider integer", "ALTER TABLE {t} MODIFY v BIGINT", "UPDATE {t} SET v = 5000000000 WHERE id = 5"),
    kind("MODIFY to a wider integer of the key", "ALTER TABLE {t} MODIFY id BIGINT NOT NULL",
         "INSERT INTO {t} (id) VALUES (5000000000)"),
    kind("MODIFY to a longer VARCHAR of the key", "ALTER TABLE {t} MODIFY code VARCHAR(30) NOT NULL",
         "INSERT INTO {t} (id, code) VALUES (7, '123456789012345678901234567890')",
         columns="id INT, v INT, name VARCHAR(20), code VARCHAR(20) NOT NULL PRIMARY KEY",
         rows="INSERT INTO {t} (id, v, code) VALUES (1, 10, 'a'), (2, 20, 'b'), (3, NULL, ''), (4, 40, 'd')",
         before=("UPDATE {t} SET v = v + 1 WHERE id < 3",), after=("DELETE FROM {t} WHERE id = 1",)),
    kind("MODIFY to a longer VARCHAR", "ALTER TABLE {t} MODIFY name VARCHAR(300)"),
    kind("MODIFY to another type", "ALTER TABLE {t} MODIFY v VARCHAR(20)"),
    kind("MODIFY NOT NULL", "UPDATE {t} SET v = 0 WHERE v IS NULL", "ALTER TABLE {t} MODIFY v INT NOT NULL DEFAULT 0"),
    kind("MODIFY to another place", "ALTER TABLE {t} MODIFY v INT AFTER name"),
    kind("ENUM with a new label", "ALTER TABLE {t} MODIFY e ENUM('x', 'y', 'z')", "UPDATE {t} SET e = 'z' WHERE id = 5",
         columns=COLUMNS + ", e ENUM('x', 'y') DEFAULT 'x'"),
    kind("CONVERT TO CHARACTER SET", "ALTER TABLE {t} CONVERT TO CHARACTER SET latin1"),
    kind("COMMENT, AUTO_INCREMENT, statistics", "ALTER TABLE {t} COMMENT 'x', AUTO_INCREMENT = 100, STATS_PERSISTENT = 1"),
    kind("OPTIMIZE TABLE, ENGINE=InnoDB", "OPTIMIZE TABLE {t}", "ALTER TABLE {t} ENGINE=InnoDB"),
    kind("PARTITION BY", "ALTER TABLE {t} PARTITION BY HASH (id) PARTITIONS 3"),
    kind("TRUNCATE PARTITION", "ALTER TABLE {t} TRUNCATE PARTITION p0", columns=_PARTITIONED_MYSQL),
    kind("DROP PARTITION", "ALTER TABLE {t} DROP PARTITION p0", columns=_PARTITIONED_MYSQL),
    kind("REORGANIZE PARTITION", "ALTER TABLE {t} REORGANIZE PARTITION p1 INTO (PARTITION p1 VALUES LESS THAN (5), "
         "PARTITION p2 VALUES LESS THAN MAXVALUE)", columns=_PARTITIONED_MYSQL),
    kind("EXCHANGE PARTITION", "CREATE TABLE {t}_x (id INT PRIMARY KEY, v INT, name VARCHAR(20))",
         "INSERT INTO {t}_x VALUES (1, 111, 'x')", "ALTER TABLE {t} EXCHANGE PARTITION p0 WITH TABLE {t}_x",
         columns=_PARTITIONED_MYSQL, now=("_x",)),
    kind("gh-ost's cut-over", "CREATE TABLE _{t}_gho LIKE {t}", "ALTER TABLE _{t}_gho ADD COLUMN more INT DEFAULT 9",
         "INSERT INTO _{t}_gho (id, v, name) SELECT id, v, name FROM {t}", "RENAME TABLE {t} TO _{t}_del, _{t}_gho TO {t}",
         "DROP TABLE _{t}_del"),
)  # fmt: skip

_PARTITIONS = (
    "CREATE TABLE {t}_p0 PARTITION OF {t} FOR VALUES FROM (0) TO (3)",
    "CREATE TABLE {t}_p1 PARTITION OF {t} FOR VALUES FROM (3) TO (100)",
)
_PARTITIONED = COLUMNS + ") PARTITION BY RANGE (id"
POSTGRES: Sequence[Kind] = (
    *_SAME,
    kind("ADD COLUMN with a volatile DEFAULT", "ALTER TABLE {t} ADD COLUMN more FLOAT8 DEFAULT random()"),
    kind("ADD COLUMN with DEFAULT now()", "ALTER TABLE {t} ADD COLUMN more TIMESTAMPTZ DEFAULT now() NOT NULL"),
    kind("ADD COLUMN with a DEFAULT of other types",
         """ALTER TABLE {t} ADD COLUMN c1 {t}_e DEFAULT 'it''s', ADD COLUMN c2 JSONB NOT NULL DEFAULT '{"a": [1, "\\\\"]}',
         ADD COLUMN c3 TEXT DEFAULT 'ä, {}" \\' || chr(39) || chr(10), ADD COLUMN c4 NUMERIC DEFAULT 1.50,
         ADD COLUMN c5 REAL DEFAULT 0.1, ADD COLUMN c6 TIMESTAMP DEFAULT '2024-02-29 01:02:03.456',
         ADD COLUMN c7 UUID DEFAULT 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'""",
         setup=("CREATE TYPE {t}_e AS ENUM ('x', 'it''s')",)),
    kind("ADD COLUMN with a DEFAULT, an array", "ALTER TABLE {t} ADD COLUMN more INT[] DEFAULT '{1,2}'"),
    kind("ADD COLUMN with a DEFAULT, a domain", "CREATE DOMAIN {t}_d AS INT DEFAULT 5",
         "ALTER TABLE {t} ADD COLUMN more {t}_d"),
    kind("ADD COLUMN, identity", "ALTER TABLE {t} ADD COLUMN more INT GENERATED ALWAYS AS IDENTITY"),
    kind("ADD COLUMN serial", "ALTER TABLE {t} ADD COLUMN more SERIAL"),
    kind("ADD COLUMN, dropped and added again", "ALTER TABLE {t} ADD COLUMN more INT", "UPDATE {t} SET more = 1",
         "ALTER TABLE {t} DROP COLUMN more", "ALTER TABLE {t} ADD COLUMN more INT"),
    kind("TYPE to a wider integer", "ALTER TABLE {t} ALTER COLUMN v TYPE BIGINT", "UPDATE {t} SET v = 5000000000 WHERE id = 5"),
    kind("TYPE to a wider integer of the key", "ALTER TABLE {t} ALTER COLUMN id TYPE BIGINT",
         "INSERT INTO {t} (id) VALUES (5000000000)"),
    kind("TYPE to a longer varchar", "ALTER TABLE {t} ALTER COLUMN name TYPE VARCHAR(300)"),
    kind("TYPE to another type", "ALTER TABLE {t} ALTER COLUMN v TYPE TEXT"),
    kind("TYPE … USING another value", "ALTER TABLE {t} ALTER COLUMN v TYPE INT USING v * 2"),
    kind("SET NOT NULL", "UPDATE {t} SET v = 0 WHERE v IS NULL", "ALTER TABLE {t} ALTER COLUMN v SET DEFAULT 0",
         "ALTER TABLE {t} ALTER COLUMN v SET NOT NULL"),
    kind("Enum with a new label", "ALTER TYPE {t}_e ADD VALUE 'z'", "UPDATE {t} SET e = 'z' WHERE id = 5",
         columns=COLUMNS + ", e {t}_e DEFAULT 'x'", setup=("CREATE TYPE {t}_e AS ENUM ('x', 'y')",)),
    kind("Enum with a renamed label", "ALTER TYPE {t}_e RENAME VALUE 'x' TO 'xx'",
         columns=COLUMNS + ", e {t}_e DEFAULT 'x'", setup=("CREATE TYPE {t}_e AS ENUM ('x', 'y')",)),
    kind("COMMENT, statistics, REPLICA IDENTITY FULL", "COMMENT ON TABLE {t} IS 'x'",
         "ALTER TABLE {t} ALTER COLUMN v SET STATISTICS 10", "ALTER TABLE {t} REPLICA IDENTITY FULL"),
    kind("VACUUM FULL", "VACUUM FULL {t}"),
    kind("CLUSTER", "CLUSTER {t} USING {t}_pkey"),
    kind("TRUNCATE and INSERT in one transaction", "BEGIN; TRUNCATE {t}; INSERT INTO {t} VALUES (2, 22, 'x'); COMMIT"),
    kind("A new partition", "CREATE TABLE {t}_p2 PARTITION OF {t} FOR VALUES FROM (100) TO (200)",
         "INSERT INTO {t} VALUES (150, 1, 'x')", columns=_PARTITIONED, setup=_PARTITIONS),
    kind("ATTACH PARTITION with rows", "CREATE TABLE {t}_p2 (id INT PRIMARY KEY, v INT, name VARCHAR(20))",
         "INSERT INTO {t}_p2 VALUES (150, 1, 'x')", "ALTER TABLE {t} ATTACH PARTITION {t}_p2 FOR VALUES FROM (100) TO (200)",
         columns=_PARTITIONED, setup=_PARTITIONS),
    kind("DETACH PARTITION", "ALTER TABLE {t} DETACH PARTITION {t}_p0", "DROP TABLE {t}_p0", columns=_PARTITIONED,
         setup=_PARTITIONS, after=("INSERT INTO {t} VALUES (6)",), parked=True),
    kind("DROP TABLE of a partition", "DROP TABLE {t}_p0", columns=_PARTITIONED, setup=_PARTITIONS,
         after=("INSERT INTO {t} VALUES (6)",), parked=True),
    kind("TRUNCATE of a partition", "TRUNCATE {t}_p0", columns=_PARTITIONED, setup=_PARTITIONS, parked=True),
    kind("ADD COLUMN of a partitioned table", "ALTER TABLE {t} ADD COLUMN more INT", columns=_PARTITIONED, setup=_PARTITIONS),
    kind("ADD COLUMN with a DEFAULT of a partitioned table", "ALTER TABLE {t} ADD COLUMN more INT DEFAULT 5",
         columns=_PARTITIONED, setup=_PARTITIONS),
    kind("ADD COLUMN with a DEFAULT, then VACUUM FULL", "ALTER TABLE {t} ADD COLUMN more INT DEFAULT 5", "VACUUM FULL {t}"),
    kind("TYPE to a wider integer of a partitioned table", "ALTER TABLE {t} ALTER COLUMN v TYPE BIGINT",
         columns=_PARTITIONED, setup=_PARTITIONS, parked=True),
)  # fmt: skip


_NOT_IN_MYSQL: Sequence[Kind] = (
    kind(
        "ADD COLUMN IF NOT EXISTS of a column that exists", "ALTER TABLE {t} ADD COLUMN IF NOT EXISTS v INT DEFAULT 5"
    ),
)


def kinds_of(server: str) -> Sequence[Kind]:
    """`server`: mysql, mariadb or postgres."""
    kinds = POSTGRES if server == "postgres" else MYSQL
    return kinds if server == "mysql" else (*kinds, *_NOT_IN_MYSQL)
