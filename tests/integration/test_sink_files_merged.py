"""`sink.merge_small_files`: the files sink merges the files of log changes, and nothing else changes."""

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.support.change_parts import (
    DELETE,
    INSERT,
    ITEMS,
    NOTES,
    ORDERS,
    UNCHANGED,
    UPDATE,
    Change,
    column,
    log_part,
    snapshot_part,
)
from tests.support.epochs import run_epochs
from tests.support.every_type import EVERY_TYPE, every_value
from tests.support.history import read_history
from tests.support.jobs import source_of, write_job
from tests.support.servers import Database
from tests.support.sink_state import FILE_SINKS, SinkCase
from tidemark.sinks.files import merging
from tidemark.sinks.files import sink as files_sink
from tidemark.sinks.files.sink import FilesSink, table_folder_name
from tidemark.sinks.sink import JobIdentity
from tidemark.state.errors import JobHeldError, SinkError
from tidemark.state.table import TableSchema

pytestmark = pytest.mark.pitfall(129)


def case_of(kind: str, folder: Path, *, merges: bool = True) -> SinkCase:
    sink = FilesSink.of(str(folder), kind, merge_small_files=merges)  # type: ignore[arg-type]
    return SinkCase(kind, sink, folder, JobIdentity("0" * 32, "merging", 1))


@pytest.fixture(params=FILE_SINKS)
def files(request: pytest.FixtureRequest, tmp_path: Path) -> SinkCase:
    return prepared(case_of(request.param, tmp_path / "out"))


def prepared(case: SinkCase, owner: int | None = None) -> SinkCase:
    if owner is not None:
        case.job = dataclasses.replace(case.job, owner=owner)
    case.sink.prepare(case.job, [ORDERS, ITEMS, NOTES])
    return case


def write(case: SinkCase, epoch: int, schema: TableSchema = ORDERS, changes: list[Change] | None = None) -> None:
    """Writes an epoch of the log and commits it."""
    row = (epoch % 7, f"of {epoch}", None, epoch, None)
    made = [(UPDATE, row)] if epoch > 7 else [(INSERT, row)]
    case.write(
        log_part(epoch, (schema, made if changes is None else changes)),
        schemas={(schema.table, schema.version): schema},
    )
    case.sink.committed_before(case.job, epoch)


def names(case: SinkCase, schema: TableSchema = ORDERS) -> list[str]:
    return sorted(name for name in os.listdir(folder_of(case, schema)) if name[0] not in "._")


def folder_of(case: SinkCase, schema: TableSchema = ORDERS) -> Path:
    return Path(case.place) / table_folder_name(schema.table)


def left_over(case: SinkCase) -> list[str]:
    return [str(path) for path in Path(case.place).rglob("*.tmp")]


def test_few_files_remain_with_all_changes_in_their_order(files: SinkCase, tmp_path: Path) -> None:
    plain = prepared(case_of(files.kind, tmp_path / "plain", merges=False))
    for case in (files, plain):
        case.write(snapshot_part(1, 1, ORDERS, [(99, "Ada", None, 1, None)]))
    for epoch in range(2, 200):
        for case in (files, plain):
            write(
                case,
                epoch,
                ITEMS if epoch % 100 == 0 else ORDERS,
                [(DELETE, (1, "a", 2))] if epoch % 100 == 0 else None,
            )
    assert len(names(plain)) == 198
    assert len(names(files)) < merging.MERGED_FILES + 8
    assert len(names(files, ITEMS)) == 1
    assert f"e0000000001-s1.{names(files)[0].rpartition('.')[2]}" in names(files)
    assert files.changes(ORDERS) == plain.changes(ORDERS)
    assert files.rows(ORDERS) == plain.rows(ORDERS)
    assert left_over(files) == []


def test_without_the_setting_nothing_is_merged(files: SinkCase) -> None:
    files.sink = dataclasses.replace(files.sink, merge_small_files=False)  # type: ignore[type-var]
    for epoch in range(1, 70):
        write(files, epoch)
    assert len(names(files)) == 69


class Failing:
    """The nth call of some functions of `os` fails as on a full disk."""

    def __init__(self, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        for name in ("fsync", "rename", "unlink"):
            monkeypatch.setattr(os, name, self.counting(getattr(os, name), step))

    def counting(self, original: Callable[..., Any], step: int) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self.calls += 1
            if self.calls == step:
                raise OSError(28, "No space left on device")
            return original(*arguments, **options)

        return call


def test_a_merge_that_breaks_off_at_any_step_loses_and_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "MERGED_FILES", 4)
    step, seen_twice = 0, 0
    while True:
        step += 1
        case = prepared(case_of("jsonl", tmp_path / f"out{step}"))
        for epoch in range(1, 6):
            case.write(log_part(epoch, (ORDERS, [(INSERT, (epoch, f"of {epoch}", None, epoch, None))])))
        expected = case.changes(ORDERS)
        failed = False
        with monkeypatch.context() as patched:
            failing = Failing(step, patched)
            try:
                case.sink.committed_before(case.job, 32)
            except SinkError:
                failed = True
        seen = case.changes(ORDERS)
        assert [row for i, row in enumerate(seen) if i == 0 or row != seen[i - 1]] == expected
        seen_twice += seen != expected
        prepared(case, owner=2)
        assert case.changes(ORDERS) == expected
        assert left_over(case) == []
        if not failed and failing.calls < step:
            break
    assert len(names(case)) == 1
    assert seen_twice


@pytest.mark.pitfall(89)
@pytest.mark.parametrize("before", ["the merged file is visible", "the first file is removed", "another is removed"])
def test_a_driver_that_was_replaced_merges_and_removes_nothing(
    before: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It froze in the middle of merging, and the next driver has merged the same files meanwhile."""
    case = prepared(case_of("parquet", tmp_path / "out"))
    for epoch in range(1, 32):
        case.write(log_part(epoch, (ORDERS, [(INSERT, (epoch, f"of {epoch}", None, epoch, None))])))
    expected = case.changes(ORDERS)
    number = {"the merged file is visible": 1, "the first file is removed": 2, "another is removed": 9}[before]
    second = dataclasses.replace(case)
    calls, rename = 0, os.rename

    def thaw_late(source: Any, target: Any) -> None:
        nonlocal calls
        if "e0000" in str(source) and folder_of(case) in (Path(source).parent, Path(target).parent):
            calls += 1
            if calls == number:
                monkeypatch.setattr(os, "rename", rename)
                prepared(second, owner=2)
                write(second, 32)
                write(second, 64)
        rename(source, target)

    monkeypatch.setattr(os, "rename", thaw_late)
    monkeypatch.setattr(merging, "MERGED_FILES", 8)
    with pytest.raises(JobHeldError, match="names driver 2"):
        case.sink.committed_before(case.job, 32)
    assert calls == number
    found = second.changes(ORDERS)
    assert found[: len(expected)] == expected
    assert [row["customer"] for row in found[len(expected) :]] == ["of 32", "of 64"]
    assert left_over(second) == []


def test_other_columns_are_other_files(files: SinkCase) -> None:
    more = dataclasses.replace(ORDERS, version=2, columns=(*ORDERS.columns, column("more", "int", "int32")))
    for epoch in range(1, 100):
        changed = (UPDATE, (1, "Ada", None, epoch, None, epoch)) if epoch >= 50 else None
        write(files, epoch, more if changed else ORDERS, [changed] if changed else None)
    assert [row.get("more") for row in files.changes(ORDERS)] == [None] * 49 + list(range(50, 100))
    assert len(names(files)) < 60
    if files.kind == "parquet":
        columns = [pq.read_schema(folder_of(files) / name).names for name in names(files)]
        assert len({tuple(found) for found in columns}) == 2


def test_every_type_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parquet. The columns' types, their order, and each value, also where the rows are many row groups."""
    monkeypatch.setattr("tidemark.sinks.files.parquet_file._ROW_GROUP_BYTES", 1 << 14)
    case = case_of("parquet", tmp_path / "out")
    case.sink.prepare(case.job, [EVERY_TYPE, NOTES])
    schemas = {(schema.table, schema.version): schema for schema in (EVERY_TYPE, NOTES)}
    values = every_value()
    for epoch in range(1, 32):
        row, note = values[epoch % len(values)], (epoch, "en", 4, UNCHANGED, b"\2", UNCHANGED)
        case.write(
            log_part(epoch, (EVERY_TYPE, [(INSERT, row), (DELETE, row)]), (NOTES, [(UPDATE, note)])), schemas=schemas
        )
    before = {schema.table: (case.changes(schema), physical(case, schema)) for schema in (EVERY_TYPE, NOTES)}
    monkeypatch.setattr(merging, "MERGED_FILES", 31)
    case.sink.committed_before(case.job, 32)
    for schema in (EVERY_TYPE, NOTES):
        assert len(names(case, schema)) == 1
        assert (case.changes(schema), physical(case, schema)) == before[schema.table]


def physical(case: SinkCase, schema: TableSchema) -> str:
    """The columns of the first file, as Parquet has them."""
    return str(pq.ParquetFile(folder_of(case, schema) / names(case, schema)[0]).schema).partition("\n")[2]


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    case = prepared(case_of("parquet", tmp_path / "out"))
    for epoch in range(1, 34):
        write(case, epoch)
    damaged = folder_of(case) / names(case)[7]
    damaged.write_bytes(b"")
    with pytest.raises(SinkError, match=damaged.name):
        write(case, 64)


def test_a_jobs_files_are_merged_while_it_runs(
    mysql_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run is another driver."""
    for module in (merging, files_sink):
        monkeypatch.setattr(module, "MERGED_FILES", 3)
    mysql_database.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 0)")
    sink = {"type": "files", "path": str(tmp_path / "out"), "merge_small_files": True}
    path = write_job(tmp_path, source=source_of(mysql_database), sink=sink)
    for number in range(1, 11):
        run_epochs(path)
        mysql_database.execute(f"UPDATE t SET v = {number} WHERE id = 1")
    run_epochs(path)
    history = read_history(tmp_path / "out", mysql_database.name, "t")
    assert history["v"].to_pylist() == list(range(11))
    files = list((tmp_path / "out" / f"{mysql_database.name}.t").glob("e*"))
    assert len(files) < 8
    assert any(len(file.name.split("-e")) == 2 for file in files)
