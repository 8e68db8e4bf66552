"""Printed remedies, done as they are printed: what a text tells to run or to set is taken from the text itself."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import CommandLine
from tests.support.epochs import run_epochs
from tests.support.printed_texts import arguments_in
from tidemark.conf.load import load_job_file
from tidemark.jobs.tables.parking import require_none_parked
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import TablesParkedError, TidemarkError


def remedy_of(job: Path, kind: type[TidemarkError], *overrides: str) -> str:
    """Returns what the next run prints as its remedy."""
    with pytest.raises(kind) as caught:
        run_epochs(job, *overrides)
    return caught.value.remedy


def advice_of(job: Path, *overrides: str) -> str:
    """Returns what the next run prints at its end, message and remedy, whether it stops or a table is parked."""
    told = what_is_told(job, *overrides)
    assert told is not None
    return told


def what_is_told(job: Path, *overrides: str) -> str | None:
    """The same, or None if all is well."""
    try:
        run_through(job, *overrides)
    except TidemarkError as error:
        return str(error)
    return None


def obey(
    job: Path, kind: type[TidemarkError], find: Callable[[str], list[str]], do: Callable[[list[str]], object]
) -> None:
    """Runs the job until nothing refuses it any more. `find`: what a remedy says to do. `do`: does it. Fails if a remedy says
    nothing new."""
    done: set[str] = set()
    while (remedy := _refusal(job, kind)) is not None:
        found = find(remedy)
        assert not set(found) <= done, remedy
        done |= set(found)
        do(found)


def _refusal(job: Path, kind: type[TidemarkError]) -> str | None:
    try:
        run_epochs(job)
    except kind as error:
        return error.remedy
    return None


def run_through(job: Path, *overrides: str) -> None:
    """As `tidemark run`: parked tables are an error at the end."""
    run_epochs(job, *overrides)
    require_none_parked(load_job_file(job, overrides), state_of(job))


def parked_remedy(job: Path, *overrides: str) -> str:
    """Returns what the end of a run prints as the remedy of its parked tables."""
    with pytest.raises(TablesParkedError) as caught:
        require_none_parked(load_job_file(job, overrides), state_of(job))
    return caught.value.remedy


def state_of(job: Path) -> Any:
    return Checkpoint.at(load_job_file(job).checkpoint).job_state()


def setting_in(remedy: str) -> str:
    """The setting of the job file that the remedy names, for `--set`."""
    found = re.search(r"\b((?:source|sink|log|snapshot)\.[a-z_]+): (\{.*\}\}?|\[.*?\]|\w+)", remedy)
    assert found is not None, remedy
    return f"{found[1]}={found[2]}"


def commands_in(text: str) -> list[list[str]]:
    """The arguments of each `tidemark …` in a text."""
    return [arguments_in(text[match.end() :]) for match in re.finditer(r"(?<![\w/.-])tidemark (?=[a-z]+ JOB)", text)]


def run_command(text: str, job: Path, tidemark: CommandLine, *more: str, number: int = 0) -> None:
    """Runs a command of the text, the first one if no number is given."""
    arguments = [str(job) if word == "JOB.yaml" else word for word in commands_in(text)[number]]
    ended = tidemark(*arguments, *more)
    assert ended.code == 0, ended.err
