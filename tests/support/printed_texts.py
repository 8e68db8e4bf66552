"""The texts that Tidemark prints, found in its source code, and those of its documents."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tidemark.jobs.cli import SignalKind

ROOT = Path(__file__).parents[2]
PACKAGES = ("state", "conf", "enumerator", "readers", "sinks", "jobs")
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("[a-z]*/README.md"), *(ROOT / "docs").rglob("*.md")])
FILLED_IN = "VALUE"
"""In place of what an f-string fills in."""

SUBJECTS = frozenset({kind.value for kind in SignalKind} | {"list", "rollback"})
ARGUMENT = re.compile(rf"--?[a-z][\w-]*|[\w./-]+\.ya?ml|[A-Z]+|\S*=\S+|\d+|{FILLED_IN}|'[^']*'")

_CODE = re.compile(r"```[a-z]*\n(.*?)```|`([^`\n]+)`", re.DOTALL)


@dataclass(frozen=True)
class Text:
    """One text, and where it is written."""

    place: str
    text: str


def messages() -> Iterator[Text]:
    """Yields all texts of the source code but docstrings. What is filled in is FILLED_IN."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield from _texts_of(path)


def code_of_documents() -> Iterator[Text]:
    """Yields what the documents have as code: blocks line by line, with continued lines joined, and code within lines."""
    for path in DOCUMENTS:
        content = path.read_text()
        for match in _CODE.finditer(content):
            line = content.count("\n", 0, match.start()) + 1
            block = (match[1] or match[2]).replace("\\\n", " ")
            for row in block.splitlines():
                yield Text(f"{path.relative_to(ROOT)}:{line}", row)


def arguments_in(text: str) -> list[str]:
    """The command's arguments at the start of a prose text that follows `tidemark `: up to the first word that is none."""
    found: list[str] = []
    for word in text.replace("…", "JOB.yaml").replace("`", " ` ").split():
        bare = word.rstrip(".,;:)")
        is_value = bool(found) and found[-1].startswith("-")
        if found and not is_value and bare not in SUBJECTS and not ARGUMENT.fullmatch(bare):
            break
        found.append(bare)
        if bare != word:
            break
    return found


def _texts_of(path: Path) -> Iterator[Text]:
    tree = ast.parse(path.read_text())
    open_: list[ast.AST] = [tree]
    while open_:
        node = open_.pop()
        text = _text(node)
        if text is not None:
            yield Text(f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}", text)
            continue
        # A text that is a statement of its own is a docstring.
        open_ += [child for child in ast.iter_child_nodes(node) if not _is_docstring(child)]


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _text(node: ast.AST) -> str | None:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_text(part) or FILLED_IN for part in parts)
        case _:
            return None
