"""`sink.on_bad_value: park`: a table with a value that its copy can't hold is parked, also if the epoch's log was read already.
All other tables go on, and the table comes back once the row is corrected."""

from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_sink_mirror_settings import global_settings
from tests.support.epochs import Notes, run_epochs
from tests.support.jobs import source_of, write_job
from tests.support.servers import Database
from tidemark.conf.load import load_job_file
from tidemark.conf.tables import TableName
from tidemark.jobs.commands.signal import resnapshot
from tidemark.jobs.epoch.read_parts import read_part, tasks_of
from tidemark.jobs.epoch.run_context import RunContext
from tidemark.jobs.epoch.write_parts import TaskWriting
from tidemark.jobs.startup import hold_job, open_job
from tidemark.jobs.tables.parking import require_none_parked
from tidemark.sinks.mirror import writer as mirror_writer
from tidemark.state import failpoints
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import JobHeldError, RefusedRowsError, TablesParkedError
from tidemark.state.failpoints import FailpointError

pytestmark = [pytest.mark.integration, pytest.mark.pitfall(109)]

PAIRS = [("mysql", "postgres"), ("mariadb", "postgres"), ("postgres", "mysql"), ("postgres", "mariadb")]


class Case:
    """A job with two tables. `bad` is a literal that the target's column can't hold."""

    def __init__(self, kinds: tuple[str, str], request: pytest.FixtureRequest, folder: Path) -> None:
        self.source: Database = request.getfixturevalue(f"{kinds[0]}_database")
        self.target: Database = request.getfixturevalue(f"{kinds[1]}_database")
        kind, self.bad = ("double precision", "'Infinity'") if kinds[0] == "postgres" else ("VARCHAR(9)", "'a\\0b'")
        self.good = "'1'"
        self.prefix = "shop." if kinds[0] == "postgres" else ""
        schema = "shop" if kinds[0] == "postgres" else self.source.schema
        if kinds[0] == "postgres":
            self.source.execute("CREATE SCHEMA shop")
        self.table = TableName(schema, "readings")
        self.source.execute(
            f"CREATE TABLE {self.prefix}readings (id INT PRIMARY KEY, v {kind})",
            f"CREATE TABLE {self.prefix}notes (id INT PRIMARY KEY, v VARCHAR(9))",
        )
        self.insert(1, self.good)
        url = self.target.url if self.target.kind == "postgres" else f"{self.target.server.url}{self.target.name}"
        sink: dict[str, Any] = {"type": "mirror", "url": url, "table": "copy_{table}"}
        source = source_of(self.source, tables=[f"{schema}.*"], on_table_error="park")
        self.folder, self.path = folder, write_job(folder, source=source, sink=sink)

    def insert(self, number: int, value: str) -> None:
        """One transaction for each: the two are in one epoch of the log."""
        self.source.execute(
            f"INSERT INTO {self.prefix}readings VALUES ({number}, {value})",
            f"INSERT INTO {self.prefix}notes VALUES ({number}, 'x')",
        )

    def run(self, *overrides: str) -> list[dict[str, Any]]:
        """Returns what was told of parked tables."""
        run_epochs(self.path, *overrides, notes=(notes := Notes()))
        return [facts for event, facts in notes.found if event == "parked"]

    def ids(self, table: str) -> list[int]:
        return [row[0] for row in self.target.query(f"SELECT id FROM copy_{table} ORDER BY id")]

    def correct(self, number: int) -> None:
        self.source.execute(f"UPDATE {self.prefix}readings SET v = {self.good} WHERE id = {number}")

    def read_again(self) -> None:
        resnapshot(load_job_file(self.path), [self.table])
        assert self.run() == []
        query = "SELECT id, v FROM {} ORDER BY id"
        found = [(row[0], str(row[1])) for row in self.target.query(query.format("copy_readings"))]
        assert found == [(row[0], str(row[1])) for row in self.source.query(query.format(f"{self.prefix}readings"))]
        state = Checkpoint.at(str(self.folder / "checkpoint")).job_state()
        assert state is not None
        require_none_parked(load_job_file(self.path), state)


@pytest.fixture(params=PAIRS, ids="-".join)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    return Case(request.param, request, tmp_path)


@pytest.mark.servers_in_turn("in_log")  # each pair in one of them
@pytest.mark.parametrize("in_log", [False, True], ids=["snapshot", "log"])
def test_the_table_is_parked_and_comes_back(case: Case, in_log: bool) -> None:
    first = [1] if in_log else []
    if in_log:
        assert case.run() == []
    case.insert(2, case.bad)
    if not in_log:
        case.path.write_text(case.path.read_text().replace("split_rows: 500", "split_rows: 1"))
    (told,) = case.run()
    assert told["table"] == str(case.table)
    assert f"{case.table}: a value of column v" in told["text"]
    assert "which the target can't hold. Correct the row in the source, or set sink.on_bad_value" in told["text"]
    assert f"tidemark signal JOB.yaml resnapshot --table {case.table}" in told["text"]
    assert case.ids("notes") == [1, 2]
    assert case.ids("readings") in ([1], first)
    case.insert(3, case.good)
    assert len(case.run()) == 1
    assert case.ids("notes") == [1, 2, 3]
    assert case.ids("readings") in ([1], first)
    state = Checkpoint.at(str(case.folder / "checkpoint")).job_state()
    assert state is not None
    with pytest.raises(TablesParkedError):
        require_none_parked(load_job_file(case.path), state)
    case.correct(2)
    case.read_again()


def test_a_row_that_the_server_refuses_parks_its_table(case: Case) -> None:
    case.run()
    case.target.execute("ALTER TABLE copy_readings ADD CONSTRAINT small CHECK (id < 5)")
    case.insert(7, case.good)
    (told,) = case.run()
    assert told["table"] == str(case.table)
    assert case.ids("notes") == [1, 7]
    assert case.ids("readings") == [1]
    case.target.execute("ALTER TABLE copy_readings DROP CONSTRAINT small")
    case.read_again()


@pytest.mark.parametrize("case", PAIRS[2:3], indirect=True, ids="-".join)
def test_a_row_of_the_first_load_that_is_too_long_for_the_server(case: Case) -> None:
    case.source.execute("ALTER TABLE shop.readings ALTER v TYPE text")
    case.insert(2, "repeat('x', 300000)")
    with global_settings(case.target, max_allowed_packet=262144):
        (told,) = case.run()
    assert told["table"] == str(case.table)
    assert "more than the target accepts" in told["text"]
    assert case.ids("notes") == [1, 2]
    case.read_again()


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_a_row_that_is_too_long_for_the_server_parks_its_table(
    kind: str, request: pytest.FixtureRequest, postgres_database: Database, tmp_path: Path
) -> None:
    target: Database = request.getfixturevalue(f"{kind}_database")
    source = postgres_database
    source.execute(
        "CREATE SCHEMA shop",
        "CREATE TABLE shop.files (id int PRIMARY KEY, x double precision, body text)",
        "CREATE TABLE shop.notes (id int PRIMARY KEY)",
        "INSERT INTO shop.files VALUES (1, 1, 'short')",
    )
    sink = {"type": "mirror", "url": f"{target.server.url}{target.name}", "table": "copy_{table}"}
    settings = source_of(source, tables=["shop.*"], on_table_error="park")
    path = write_job(tmp_path, source=settings, sink=sink)
    with global_settings(target, max_allowed_packet=2 << 20):
        run_epochs(path)
        for row, policy in (("2, 1", "park"), ("3, 'Infinity'", "reject")):  # the rejects have no place for it either
            source.execute(
                "DELETE FROM shop.files WHERE id > 1",
                f"INSERT INTO shop.files VALUES ({row}, repeat('x', 3000000))",
                f"INSERT INTO shop.notes VALUES ({row[0]})",
            )
            if policy == "reject":
                resnapshot(load_job_file(path), [TableName("shop", "files")])
            run_epochs(path, f"sink.on_bad_value={policy}", notes=(notes := Notes()))
            told = [facts for event, facts in notes.found if event == "parked"][-1]
            assert told["table"] == "shop.files"
            assert "more than the target accepts. Raise max_allowed_packet on the target's server" in told["text"]
            assert "on_bad_value" not in told["text"]
        assert target.query("SELECT id FROM copy_notes") == [(2,), (3,)]
    resnapshot(load_job_file(path), [TableName("shop", "files")])
    run_epochs(path, "sink.on_bad_value=reject", notes=(notes := Notes()))
    assert [event for event, _ in notes.found if event == "parked"] == []
    assert target.query("SELECT id FROM copy_files") == [(1,)]
    assert target.query("SELECT row_key FROM tidemark_rejects") == [('{"id":3}',)]


@pytest.mark.parametrize("case", [PAIRS[0], PAIRS[2]], indirect=True, ids="-".join)
def test_a_table_is_parked_though_another_connection_writes_it(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror_writer, "MIN_BYTES", 1)
    parallel = "log.apply_parallelism=2"
    case.run(parallel)
    case.target.execute("ALTER TABLE copy_readings ADD CONSTRAINT small CHECK (id < 5)")
    case.insert(7, case.good)
    (told,) = case.run(parallel)
    assert told["table"] == str(case.table)
    case.insert(8, case.good)
    case.run(parallel)
    assert case.ids("notes") == [1, 7, 8]
    assert case.ids("readings") == [1]
    case.target.execute("ALTER TABLE copy_readings DROP CONSTRAINT small")
    case.read_again()


@pytest.mark.parametrize("case", [PAIRS[0], PAIRS[2]], indirect=True, ids="-".join)
def test_an_excluded_table_leaves_an_epoch_that_stopped_the_job(case: Case) -> None:
    """The remedy "leave the table out" works although the log was read."""
    case.run()
    case.insert(2, case.bad)
    with pytest.raises(RefusedRowsError):
        case.run("sink.on_bad_value=stop")
    case.run(f"source.exclude_tables=[{case.table}]")
    assert case.ids("notes") == [1, 2]


@pytest.mark.parametrize("case", PAIRS[:1], indirect=True, ids="-".join)
def test_a_run_dies_while_a_table_is_parked(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    case.run()
    case.insert(2, case.bad)

    monkeypatch.setattr(failpoints, "_FOLDER", str(case.folder))
    (case.folder / "parking.lacks").write_text("raise")
    with pytest.raises(FailpointError):
        case.run()
    case.insert(3, case.good)
    assert len(case.run()) == 1
    assert case.ids("notes") == [1, 2, 3]
    case.correct(2)
    case.read_again()


@pytest.mark.parametrize("case", [PAIRS[0], PAIRS[2]], indirect=True, ids="-".join)
def test_a_late_writer_of_the_epoch_is_refused(case: Case) -> None:
    """It has the table's rows, and a policy under which the target could hold them."""
    case.run()
    case.insert(2, case.bad)
    job = load_job_file(case.path, ("sink.on_bad_value=null",))
    with open_job(job, Notes()) as opened:
        context = RunContext(job, opened.held.server, opened.held.state)
        planner = context.planner()
        planner.end_at_log_end()
        epoch = planner.next_epoch(context.checkpoint.committed_epoch())
        (task,) = tasks_of(context, epoch)
        items, writing = list(read_part(task)), opened.writing
    with pytest.raises(RefusedRowsError):
        case.run("sink.on_bad_value=stop")
    assert len(case.run()) == 1
    with pytest.raises(JobHeldError):
        list(writing.sink.writer(writing.job).write(iter(items), writing.schemas))  # type: ignore[union-attr]
    assert case.ids("notes") == [1, 2]
    assert case.ids("readings") == [1]


@pytest.mark.parametrize("case", PAIRS[:1], indirect=True, ids="-".join)
def test_an_epoch_that_the_target_has_keeps_its_tables(case: Case) -> None:
    """Its commit was not noticed. The table leaves after it."""
    case.run()
    case.insert(2, case.good)
    job = load_job_file(case.path)
    with open_job(job, Notes(), standby=True) as opened:
        context = RunContext(job, opened.held.server, opened.held.state)
        planner = context.planner()
        planner.end_at_log_end()
        epoch = planner.next_epoch(context.checkpoint.committed_epoch())
        (task,) = tasks_of(context, epoch)
        writing = TaskWriting(opened.writing.sink, opened.writing.job, opened.writing.schemas)  # type: ignore[arg-type]
        list(writing.write(task))
    excluded = load_job_file(case.path, (f"source.exclude_tables=[{case.table}]",))
    with hold_job(excluded, Notes()) as held:
        assert str(case.table) in {str(schema.table) for schema in held.state.schemas}
    case.run(f"source.exclude_tables=[{case.table}]")
    assert case.ids("readings") == case.ids("notes") == [1, 2]
