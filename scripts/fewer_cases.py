"""Writes how many cases `make test` runs of the tests whose cases take long together, so that it ends within its minutes.

    .venv/bin/pytest -n 4 --junitxml=all.xml -m "not benchmark and not airflow"   # with TIDEMARK_TEST_EVERY_SERVER=1
    python -m scripts.fewer_cases all.xml --seconds 2

A test keeps as many cases as take `--seconds` together, and one at least.
"""

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path
from xml.etree import ElementTree

from devtools.fewer_cases import FILE

HEAD = """\
# Tests whose cases take long together, and how many cases `make test` runs. `make test EVERY_SERVER=1` runs all.
# Written by `python -m scripts.fewer_cases`, which says how.
"""


def seconds_of_cases(junit: Path) -> dict[str, list[float]]:
    """Returns test function → seconds of each of its cases that ran. Raises OSError and ElementTree.ParseError."""
    seconds: dict[str, list[float]] = {}
    for case in ElementTree.parse(junit).iter("testcase"):
        if case.find("skipped") is None:
            test = f"{case.attrib['classname'].replace('.', '/')}.py::{case.attrib['name'].partition('[')[0]}"
            seconds.setdefault(test, []).append(float(case.attrib["time"]))
    return seconds


def written(tests: Mapping[str, Iterable[float]], most_seconds: float) -> str:
    """Returns the file's text."""
    lines = []
    for test, times in sorted(tests.items()):
        of_test = list(times)
        number = max(1, int(most_seconds / max(sum(of_test) / len(of_test), 0.001)))
        if number < len(of_test):
            lines.append(f"{test} {number}\n")
    return HEAD + "".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("junit", type=Path, help="what pytest wrote with --junitxml")
    parser.add_argument("--seconds", type=float, default=2, help="of one test's cases together (default 2)")
    arguments = parser.parse_args()
    FILE.write_text(written(seconds_of_cases(arguments.junit), arguments.seconds))


if __name__ == "__main__":
    main()
