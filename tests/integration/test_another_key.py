"""A table gets another primary key: its copy in a mirror gets it, too, and all rows are read again."""

import contextlib
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import CommandLine
from tests.support.epochs import Notes, die_at, run_epochs
from tests.support.jobs import source_of, write_job
from tests.support.mysql_accounts import account
from tests.support.remedies import advice_of, run_command, run_through
from tests.support.servers import Database
from tests.support.workload import connect_for_transactions
from tidemark.conf.load import load_job_file
from tidemark.conf.tables import TableName
from tidemark.jobs.commands.signal import resnapshot
from tidemark.jobs.sinks import make_sink
from tidemark.jobs.tables.parking import require_none_parked
from tidemark.sinks.mirror.mysql import session as mysql_session
from tidemark.sinks.mirror.postgres import session as postgres_session
from tidemark.sinks.mirror.target import Session, TargetName
from tidemark.state.checkpoint.layout import Checkpoint

pytestmark = [
    pytest.mark.integration,
    pytest.mark.once_per_family,
    pytest.mark.servers_in_turn(always="postgres18_server"),  # MySQL and MariaDB have the same code
]

ROWS = "INSERT INTO t VALUES (1, 'a', 1, 10), (2, 'b', 1, 20), (3, 'c', 2, 30)"


def job_of(source: Database, target: Database, folder: Path, **sink: Any) -> Path:
    mirror = {"type": "mirror", "url": target.url, "table": "copy_{table}", "on_schema_change": "evolve", **sink}
    tables = {"tables": [f"{source.schema}.{name}" for name in ("t", "other")]}
    return write_job(
        folder, source=source_of(source, on_table_error="park", **tables), checkpoint=str(folder / "c"), sink=mirror
    )


def create(source: Database, key: str = "id") -> None:
    columns = "id INT NOT NULL, code VARCHAR(20) NOT NULL, part INT NOT NULL, v INT"
    source.execute(f"CREATE TABLE t ({columns}, CONSTRAINT t_pkey PRIMARY KEY ({key}))", ROWS)
    source.execute("CREATE TABLE other (id INT PRIMARY KEY)", "INSERT INTO other VALUES (1)")


def new_key(source: Database, *columns: str) -> str:
    drop = "DROP CONSTRAINT t_pkey" if source.kind == "postgres" else "DROP PRIMARY KEY"
    return f"ALTER TABLE t {drop}, ADD CONSTRAINT t_pkey PRIMARY KEY ({', '.join(columns)})"


def key_of(target: Database) -> list[str]:
    schema = f"'{target.schema}'"
    query = (
        "SELECT k.column_name FROM information_schema.key_column_usage k JOIN information_schema.table_constraints c "
        "ON c.constraint_name = k.constraint_name AND c.table_schema = k.table_schema AND c.table_name = k.table_name "
        f"WHERE c.constraint_type = 'PRIMARY KEY' AND k.table_schema = {schema} AND k.table_name = 'copy_t' "
        "ORDER BY k.ordinal_position"
    )
    return [name for (name,) in target.query(query)]


def tables_of_trials(target: Database) -> list[Any]:
    query = "SELECT table_name FROM information_schema.tables WHERE table_schema = '%s' AND table_name LIKE '%s'"
    return target.query(query % (target.schema, "tidemark_trial%"))


def parked_text(job: Path) -> str:
    """Returns the text of a run about the parked table, and requires that there is no other."""
    run_epochs(job, notes=(notes := Notes()))
    (text,) = (facts["text"] for event, facts in notes.found if event == "parked")
    return str(text)


def assert_equal(source: Database, target: Database, columns: str = "id, code, part, v") -> None:
    query = f"SELECT {columns} FROM %s ORDER BY id, code"
    assert target.query(query % "copy_t") == source.query(query % "t")
    assert target.query("SELECT id FROM copy_other ORDER BY id") == source.query("SELECT id FROM other ORDER BY id")


def target_of(source: Database, request: pytest.FixtureRequest) -> Database:
    target: Database = request.getfixturevalue(f"{source.kind}_database")
    return target


@pytest.mark.parametrize("columns", [("code",), ("part", "id"), ("code", "id")])
def test_the_copy_gets_the_key_and_all_rows(
    columns: tuple[str, ...], any_source_database: Database, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Rows whose old keys are equal are there only after the change."""
    source, target = any_source_database, target_of(any_source_database, request)
    create(source)
    job = job_of(source, target, tmp_path)
    run_epochs(job)
    rights = "GRANT SELECT (id) ON copy_t TO PUBLIC" if target.kind == "postgres" else "SELECT 1"
    view = "CREATE VIEW seen AS SELECT id, code FROM copy_t"
    target.execute("ALTER TABLE copy_t ADD COLUMN mine INT", "CREATE INDEX mine_i ON copy_t (id, v)", view, rights)
    source.execute("UPDATE t SET v = 11 WHERE id = 1", new_key(source, *columns))
    source.execute(
        "INSERT INTO t VALUES (1, 'd', 3, 40)", "DELETE FROM t WHERE code = 'b'", "INSERT INTO other VALUES (2)"
    )
    run_epochs(job)
    assert_equal(source, target)
    assert sorted(key_of(target)) == sorted(columns)
    assert target.query("SELECT mine FROM copy_t WHERE mine IS NOT NULL") == []
    assert target.query("SELECT id FROM seen ORDER BY id") == source.query("SELECT id FROM t ORDER BY id")
    if target.kind == "postgres":
        assert target.query("SELECT has_column_privilege('public', 'copy_t', 'id', 'SELECT')") == [(True,)]
        assert target.query("SELECT count(*) FROM pg_indexes WHERE indexname = 'mine_i'") == [(1,)]
    source.execute(
        "UPDATE t SET v = v + 1", "UPDATE t SET code = 'e' WHERE code = 'd'", "DELETE FROM t WHERE code = 'c'"
    )
    run_epochs(job)
    assert_equal(source, target)
    state = Checkpoint.at(str(tmp_path / "c")).job_state()
    assert state is not None
    require_none_parked(load_job_file(job), state)


def test_columns_of_the_old_key_may_be_null_or_gone(
    any_source_database: Database, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    source, target = any_source_database, target_of(any_source_database, request)
    create(source, "id, part, code")
    job = job_of(source, target, tmp_path)
    run_epochs(job)
    nullable = (
        "ALTER TABLE t ALTER code DROP NOT NULL" if source.kind == "postgres" else "ALTER TABLE t MODIFY code TEXT"
    )
    source.execute(new_key(source, "id"), nullable, "ALTER TABLE t DROP COLUMN part", "UPDATE t SET code = NULL")
    run_epochs(job)
    assert_equal(source, target, "id, code, v")
    assert key_of(target) == ["id"]
    source.execute("INSERT INTO t (id, code) VALUES (9, NULL)", "DELETE FROM t WHERE id = 1")
    run_epochs(job)
    assert_equal(source, target, "id, code, v")


@pytest.mark.parametrize(
    ("before", "after", "value"),
    [("INT", "VARCHAR(20)", "'nine'"), ("VARCHAR(20)", "INT", "9"), ("VARCHAR(20)", "VARCHAR(5)", "'nine'")],
)
def test_a_column_of_the_key_gets_another_type(
    before: str,
    after: str,
    value: str,
    any_source_database: Database,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    source, target = any_source_database, target_of(any_source_database, request)
    source.execute(
        f"CREATE TABLE t (id {before} NOT NULL PRIMARY KEY, code INT)", "CREATE TABLE other (id INT PRIMARY KEY)"
    )
    source.execute("INSERT INTO t VALUES ('1', 1), ('2', 2)")
    job = job_of(source, target, tmp_path)
    run_epochs(job)
    change = f"MODIFY id {after} NOT NULL, MODIFY code BIGINT"
    if source.kind == "postgres":
        change = f"ALTER id TYPE {after} USING id::{after}, ALTER code TYPE BIGINT"
    source.execute(
        f"ALTER TABLE t {change}", f"INSERT INTO t VALUES ({value}, 5000000000)", "DELETE FROM t WHERE code = 1"
    )
    run_epochs(job)
    assert_equal(source, target, "id, code")
    source.execute("UPDATE t SET code = code + 1")
    run_epochs(job)
    assert_equal(source, target, "id, code")


def test_a_table_that_had_no_key_gets_one(
    any_source_database: Database, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    source, target = any_source_database, target_of(any_source_database, request)
    source.execute("CREATE TABLE t (id INT NOT NULL, code VARCHAR(20) NOT NULL, part INT, v INT)", ROWS)
    source.execute("CREATE TABLE other (id INT PRIMARY KEY)")
    if source.kind == "postgres":
        source.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    job = job_of(source, target, tmp_path, keyless="append")
    run_epochs(job)
    source.execute(
        "ALTER TABLE t ADD PRIMARY KEY (id)", "UPDATE t SET v = 5 WHERE id = 2", "DELETE FROM t WHERE id = 1"
    )
    run_epochs(job)
    if source.kind == "postgres":  # its log tells of the key only where a row was written without one
        resnapshot(load_job_file(job), [TableName(source.schema, "t")])  # the remedy
        run_epochs(job)
    assert_equal(source, target)
    assert key_of(target) == ["id"]


STEPS = ["sink.key_tried", "sink.key_replaced", "sink.after_key", "tables.before_joined", "sink.before_commit"]


@pytest.mark.parametrize("point", STEPS)
def test_a_death_at_any_step(
    point: str,
    any_source_database: Database,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    source, target = any_source_database, target_of(any_source_database, request)
    create(source)
    job = job_of(source, target, tmp_path)
    run_epochs(job)
    source.execute(new_key(source, "code"), "INSERT INTO t VALUES (1, 'd', 3, 40)")
    if source.kind != "postgres" or point not in ("sink.key_tried", "sink.key_replaced"):  # it is one transaction there
        die_at(job, point)
    run_epochs(job)
    assert_equal(source, target)
    assert key_of(target) == ["code"]
    assert tables_of_trials(target) == []


def test_a_driver_that_was_away_removes_no_rows(
    any_source_database: Database, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its statements come after another driver has replaced the key and read the rows."""
    source, target = any_source_database, target_of(any_source_database, request)
    create(source)
    job = job_of(source, target, tmp_path)
    run_epochs(job)
    sink = make_sink(load_job_file(job))
    late: list[Any] = []
    session_of = type(sink.connect())
    replace_key = session_of.replace_key

    def noted(session: Session, *arguments: Any) -> None:
        late.append(arguments)
        replace_key(session, *arguments)

    monkeypatch.setattr(session_of, "replace_key", noted)
    source.execute(new_key(source, "code"), "INSERT INTO t VALUES (1, 'd', 3, 40)")
    run_epochs(job)
    (arguments,) = late
    replace_key(sink.connect(), *arguments)
    assert_equal(source, target)
    source.execute("UPDATE t SET v = v + 1")
    run_epochs(job)
    assert_equal(source, target)


def test_a_copy_that_can_t_have_the_key_keeps_its_rows_and_others_go_on(
    any_source_database: Database, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Deleted rows that a copy keeps need not have values of another key."""
    source, target = any_source_database, target_of(any_source_database, request)
    create(source)
    job = job_of(source, target, tmp_path, audit_columns={"deleted": "_deleted"})
    run_epochs(job)
    source.execute(new_key(source, "code"), "INSERT INTO t VALUES (1, 'd', 3, 40)", "INSERT INTO other VALUES (2)")
    run_epochs(job)
    assert target.query("SELECT id, v FROM copy_t ORDER BY id") == [(1, 10), (2, 20), (3, 30)]
    assert target.query("SELECT id FROM copy_other ORDER BY id") == [(1,), (2,)]
    target.execute("DROP TABLE copy_t")  # the remedy
    run_epochs(job)
    assert_equal(source, target)


def test_a_copy_that_numbers_its_rows_keeps_them(
    any_source_database: Database, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    source, target = any_source_database, target_of(any_source_database, request)
    source.execute("CREATE TABLE t (id INT NOT NULL, code VARCHAR(20) NOT NULL, part INT, v INT)", ROWS)
    source.execute("CREATE TABLE other (id INT PRIMARY KEY)")
    if source.kind == "postgres":
        source.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    number = "INT GENERATED BY DEFAULT AS IDENTITY" if target.kind == "postgres" else "INT AUTO_INCREMENT"
    target.execute(f"CREATE TABLE copy_t (n {number} PRIMARY KEY, id INT, code VARCHAR(20), part INT, v INT)")
    job = job_of(source, target, tmp_path, keyless="append")
    run_epochs(job)
    source.execute("ALTER TABLE t ADD PRIMARY KEY (id)", "INSERT INTO other VALUES (2)")
    resnapshot(load_job_file(job), [TableName(source.schema, "t")])
    run_epochs(job)
    assert target.query("SELECT id, v FROM copy_t ORDER BY id") == [(1, 10), (2, 20), (3, 30)]
    target.execute("DROP TABLE copy_t")  # the remedy
    run_epochs(job)
    resnapshot(load_job_file(job), [TableName(source.schema, "t")])
    run_epochs(job)
    assert_equal(source, target)
    assert key_of(target) == ["id"]


COLUMNS = "id INT, code VARCHAR(20), part INT, v INT"
REFUSED = {
    "partitions": f"({COLUMNS}, PRIMARY KEY (id, part)) PARTITION BY HASH (id)",
    "a generated column": f"({COLUMNS}, twice INT GENERATED ALWAYS AS (part * 2) STORED, PRIMARY KEY (id, part))",
    "a check": f"({COLUMNS}, CHECK (part < 9 OR v > 0), PRIMARY KEY (id, part))",
    "short indexes": "(id INT, code VARCHAR(300) CHARACTER SET utf8mb4, part INT, v INT, PRIMARY KEY (id, part)) "
    "ROW_FORMAT=COMPACT",
}
"""Copies of which the server drops no column `part`, or which it gives no key (code)."""
OF_MYSQL_ALONE = ("a check", "short indexes")
"""PostgreSQL drops a check with its column."""


@pytest.mark.parametrize("name", REFUSED)
def test_a_copy_to_which_its_server_refuses_the_key_keeps_its_rows_and_says_what_helps(
    name: str, any_source_database: Database, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    source, target = any_source_database, target_of(any_source_database, request)
    if target.kind == "postgres" and name in OF_MYSQL_ALONE:
        pytest.skip("PostgreSQL gives the copy its key")
    create(source, "id, part")
    if name == "short indexes":
        source.execute("ALTER TABLE t MODIFY code VARCHAR(300) CHARACTER SET utf8mb4 NOT NULL")
    target.execute(f"CREATE TABLE copy_t {REFUSED[name]}")
    if target.kind == "postgres" and name == "partitions":
        target.execute("CREATE TABLE leaf PARTITION OF copy_t FOR VALUES WITH (MODULUS 1, REMAINDER 0)")
    job = job_of(source, target, tmp_path)
    run_epochs(job)
    before = target.query("SELECT id, code, part, v FROM copy_t ORDER BY id")
    assert len(before) == 3
    source.execute(new_key(source, "code"), "ALTER TABLE t DROP COLUMN part", "INSERT INTO other VALUES (2)")
    source.execute("INSERT INTO t VALUES (1, 'd', 40)")
    for _ in range(2):
        parked = parked_text(job)
        assert "Or drop that table, and let the job create it. Nothing is written to its copy" in parked
        assert "were removed" not in parked
        assert target.query("SELECT id, code, part, v FROM copy_t ORDER BY id") == before
        assert target.query("SELECT id FROM copy_other ORDER BY id") == [(1,), (2,)]
        assert tables_of_trials(target) == []
    target.execute("DROP TABLE copy_t")
    run_epochs(job)
    assert_equal(source, target, "id, code, v")
    assert key_of(target) == ["code"]


def test_unique_indexes_with_a_column_of_the_old_key_that_is_gone_are_dropped(
    any_source_database: Database, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Without `part`, they would refuse rows that differ in it only."""
    source, target = any_source_database, target_of(any_source_database, request)
    create(source, "id, part")
    job = job_of(source, target, tmp_path)
    run_epochs(job)
    target.execute("CREATE UNIQUE INDEX two ON copy_t (v, part)", "CREATE UNIQUE INDEX kept ON copy_t (id, v)")
    source.execute(new_key(source, "id"), "ALTER TABLE t DROP COLUMN part", "UPDATE t SET v = 7")
    run_epochs(job)
    assert_equal(source, target, "id, code, v")
    assert key_of(target) == ["id"]
    index = ("indexname", "pg_indexes WHERE tablename")
    if target.kind != "postgres":
        index = (
            "DISTINCT index_name",
            f"information_schema.statistics WHERE table_schema = '{target.schema}' AND table_name",
        )
    names = {name for (name,) in target.query(f"SELECT {index[0]} FROM {index[1]} = 'copy_t'")}
    assert "kept" in names
    assert "two" not in names


def test_an_account_without_the_right_to_try_a_key_keeps_the_copy_s_rows(
    any_source_database: Database, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    source, target = any_source_database, target_of(any_source_database, request)
    if target.kind == "postgres":
        pytest.skip("PostgreSQL takes the change back")
    create(source)
    rights = "SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, CREATE TEMPORARY TABLES"
    with account(target.server, f"{rights} ON {target.name}.*") as endpoint:
        password = endpoint.password.get_secret_value()
        url = f"{endpoint.kind}://{endpoint.user}:{password}@{endpoint.host}:{endpoint.port}/{target.name}"
        job = job_of(source, target, tmp_path, url=url)
        run_epochs(job)
        source.execute(new_key(source, "code"), "INSERT INTO t VALUES (1, 'd', 3, 40)")
        parked = parked_text(job)
        assert (
            "Give the account of sink.url the privileges: SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER and DROP"
            in parked
        )
        assert target.query("SELECT id, v FROM copy_t ORDER BY id") == [(1, 10), (2, 20), (3, 30)]
        target.execute(f"GRANT DROP ON {target.name}.* TO {endpoint.user}")
        run_epochs(job)
        assert_equal(source, target)
        assert key_of(target) == ["code"]


def test_a_copy_whose_old_key_is_an_identity_column_gets_the_key(
    any_source_database: Database, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """`id` has values of its own in the source, and they are copied."""
    source, target = any_source_database, target_of(any_source_database, request)
    create(source)
    number = "INT GENERATED BY DEFAULT AS IDENTITY" if target.kind == "postgres" else "INT AUTO_INCREMENT"
    target.execute(f"CREATE TABLE copy_t (id {number} PRIMARY KEY, code VARCHAR(20), part INT, v INT)")
    job = job_of(source, target, tmp_path)
    run_epochs(job)
    source.execute(new_key(source, "code"), "INSERT INTO t VALUES (1, 'd', 3, 40)")
    run_epochs(job)
    assert_equal(source, target)
    assert key_of(target) == ["code"]


def test_a_key_with_included_columns_is_the_key(
    postgres18_database: Database, postgres_database: Database, tmp_path: Path
) -> None:
    source, target = postgres18_database, postgres_database
    create(source)
    job = job_of(source, target, tmp_path)
    run_epochs(job)
    target.execute("ALTER TABLE copy_t DROP CONSTRAINT copy_t_pkey, ADD PRIMARY KEY (id) INCLUDE (v)")
    source.execute("UPDATE t SET v = 11 WHERE id = 1", "DELETE FROM t WHERE id = 2")
    run_epochs(job, notes=(notes := Notes()))
    assert not {event for event, _ in notes.found} & {"left", "joined", "parked"}
    assert_equal(source, target)


def test_a_reader_of_the_copy_holds_up_no_other_table(
    any_source_database: Database, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = any_source_database, target_of(any_source_database, request)
    create(source)
    job = job_of(source, target, tmp_path)
    run_epochs(job)
    module = postgres_session if target.kind == "postgres" else mysql_session
    monkeypatch.setattr(module, "KEY_LOCK_SECONDS", 1)
    source.execute(new_key(source, "code"), "INSERT INTO t VALUES (1, 'd', 3, 40)", "INSERT INTO other VALUES (2)")
    with contextlib.closing(connect_for_transactions(target)) as reader:
        reader.cursor().execute("SELECT * FROM copy_t")
        parked = parked_text(job)
    assert ("The rows of" in parked and "were removed before" in parked) == (target.kind != "postgres")
    assert target.query("SELECT id FROM copy_other ORDER BY id") == [(1,), (2,)]
    run_epochs(job)
    assert_equal(source, target)
    assert key_of(target) == ["code"]


def test_a_copy_whose_name_has_a_percent_sign(
    any_source_database: Database, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    source, target = any_source_database, target_of(any_source_database, request)
    create(source)
    job = job_of(source, target, tmp_path, table="50%s{table}")
    run_epochs(job)
    source.execute(new_key(source, "code"), "INSERT INTO t VALUES (1, 'd', 3, 40)")
    run_epochs(job)
    quote = '"' if target.kind == "postgres" else "`"
    rows = target.query(f"SELECT id, code FROM {quote}50%st{quote} ORDER BY id, code")
    assert rows == source.query("SELECT id, code FROM t ORDER BY id, code")


@pytest.mark.parametrize("kind", ["mysql", pytest.param("mariadb", marks=pytest.mark.every_server)])
def test_rows_that_somebody_writes_while_the_copy_gets_a_key(
    kind: str, request: pytest.FixtureRequest, tidemark: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody may do that, and the next run goes on once nobody does."""
    source: Database = request.getfixturevalue(f"{kind}_database")
    create(source)
    job = job_of(source, source, tmp_path)
    run_epochs(job)
    source.execute(new_key(source, "code"), "INSERT INTO t VALUES (4, 'd', 1, 10)")
    is_empty = mysql_session.MySqlSession.is_empty

    def writing(session: mysql_session.MySqlSession, target: TargetName) -> bool:
        source.execute("INSERT INTO copy_t VALUES (9, 'z', 1, 10)")
        return is_empty(session, target)

    with monkeypatch.context() as patch:
        patch.setattr(mysql_session.MySqlSession, "is_empty", writing)
        told = advice_of(job)
    assert "copy_t could not be removed. Let nobody else write to it." in told.replace("Remedy: ", "")
    run_command(told, job, tidemark)
    run_through(job)
    assert_equal(source, source)
    assert key_of(source) == ["code"]


@pytest.mark.parametrize("earlier", ["utf8mb4_bin", "utf8mb4_general_ci"])
def test_a_copy_whose_keys_are_equal_by_the_new_collation_is_emptied_first(
    earlier: str, mysql_database: Database, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The source has lost those rows before the job looks again, and the copy has not."""
    source, target = mysql_database, target_of(mysql_database, request)
    source.execute(
        f"CREATE TABLE t (code VARCHAR(20) COLLATE {earlier} PRIMARY KEY, id INT)",
        "INSERT INTO t VALUES ('ss', 1), ('\u00df', 2), ('b', 3)",
        "CREATE TABLE other (id INT PRIMARY KEY)",
        "INSERT INTO other VALUES (1)",
    )
    run_epochs(job := job_of(source, target, tmp_path))
    source.execute(
        "DELETE FROM t WHERE id = 1",
        "ALTER TABLE t MODIFY code VARCHAR(20) COLLATE utf8mb4_0900_ai_ci",
        "INSERT INTO t VALUES ('c', 4)",
        "UPDATE t SET code = 'B' WHERE id = 3",
    )
    run_through(job)
    assert_equal(source, target, "id, code")
