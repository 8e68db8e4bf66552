"""What is wrong with a job file, as one line per problem: `job.yaml:14: sink.typ: unknown key. …`."""

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from conf.redaction import redact
from conf.yaml_tree import Path, Place
from state.errors import JobFileError

REMEDY = "Correct the job file; docs/job-file.md lists every key."

_BARE_STEP = re.compile(r"[A-Za-z0-9_-]+")
_NEAR = 0.6


@dataclass(frozen=True, slots=True)
class Problem:
    """``path`` names the key (empty: the whole file); ``text`` says what is wrong and what is allowed, without
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
    """A job file with all that is wrong with it: ``problems`` in the file's order, never empty once made by ``of``.

    ``message`` is one line; ``str`` lists all problems, one per line, and ends with a line that has cause and remedy.
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
        many = f"{file_name} has {len(problems)} problems. The first: "
        error = cls((many if len(problems) > 1 else "") + first + ("" if first.endswith(".") else "."), REMEDY)
        error.problems = tuple(problems)
        return error


def dotted(path: Path) -> str:
    """`a.b."shop.orders"[1]`: the same spelling that ``--set`` takes."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += ("." if text else "") + (step if _BARE_STEP.fullmatch(step) else f'"{step}"')
    return text


def in_file_order(problems: Iterable[Problem]) -> list[Problem]:
    """Without repeats, by line; what came from ``--set`` or concerns the whole file last."""
    unique = dict.fromkeys(problems)
    return sorted(unique, key=lambda problem: (problem.place.line is None, problem.place.line or 0))


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """ " Did you mean 'x'?" with the nearest known word, or nothing."""
    near = difflib.get_close_matches(word.lower().replace("-", "_"), known, n=1, cutoff=_NEAR)
    return f" Did you mean '{near[0]}'?" if near else ""
