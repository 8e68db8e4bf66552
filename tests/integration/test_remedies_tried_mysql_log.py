"""Remedies for what a MySQL or MariaDB source has in its log, or lacks, done as they are printed: the job goes on, and its
copies are those of the source."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import CommandLine
from tests.support.epochs import Notes, before_the_next_epoch, run_epochs
from tests.support.jobs import ROOT, source_of, write_job
from tests.support.lost_logs import lose_log
from tests.support.mysql_accounts import account
from tests.support.remedies import remedy_of, run_command
from tests.support.remedy_ways import (
    Trouble,
    by_hand,
    get_over,
    left_out,
    mirror_job,
    require_copies,
    setting,
    statements,
    told_by,
    undone,
)
from tests.support.servers import Database
from tidemark.readers.mysql.snapshot import split_reader
from tidemark.readers.mysql.snapshot.split_reader import ReadHooks
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


FUNCTION = "CREATE FUNCTION does (x int) RETURNS int DETERMINISTIC MODIFIES SQL DATA BEGIN {}; RETURN 1; END"
OF_LOG |= {
    "a function that writes nothing": Trouble(
        ("SET SESSION binlog_format = 'STATEMENT'", "CREATE TEMPORARY TABLE made AS SELECT does(1)"),
        "If no function in it writes captured tables: log.ignore_statements_on: [",
        setting,
        before=(FUNCTION.format("SET @x = x"),),
        kind="mariadb",
    ),
    "a function that writes tables": Trouble(
        ("SET SESSION binlog_format = 'STATEMENT'", "CREATE TEMPORARY TABLE bad AS SELECT does(1)"),
        "To prevent it: let the session use binlog_format=ROW.",
        undone,
        before=(
            "CREATE TABLE bad (id int PRIMARY KEY)",
            "CREATE TABLE written (id int PRIMARY KEY)",
            FUNCTION.format("INSERT INTO written VALUES (x)"),
        ),
        later=("SET SESSION binlog_format = ROW", "CREATE TEMPORARY TABLE bad AS SELECT does(2)"),
        kind="mariadb",
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


def test_a_grant_that_is_revoked_while_the_job_runs(
    mysql_database: Database, postgres_database: Database, tmp_path: Path
) -> None:
    source, grant = mysql_database, "REPLICATION SLAVE, REPLICATION CLIENT ON *.*"
    assert f"GRANT {grant} TO cdc;" in (ROOT / "docs" / "permissions.md").read_text()
    with account(source.server, f"SELECT ON {source.name}.*", grant) as user:
        job = a_job(tmp_path, source, postgres_database, url=user.url_with_password(), tables=[f"{source.name}.orders"])
        assert told_by(job) is None
        source.execute("UPDATE orders SET note = 'b'")
        with pytest.MonkeyPatch.context() as patch:
            before_the_next_epoch(patch, lambda: source.execute(f"REVOKE REPLICATION SLAVE ON *.* FROM {user.user}"))
            told = told_by(job)
        assert told is not None
        assert "need (at least one of) the REPLICATION SLAVE privilege" in told
        assert "If it is about a privilege, grant it (the page Permissions of Tidemark's documentation" in told
        source.execute(f"GRANT {grant} TO {user.user}")
        for _ in range(2):
            assert told_by(job) is None
            require_copies(source, postgres_database)
            source.execute("UPDATE orders SET note = 'z'")


@dataclass(frozen=True)
class Restless:
    """A table that changes during each of its reads. `change`: what does it. `rests`: whether it is paused then. `settings`:
    those of the runs after that."""

    table: str
    change: tuple[str, ...]
    sink: str
    rests: bool = True
    settings: tuple[str, ...] = ()


RESTLESS = {
    "its definition": Restless(
        "id int PRIMARY KEY, v int", ("ALTER TABLE bad ADD COLUMN w int", "ALTER TABLE bad DROP COLUMN w"), "mirror"
    ),
    "its rows, without a key": Restless("id int NOT NULL, v int", ("UPDATE bad SET v = v + 1",), "files"),
    "its rows, with a key that was not named": Restless(
        "id int NOT NULL, v int, UNIQUE (id)",
        ("UPDATE bad SET v = v + 1",),
        "files",
        rests=False,
        settings=("source.keys={SCHEMA.bad: [id]}",),
    ),
}


@pytest.mark.parametrize("name", RESTLESS)
def test_a_table_that_changes_during_each_read(
    mysql_database: Database,
    postgres_database: Database,
    tidemark: CommandLine,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    name: str,
) -> None:
    source, restless, changes = mysql_database, RESTLESS[name], [True]
    monkeypatch.setattr(split_reader, "MAX_FRESH_READS", 10)

    def change() -> None:
        if changes:
            source.execute(*restless.change)

    monkeypatch.setattr(split_reader, "ReadHooks", lambda: ReadHooks(after_low=change))
    job = a_job(tmp_path, source, postgres_database, on_table_error="park")
    if restless.sink == "files":
        sink = {"type": "files", "path": str(tmp_path / "out"), "format": "jsonl"}
        job = write_job(tmp_path, source=source_of(source, on_table_error="park"), sink=sink)
    source.execute(f"CREATE TABLE bad ({restless.table})", "INSERT INTO bad VALUES (1, 1), (2, 2)")
    told = told_by(job)
    assert told is not None
    if restless.rests:
        assert "Pause DDL on the table, and if it has no key also writes to it." in told
        changes.clear()
    else:
        assert "Or name a unique key, if it has one, in source.keys." in told
    settings = [text.replace("SCHEMA", source.schema) for text in restless.settings]
    run_command(told, job, tidemark)
    assert told_by(job, *settings) is None
    if restless.sink == "mirror":
        require_copies(source, postgres_database)
        return
    changes.clear()
    source.execute("INSERT INTO bad VALUES (3, 3)")
    assert told_by(job, *settings) is None
    assert rows_in(tmp_path / "out" / f"{source.name}.bad") == source.query("SELECT id, v FROM bad ORDER BY id")


def rows_in(folder: Path) -> list[tuple[int, int]]:
    """The rows (id, v) after all changes of a table without deletes."""
    changes = [json.loads(line) for path in folder.glob("*.jsonl") for line in path.read_text().splitlines()]
    found = dict[int, int]()
    for change in sorted(changes, key=lambda change: (change["_commit_version"], change["_seq"])):
        if change["_change_type"] in {"insert", "update_postimage"}:
            found[change["id"]] = change["v"]
    return sorted(found.items())


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
