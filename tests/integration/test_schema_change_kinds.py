"""`sink.on_schema_change` with a policy for each kind of change."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.altered_tables import copied, create, job_of, rows_of, told
from tests.support.cli import CommandLine, tidemark  # noqa: F401  # a fixture
from tests.support.epochs import Notes, die_at, run_epochs
from tests.support.history import read_history
from tests.support.jobs import source_of, write_job
from tests.support.mysql_accounts import account
from tests.support.servers import Database
from tidemark.conf.load import load_job_file
from tidemark.conf.tables import TableName
from tidemark.jobs.commands.signal import resnapshot
from tidemark.jobs.tables.parking import require_none_parked
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import TablesParkedError, TruncatedError

pytestmark = [pytest.mark.integration, pytest.mark.once_per_family, pytest.mark.servers_in_turn]


def with_kinds(database: Database, folder: Path, target: Database, *names: str, **kinds: str) -> Path:
    """The job of `t` and `other` once more, with other policies. `names`: the tables that it names without a wildcard. Then a
    table's error stops it."""
    sink = {"type": "mirror", "url": target.url, "table": "copy_{table}", "on_schema_change": kinds}
    if not names:
        return job_of(database, folder, sink=sink)
    tables = [f"{database.schema}.{name}" for name in names]
    return job_of(database, folder, sink=sink, source=source_of(database, tables=tables))


def columns_of(target: Database) -> list[str]:
    schema = "table_schema = current_schema()" if target.kind == "postgres" else "table_schema = database()"
    query = f"SELECT column_name FROM information_schema.columns WHERE {schema} AND table_name = 'copy_t'"
    return sorted(str(row[0]) for row in target.query(query))


def state_of(job: Path) -> Any:
    state = Checkpoint.at(load_job_file(job).checkpoint).job_state()
    assert state is not None
    return state


def test_new_columns_are_ignored_also_when_the_table_is_read_again(
    any_source_database: Database,
    twin_database: Database,
    tmp_path: Path,
    tidemark: CommandLine,  # noqa: F811
) -> None:
    source, target, notes = any_source_database, twin_database, Notes()
    copied(source, tmp_path, target)
    job = with_kinds(source, tmp_path, target, add_column="ignore")
    source.execute(
        "UPDATE t SET name = 'x' WHERE id = 1",
        "ALTER TABLE t ADD COLUMN more INT NOT NULL DEFAULT 5",
        "INSERT INTO t (id, name, more) VALUES (8, 'h', 9)",
    )
    run_epochs(job, notes=notes)
    assert told(notes) == ["altered"]
    assert "not copied (more)" in next(facts["text"] for event, facts in notes.found if event == "altered")
    assert columns_of(target) == ["id", "name"]
    source.execute("UPDATE t SET name = 'y', more = 1 WHERE id = 2")
    resnapshot(load_job_file(job), [TableName(source.schema, "t")])
    source.execute("ALTER TABLE t ADD COLUMN most INT", "INSERT INTO t (id, name, most) VALUES (9, 'i', 9)")
    run_epochs(job)
    run_epochs(job)
    assert columns_of(target) == ["id", "name"]
    assert rows_of(target, "copy_t", "id", "name") == rows_of(source, "t", "id", "name")
    assert json.loads(tidemark("reconcile", job, "--json").out)["equal"]
    # Another policy, and the columns come with the table's rows.
    job = with_kinds(source, tmp_path, target, add_column="evolve")
    resnapshot(load_job_file(job), [TableName(source.schema, "t")])
    run_epochs(job)
    assert rows_of(target, "copy_t", "id", "more", "most") == rows_of(source, "t", "id", "more", "most")


def test_one_that_comes_while_the_rows_are_copied_is_ignored_too(
    any_source_database: Database, twin_database: Database, tmp_path: Path
) -> None:
    """The table is read again, although other kinds would stop it."""
    source, target, notes = any_source_database, twin_database, Notes()
    create(source)
    job = with_kinds(source, tmp_path, target, add_column="ignore", drop_column="stop", truncate="ignore")
    run_epochs(job, at_most=1)
    source.execute("INSERT INTO t VALUES (0, 'z')", "ALTER TABLE t ADD COLUMN more INT", "UPDATE t SET more = 1")
    run_epochs(job, notes=notes)
    assert told(notes) in (["left", "joined"], ["altered"])
    assert columns_of(target) == ["id", "name"]
    assert rows_of(target, "copy_t", "id", "name") == rows_of(source, "t", "id", "name")


def test_a_new_column_by_which_rows_are_identified_is_not_ignored(
    postgres18_database: Database, mysql_database: Database, tmp_path: Path
) -> None:
    """There is no primary key: the key is that of the replica identity's index."""
    source, target = postgres18_database, mysql_database
    table = (
        "CREATE TABLE t (id INT NOT NULL UNIQUE, name VARCHAR(20))",
        "ALTER TABLE t REPLICA IDENTITY USING INDEX t_id_key",
        "INSERT INTO t VALUES (1, 'a'), (2, 'b')",
    )
    copied(source, tmp_path, target, table)
    job = with_kinds(source, tmp_path, target, add_column="ignore")
    source.execute(
        "ALTER TABLE t ADD COLUMN code INT, ADD COLUMN more INT",
        "UPDATE t SET code = id + 10",
        "ALTER TABLE t ALTER COLUMN code SET NOT NULL, ADD UNIQUE (code)",
        "ALTER TABLE t REPLICA IDENTITY USING INDEX t_code_key",
        "UPDATE t SET id = 3 WHERE code = 11",
    )
    run_epochs(job)
    require_none_parked(load_job_file(job), state_of(job))
    assert columns_of(target) == ["code", "id", "name"]
    columns = ("code", "id", "name")
    assert rows_of(target, "copy_t", *columns) == rows_of(source, "t", *columns)


def test_an_ignored_column_hinders_no_later_change(
    any_source_database: Database, twin_database: Database, tmp_path: Path
) -> None:
    source, target, notes = any_source_database, twin_database, Notes()
    copied(source, tmp_path, target)
    job = with_kinds(source, tmp_path, target, "t", "other", add_column="ignore", change_type="stop")
    # In another table of that name, a column may have the number that an old one had. It is new nevertheless.
    made = "CREATE TABLE t (id INT PRIMARY KEY, secret INT, name VARCHAR(20))"
    resnapshot(load_job_file(job), [TableName(source.schema, "t")])
    source.execute("DROP TABLE t", made, "INSERT INTO t VALUES (1, 5, 'a')")
    run_epochs(job)
    assert columns_of(target) == ["id", "name"]
    source.execute("ALTER TABLE t ADD COLUMN more INT")
    run_epochs(job)
    source.execute("ALTER TABLE t DROP COLUMN name", "INSERT INTO t VALUES (2, 5, 5)")
    run_epochs(job, notes=notes)
    assert told(notes) == ["altered"]
    assert rows_of(target, "copy_t", "id", "name") == [(1, "a"), (2, None)]
    # Without the policy, a column that was ignored is one more column: no type has changed.
    job = with_kinds(source, tmp_path, target, "t", "other", change_type="stop")
    source.execute("ALTER TABLE t ADD COLUMN most INT")
    run_epochs(job)
    assert rows_of(target, "copy_t", "secret", "more", "most") == rows_of(source, "t", "secret", "more", "most")


def test_a_renamed_column_is_never_taken_for_a_new_one_to_ignore(
    any_source_database: Database, twin_database: Database, tmp_path: Path
) -> None:
    source, target, notes = any_source_database, twin_database, Notes()
    copied(source, tmp_path, target)
    job = with_kinds(source, tmp_path, target, add_column="ignore")
    source.execute("ALTER TABLE t RENAME COLUMN name TO title", "INSERT INTO t (id, title) VALUES (8, 'h')")
    run_epochs(job, notes=notes)
    if source.kind == "postgres":
        assert rows_of(target, "copy_t", "id", "title") == rows_of(source, "t", "id", "title")
        return
    with pytest.raises(
        TablesParkedError, match=r"new columns \(title\) and lost others \(name\).* write add_column: evolve"
    ):
        require_none_parked(load_job_file(job), state_of(job))
    job = with_kinds(source, tmp_path, target, add_column="evolve")
    run_epochs(job)
    assert rows_of(target, "copy_t", "id", "title") == rows_of(source, "t", "id", "title")


STOPPING = {
    "drop_column": "ALTER TABLE {0} DROP COLUMN name",
    "rename_column": "ALTER TABLE {0} RENAME COLUMN name TO title",
    "change_type": "ALTER TABLE {0} {1} VARCHAR(30)",
    "truncate": "TRUNCATE TABLE {0}",
    "drop_table": "DROP TABLE {0}",
}


def test_a_kind_that_stops_parks_the_table_and_others_are_followed(
    any_source_database: Database, twin_database: Database, tmp_path: Path
) -> None:
    source, target, notes = any_source_database, twin_database, Notes()
    copied(source, tmp_path, target)
    for name in STOPPING:
        source.execute(
            f"CREATE TABLE {name} (id INT PRIMARY KEY, name VARCHAR(20))",
            f"INSERT INTO {name} VALUES (1, 'a'), (2, 'b')",
        )
    job = with_kinds(source, tmp_path, target, **dict.fromkeys(STOPPING, "stop"))
    run_epochs(job)
    modify = "ALTER COLUMN name TYPE" if source.kind == "postgres" else "MODIFY name"
    source.execute("ALTER TABLE t ADD COLUMN more INT", "INSERT INTO t VALUES (8, 'h', 8)")
    for name, change in STOPPING.items():
        source.execute(change.format(name, modify))
        if name != "drop_table":
            source.execute(f"DELETE FROM {name} WHERE id = 1", f"INSERT INTO {name} (id) VALUES (3)")
    run_epochs(job, notes=notes)
    assert set(told(notes)) == {"altered", "parked"}
    assert {left.table.name for left in state_of(job).left} == set(STOPPING)
    assert all(left.why and not left.heals for left in state_of(job).left)
    for name in STOPPING:
        assert rows_of(target, f"copy_{name}", "id", "name") == [(1, "a"), (2, "b")]
    assert rows_of(target, "copy_t", "id", "more") == rows_of(source, "t", "id", "more")
    job = with_kinds(source, tmp_path, target, add_column="stop")
    source.execute("ALTER TABLE t ADD COLUMN most INT")
    run_epochs(job)
    assert {left.table.name for left in state_of(job).left} == {*STOPPING, "t"}
    with pytest.raises(TablesParkedError):
        require_none_parked(load_job_file(job), state_of(job))


def test_a_copy_keeps_the_rows_of_a_truncated_table(
    any_source_database: Database,
    twin_database: Database,
    tmp_path: Path,
    tidemark: CommandLine,  # noqa: F811
) -> None:
    source, target = any_source_database, twin_database
    copied(source, tmp_path, target)
    job = with_kinds(source, tmp_path, target, truncate="ignore")
    source.execute("TRUNCATE TABLE t", "INSERT INTO t (id, name) VALUES (1, 'new'), (8, 'h')")
    run_epochs(job)
    assert rows_of(target, "copy_t", "id", "name")[0] == (1, "new")
    assert [row[0] for row in rows_of(target, "copy_t", "id")] == [1, 2, 3, 4, 5, 6, 7, 8]
    target.execute("UPDATE copy_t SET name = 'wrong' WHERE id = 8")
    ended = tidemark("reconcile", job, "--json", "--repair")
    (table,) = [table for table in json.loads(ended.out.splitlines()[0])["tables"] if table["table"].endswith(".t")]
    assert (ended.code, table["kept"], table["surplus"], table["different"]) == (8, 6, 0, 1)
    run_epochs(job)
    assert rows_of(target, "copy_t", "id", "name")[-1] == (8, "h")
    assert len(rows_of(target, "copy_t", "id")) == 8
    assert tidemark("reconcile", job).code == 0


@pytest.mark.parametrize("point", ["sink.before_commit", "sink.after_commit"])
@pytest.mark.parametrize(("before", "after", "ids"), [("ignore", "evolve", [1, 7, 8]), ("evolve", "stop", [8])])
def test_an_epoch_that_was_read_is_written_as_it_was_read_though_the_policy_has_changed(
    mysql_database: Database,
    postgres_database: Database,
    tmp_path: Path,
    before: str,
    after: str,
    ids: list[int],
    point: str,
) -> None:
    source, target = mysql_database, postgres_database
    copied(source, tmp_path, target, ("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1), (7)"))
    source.execute("TRUNCATE TABLE t", "INSERT INTO t VALUES (8)")
    die_at(with_kinds(source, tmp_path, target, truncate=before), point)
    job = with_kinds(source, tmp_path, target, truncate=after)
    run_epochs(job)
    assert rows_of(target, "copy_t", "id") == [(key,) for key in ids]
    require_none_parked(load_job_file(job), state_of(job))


@pytest.mark.parametrize("when", ["after", "in a run", "altered before"])
def test_a_dropped_table_leaves_its_copy_and_no_trouble(
    any_source_database: Database, twin_database: Database, tmp_path: Path, when: str
) -> None:
    source, target, notes = any_source_database, twin_database, Notes()
    source.execute("CREATE TABLE also (id INT PRIMARY KEY)")
    copied(source, tmp_path, target)
    job = with_kinds(source, tmp_path, target, "t", "also", "other", drop_table="ignore")
    before = rows_of(target, "copy_t", "id")
    if when == "altered before":  # the log of MySQL and MariaDB says so first
        source.execute("ALTER TABLE t RENAME COLUMN name TO title")
    source.execute("DROP TABLE t", "DROP TABLE also", "INSERT INTO other VALUES (1)")
    if when != "after":  # the start finds a table of that name, and the run that it is another one
        source.execute("CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(20))", "INSERT INTO t VALUES (1, 'new')")
    run_epochs(job, notes=notes)
    run_epochs(job, notes=notes)
    assert told(notes) == ["left", "left"]
    require_none_parked(load_job_file(job), state_of(job))
    assert rows_of(target, "copy_t", "id") == before
    assert rows_of(target, "copy_other", "id") == [(1,)]
    job = with_kinds(source, tmp_path, target, drop_table="evolve")
    with pytest.raises(TablesParkedError):
        require_none_parked(load_job_file(job), state_of(job))


def test_a_table_that_is_only_hidden_was_not_dropped(
    mysql_database: Database, postgres_database: Database, tmp_path: Path
) -> None:
    source, target = mysql_database, postgres_database
    source.execute("CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(20))", "CREATE TABLE other (id INT PRIMARY KEY)")
    grants = [f"SELECT ON {source.schema}.{table}" for table in ("t", "other")]
    with account(source.server, "REPLICATION SLAVE, REPLICATION CLIENT ON *.*", *grants) as endpoint:
        assert endpoint.user is not None
        assert endpoint.password is not None
        url = f"mysql://{endpoint.user}:{endpoint.password.get_secret_value()}@{endpoint.host}:{endpoint.port}/"
        sink = {
            "type": "mirror",
            "url": target.url,
            "table": "copy_{table}",
            "on_schema_change": {"drop_table": "ignore"},
        }
        job = job_of(source, tmp_path, source=source_of(source, url=url, on_table_error="park"), sink=sink)
        run_epochs(job)
        source.execute(f"REVOKE SELECT ON {source.schema}.t FROM {endpoint.user}")
        run_epochs(job)
        with pytest.raises(TablesParkedError, match="or hides it from the account"):
            require_none_parked(load_job_file(job), state_of(job))


@pytest.mark.parametrize("mode", ["incremental", "full+incremental"])
def test_a_truncation_that_stops_the_job_names_a_way_on_that_its_mode_has(
    mysql_database: Database, tmp_path: Path, mode: str
) -> None:
    """In mode `incremental` no signal has a table read again."""
    source = mysql_database
    source.execute("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")

    def job(**kinds: str) -> Path:
        sink = {"type": "files", "path": str(tmp_path / "out"), "on_schema_change": kinds}
        return write_job(tmp_path, mode=mode, source=source_of(source, on_table_error="stop"), sink=sink)

    run_epochs(job(truncate="stop"))
    source.execute("TRUNCATE t", "INSERT INTO t VALUES (2)")
    with pytest.raises(TruncatedError) as stopped:
        run_epochs(job(truncate="stop"))
    assert ("tidemark signal" in stopped.value.remedy) == (mode == "full+incremental")
    assert "truncate: ignore" in stopped.value.remedy
    run_epochs(job(truncate="ignore"))
    ids = read_history(tmp_path / "out", source.schema, "t").column("id").to_pylist()
    assert ids == ([2] if mode == "incremental" else [1, 2])


@pytest.mark.parametrize("policy", ["stop", "ignore"])
def test_rows_that_go_with_a_partition_stay_where_those_of_a_truncation_would(
    mysql_database: Database, postgres_database: Database, tmp_path: Path, policy: str
) -> None:
    """The catalog does not tell a partition that was emptied. Reading the table again would empty the copy."""
    source, target = mysql_database, postgres_database
    parts = "PARTITION BY RANGE (id) (PARTITION low VALUES LESS THAN (5), PARTITION high VALUES LESS THAN MAXVALUE)"
    copied(
        source,
        tmp_path,
        target,
        (f"CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(20)) {parts}", "INSERT INTO t VALUES (1, 'a'), (7, 'g')"),
    )
    job = with_kinds(source, tmp_path, target, truncate=policy)
    source.execute("ALTER TABLE t TRUNCATE PARTITION low")
    run_epochs(job)
    with pytest.raises(TablesParkedError):
        require_none_parked(load_job_file(job), state_of(job))
    assert rows_of(target, "copy_t", "id") == [(1,), (7,)]
