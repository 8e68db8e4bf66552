"""Guides that are executed: their changes are applied to a copy of the code."""

import inspect
import re
import shutil
from pathlib import Path

from tests.support.jobs import ROOT

FOLDERS = ("conf", "enumerator", "jobs", "readers", "sinks", "state")
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_HUNK = re.compile(r"^@@.*\n", re.MULTILINE)


def blocks(guide: Path, language: str) -> list[str]:
    """The code blocks of a guide in one language."""
    return [text for found, text in _BLOCK.findall(guide.read_text()) if found == language]


def copy_of_the_code(folder: Path) -> Path:
    """Copies the import package to `folder`; returns the folder to put on the path."""
    ignored = shutil.ignore_patterns("__pycache__")
    package = folder / "tidemark"
    package.mkdir()
    for file in (ROOT / "src" / "tidemark").glob("*.*"):
        shutil.copy(file, package)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, package / name, ignore=ignored)
    return folder


def apply_diff(package: Path, diff: str) -> None:
    """Applies a diff without line numbers: `--- file`, then hunks that begin with `@@` and any text.

    The kept and the removed lines of a hunk must be found in the file, in one place.
    """
    header, _, rest = diff.partition("\n")
    path = package / header.removeprefix("--- ")
    text = path.read_text()
    for hunk in _HUNK.split(rest)[1:]:
        lines = hunk.splitlines()
        old = "".join(f"{line[1:]}\n" for line in lines if line[:1] in {" ", "-"})
        new = "".join(f"{line[1:]}\n" for line in lines if line[:1] in {" ", "+"})
        assert text.count(old) == 1, f"{path.name} has this {text.count(old)} times:\n{old}"
        text = text.replace(old, new)
    path.write_text(text)


def assert_implements(protocol: type, implementation: type) -> None:
    """Asserts that every method and property of a protocol is there, and that methods take the same parameters."""
    ours = [base for base in protocol.__mro__ if base.__module__.startswith("tidemark.")]
    for name, member in [item for base in ours for item in vars(base).items()]:
        if isinstance(member, property):
            assert hasattr(implementation, name), f"{implementation.__name__}.{name}"
        elif inspect.isfunction(member) and name not in {"__init__", "__subclasshook__"}:  # typing adds these two
            found, wanted = (inspect.signature(getattr(of, name)).parameters for of in (implementation, protocol))
            assert list(found) == list(wanted), f"{implementation.__name__}.{name}"
