"""The modes in which a job may continue: `full` first, the changes later."""

from collections import Counter
from pathlib import Path

import pytest

from tests.support.epochs import Notes, run_epochs
from tests.support.history import assert_copied
from tests.support.jobs import source_of, write_job
from tests.support.servers import Database
from tests.support.workload import Uids, Writers, create_tables
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.checkpoint.store import LocalStore
from tidemark.state.errors import CheckpointError

pytestmark = pytest.mark.integration


def job_of(folder: Path, database: Database) -> Path:
    return write_job(
        folder,
        source={"url": database.server.url, "tables": [f"{database.name}.*"]},
        snapshot={"split_rows": 100, "parallelism": 2},
        sink={"type": "files", "path": str(folder / "out")},
    )


@pytest.mark.servers_in_turn("source_database")
def test_a_copy_made_in_mode_full_is_followed_later(source_database: Database, tmp_path: Path) -> None:
    uids = Uids()
    create_tables(source_database, rows=600, uids=uids)
    job = job_of(tmp_path, source_database)
    with Writers(source_database, uids, count=2, seed=1, pause_seconds=0.02):
        assert run_epochs(job, "mode=full")[-1] == "catch_up"
    assert run_epochs(job, "mode=full") == []
    assert set(run_epochs(job, "mode=full+incremental")) == {"stream"}
    assert_copied(tmp_path / "out", source_database)
    notes = Notes()
    with Writers(source_database, uids, count=2, seed=2, pause_seconds=0.02):
        run_epochs(job, "mode=incremental", notes=notes)
    assert [facts["text"] for event, facts in notes.found if "no rows are read any more" in facts.get("text", "")]
    run_epochs(job, "mode=full+incremental")
    assert_copied(tmp_path / "out", source_database)
    with pytest.raises(CheckpointError, match="already follows the log"):
        run_epochs(job, "mode=full")


def test_a_mode_may_change_while_the_copy_is_made(mysql_database: Database, tmp_path: Path) -> None:
    uids = Uids()
    create_tables(mysql_database, rows=600, uids=uids)
    job = job_of(tmp_path, mysql_database)
    with Writers(mysql_database, uids, count=2, seed=3, pause_seconds=0.02):
        assert run_epochs(job, "mode=full", "snapshot.interleave=false", at_most=1) == ["snapshot"]
        with pytest.raises(CheckpointError, match="needs a complete copy, but this job is in phase snapshot"):
            run_epochs(job, "mode=incremental")
    phases = run_epochs(job, "mode=full+incremental", "snapshot.interleave=false")
    assert list(dict.fromkeys(phases)) == ["snapshot", "catch_up"]
    run_epochs(job, "mode=full+incremental")
    assert_copied(tmp_path / "out", mysql_database)


def test_changes_alone_are_no_copy(mysql_database: Database, tmp_path: Path) -> None:
    create_tables(mysql_database, rows=5, uids=Uids())
    job = job_of(tmp_path, mysql_database)
    run_epochs(job, "mode=incremental")
    for mode in ("full", "full+incremental"):
        with pytest.raises(CheckpointError, match="is of mode incremental and has no copy of the rows"):
            run_epochs(job, f"mode={mode}")


@pytest.mark.pitfall(128)
def test_a_stream_does_not_look_for_what_nobody_has_left(
    mysql_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listing costs as much as a write in a bucket. What an earlier run may have left is looked for once."""
    source = mysql_database
    source.execute("CREATE TABLE orders (id INT PRIMARY KEY)", "INSERT INTO orders VALUES (1)")
    sink = {
        "type": "mirror",
        "url": source.url,
        "table": "copy_{table}",
    }  # what it writes is in the log that the job reads
    tables = source_of(source, tables=[f"{source.name}.orders"])
    job = write_job(tmp_path, source=tables, sink=sink, checkpoint=str(tmp_path / "checkpoint"))
    run_epochs(job)
    store = Checkpoint.at(str(tmp_path / "checkpoint")).store
    store.create("committed/e0000000000", b"left")
    left = ["committed/e0000000000", *store.list("finished")]
    assert len(left) > 1
    listed: Counter[str] = Counter()
    original = LocalStore.list

    def counted(store: LocalStore, prefix: str) -> list[str]:
        listed[prefix] += 1
        return original(store, prefix)

    monkeypatch.setattr(LocalStore, "list", counted)
    phases = run_epochs(job, "trigger=10ms", interval_seconds=0.01, at_most=12)
    assert phases == ["stream"] * 12
    cleaned = ("published", "staged", "finished", "rereads", "committed")
    assert {folder: listed[folder] for folder in cleaned} == dict.fromkeys(cleaned, 1)
    assert listed["plans"] <= 2 * 12
    assert [name for name in left if store.exists(name)] == []
