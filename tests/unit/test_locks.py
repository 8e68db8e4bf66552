"""The lock for running is the part of the lock for developing that a job needs."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEPENDENCY = re.compile(r'^    "([A-Za-z0-9-]+)[<>=\[]')


def lines_of(name: str) -> set[str]:
    return set((ROOT / name).read_text().splitlines())


def names(lines: set[str]) -> set[str]:
    return {line.partition("==")[0] for line in lines}


def dependencies() -> set[str]:
    text = (ROOT / "pyproject.toml").read_text().partition("\ndependencies = [\n")[2].partition("\n]\n")[0]
    return {found[1].lower() for line in text.splitlines() if (found := DEPENDENCY.match(line))}


def test_both_locks_pin_the_same_versions() -> None:
    assert lines_of("requirements.lock") < lines_of("requirements-dev.lock")


def test_the_lock_for_running_has_every_dependency_and_no_tool() -> None:
    run, needed = names(lines_of("requirements.lock")), dependencies()
    assert {"pyspark", "numba", "psycopg2-binary"} < needed < run
    assert not run & {
        "pytest",
        "mypy",
        "ruff",
        "hypothesis",
        "import-linter",
        "moto",
        "testcontainers",
        "s3fs",
        "altair",
    }
