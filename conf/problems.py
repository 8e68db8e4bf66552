"""The problems of a job file, with one line for each: `job.yaml:14: sink.typ: unknown key. …`."""

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tidemark.conf.redaction import redact
from tidemark.conf.yaml_tree import Path, Place
from tidemark.state.errors import JobFileError

REMEDY = "Correct the job file. The page Job file of Tidemark's documentation lists every key."

_BARE_STEP = re.compile(r"[A-Za-z0-9_-]+")
_NEAR = 0.6


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem. ``path`` names the key (empty: the whole file). ``text`` says what is wrong and what is allowed, without
    secrets.
    """

    place: Place
    path: Path
    text: str

    def __str__(self) -> str:
        path = dotted(self.path)
        if not path or str(self.place) in {f"--set {path}", f"option {path}"}:
            return f"{self.place}: {self.text}"
        return f"{self.place}: {path}: {self.text}"


class RefusedJobFileError(JobFileError):
    """The error for a job file with problems: ``problems`` are in the file's order, and never empty if made by ``of``.

    ``message`` is one line. ``str`` has a line for each problem if there are several, then a line with cause and remedy.
    """

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message, remedy)
        self.problems: tuple[Problem, ...] = ()

    def __str__(self) -> str:
        lines = [redact(str(problem)) for problem in self.problems] if len(self.problems) > 1 else []
        return "\n".join([*lines, super().__str__()])

    @classmethod
    def of(cls, file_name: str, problems: Sequence[Problem]) -> "RefusedJobFileError":
        first = redact(str(problems[0]))
        many = f"{file_name} has {len(problems)} problems. The first one: "
        error = cls((many if len(problems) > 1 else "") + first + ("" if first.endswith(".") else "."), REMEDY)
        error.problems = tuple(problems)
        return error


def dotted(path: Path) -> str:
    """Returns a path as ``--set`` takes it: `a.b."shop.orders"[1]`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += ("." if text else "") + (step if _BARE_STEP.fullmatch(step) else f'"{step}"')
    return text


def in_file_order(problems: Iterable[Problem]) -> list[Problem]:
    """Returns the problems by line, without repeats. Those of ``--set`` and of the whole file are last."""
    unique = dict.fromkeys(problems)
    return sorted(unique, key=lambda problem: (problem.place.line is None, problem.place.line or 0))


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """Returns " Did you mean 'x'?" with the nearest known word, or nothing."""
    near = difflib.get_close_matches(word.lower().replace("-", "_"), known, n=1, cutoff=_NEAR)
    return f" Did you mean '{near[0]}'?" if near else ""
