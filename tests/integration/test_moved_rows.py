"""Rows get other keys while a signal has rows of their table read again, and PostgreSQL's log leaves their long values out of
these changes: the copy is right, or the signal fails and says so."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.epochs import die_at, run_epochs
from tests.support.reconciling import assert_equal, compared, edit_files, files_job_of, job_of
from tests.support.servers import Database
from tidemark.conf.load import load_job_file
from tidemark.conf.tables import TableName
from tidemark.jobs.commands.reconcile import reconcile
from tidemark.jobs.commands.signal import resnapshot
from tidemark.jobs.signals import repairs
from tidemark.readers.log import moved_rows
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import DifferencesError
from tidemark.state.signals import Answer

pytestmark = pytest.mark.integration

ROWS = 40
STALE = "a row of public.notes got another key"
"""The text of a signal that can't know whether the copy is right."""


@pytest.fixture
def source(postgres18_database: Database) -> Database:
    postgres18_database.execute(
        "CREATE TABLE notes (id int PRIMARY KEY, stars int, body text)",
        "ALTER TABLE notes ALTER body SET STORAGE EXTERNAL",
        f"INSERT INTO notes SELECT i, 0, repeat(i::text, 4000) FROM generate_series(1, {ROWS}) AS i",
    )
    return postgres18_database


def give(job: Path, *keys: str, where: str | None = None) -> None:
    resnapshot(load_job_file(job), [TableName("public", "notes")], keys=keys, where=where)


def outcomes(job: Path) -> dict[int, Answer]:
    return Checkpoint.at(load_job_file(job).checkpoint).outcomes()


def once(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, act: Callable[[], None], *, after: bool) -> None:
    """Acts before or after the next call of a function."""
    function = getattr(owner, name)

    def called(*arguments: Any) -> Any:
        monkeypatch.setattr(owner, name, function)
        if not after:
            act()
        found = function(*arguments)
        if after:
            act()
        return found

    monkeypatch.setattr(owner, name, called)


def before_the_read(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Acts between the position from which the rows count and the reading of the first of them."""
    once(monkeypatch, repairs, "await_visible", act, after=False)


def after_the_first_range(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    once(monkeypatch, repairs.RowsReading, "_split", act, after=True)


def damaged_mirror(source: Database, target: Database, folder: Path, **changes: Any) -> Path:
    job = job_of(source, target, folder, **changes)
    run_epochs(job)
    target.execute("UPDATE copy_notes SET body = 'wrong'")
    return job


def body_of(target: Database, key: int) -> str:
    return str(target.query(f"SELECT body FROM copy_notes WHERE id = {key}")[0][0])


def repaired(job: Path) -> None:
    """Does what the failed signal advises."""
    with pytest.raises(DifferencesError, match="read again"):
        reconcile(load_job_file(job), [], as_json=False, repair=True, patience_seconds=0.0)
    run_epochs(job)


def test_a_row_moves_after_it_was_read(
    source: Database, postgres_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its value is the one that was read under its old key."""
    job = damaged_mirror(source, postgres_database, tmp_path)
    give(job, "5", "30")
    move = "UPDATE notes SET id = 105 WHERE id = 5"
    after_the_first_range(monkeypatch, lambda: source.execute(move, "UPDATE notes SET id = 106 WHERE id = 105"))
    run_epochs(job)
    assert [outcome.accepted for outcome in outcomes(job).values()] == [True]
    assert (body_of(postgres_database, 106), body_of(postgres_database, 30)) == ("5" * 4000, "30" * 4000)


@pytest.mark.parametrize("part", ["keys", "range", "where"])
def test_a_row_moves_before_it_is_read(
    source: Database, postgres_database: Database, tmp_path: Path, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = damaged_mirror(source, postgres_database, tmp_path)
    if part == "where":
        give(job, where="id < 1000")
    else:
        give(job, "5" if part == "keys" else "1..1000")
    before_the_read(monkeypatch, lambda: source.execute("UPDATE notes SET id = 105 WHERE id = 5"))
    run_epochs(job)
    (outcome,) = outcomes(job).values()
    assert (outcome.accepted, STALE in outcome.text) == (False, True), body_of(postgres_database, 105)
    repaired(job)
    assert_equal(job, {"notes": ROWS})


def test_a_row_moves_among_more_changes_than_are_followed(
    source: Database, postgres_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not known whether it is a row of the signal."""
    monkeypatch.setattr(moved_rows, "MAX_ROWS", 10)
    job = damaged_mirror(source, postgres_database, tmp_path)
    changes = ("UPDATE notes SET stars = 1", "UPDATE notes SET id = 120 WHERE id = 20")
    give(job, "5")
    before_the_read(monkeypatch, lambda: source.execute(*changes))
    run_epochs(job)
    (outcome,) = outcomes(job).values()
    assert (outcome.accepted, STALE in outcome.text) == (False, True)
    repaired(job)
    assert_equal(job, {"notes": ROWS})


@pytest.mark.parametrize("sink", ["mirror", "files"])
def test_a_row_moves_between_two_batches_into_a_range_that_was_read(
    source: Database, postgres_database: Database, tmp_path: Path, sink: str
) -> None:
    snapshot = {"split_rows": 10, "parallelism": 1}
    if sink == "mirror":
        job = damaged_mirror(source, postgres_database, tmp_path, snapshot=snapshot)
    else:
        job = files_job_of(source, tmp_path, snapshot=snapshot)
        run_epochs(job)
        edit_files(tmp_path / "copy" / "public.notes", lambda rows: [row | {"body": "wrong"} for row in rows])
    give(job, "-100..1000")
    die_at(job, "driver.epoch_committed")
    source.execute("UPDATE notes SET id = -35 WHERE id = 35")
    run_epochs(job)
    (outcome,) = outcomes(job).values()
    assert (outcome.accepted, STALE in outcome.text) == (False, True), compared(job)["notes"].examples
    repaired(job)
    assert_equal(job, {"notes": ROWS})


def test_moves_of_other_rows_do_not_matter(
    source: Database, postgres_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither do those before the rows are read, nor those whose values the log has."""
    job = damaged_mirror(source, postgres_database, tmp_path)
    give(job, "5")
    source.execute("UPDATE notes SET id = 120 WHERE id = 20")
    others = (
        "UPDATE notes SET id = 121 WHERE id = 21",
        "UPDATE notes SET body = 'new', id = 105 WHERE id = 5",
        "UPDATE notes SET id = 106 WHERE id = 105",
        "INSERT INTO notes VALUES (5, 9, repeat('new', 4000))",
        "UPDATE notes SET id = 107 WHERE id = 5",
    )
    before_the_read(monkeypatch, lambda: source.execute(*others))
    run_epochs(job)
    assert [outcome.accepted for outcome in outcomes(job).values()] == [True]
    assert (body_of(postgres_database, 106), body_of(postgres_database, 107)) == ("new", "new" * 4000)
