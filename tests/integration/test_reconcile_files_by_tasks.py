"""`tidemark reconcile` of large copies in files: tasks hash both sides, and fold the files, by hashes of keys. What they find
is what the command finds alone: test_reconcile_files.py."""

import itertools
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import SparkContext

from tests.integration.test_reconcile_files import folder_of
from tests.integration.test_reconcile_texts import Toggler, keys_of
from tests.support.epochs import run_epochs
from tests.support.reconciling import (
    Changes,
    compared_both,
    compared_by_tasks,
    edit_files,
    files_job_of,
    following,
    found_keys,
    in_buckets,
    source,  # noqa: F401  # a fixture
)
from tests.support.room import files_of_at_most
from tests.support.servers import Database
from tidemark.conf.load import load_job_file
from tidemark.jobs.commands.reconcile import RUN_MEANWHILE, _raise_unless_equal, reconcile
from tidemark.jobs.reconcile import folded_copy, table_comparison
from tidemark.jobs.reconcile.folding_tasks import FoldedBucket
from tidemark.jobs.reconcile.range_looks import TableLook
from tidemark.jobs.reconcile.ranges import Range
from tidemark.jobs.reconcile.table_comparison import EVERYWHERE
from tidemark.sinks.files import folding, merging, sink
from tidemark.sinks.files.comparing import FilesComparison
from tidemark.sinks.files.hashing import ChangesFile
from tidemark.sinks.folded import rows_by_key
from tidemark.state.errors import DifferencesError, SinkError
from tidemark.state.position import Position

pytestmark = pytest.mark.integration


def create_parts(source: Database, count: int, name: str = "parts") -> None:  # noqa: F811
    values = ", ".join(f"('part {i}', {i}, {i % 7})" for i in range(count))
    source.execute(
        f"CREATE TABLE {name} (code VARCHAR(40) PRIMARY KEY, n INT, stars INT)", f"INSERT INTO {name} VALUES {values}"
    )


def faults(rows: Changes) -> Changes:
    """A changed cell, a missing row, one that lacks its last change, one that is there twice, another one under a key of its
    own, and one of nobody."""
    kept = []
    for row in rows:
        n, is_first = row["n"], row["_change_type"] == "insert"
        if (n == 20 and is_first) or (n == 30 and not is_first):
            continue
        kept.append(row | {"stars": 99} if n == 10 else row)
        if n == 40 and is_first:
            kept += [row, row | {"code": "part 40 again"}, row | {"code": "nobody", "n": -1}]
    return kept


FAULTS = {
    "different": {"part 10", "part 30"},
    "missing": {"part 20"},
    "surplus": {"part 40 again", "nobody"},
}


def test_spark_finds_wrong_rows_and_no_other_under_thousands_of_changes_and_the_job_mends_them(
    mysql_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Files are merged meanwhile. This process reads no range of the source, but around a row that only the copy has. There is
    room for few rows that may differ: those that change meanwhile need none."""
    monkeypatch.setattr(folded_copy, "MAX_OTHERS", 2 * 3)
    monkeypatch.setattr(merging, "MERGED_FILES", 2)
    monkeypatch.setattr(sink, "MERGED_FILES", 2)
    monkeypatch.setattr(table_comparison, "RANGES_WITHOUT_SPARK", 2)
    source = mysql_database  # noqa: F811
    create_parts(source, 400)
    toggler = Toggler(source, flags=100)
    job = files_job_of(source, tmp_path)
    run_epochs(job)
    source.execute("UPDATE parts SET stars = 50 WHERE n IN (30, 31)")
    run_epochs(job)
    edit_files(folder_of(source, tmp_path, "parts"), faults)
    expected, read = TableLook.expected, set[int]()

    def expected_here(look: TableLook, each: Range, *arguments: Any) -> pa.Table:
        if look.schema.table.name == "parts":
            read.add(each.number)
        return expected(look, each, *arguments)

    monkeypatch.setattr(TableLook, "expected", expected_here)
    with following(job, "sink.merge_small_files=true"), toggler, pytest.raises(DifferencesError):
        reconcile(load_job_file(job), (), as_json=True, repair=True, examples=100, patience_seconds=30)
    facts = {table["table"].split(".")[1]: table for table in json.loads(capsys.readouterr().out)["tables"]}
    assert {name: (each["skipped"], each["behind"]) for name, each in facts.items()} == dict.fromkeys(facts, (None, 0))
    assert (facts["parts"]["rows"], facts["parts"]["repair"]) == (400, "keys")
    assert keys_of(facts["parts"]) == FAULTS
    assert keys_of(facts["flags"]) == {}
    assert EVERYWHERE in read
    assert len(read) <= 3 + 1, "only ranges with a wrong row, and those at the end of the table"
    run_epochs(job)
    assert {name: result.differences for name, result in compared_both(job).items()} == {"parts": 0, "flags": 0}


def test_what_executors_have_read_is_lost_and_is_read_again_at_a_later_time(
    mysql_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The copy's files were listed by then: they lack what the source has."""
    monkeypatch.setattr(table_comparison, "RANGES_WITHOUT_SPARK", 2)
    source = mysql_database  # noqa: F811
    create_parts(source, 400)
    job = files_job_of(source, tmp_path)
    run_epochs(job)
    source.execute("UPDATE parts SET stars = 50 WHERE n IN (30, 31)")
    run_epochs(job)
    edit_files(folder_of(source, tmp_path, "parts"), faults)
    listed, folded, lost, others = FilesComparison.to_fold, folded_copy.folded_copy, list[int](), list[int]()

    def lists(copy: FilesComparison) -> list[ChangesFile]:
        files, kept = listed(copy), SparkContext._active_spark_context
        for number, rows in () if kept is None else kept._jsc.getPersistentRDDs().items():
            lost.append(number)
            rows.unpersist(True)
            source.execute("UPDATE parts SET stars = stars + 1 WHERE n > 100")
        return files

    def counted(*arguments: Any, **options: Any) -> folded_copy.FoldedCopy | None:
        found = folded(*arguments, **options)
        assert found is not None
        others.append(sum(len(keys[0]) for keys in found.others.values()))
        return found

    monkeypatch.setattr(FilesComparison, "to_fold", lists)
    monkeypatch.setattr(table_comparison, "folded_copy", counted)
    with following(job), pytest.raises(DifferencesError):
        reconcile(load_job_file(job), (), as_json=True, repair=False, examples=100, patience_seconds=30)
    (facts,) = json.loads(capsys.readouterr().out)["tables"]
    assert (len(lost), others) == (1, [400 - 101 + 3]), "those that the source has changed, and wrong ones"
    assert (facts["rows"], facts["behind"], keys_of(facts)) == (400, 0, FAULTS)


@pytest.mark.parametrize(
    "source",
    [
        "postgres18_database",
        *(pytest.param(f"{kind}_database", marks=pytest.mark.every_server) for kind in ("mysql", "mariadb")),
    ],
    indirect=True,
)
def test_files_from_before_an_added_column_and_of_partitions(source: Database, tmp_path: Path) -> None:  # noqa: F811
    by_range = "PARTITION BY RANGE (n)"
    parts = "(PARTITION p0 VALUES LESS THAN (60), PARTITION p1 VALUES LESS THAN MAXVALUE)"
    columns = "(code VARCHAR(40), n INT, stars INT, PRIMARY KEY (code, n))"
    if source.kind == "postgres":
        source.execute(
            f"CREATE TABLE parts {columns} {by_range}",
            "CREATE TABLE parts_0 PARTITION OF parts FOR VALUES FROM (MINVALUE) TO (60)",
            "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (60) TO (MAXVALUE)",
        )
    else:
        source.execute(f"CREATE TABLE parts {columns} {by_range} {parts}")
    values = ", ".join(f"('part {i}', {i}, {i % 7})" for i in range(120))
    source.execute(f"INSERT INTO parts VALUES {values}")
    job = files_job_of(source, tmp_path)
    run_epochs(job)
    source.execute(
        "UPDATE parts SET stars = 50 WHERE n IN (30, 31)",
        "UPDATE parts SET n = n + 100 WHERE n = 50",
        "ALTER TABLE parts ADD COLUMN note VARCHAR(20)",
        "UPDATE parts SET note = 'new' WHERE n BETWEEN 5 AND 15",
    )
    run_epochs(job, "sink.on_schema_change=evolve")
    (result,) = compared_both(job).values()
    assert (result.rows, result.differences, result.behind) == (120, 0, 0)
    edit_files(folder_of(source, tmp_path, "parts"), faults)
    (result,) = compared_both(job).values()
    assert {kind: {code for code, _ in keys} for kind, keys in found_keys(result).items()} == FAULTS


def test_only_what_may_differ_comes_to_the_command(mysql_database: Database, tmp_path: Path) -> None:
    source, found = mysql_database, list[Any]()  # noqa: F811
    create_parts(source, 300)
    job = files_job_of(source, tmp_path, snapshot={"split_rows": 20, "parallelism": 3})
    run_epochs(job)
    source.execute("UPDATE parts SET stars = 50 WHERE n IN (30, 31)")
    run_epochs(job)
    edit_files(folder_of(source, tmp_path, "parts"), faults)

    def kept(*arguments: Any) -> list[Any]:
        found.extend(in_buckets(*arguments))
        return found

    (result,) = compared_by_tasks(job, folding=kept).values()
    assert result.differences == 5
    assert result.repair is not None
    assert len(found) == 3
    assert sum(bucket.row_count for bucket in found) == 300
    assert all(bucket.row_count > 50 for bucket in found)
    assert sum(len(bucket.keys[0]) for bucket in found) == 3
    assert sum(len(bucket.held) for bucket in found) == 4


def test_rows_that_may_differ_are_judged_now_and_then(
    mysql_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some are before all ranges were looked at."""
    create_parts(mysql_database, 300)
    job = files_job_of(mysql_database, tmp_path, snapshot={"split_rows": 10, "parallelism": 2})
    run_epochs(job)
    edit_files(
        folder_of(mysql_database, tmp_path, "parts"),
        lambda rows: [row | {"stars": 99} if row["n"] % 10 == 0 else row for row in rows if row["n"] % 10 != 1],
    )
    monkeypatch.setattr(table_comparison, "MAX_SUSPECTS", 1)
    (result,) = compared_by_tasks(job).values()
    assert {kind: len(keys) for kind, keys in found_keys(result).items()} == {"different": 30, "missing": 30}


def test_rows_that_a_truncate_has_left_are_no_differences_however_many_they_are(
    mysql_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_parts(mysql_database, 300)
    job = files_job_of(mysql_database, tmp_path)
    run_epochs(job)
    mysql_database.execute("TRUNCATE parts", "INSERT INTO parts VALUES ('new', 1, 1), ('newer', 1, 1)")
    path = str(tmp_path / "copy")
    ignores = {"type": "files", "path": path, "on_schema_change": {"truncate": "ignore"}}
    job = files_job_of(mysql_database, tmp_path, sink=ignores)
    run_epochs(job)
    monkeypatch.setattr(folded_copy, "MAX_OTHERS", 20)
    (result,) = compared_by_tasks(job).values()
    assert (result.differences, result.behind, result.kept, result.skipped) == (0, 0, 20, None)


def test_rows_that_tasks_had_no_room_for_are_told(
    mysql_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_parts(mysql_database, 300)
    job = files_job_of(mysql_database, tmp_path)
    run_epochs(job)
    monkeypatch.setattr(folded_copy, "MAX_OTHERS", 20)

    def ahead(*arguments: Any) -> list[Any]:
        """The source is ahead of the job, which stands still."""
        mysql_database.execute("UPDATE parts SET stars = stars + 1")
        found = in_buckets(*arguments)
        run_epochs(job)
        return found

    (result,) = compared_by_tasks(job, folding=ahead).values()
    assert (result.differences, result.skipped) == (0, None)
    assert result.behind == result.unlisted >= 280
    with pytest.raises(DifferencesError, match="too many others differ") as caught:
        _raise_unless_equal([result], repair=False)
    assert caught.value.remedy == RUN_MEANWHILE
    (result,) = compared_by_tasks(job).values()
    assert (result.rows, result.differences, result.behind) == (300, 0, 0)


@pytest.mark.parametrize(
    "source",
    [
        "mysql_database",
        "postgres18_database",
        *(pytest.param(f"{kind}_database", marks=pytest.mark.every_server) for kind in ("mysql_nogtid", "mariadb")),
    ],
    indirect=True,
)
@pytest.mark.parametrize("file_format", ["parquet", pytest.param("jsonl", marks=pytest.mark.every_server)])
def test_rows_that_change_while_the_table_is_read_need_not_be_looked_at_again(
    file_format: str,
    source: Database,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After each range of the source is read, all rows change, some are removed, inserted, or get other keys."""
    create_parts(source, 300)
    source.execute("ALTER TABLE parts ADD COLUMN note TEXT")
    source.execute(f"UPDATE parts SET note = '{'long ' * 3000}' WHERE n < 100")
    job = files_job_of(source, tmp_path, file_format)
    run_epochs(job)
    source.execute("UPDATE parts SET stars = 50 WHERE n IN (30, 31)")
    run_epochs(job)
    edit_files(folder_of(source, tmp_path, "parts"), faults)
    read, buckets, count = TableLook.read, list[FoldedBucket](), itertools.count(1000)

    def busy(*arguments: Any) -> tuple[pa.Table, Position]:
        found, n = read(*arguments), next(count)
        source.execute(
            "UPDATE parts SET stars = stars + 1 WHERE n >= 50",
            f"INSERT INTO parts VALUES ('part {n}', {n}, 1, NULL), ('later part {n}', {n}, 1, NULL)",
            f"UPDATE parts SET code = 'moved {n}' WHERE n = {n - 850}",
            f"DELETE FROM parts WHERE n IN ({n - 900}, {n - 800}, {n - 1})",
        )
        return found

    def kept(look: TableLook, hashing: Any, work: Any, later: Callable[[], Any], *arguments: Any) -> list[Any]:
        def followed() -> Any:
            monkeypatch.undo()
            run_epochs(job)
            return later()

        buckets.extend(in_buckets(look, hashing, work, followed, *arguments))
        return buckets

    monkeypatch.setattr(TableLook, "read", busy)
    (result,) = compared_by_tasks(job, folding=kept).values()
    assert next(count) > 1000 + 5
    assert {kind: {code for (code,) in keys} for kind, keys in found_keys(result).items()} == FAULTS
    assert (result.behind, result.moving, result.skipped) == (0, 0, None)
    assert sum(len(bucket.keys[0]) for bucket in buckets) == 3
    assert sum(len(bucket.held) for bucket in buckets) == 4


@pytest.mark.parametrize("trouble", ["merged", "removed"])
def test_files_that_are_gone_when_tasks_read_them(
    trouble: str, mysql_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "MERGED_FILES", 2)
    monkeypatch.setattr(sink, "MERGED_FILES", 2)
    source = mysql_database  # noqa: F811
    create_parts(source, 100)
    job = files_job_of(source, tmp_path)
    run_epochs(job)
    for stars in range(3):
        source.execute(f"UPDATE parts SET stars = {stars} WHERE n < 30")
        run_epochs(job)
    folder, gone = folder_of(source, tmp_path, "parts"), set[str]()

    def later(*arguments: Any) -> list[Any]:
        before = {path.name for path in folder.iterdir()}
        if trouble == "removed":
            next(folder.glob("e*-s*.parquet")).rename(tmp_path / "removed")
        else:
            source.execute("UPDATE parts SET stars = 9 WHERE n = 7")
            run_epochs(job, "sink.merge_small_files=true")
            run_epochs(job, "sink.merge_small_files=true")
        gone.update(before - {path.name for path in folder.iterdir()})
        return in_buckets(*arguments)

    (result,) = compared_by_tasks(job, folding=later).values()
    assert gone
    if trouble == "merged":
        assert (result.skipped, result.rows, result.differences, result.behind) == (None, 100, 0, 0)
    else:
        assert result.skipped == f"Files vanish from {folder}"
        assert isinstance(result.error, SinkError)
        assert result.error.remedy == "Compare again."
        (result,) = compared_by_tasks(job).values()
        assert result.counts[table_comparison.Verdict.MISSING] > 10


def test_a_full_disk_of_tasks_keeps_no_other_table_from_being_compared(
    mysql_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_parts(mysql_database, 200)
    create_parts(mysql_database, 2, "few")
    job = files_job_of(mysql_database, tmp_path)
    run_epochs(job)
    monkeypatch.setattr(rows_by_key, "MAX_ROWS", 50)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))

    def without_room(*arguments: Any) -> list[Any]:
        with files_of_at_most(500):
            return in_buckets(*arguments)

    results = compared_by_tasks(job, folding=without_room)
    assert (results["few"].rows, results["few"].skipped) == (2, None)
    assert results["parts"].skipped == "Hashes of the table's keys can't be kept: File too large"
    error = results["parts"].error
    assert error is not None
    assert error.remedy == f"Check that there is space in {temporary} (TMPDIR)."
    assert not list(temporary.iterdir())
    assert {name: result.differences for name, result in compared_by_tasks(job).items()} == {"parts": 0, "few": 0}


@pytest.mark.parametrize("has_time", [False, True])
def test_rows_that_only_the_copy_has_are_looked_for_by_tasks(
    has_time: bool, mysql_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command does not read all files for the texts of their keys. It reads the source around these keys; if it does not
    ask for them, because a time may have lost digits, tasks read all of it."""
    source = mysql_database  # noqa: F811
    create_parts(source, 200)
    if has_time:
        source.execute(
            "ALTER TABLE parts ADD COLUMN at TIMESTAMP(6) NOT NULL DEFAULT '2024-02-03', "
            "DROP PRIMARY KEY, ADD PRIMARY KEY (code, at)"
        )
    job = files_job_of(source, tmp_path)
    run_epochs(job)
    folder = folder_of(source, tmp_path, "parts")
    edit_files(
        folder,
        lambda rows: rows + [row | {"code": f"nobody {row['n']}"} for row in rows if row["n"] in {50, 60}],
    )
    read_range, read = TableLook.read, list[int]()

    def counted(look: TableLook, each: Range, *arguments: Any) -> tuple[pa.Table, Position]:
        rows, high = read_range(look, each, *arguments)
        read.append(rows.num_rows)
        return rows, high

    monkeypatch.setattr(TableLook, "read", counted)
    monkeypatch.setattr(folding.Folding, "read_again", None)
    (result,) = compared_by_tasks(job).values()
    assert {key[0] for key in found_keys(result)["surplus"]} == {"nobody 50", "nobody 60"}
    assert result.differences == 2
    looks = 3  # after the first one, of a log without changes
    assert sum(read) == 200 * (1 + looks) if has_time else sum(read) <= 200 + 2 * 2 * looks
