"""Prints the tests of each pitfall (`make pitfalls`).

The exit code is 1 if a pitfall has no test, or if a test names a pitfall that does not exist.
"""

import contextlib
import io
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pytest

from devtools.pitfalls import CHAPTERS, PITFALLS

MARK = "pitfall"


@dataclass(slots=True)
class MarkedTests:
    """A pytest plugin that collects the tests of each pitfall by their marks, each test function once."""

    by_number: dict[int, list[str]] = field(default_factory=dict)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            self.add(item.nodeid, (mark.args for mark in item.iter_markers(MARK)))

    def add(self, node_id: str, marks: Iterable[tuple[int, ...]]) -> None:
        name = node_id.partition("[")[0].removeprefix("tests/")
        for number in {number for arguments in marks for number in arguments}:
            tests = self.by_number.setdefault(number, [])
            if name not in tests:
                tests.append(name)


def collect() -> MarkedTests:
    """Returns the marked tests. Raises RuntimeError with pytest's output if a test file can't be collected."""
    found, output = MarkedTests(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        code = pytest.main(["--collect-only", "--quiet", "-p", "no:cacheprovider"], plugins=[found])
    if code != pytest.ExitCode.OK:
        raise RuntimeError(f"the tests can't be collected:\n{output.getvalue()[-3000:]}")
    return found


def report(by_number: Mapping[int, list[str]]) -> tuple[list[str], list[str]]:
    """Returns the lines to print, and the errors."""
    lines: list[str] = []
    for chapter, pitfalls in CHAPTERS.items():
        lines += ["", chapter]
        for pitfall in pitfalls:
            tests = by_number.get(pitfall.number, [])
            state = f"{len(tests)} {'test' if len(tests) == 1 else 'tests'}" if tests else "—"
            lines.append(f"{pitfall.number:>4}  {state:<9} {pitfall.title}")
            if not tests:
                lines.append(f"{'':16}NO TEST")
            lines += [f"{'':16}{test}" for test in tests]
    missing = [n for n in PITFALLS if not by_number.get(n)]
    lines += ["", f"{len(PITFALLS) - len(missing)} entries have tests, {len(missing)} have none."]
    wrong = [f"no test yet: {', '.join(map(str, missing))}"] if missing else []
    wrong += [
        f"there is no pitfall {number}, which {', '.join(tests)} names"
        for number, tests in sorted(by_number.items())
        if number not in PITFALLS
    ]
    return lines, wrong


def main() -> int:
    try:
        found = collect()
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    lines, wrong = report(found.by_number)
    print("\n".join(lines))
    for text in wrong:
        print(text, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
