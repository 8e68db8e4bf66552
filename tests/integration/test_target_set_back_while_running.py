"""A target is set back while a run writes to it: a standby that lagged behind takes over, or somebody restores a backup. One
that only answers for a moment, and takes no writes, is no target that was set back."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from tests.support.epochs import LocalEngine, Notes, die_at, run_epochs
from tests.support.jobs import source_of, write_job
from tests.support.postgres_standby import primary_and_standby
from tests.support.restoring import Backups, backups_of
from tests.support.servers import Database
from tidemark.conf.load import load_job_file
from tidemark.conf.tables import TableName
from tidemark.jobs.commands.signal import resnapshot
from tidemark.sinks.mirror.sink import MirrorSink
from tidemark.sinks.sink import JobIdentity, Written
from tidemark.state import failpoints
from tidemark.state.errors import SinkUnavailableError, TargetSetBackError
from tidemark.state.failpoints import FailpointError
from tidemark.state.plan import PlanRecord

pytestmark = [pytest.mark.integration, pytest.mark.pitfall(90)]

BIG = "repeat(md5({number}::text), 200)"


@pytest.fixture
def source(postgres18_database: Database) -> Database:
    return postgres18_database


@pytest.fixture(params=["postgres", "mysql", "mariadb"])
def target(request: pytest.FixtureRequest) -> Iterator[Backups]:
    server = "mysql_nogtid" if request.param == "mysql" else request.param  # of a source is another server
    with backups_of(request.getfixturevalue(f"{server}_database")) as backups:
        yield backups


def job_into(target: Backups, source: Database, folder: Path) -> Path:
    sink = {"type": "mirror", "url": target.database.url, "table": "copy_{table}", "on_schema_change": "evolve"}
    given = source_of(source, on_table_error="park", on_log_lost="resnapshot")
    return write_job(folder, source=given, sink=sink, trigger="1s")


def run_with(
    path: Path, *acts: Callable[[], object], interval_seconds: float | None = 0.05, ends: bool = True
) -> Notes:
    """Runs the job. Each act happens once an epoch is planned, before it is read. The run ends after as many epochs."""
    notes, left = Notes(), list(acts)
    is_small = LocalEngine.is_small

    def acting(engine: LocalEngine, record: PlanRecord) -> bool:
        if left:
            left.pop(0)()
        return is_small(engine, record)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalEngine, "is_small", acting)
        run_epochs(path, at_most=len(acts) if ends else None, notes=notes, interval_seconds=interval_seconds)
    assert not left
    return notes


def run_while_set_back(path: Path, source: Database, target: Backups, before: str, lost: str, after: str) -> Notes:
    """Three epochs of one run, with these changes. Before the last one is written, the target is set back to before the second
    one."""
    run_epochs(path, "trigger=once")
    source.execute(before)
    restores: list[Callable[[], None]] = []

    def back_up() -> None:
        restores.append(target.take())
        source.execute(after)

    notes = run_with(path, lambda: source.execute(lost), back_up, lambda: restores[0]())
    run_epochs(path, "trigger=once", notes=notes)
    return notes


def assert_not_parked(notes: Notes) -> None:
    assert not [facts for event, facts in notes.found if event == "parked"]
    warnings = [facts["text"] for event, facts in notes.found if event == "warning"]
    assert [text for text in warnings if "The target was set back to an older state." in text]


@pytest.mark.servers_in_turn("target")
def test_a_row_that_the_older_target_lacks_is_read_from_the_log_again(
    source: Database, target: Backups, tmp_path: Path
) -> None:
    """The log leaves a large value of it out, which was not changed since."""
    source.execute(
        "CREATE TABLE orders (id INT PRIMARY KEY, note TEXT, big TEXT)",
        "ALTER TABLE orders ALTER COLUMN big SET STORAGE EXTERNAL",
    )
    job = job_into(target, source, tmp_path)
    notes = run_while_set_back(
        job,
        source,
        target,
        before="INSERT INTO orders VALUES (1, 'first', 'x')",
        lost=f"INSERT INTO orders VALUES (2, 'first', {BIG.format(number=2)})",
        after="UPDATE orders SET note = 'second'",
    )
    assert_not_parked(notes)
    expected = source.query("SELECT id, note, big FROM orders ORDER BY id")
    assert target.database.query("SELECT id, note, big FROM copy_orders ORDER BY id") == expected


@pytest.mark.parametrize("target", ["postgres"], indirect=True)
def test_a_target_that_may_have_more_than_its_epoch_says_keeps_no_value_of_another_row(
    source: Database, target: Backups, tmp_path: Path
) -> None:
    """An epoch is written, then passed over because the target is set back, and then the target with it is put back. In it two
    rows exchange their keys, and the log leaves out their large values."""
    source.execute(
        "CREATE TABLE orders (id INT PRIMARY KEY, note TEXT, big TEXT)",
        "ALTER TABLE orders ALTER COLUMN big SET STORAGE EXTERNAL",
        f"INSERT INTO orders VALUES (1, 'a', {BIG.format(number=1)}), (2, 'b', {BIG.format(number=2)})",
    )
    job = job_into(target, source, tmp_path)

    def run(at_most: int | None = None) -> None:
        run_epochs(job, "trigger=once", at_most=at_most)

    run()
    source.execute("UPDATE orders SET note = 'second'")
    run()
    restore_older = target.take()
    source.execute("UPDATE orders SET note = 'third'")
    run()
    source.execute(*(f"UPDATE orders SET id = {new} WHERE id = {old}" for old, new in ((1, 3), (2, 1), (3, 2))))
    die_at(job, "sink.after_commit", "trigger=once")
    expected = source.query("SELECT id, note, big FROM orders ORDER BY id")
    assert target.database.query("SELECT id, note, big FROM copy_orders ORDER BY id") == expected
    restore_newer = target.take()
    restore_older()
    run(at_most=1)
    run()
    restore_newer()
    source.execute("UPDATE orders SET note = 'fourth'")
    run()
    expected = source.query("SELECT id, note, big FROM orders ORDER BY id")
    assert target.database.query("SELECT id, note, big FROM copy_orders ORDER BY id") == expected


@pytest.mark.servers_in_turn("target")
@pytest.mark.parametrize("dies", [False, True])
def test_splits_are_written_to_the_older_target(
    mysql_database: Database, target: Backups, tmp_path: Path, dies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing tells that other splits are gone, until the log is read, or the job is started again."""
    source = mysql_database
    rows = ", ".join(f"({number}, 'first')" for number in range(1, 1001))
    source.execute("CREATE TABLE orders (id INT PRIMARY KEY, note TEXT)", f"INSERT INTO orders VALUES {rows}")
    job = job_into(target, source, tmp_path)
    write_job(tmp_path, **{**yaml.safe_load(job.read_text()), "snapshot": {"split_rows": 5, "parallelism": 2}})
    restores: list[Callable[[], None]] = []
    acts = [lambda: None, lambda: restores.append(target.take()), lambda: restores[0]()]
    if dies:
        points = tmp_path / "armed"

        def restore_and_die() -> None:
            restores[0]()
            (points / "sink.after_commit").write_text("raise")

        points.mkdir()
        monkeypatch.setattr(failpoints, "_FOLDER", str(points))
        with pytest.raises(FailpointError):
            run_with(job, *acts[:2], restore_and_die, interval_seconds=None)
    else:
        run_with(job, *acts, interval_seconds=None)
    copied = {number for (number,) in target.database.query("SELECT id FROM copy_orders")}
    assert len(copied) > 6
    assert not copied.intersection(
        range(6, 11)
    )  # of epoch 2, which comes after one and before another split of the copy
    source.execute("UPDATE orders SET note = 'second' WHERE id < 3")
    run_epochs(job, "trigger=once")
    source.execute("DELETE FROM orders WHERE id = 4")
    assert run_epochs(job, "trigger=once") == ["stream"]
    expected = source.query("SELECT id, note FROM orders ORDER BY id")
    assert target.database.query("SELECT id, note FROM copy_orders ORDER BY id") == expected


@pytest.mark.parametrize("trouble", ["none", pytest.param("of a copy", marks=pytest.mark.every_server)])
def test_a_standby_that_a_balancer_leads_to_has_no_rows_read_again(
    mysql_database: Database, tmp_path: Path, trouble: str
) -> None:
    """The standby lags behind, and takes no writes. The connection that asks what the target has is led there, all others to
    the primary."""
    source = mysql_database
    source.execute("CREATE TABLE orders (id INT PRIMARY KEY, note TEXT)", "INSERT INTO orders VALUES (1, 'first')")
    with primary_and_standby("target") as pair:
        sink = {"type": "mirror", "url": pair.url, "table": "copy_{table}"}
        job = write_job(tmp_path, source=source_of(source, on_log_lost="resnapshot", on_table_error="park"), sink=sink)
        run_epochs(job)
        source.execute("INSERT INTO orders VALUES (2, 'second')")
        run_epochs(job)
        pair.await_standby()
        pair.promoted.query("SELECT pg_wal_replay_pause()")
        source.execute("INSERT INTO orders VALUES (3, 'third')")
        run_epochs(job)
        if trouble == "of a copy":
            pair.database.execute("ALTER TABLE copy_orders RENAME COLUMN note TO other")
        written, notes = MirrorSink.written, Notes()

        def written_by_standby(sink: MirrorSink, identity: JobIdentity) -> Written:
            pair.address.server = pair.standby
            try:
                return written(sink, identity)
            finally:
                pair.address.server = pair.primary

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(MirrorSink, "written", written_by_standby)
            with pytest.raises(SinkUnavailableError, match="read-only") as caught:
                run_epochs(job, notes=notes)
        assert caught.value.exit_code == 7
        if trouble == "of a copy":
            pair.database.execute("ALTER TABLE copy_orders RENAME COLUMN other TO note")
        source.execute("INSERT INTO orders VALUES (4, 'fourth')")
        assert run_epochs(job, notes=notes) == ["stream"]
        assert not [facts for event, facts in notes.found if event in {"parked", "joined", "warning"}]
        assert pair.database.query("SELECT id, note FROM copy_orders ORDER BY id") == source.query(
            "SELECT id, note FROM orders ORDER BY id"
        )


@pytest.mark.servers_in_turn("target")
@pytest.mark.parametrize(("runs", "has_log"), [(True, True), (False, True), (False, False)])
def test_it_is_set_back_again_before_the_job_has_gone_on(
    mysql_database: Database, target: Backups, tmp_path: Path, runs: bool, has_log: bool
) -> None:
    """A copy had got its new column again already. `runs`: the run that went back is still running. `has_log`: the backup has
    an epoch of the log; if not, all rows are read again."""
    source = mysql_database
    source.execute(
        "CREATE TABLE orders (id INT PRIMARY KEY, note TEXT)",
        "CREATE TABLE items (id INT PRIMARY KEY, note TEXT)",
        "INSERT INTO orders VALUES (1, 'first'), (2, 'first')",
        "INSERT INTO items VALUES (1, 'first')",
    )
    job = job_into(target, source, tmp_path)
    run_epochs(job, "trigger=once")
    if has_log:
        source.execute("UPDATE orders SET note = 'second'")
        run_epochs(job, "trigger=once")
    restore = target.take()
    source.execute("ALTER TABLE orders ADD COLUMN amount INT", "UPDATE orders SET amount = 5")
    run_epochs(job, "trigger=once")
    source.execute("UPDATE items SET note = 'second'")
    die_at(job, "sink.before_commit", "trigger=once")
    restore()
    if runs:
        notes = run_with(job, restore, lambda: None, interval_seconds=None)
    else:
        notes = Notes()
        die_at(job, "sink.before_commit", "trigger=once", notes=notes)
        assert target.database.query("SELECT amount FROM copy_orders")
        restore()
    source.execute("INSERT INTO orders VALUES (3, 'third', 3)", "UPDATE items SET note = 'third'")
    run_epochs(job, "trigger=once", notes=notes)
    assert not [facts for event, facts in notes.found if event == "parked"]
    expected = source.query("SELECT id, note, amount FROM orders ORDER BY id")
    assert target.database.query("SELECT id, note, amount FROM copy_orders ORDER BY id") == expected
    assert target.database.query("SELECT id, note FROM copy_items") == [(1, "third")]


@pytest.mark.servers_in_turn("target")
@pytest.mark.parametrize("runs", [True, False])
@pytest.mark.parametrize("has_log", [True, False])
def test_the_older_target_has_all_epochs_and_lacks_an_alter_of_a_copy(
    mysql_database: Database, target: Backups, tmp_path: Path, runs: bool, has_log: bool
) -> None:
    """No epoch was written between the backup and the ALTER."""
    source = mysql_database
    source.execute(
        "CREATE TABLE orders (id INT PRIMARY KEY, note TEXT)",
        "CREATE TABLE items (id INT PRIMARY KEY, note TEXT)",
        "INSERT INTO orders VALUES (1, 'first'), (2, 'first')",
        "INSERT INTO items VALUES (1, 'first')",
    )
    job = job_into(target, source, tmp_path)
    run_epochs(job, "trigger=once")
    if has_log:
        source.execute("UPDATE orders SET note = 'second'")
        run_epochs(job, "trigger=once")
    restore, notes = target.take(), Notes()
    source.execute(
        "ALTER TABLE orders ADD COLUMN amount INT", "UPDATE orders SET amount = 5", "UPDATE items SET note = 'x'"
    )
    if runs:
        notes = run_with(job, lambda: None, restore, interval_seconds=None, ends=False)
    else:
        die_at(job, "schema.after_altered", "trigger=once")
        assert not target.database.query("SELECT amount FROM copy_orders WHERE amount IS NOT NULL")
        restore()
    run_epochs(job, "trigger=once", notes=notes)
    assert not [facts for event, facts in notes.found if event == "parked"]
    assert [facts["table"] for event, facts in notes.found if event == "joined"] == [f"{source.schema}.orders"]
    expected = source.query("SELECT id, note, amount FROM orders ORDER BY id")
    assert target.database.query("SELECT id, note, amount FROM copy_orders ORDER BY id") == expected
    assert target.database.query("SELECT id, note FROM copy_items") == [(1, "x")]


@pytest.mark.servers_in_turn("target")
@pytest.mark.parametrize("splits", [False, True])
def test_the_older_target_has_all_epochs_and_lacks_only_the_driver(
    mysql_database: Database, target: Backups, tmp_path: Path, splits: bool
) -> None:
    """The backup is from before the run, which has written nothing yet. `splits`: it reads a table again."""
    source = mysql_database
    source.execute("CREATE TABLE orders (id INT PRIMARY KEY, note TEXT)", "INSERT INTO orders VALUES (1, 'first')")
    job = job_into(target, source, tmp_path)
    run_epochs(job, "trigger=once")
    source.execute("UPDATE orders SET note = 'second'")
    run_epochs(job, "trigger=once")
    restore = target.take()
    source.execute("INSERT INTO orders VALUES (2, 'third')")
    if splits:
        resnapshot(load_job_file(job), [TableName(source.name, "orders")])
    notes = run_with(job, restore, interval_seconds=None, ends=False)
    assert target.database.query("SELECT * FROM copy_orders ORDER BY id") == [(1, "second"), (2, "third")]
    warnings = [facts["text"] for event, facts in notes.found if event == "warning"]
    assert [text for text in warnings if "The target has all epochs" in text], warnings


def test_older_files_have_all_epochs_and_lack_only_the_driver(mysql_database: Database, tmp_path: Path) -> None:
    source, out = mysql_database, tmp_path / "out"
    source.execute("CREATE TABLE orders (id INT PRIMARY KEY, note TEXT)", "INSERT INTO orders VALUES (1, 'first')")
    job = write_job(tmp_path, source=source_of(source), sink={"type": "files", "path": str(out), "format": "jsonl"})
    run_epochs(job)
    source.execute("UPDATE orders SET note = 'second'")
    run_epochs(job)
    shutil.copytree(out, tmp_path / "backup")
    source.execute("INSERT INTO orders VALUES (2, 'third')")

    def restore() -> None:
        shutil.rmtree(out)
        shutil.copytree(tmp_path / "backup", out)

    run_with(job, restore, interval_seconds=None, ends=False)
    texts = [file.read_text() for file in sorted((out / f"{source.name}.orders").glob("*.jsonl"))]
    assert [json.loads(line)["note"] for text in texts for line in text.splitlines()] == ["first", "second", "third"]


@pytest.mark.parametrize("target", ["postgres"], indirect=True)
def test_a_target_that_is_set_back_to_before_the_run_again_and_again_ends_it(
    mysql_database: Database, target: Backups, tmp_path: Path
) -> None:
    source = mysql_database
    source.execute("CREATE TABLE orders (id INT PRIMARY KEY, note TEXT)", "INSERT INTO orders VALUES (1, 'first')")
    job = job_into(target, source, tmp_path)
    run_epochs(job, "trigger=once")
    source.execute("UPDATE orders SET note = 'second'")
    run_epochs(job, "trigger=once")
    restore = target.take()
    source.execute("INSERT INTO orders VALUES (2, 'third')")
    with pytest.raises(TargetSetBackError, match="names driver 2 as owner"):
        run_with(job, *[restore] * 10, interval_seconds=None, ends=False)
    run_epochs(job, "trigger=once")
    assert target.database.query("SELECT * FROM copy_orders ORDER BY id") == [(1, "second"), (2, "third")]


@pytest.mark.parametrize("target", ["postgres"], indirect=True)
@pytest.mark.parametrize("runs", [True, False])
def test_an_error_in_the_first_epoch_after_that_does_not_count_as_another_time(
    mysql_database: Database, target: Backups, tmp_path: Path, runs: bool
) -> None:
    """The target is behind what it had when the last epoch was committed, as it has to be."""
    source = mysql_database
    source.execute(
        "CREATE TABLE orders (id INT PRIMARY KEY, note TEXT)",
        "CREATE TABLE items (id INT PRIMARY KEY, note TEXT)",
        "INSERT INTO orders VALUES (1, 'first'), (2, 'first')",
        "INSERT INTO items VALUES (1, 'first')",
    )
    job = job_into(target, source, tmp_path)
    run_epochs(job, "trigger=once")
    for note in ("second", "third"):
        source.execute(f"UPDATE orders SET note = '{note}'", f"UPDATE items SET note = '{note}'")
        run_epochs(job, "trigger=once")
        if note == "second":
            restore = target.take()
    restore()
    harm = "ALTER TABLE copy_items DROP COLUMN note"
    if runs:
        notes = run_with(job, lambda: target.database.execute(harm), interval_seconds=None, ends=False)
    else:
        notes = Notes()
        die_at(job, "sink.before_commit", "trigger=once", notes=notes)
        target.database.execute(harm)
        run_epochs(job, "trigger=once", notes=notes)
    warnings = [facts["text"] for event, facts in notes.found if event == "warning"]
    assert len([text for text in warnings if "set back" in text]) == 1
    assert {facts["table"] for event, facts in notes.found if event == "parked"} == {f"{source.schema}.items"}
    source.execute("INSERT INTO orders VALUES (3, 'fourth')")
    run_epochs(job, "trigger=once")
    expected = source.query("SELECT id, note FROM orders ORDER BY id")
    assert target.database.query("SELECT id, note FROM copy_orders ORDER BY id") == expected
