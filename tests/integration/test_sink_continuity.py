"""A job goes on only with the copy that it has written: not in another place or form, and not in a target that was emptied."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.support.epochs import Notes, run_epochs
from tests.support.jobs import source_of, write_job
from tests.support.servers import Database, fresh_database
from tidemark.conf.load import load_job_file
from tidemark.jobs.sinks import sink_identity
from tidemark.jobs.startup import hold_job
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import CheckpointError, SinkError, TidemarkError

pytestmark = [pytest.mark.integration, pytest.mark.pitfall(91)]


@pytest.fixture
def source(mysql_database: Database) -> Database:
    for table in ("orders", "items"):
        mysql_database.execute(
            f"CREATE TABLE {table} (id INT PRIMARY KEY, note TEXT)", f"INSERT INTO {table} VALUES (1, 'a'), (2, 'b')"
        )
    return mysql_database


@pytest.fixture
def files(source: Database, tmp_path: Path) -> Path:
    """A job that has copied both tables into files."""
    job = write_job(tmp_path, source=source_of(source), sink={"type": "files", "path": "./out", "format": "parquet"})
    assert run_epochs(job)
    return job


@pytest.fixture(params=["mysql", "postgres", pytest.param("mariadb", marks=pytest.mark.every_server)])
def target(request: pytest.FixtureRequest, source: Database) -> Iterator[Database]:
    """MySQL: another database of the source's server."""
    if request.param != "mysql":
        yield request.getfixturevalue(f"{request.param}_database")
    else:
        with fresh_database(source.server) as database:
            yield database


@pytest.fixture
def mirror(source: Database, target: Database, tmp_path: Path) -> Path:
    """A job that has copied both tables into a database."""
    job = write_job(tmp_path, source=source_of(source), sink={"type": "mirror", "url": target.url})
    assert run_epochs(job)
    return job


def refused(kind: type[TidemarkError], job: Path, *overrides: str) -> str:
    with pytest.raises(kind) as caught:
        run_epochs(job, *overrides)
    assert "start over with an empty checkpoint and an empty target" in caught.value.remedy.lower()
    return caught.value.message


def read_files(folder: Path) -> list[int]:
    return sorted(int(number) for path in folder.glob("e*.parquet") for number in pq.read_table(path)["id"].to_pylist())


def count(database: Database, table: str) -> int:
    ((rows,),) = database.query(f"SELECT count(*) FROM {table}")
    return int(rows)


# Settings


def test_a_mirrors_other_names_are_refused(mirror: Path, source: Database, target: Database) -> None:
    source.execute("INSERT INTO orders VALUES (3, 'c')")
    message = refused(CheckpointError, mirror, "sink.table=x_{table}")
    assert message == "The job was started with sink.table: {schema}_{table}, but now it is x_{table}."
    assert run_epochs(mirror, "sink.table='{schema}_{table}'") == ["stream"]
    assert count(target, f"{source.name}_orders") == 3


def test_another_rename_is_refused(mirror: Path) -> None:
    message = refused(CheckpointError, mirror, "sink.rename=[{match: '.*_(orders)', to: '\\1'}]")
    assert message == r"The job was started with sink.rename: none, but now it is .*_(orders) to \1."


def test_renamed_copies_follow_their_tables_and_two_of_one_name_are_refused(
    source: Database, target: Database, tmp_path: Path
) -> None:
    source.execute("CREATE TABLE orders_v2 (id INT PRIMARY KEY)", "INSERT INTO orders_v2 VALUES (7)")
    sink = {"type": "mirror", "url": target.url, "rename": [{"match": ".*_(orders)(_v2)?", "to": r"\1"}]}
    job = write_job(tmp_path, source=source_of(source), sink=sink)
    with pytest.raises(SinkError) as caught:
        run_epochs(job)
    both = f"{source.schema}.orders and {source.schema}.orders_v2"
    assert f"{both} would be written into one table." in caught.value.message
    remedy = ["sink.rename=[{match: '.*_(orders.*)', to: 'kept_\\1'}]"]
    assert "sink.rename" in caught.value.remedy
    run_epochs(job, *remedy)
    source.execute("INSERT INTO orders_v2 VALUES (8)", "DELETE FROM orders")
    assert run_epochs(job, *remedy) == ["stream"]
    assert target.query("SELECT id FROM kept_orders_v2 ORDER BY id") == [(7,), (8,)]
    assert count(target, "kept_orders") == 0


def test_renamed_folders_follow_their_tables_and_none_gets_another_tables_files(
    source: Database, tmp_path: Path
) -> None:
    sink = {
        "type": "files",
        "path": "./out",
        "table": "{table}",
        "rename": [{"match": "(.*?)(_v[0-9]+)?", "to": r"\1"}],
    }
    job = write_job(tmp_path, source=source_of(source, tables=[f"{source.name}.*"], on_table_error="park"), sink=sink)
    run_epochs(job)
    source.execute("INSERT INTO orders VALUES (3, 'c')")
    assert run_epochs(job) == ["stream"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["_tidemark", "items", "orders"]
    assert read_files(tmp_path / "out" / "orders") == [1, 2, 3]

    source.execute("CREATE TABLE orders_v2 (id INT PRIMARY KEY, note TEXT)", "INSERT INTO orders_v2 VALUES (9, 'z')")
    notes, left = Notes(), f"source.exclude_tables=[{source.name}.orders]"
    both = f"{source.name}.orders and {source.name}.orders_v2"
    run_epochs(job, notes=notes)
    assert f"{both} would be written into one folder." in str(notes.found)
    run_epochs(job, left, notes=notes)
    assert f"is the copy of another table of this job: {source.name}.orders." in str(notes.found)
    assert read_files(tmp_path / "out" / "orders") == [1, 2, 3]
    for setting, value, before in (
        ("sink.table", "'{schema}.{table}'", "{table}"),
        ("sink.rename", "[]", r"(.*?)(_v[0-9]+)? to \1"),
    ):
        assert refused(CheckpointError, job, f"{setting}={value}").startswith(
            f"The job was started with {setting}: {before}, but now it is none."
        )


def test_another_format_is_refused(files: Path, source: Database) -> None:
    message = refused(CheckpointError, files, "sink.format=jsonl")
    assert message == "The job was started with sink.format: parquet, but now it is jsonl."


def test_another_type_is_refused(files: Path) -> None:
    message = refused(CheckpointError, files, "sink={type: console}")
    assert "The job was started with sink.type: files, but now it is console." in message


def test_another_style_of_delta_is_refused(source: Database, tmp_path: Path) -> None:
    path = write_job(tmp_path, source=source_of(source), sink={"type": "delta", "path": "./lake"})
    job = load_job_file(path)
    with hold_job(job, Notes()):
        Checkpoint.at(job.checkpoint).create_sink_identity(sink_identity(job.sink))
    other = load_job_file(path, ["sink.style=changelog"])
    with (
        pytest.raises(CheckpointError, match=r"sink\.style: mirror, but now it is changelog"),
        hold_job(other, Notes()),
    ):
        raise AssertionError("the job was started")


def test_another_condition_is_refused_where_it_counts(source: Database, tmp_path: Path) -> None:
    def where(**conditions: str) -> Path:
        named = {f"{source.name}.{table}": condition for table, condition in conditions.items()}
        snapshot = {"split_rows": 1, "parallelism": 1, "where": named}
        sink = {"type": "files", "path": "./out"}
        return write_job(tmp_path, source=source_of(source), snapshot=snapshot, sink=sink)

    run_epochs(where(orders="id > 1"), at_most=1)
    message = refused(CheckpointError, where(orders="id > 2"))
    assert message == (f"{source.name}.orders was started with snapshot.where: (id > 1), but now it is (id > 2).")
    assert "but now it is none" in refused(CheckpointError, where())
    assert "items was started with snapshot.where: none" in refused(CheckpointError, where(orders="id > 1", items="1"))
    source.execute("CREATE TABLE later (id INT PRIMARY KEY)", "INSERT INTO later VALUES (1), (2)")
    run_epochs(where(orders=" id > 1 ", later="id > 1"))
    assert "later was started with snapshot.where: (id > 1)" in refused(CheckpointError, where(orders="id > 1"))


# Locations


@pytest.mark.parametrize("on_log_lost", ["stop", "resnapshot"])
def test_an_empty_folder_is_refused(files: Path, source: Database, on_log_lost: str) -> None:
    source.execute("INSERT INTO orders VALUES (3, 'c')")
    policy = f"source.on_log_lost={on_log_lost}"
    message = refused(SinkError, files, "sink.path=./elsewhere", policy)
    assert "is not marked as written by this job" in message
    folder = files.parent
    assert f"The job was started with sink.path: {folder}/out, but now it is {folder}/elsewhere." in message
    assert not (folder / "elsewhere").exists()
    shutil.rmtree(folder / "out")
    (folder / "out").mkdir()
    assert "was started with sink.path" not in refused(SinkError, files, policy)


def test_an_older_copy_elsewhere_is_refused(files: Path, source: Database) -> None:
    """It was not set back: the job file names another place."""
    folder = files.parent
    shutil.copytree(folder / "out", folder / "copy")
    source.execute("CREATE TABLE later (id INT PRIMARY KEY)", "INSERT INTO orders VALUES (3, 'c')")
    run_epochs(files)
    shutil.rmtree(folder / "copy" / f"{source.name}.items")
    with pytest.raises(SinkError, match="is not marked as written by this job") as caught:
        run_epochs(files, "sink.path=./copy", "source.on_log_lost=resnapshot", "source.on_table_error=stop")
    assert f"The job was started with sink.path: {folder}/out, but now it is {folder}/copy." in caught.value.message


def test_a_folder_that_was_moved_whole_goes_on(files: Path, source: Database) -> None:
    source.execute("INSERT INTO orders VALUES (3, 'c')")
    (files.parent / "out").rename(files.parent / "moved")
    assert run_epochs(files, "sink.path=./moved") == ["stream"]


def test_one_tables_lost_mark_is_refused(files: Path, source: Database) -> None:
    shutil.rmtree(files.parent / "out" / f"{source.name}.items")
    message = refused(SinkError, files)
    assert (f"{source.name}.items: " in message, f"{source.name}.orders: " in message) == (True, False)


@pytest.mark.parametrize("is_of_another_job", [False, True])
def test_another_database_is_refused(
    mirror: Path, source: Database, target: Database, tmp_path: Path, is_of_another_job: bool
) -> None:
    source.execute("INSERT INTO orders VALUES (3, 'c')")
    with fresh_database(target.server) as other:
        if is_of_another_job:
            (tmp_path / "other").mkdir()
            sink = {"type": "mirror", "url": other.url, "table": "other_{table}"}
            run_epochs(write_job(tmp_path / "other", source=source_of(source), sink=sink))
        message = refused(SinkError, mirror, f"sink.url={other.url}", "source.on_log_lost=resnapshot")
        assert "is not marked as written by this job" in message
        assert f"/{other.name}." in message
    assert run_epochs(mirror) == ["stream"]


def test_a_mirrors_database_that_was_emptied_is_refused(mirror: Path, source: Database, target: Database) -> None:
    tables = [f"{source.name}_orders", f"{source.name}_items", "tidemark_tables", "tidemark_ledger"]
    target.execute(*[f"DROP TABLE {table}" for table in tables])
    assert "is not marked as written by this job" in refused(SinkError, mirror)


def test_another_spelling_of_the_same_server_goes_on(mirror: Path, source: Database, target: Database) -> None:
    source.execute("INSERT INTO orders VALUES (3, 'c')")
    respelled = target.url.replace("127.0.0.1", "LocalHost")
    assert respelled != target.url
    assert run_epochs(mirror, f"sink.url={respelled}") == ["stream"]


# Before and besides


def test_a_start_that_was_refused_by_the_target_binds_to_none(
    source: Database, target: Database, tmp_path: Path
) -> None:
    target.execute(f"CREATE TABLE {source.name}_orders (other INT PRIMARY KEY)")
    job = write_job(tmp_path, source=source_of(source), sink={"type": "mirror", "url": target.url})
    with pytest.raises(SinkError, match="has the primary key"):
        run_epochs(job)
    assert run_epochs(job, "sink.table=x_{table}")
    assert count(target, "x_orders") == 2


def test_a_lost_identity_is_refused(files: Path) -> None:
    (files.parent / "checkpoint/sink").unlink()
    with pytest.raises(CheckpointError, match="has lost its file `sink`"):
        run_epochs(files)


def test_validate_and_plan_say_it_too(
    tidemark: Callable[..., Any], mirror: Path, source: Database, target: Database
) -> None:
    ended = tidemark("validate", mirror, "--connect", "--set", "sink.table=x_{table}")
    assert (ended.code, "sink.table: {schema}_{table}, but now it is x_{table}" in ended.last_line) == (1, True)
    with closing(target.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("DELETE FROM tidemark_tables")
        connection.commit()
    ended = tidemark("validate", mirror, "--connect")
    assert (ended.code, "is not marked as written by this job" in ended.last_line) == (5, True)
