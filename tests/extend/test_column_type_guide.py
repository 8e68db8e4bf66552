"""docs/extend/column-type.md: its changes are all that INET4 needs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.guide import FOLDERS, apply_diff, blocks, copy_of_the_code
from tests.support.jobs import ROOT
from tidemark.state.table import arrow_type_of

GUIDE = ROOT / "docs" / "extend" / "column-type.md"
MENTIONED = {"sinks/mirror/value_ranges.py"}
"""Files in which a docstring names INET4 as an example."""

ASK_FOR_THE_TYPE = """
from tidemark.readers.mysql.decoding import arrow
from tidemark.readers.mysql.decoding.type_layouts import column_layout
from tidemark.readers.mysql.schema.types import canonical_type
from tidemark.state.errors import UnsupportedTypeError
from tidemark.state.table import Column, TableId

table = TableId("net", "hosts")
try:
    name = canonical_type(table, "address", "inet4", None)
except UnsupportedTypeError as error:
    print(error.message)
else:
    print(name, column_layout(table, Column("address", "inet4", name, nullable=True)).from_image.name)
"""


@pytest.fixture
def code(tmp_path: Path) -> Path:
    return copy_of_the_code(tmp_path)


def backwards(diff: str) -> str:
    swapped = {"+": "-", "-": "+"}
    header, _, rest = diff.partition("\n")
    lines = [swapped.get(line[:1], line[:1]) + line[1:] for line in rest.splitlines()]
    return "\n".join([header, *lines]) + "\n"


def asked(code: Path) -> str:
    result = subprocess.run(
        [sys.executable, "-c", ASK_FOR_THE_TYPE],
        cwd=code,
        env={"PYTHONPATH": str(code), "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return result.stdout.strip()


def test_the_changes_of_the_guide_are_all_that_the_type_needs(code: Path) -> None:
    package, diffs = code / "tidemark", blocks(GUIDE, "diff")
    for diff in diffs:
        apply_diff(package, backwards(diff))
    left = {
        str(path.relative_to(package))
        for folder in FOLDERS
        for path in (package / folder).rglob("*.py")
        if "inet4" in path.read_text().lower()
    }
    assert left <= MENTIONED
    assert asked(code).startswith("Column address of net.hosts, inet4, is ")
    for diff in diffs:
        apply_diff(package, diff)
    for folder in FOLDERS:
        for path in (package / folder).rglob("*.py"):
            assert path.read_text() == (ROOT / path.relative_to(package)).read_text()
    assert asked(code) == "string INET4"


def test_the_guide_names_every_arrow_type() -> None:
    paragraph = GUIDE.read_text().partition("knows them all:\n\n")[2].partition("\n\n")[0]
    names = re.findall(r"`([^`]+)`", paragraph)
    for name in names:
        assert arrow_type_of(name.replace("(p,s)", "(12,2)"))
    listed = str(arrow_type_of.__doc__).partition("one of `")[2].partition("`")[0].split()
    assert set(names) == {*listed, "decimal(p,s)"}


def test_the_files_that_the_guide_names_exist() -> None:
    for name in re.findall(r"`((?:tests|state|readers|sinks)/[\w/.]+)`", GUIDE.read_text()):
        assert (ROOT / name).exists(), name
