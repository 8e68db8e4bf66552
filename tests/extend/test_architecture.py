"""docs/architecture.md names modules and functions that exist."""

import ast
import re
from pathlib import Path

import pytest

from tests.support.jobs import ROOT

ROWS = re.findall(
    r"^\|[^|]*\| `([\w/]+\.py)` \| (.*) \|$", (ROOT / "docs" / "architecture.md").read_text(), re.MULTILINE
)
NAMED = sorted({(module, name) for module, names in ROWS for name in re.findall(r"`([\w.]+)`", names)})


def names_of(path: Path) -> set[str]:
    """The functions and classes of a module, and `Class.method`."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
    return found


def test_the_page_follows_a_row_and_a_change() -> None:
    assert len(ROWS) > 30


@pytest.mark.parametrize(("module", "name"), NAMED)
def test_what_the_page_names_exists(module: str, name: str) -> None:
    assert name in names_of(ROOT / module)


def test_the_modules_in_its_text_exist() -> None:
    for module in re.findall(r"`([\w/]+\.py)`", (ROOT / "docs" / "architecture.md").read_text()):
        assert (ROOT / module).is_file(), module
