"""Remedies for what a MySQL or MariaDB source has in its log, or lacks, done as they are printed: the job goes on, and its
copies are those of the source."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import CommandLine
from tests.support.epochs import Notes, run_epochs
from tests.support.jobs import source_of, write_job
from tests.support.lost_logs import lose_log
from tests.support.mysql_accounts import account
from tests.support.remedies import remedy_of
from tests.support.remedy_ways import (
    Trouble,
    by_hand,
    get_over,
    left_out,
    mirror_job,
    setting,
    statements,
)
from tests.support.servers import Database
from tidemark.state.errors import TidemarkError

pytestmark = pytest.mark.integration

TWO_KEYS = "CREATE TABLE bad (id int NOT NULL, code int NOT NULL, UNIQUE KEY by_code (code), UNIQUE KEY by_id (id))"
PARENTS = ("CREATE TABLE parents (id int PRIMARY KEY)", "CREATE TABLE bad (id int PRIMARY KEY, p int, KEY (p))")
CASCADE = (
    "ALTER TABLE bad ADD CONSTRAINT belongs FOREIGN KEY (p) REFERENCES parents (id) ON DELETE CASCADE",
    "ALTER TABLE bad DROP FOREIGN KEY belongs",
)

OF_LOG = {
    "columns without names": Trouble(
        (
            "SET GLOBAL binlog_row_metadata = MINIMAL",
            "UPDATE orders SET note = 'b'",
            "SET GLOBAL binlog_row_metadata = FULL",
        ),
        "SET GLOBAL binlog_row_metadata=FULL on the source, let applications reconnect",
        statements("SET GLOBAL binlog_row_metadata=FULL"),
        before=(),
    ),
    "parts of JSON": Trouble(
        ("SET SESSION binlog_row_value_options = 'PARTIAL_JSON'", "UPDATE bad SET j = JSON_SET(j, '$.a', 'bb')"),
        "SET GLOBAL binlog_row_value_options=''",
        statements("SET GLOBAL binlog_row_value_options=''"),
        before=(
            "CREATE TABLE bad (id int PRIMARY KEY, j json)",
            """INSERT INTO bad VALUES (1, '{"a": "aa", "b": "a long text that is not logged again"}')""",
        ),
        compared="id",
    ),
    "a cascade that is made RESTRICT": Trouble(
        CASCADE,
        "Make it RESTRICT or NO ACTION",
        by_hand("ALTER TABLE bad ADD CONSTRAINT belongs FOREIGN KEY (p) REFERENCES parents (id) ON DELETE RESTRICT"),
        before=PARENTS,
        kind="mariadb",
    ),
    "a cascade, left out": Trouble(
        CASCADE, "or leave the table out: source.exclude_tables", left_out, before=PARENTS, kind="mariadb"
    ),
    "a cascade, not followed": Trouble(
        CASCADE, "or continue without these changes: source.cascades: warn", setting, before=PARENTS, kind="mariadb"
    ),
    "a key without its index": Trouble(
        ("DROP INDEX by_code ON bad", "CREATE UNIQUE INDEX by_code ON bad (code)"),
        "Name a key that is unique (source.keys)",
        by_hand(settings=("source.keys={SCHEMA.bad: [id]}",)),
        before=(TWO_KEYS, "INSERT INTO bad VALUES (1, 1)"),
        wrong=("source.keys={SCHEMA.bad: [code]}",),
        later=("UPDATE bad SET code = 7",),
    ),
}


def a_job(folder: Path, source: Database, target: Database, **settings: Any) -> Path:
    source.execute("CREATE TABLE orders (id int PRIMARY KEY, note varchar(90))", "INSERT INTO orders VALUES (1, 'a')")
    return mirror_job(folder, source, target, **settings)


@pytest.mark.parametrize("name", OF_LOG)
def test_what_the_log_has_or_lacks(
    request: pytest.FixtureRequest, postgres_database: Database, tidemark: CommandLine, tmp_path: Path, name: str
) -> None:
    trouble = OF_LOG[name]
    source: Database = request.getfixturevalue(f"{trouble.kind}_database")
    policy = "park" if len(name) % 2 else "stop"
    job = a_job(tmp_path, source, postgres_database, on_table_error=policy)
    get_over(job, source, postgres_database, trouble, tidemark)


@pytest.mark.parametrize("way", ["grant", "ignore", "start over"])
def test_a_statement_that_writes_another_table(
    mysql_database: Database, postgres_database: Database, tidemark: CommandLine, tmp_path: Path, way: str
) -> None:
    """Without TRIGGER the account does not see whether the table has triggers."""
    source = mysql_database
    source.execute("CREATE TABLE other (id int PRIMARY KEY)")
    with account(source.server, f"SELECT ON {source.name}.*", "REPLICATION SLAVE, REPLICATION CLIENT ON *.*") as user:
        job = a_job(
            tmp_path,
            source,
            postgres_database,
            url=user.url_with_password(),
            tables=[f"{source.name}.orders"],
        )
        ways = {
            "grant": lambda told, source: statements(rf"GRANT TRIGGER ON \S+ TO {user.user}")(
                told.replace("<account>", user.user), source
            ),
            "ignore": setting,
            "start over": statements("SET GLOBAL binlog_format=ROW"),
        }
        trouble = Trouble(
            ("SET SESSION binlog_format = 'STATEMENT'", "INSERT INTO other VALUES (1)"),
            f"GRANT TRIGGER ON {source.name}.other TO <account>",
            ways[way],
            before=(),
        )
        get_over(job, source, postgres_database, trouble, tidemark)


@dataclass(frozen=True)
class Start:
    """A start in the log. `wrong`: from a source; `right`: the one that is printed."""

    kind: str
    wrong: Callable[[Database], str]
    says: str
    right: Callable[[Database], str]


def executed(source: Database) -> str:
    ((text,),) = source.query("SELECT @@GLOBAL.gtid_executed")
    return "".join(str(text).split())


def beyond(source: Database) -> str:
    return f"{{gtid: '{executed(source).partition(':')[0]}:1-99999999'}}"


def without_purged(source: Database) -> str:
    lose_log(source)
    return f"{{gtid: '{executed(source).partition(':')[0]}:1'}}"


def with_a_gap(source: Database) -> str:
    before = executed(source)
    source.execute(*[f"INSERT INTO orders VALUES ({number}, 'later')" for number in (2, 3, 4)])
    ((added,),) = source.query("SELECT GTID_SUBTRACT(@@GLOBAL.gtid_executed, %s)", (before,))
    server, numbers = "".join(added.split()).split(":")  # another test may have left transactions with a tag
    return f"{{gtid: '{before},{server}:{numbers.partition('-')[2]}'}}"


def inside(source: Database) -> str:
    file, size, *_ = source.query("SHOW BINARY LOGS")[-1]
    return f"{{file: {file}, pos: {size - 1}}}"


def at_the_end(source: Database) -> str:
    file, size, *_ = source.query("SHOW BINARY LOGS")[-1]
    return f"{{file: {file}, pos: {size}}}"


def of_no_domain(source: Database) -> str:
    ((text,),) = source.query("SELECT @@GLOBAL.gtid_binlog_pos")
    return f"{{gtid: '{text},77-1-1'}}"


def of_mariadb(source: Database) -> str:
    ((text,),) = source.query("SELECT @@GLOBAL.gtid_binlog_pos")
    return f"{{gtid: '{text}'}}"


def long_ago(source: Database) -> str:
    lose_log(source)
    return "{timestamp: '2001-01-01T00:00:00Z'}"


STARTS = {
    "beyond what is executed": Start(
        "mysql", beyond, "Give a subset of @@gtid_executed.", lambda source: f"{{gtid: '{executed(source)}'}}"
    ),
    "before what is purged": Start(
        "mysql",
        without_purged,
        "Give a set that contains all of @@gtid_purged",
        lambda source: f"{{gtid: '{executed(source)}'}}",
    ),
    "with a gap": Start(
        "mysql",
        with_a_gap,
        "Give a set that was @@gtid_executed while nothing was being committed",
        lambda source: f"{{gtid: '{executed(source)}'}}",
    ),
    "GTIDs of a server without": Start(
        "mysql_nogtid",
        lambda source: "{gtid: '3e11fa47-71ca-11e1-9e33-c80aa9429562:1'}",
        "Give file and pos, or `latest`.",
        at_the_end,
    ),
    "inside an event": Start("mysql_nogtid", inside, "or the end of a file.", at_the_end),
    "a domain that is not there": Start(
        "mariadb", of_no_domain, "Give a complete value that @@gtid_binlog_pos had", of_mariadb
    ),
    "before the log": Start("mysql", long_ago, "Give a later time, `earliest`", lambda source: "earliest"),
}


@pytest.mark.parametrize("name", STARTS)
def test_a_start_in_the_log_is_corrected(request: pytest.FixtureRequest, tmp_path: Path, name: str) -> None:
    start = STARTS[name]
    source: Database = request.getfixturevalue(f"{start.kind}_database")
    source.execute("CREATE TABLE orders (id int PRIMARY KEY, note varchar(90))", "INSERT INTO orders VALUES (1, 'a')")
    sink = {"type": "files", "path": str(tmp_path / "out"), "format": "jsonl"}
    job = write_job(tmp_path, source=source_of(source), sink=sink, mode="incremental")
    assert start.says in remedy_of(job, TidemarkError, f"log.start={start.wrong(source)}")
    right = f"log.start={start.right(source)}"
    run_epochs(job, right)
    source.execute("INSERT INTO orders VALUES (77, 'new')")
    run_epochs(job, right)
    assert "77" in "".join(path.read_text() for path in (tmp_path / "out").rglob("*.jsonl"))


def test_the_settings_of_a_parked_table_are_not_called_wrong(
    mysql_database: Database, postgres_database: Database, tmp_path: Path
) -> None:
    """Such as its key: the table is still selected."""
    source = mysql_database
    job = a_job(tmp_path, source, postgres_database, on_table_error="park")
    source.execute(TWO_KEYS, "INSERT INTO bad VALUES (1, 1)")
    name = f"{source.name}.bad"
    transform = f"transforms={{{name}: 'SELECT * FROM input'}}"
    settings = (f"source.keys={{{name}: [code]}}", f"source.columns={{{name}: {{exclude: [id]}}}}", transform)
    run_epochs(job, *settings)
    source.execute("DROP INDEX by_code ON bad", "CREATE UNIQUE INDEX by_code ON bad (code)")
    for _ in range(2):
        notes = Notes()
        run_epochs(job, *settings, notes=notes)
        found = [(event, facts["table"]) for event, facts in notes.found if "table" in facts]
        assert found == [("parked", name)]


def test_old_events_of_a_compressed_column_are_left_out(mariadb_database: Database, tmp_path: Path) -> None:
    """The column is not COMPRESSED any more, but the log is read from before that."""
    source = mariadb_database
    source.execute(
        "CREATE TABLE orders (id int PRIMARY KEY)",
        "CREATE TABLE bad (id int PRIMARY KEY, t varchar(90) COMPRESSED)",
        "FLUSH BINARY LOGS",
        "INSERT INTO bad VALUES (1, 'a')",
        "ALTER TABLE bad MODIFY t varchar(90)",
        "INSERT INTO orders VALUES (77)",
    )
    sink = {"type": "files", "path": str(tmp_path / "out"), "format": "jsonl"}
    job = write_job(tmp_path, source=source_of(source), sink=sink, mode="incremental")
    file = source.query("SHOW BINARY LOGS")[-1][0]
    start = f"log.start={{file: {file}, pos: 4}}"
    assert "use columns that are not COMPRESSED, or leave the table out." in remedy_of(job, TidemarkError, start)
    run_epochs(job, start, f"source.exclude_tables=[{source.name}.bad]")
    assert "77" in "".join(path.read_text() for path in (tmp_path / "out").rglob("*.jsonl"))
