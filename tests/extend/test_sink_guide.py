"""docs/extend/sink.md, done step by step to a copy of the code."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.guide import apply_diff, blocks, copy_of_the_code
from tests.support.jobs import ROOT

GUIDE = ROOT / "docs" / "extend" / "sink.md"
EXAMPLE = ROOT / "examples" / "custom_sink" / "sqlite_sink.py"

WRITE_A_PART = """
import sqlite3
import sys
from decimal import Decimal
from pathlib import Path

from tests.support.change_parts import ORDERS, SCHEMAS, snapshot_part
from tidemark.conf.load import load_job_file
from tidemark.jobs.sinks import comparable_sink, make_sink, sink_needs
from tidemark.sinks.sink import JobIdentity
from tidemark.state.errors import JobFileError

job = load_job_file(Path(sys.argv[1]))
print(sink_needs(job.sink).display_name, sink_needs(job.sink).needs_key)
sink, identity = make_sink(job), JobIdentity("1", job.job)
sink.prepare(identity, [ORDERS])
part = snapshot_part(1, 1, ORDERS, [(7, "Ada", Decimal("1.50"), 0, None)])
results = list(sink.writer(identity).write(part, SCHEMAS))
print(results[0].row_count, sqlite3.connect(job.sink.path).execute('SELECT id, customer FROM "shop.orders"').fetchall())
try:
    comparable_sink(job)
except JobFileError as error:
    print(error.message)
"""


@pytest.fixture
def extended(tmp_path: Path) -> Path:
    """The folder of a copy of the code with the guide's changes."""
    folder = copy_of_the_code(tmp_path)
    for diff in blocks(GUIDE, "diff"):
        apply_diff(folder / "tidemark", diff)
    sqlite = folder / "tidemark" / "sinks" / "sqlite"
    sqlite.mkdir()
    (sqlite / "__init__.py").touch()
    (sqlite / "sink.py").write_text(EXAMPLE.read_text())
    return folder


def test_a_job_file_with_the_new_sink_writes_to_it(extended: Path) -> None:
    (job_file,) = blocks(GUIDE, "yaml")
    (extended / "shop.yaml").write_text(job_file)
    result = subprocess.run(
        [sys.executable, "-c", WRITE_A_PART, "shop.yaml"],
        cwd=extended,
        env={"PYTHONPATH": f"{extended}:{ROOT}", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stderr == ""
    refused = "Copies of sink sqlite can't be compared."
    assert result.stdout.splitlines() == [f"sqlite {extended}/shop.db True", "1 [(7, 'Ada')]", refused]


def test_the_code_that_the_guide_shows_is_the_example_s() -> None:
    shown = blocks(GUIDE, "python")
    assert shown
    for block in shown:
        assert block in EXAMPLE.read_text()
