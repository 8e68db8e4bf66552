"""docs/extend/source.md, done step by step to a copy of the code: its example source runs a job."""

import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from examples.custom_source import journal_source as journal
from tests.support.guide import apply_diff, assert_implements, blocks, copy_of_the_code
from tests.support.jobs import ROOT
from tidemark.readers import source
from tidemark.state.key_source import KeySource

GUIDE = ROOT / "docs" / "extend" / "source.md"
EXAMPLE = ROOT / "examples" / "custom_source" / "journal_source.py"

RUN_WHEN_ASKED = """
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from tests.support.epochs import run_epochs

for line in sys.stdin:
    try:
        found = run_epochs(Path("notes.yaml"), at_most=json.loads(line))
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
    print(json.dumps(found), flush=True)
"""

INSERT, UPDATE, DELETE = "insert", "update", "delete"


class Job:
    """A job of the guide's job file, in a process that imports the copy of the code."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.journal = folder, folder / "notes.journal"
        self.journal.write_text('{"journal": "6f1c"}\n')
        (job_file,) = blocks(GUIDE, "yaml")
        (folder / "notes.yaml").write_text(job_file)
        self.process = subprocess.Popen(
            [sys.executable, "-c", RUN_WHEN_ASKED],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": f"{folder}:{ROOT}", "NUMBA_DISABLE_JIT": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def write(self, *changes: tuple[str, int, str | None]) -> None:
        """One transaction."""
        rows = [[name, {"id": key, "body": body}] for name, key, body in changes]
        with self.journal.open("a") as file:
            file.write(json.dumps({"at": 1_704_067_200_000_000, "changes": rows}) + "\n")

    def run(self, at_most: int | None = None) -> Any:
        """Runs the job once. Returns the phases of its epochs, or its error."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{json.dumps(at_most)}\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def changes(self) -> list[dict[str, Any]]:
        files = (self.folder / "copy" / "journal.notes").glob("[!._]*")
        found = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        return sorted(found, key=lambda row: (row["_commit_version"], row["_seq"]))

    def rows(self) -> dict[int, str | None]:
        """The rows that result from the copied changes."""
        rows: dict[int, str | None] = {}
        for change in self.changes():
            if change["_change_type"] == DELETE:
                del rows[change["id"]]
            else:
                rows[change["id"]] = change["body"]
        return rows


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    package = copy_of_the_code(tmp_path) / "tidemark"
    for diff in blocks(GUIDE, "diff"):
        apply_diff(package, diff)
    journal = package / "readers" / "journal"
    journal.mkdir()
    (journal / "__init__.py").touch()
    (journal / "source.py").write_text(EXAMPLE.read_text())
    job = Job(tmp_path)
    with job.process:
        yield job


def test_the_example_source_runs_a_job(job: Job) -> None:
    job.write(*((INSERT, key, f"note {key}") for key in range(1, 8)))
    assert job.run(at_most=1) == ["snapshot"]
    read_first = {change["id"] for change in job.changes()}
    assert 0 < len(read_first) < 7
    job.write((UPDATE, 1, "changed"), (DELETE, 7, None), (INSERT, 9, "new"))  # in splits that are read, and not yet
    phases = job.run()
    assert phases == ["snapshot"] * len(phases), "the log is read in between"
    expected = {1: "changed", 9: "new", **{key: f"note {key}" for key in range(2, 7)}}
    assert job.rows() == expected
    count = len(job.changes())
    assert job.run() == []
    job.write((UPDATE, 2, None))
    assert job.run() == ["stream"]
    assert job.rows() == expected | {2: None}
    assert len(job.changes()) == count + 1


def test_another_journal_stops_the_job(job: Job) -> None:
    job.write((INSERT, 1, "note"))
    assert job.run() == ["snapshot"]
    job.journal.write_text(job.journal.read_text().replace("6f1c", "0000"))
    error = job.run()
    assert error.startswith("LogPositionLostError: ")
    assert "is not the journal that the job has read." in error


@pytest.mark.parametrize(
    ("protocol", "implementation"),
    [
        (source.FoundSource, journal.FoundJournal),
        (source.Lease, journal.JournalLease),
        (source.SourceServer, journal.JournalServer),
        (source.PlannerAccess, journal.JournalAccess),
        (KeySource, journal.JournalKeys),
        (source.SplitReading, journal.JournalSplits),
        (source.LogReading, journal.JournalLog),
        (source.KeyRouting, journal.JournalRouting),
    ],
    ids=lambda value: value.__name__,
)
def test_the_example_has_the_methods_of_the_protocols(protocol: type, implementation: type) -> None:
    assert_implements(protocol, implementation)


def test_the_code_that_the_guide_shows_is_the_example_s() -> None:
    (shown,) = blocks(GUIDE, "python")
    assert shown in EXAMPLE.read_text()


def test_the_guide_names_every_protocol() -> None:
    protocols = {
        name
        for name, value in vars(source).items()
        if inspect.isclass(value) and value.__module__ == source.__name__ and getattr(value, "_is_protocol", False)
    }
    named = set(re.findall(r"`(\w+)`", GUIDE.read_text()))
    assert protocols <= named


def test_the_files_that_the_guide_names_exist() -> None:
    for name in re.findall(r"`((?:tests|state|readers|conf|jobs)/[\w/.]+\.py)`", GUIDE.read_text()):
        assert name == "readers/journal/source.py" or (ROOT / name).exists(), name
