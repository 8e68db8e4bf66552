"""`make test` runs some cases only of the tests whose cases take long together: `tests/fewer_cases.txt` has how many.

`python -m scripts.fewer_cases JUNIT.xml` writes the file after a run of all tests.
"""

import re
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

FILE = Path(__file__).parents[1] / "tests/fewer_cases.txt"
_LINE = re.compile(r"(\S+\.py::\w+) ([1-9]\d*)")


def numbers_of_cases(text: str) -> dict[str, int]:
    """Returns test function → number of its cases, of the file's text. Lines that begin with # are comments.

    Raises ValueError for a line that is neither.
    """
    numbers: dict[str, int] = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        if (found := _LINE.fullmatch(line)) is None or found[1] in numbers:
            raise ValueError(f"not a test and its number of cases: {line!r}")
        numbers[found[1]] = int(found[2])
    return numbers


def cases_left_out(cases: Iterable[str], numbers: Mapping[str, int]) -> set[str]:
    """Returns those of the cases, by their node ids, that go beyond the number of their test. Which ones these are looks
    random, and is always the same."""
    by_test: dict[str, list[str]] = {}
    for case in cases:
        test = case.partition("[")[0]
        if test in numbers:
            by_test.setdefault(test, []).append(case)
    left_out: set[str] = set()
    for test, of_test in by_test.items():
        left_out.update(sorted(of_test, key=lambda case: zlib.crc32(case.encode()))[numbers[test] :])
    return left_out
