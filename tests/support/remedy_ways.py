"""Troubles of a job, and ways to do what is printed for them: the job then goes on, and its copies are those of the source."""

import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.cli import CommandLine
from tests.support.epochs import Notes, run_epochs
from tests.support.jobs import source_of, write_job
from tests.support.remedies import commands_in, run_command, setting_in
from tests.support.servers import Database
from tidemark.conf.load import load_job_file
from tidemark.jobs.tables.parking import require_none_parked
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import TidemarkError
from tidemark.state.remedies import START_OVER

Way = Callable[[str, Database], tuple[str, ...]]
"""Does what a text says. Returns the settings that the next runs have."""


NOTHING_TO_DO = "Remedy: None is needed. To keep the table out of the job"
"""A table joins the job."""


@dataclass(frozen=True)
class Trouble:
    """`made`: statements for the source, on one connection, or what else is done to it. `before`: those after which the job
    runs before that, None for a job that has not started. `later`: what is written to the source after the remedy. `wrong`:
    settings of the runs before the remedy. `kept`: those of all runs. In all SCHEMA is the schema of the tables. `says`: a part
    of what is printed. `compared`: the columns that the copies share with their tables, * for all."""

    made: tuple[str, ...] | Callable[[Database], object]
    says: str
    does: Way
    before: tuple[str, ...] | None = None
    wrong: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    later: tuple[str, ...] = ()
    kind: str = "mysql"
    compared: str = "*"


def mirror_job(
    folder: Path,
    source: Database,
    target: Database,
    *,
    sink: Mapping[str, Any] | None = None,
    name: str = "test-job",
    **settings: Any,
) -> Path:
    """A job whose copies are the tables `copy_…` of the target. `sink`, `settings`: of the sections sink and source."""
    url = target.url if target.kind == "postgres" else f"{target.server.url}{target.name}"
    mirror = {"type": "mirror", "url": url, "table": "copy_{table}"} | dict(sink or {})
    return write_job(folder, job=name, source=source_of(source, **settings), sink=mirror, reconnect={"attempts": 0})


def get_over(job: Path, source: Database, target: Database, trouble: Trouble, tidemark: CommandLine) -> None:
    """Makes the trouble, does what is printed until nothing is, and compares after later changes. The source has a table
    `orders` with a column `note`."""
    wrong, kept = ([text.replace("SCHEMA", source.schema) for text in some] for some in (trouble.wrong, trouble.kept))
    if trouble.before is not None:
        in_source(source, trouble.before)
        assert told_by(job, *wrong, *kept) is None
    if isinstance(trouble.made, tuple):
        in_source(source, trouble.made)
    else:
        trouble.made(source)
    told = told_by(job, *wrong, *kept)
    assert told is not None
    assert trouble.says in told, told
    settings = (*trouble.does(told, source), *kept)
    done: set[str] = set()
    while (more := told_by(job, *settings)) is not None:
        assert more not in done, more
        done.add(more)
        if commands_in(more):
            run_command(more, job, tidemark)
        else:
            assert START_OVER in more.lower(), more
            start_over(job, source, target, tidemark)
    in_source(source, ("UPDATE orders SET note = 'z'", *trouble.later))
    assert told_by(job, *settings) is None
    require_copies(source, target, trouble.compared)


class Settings(dict[str, str]):
    """Settings of the next runs, which steps change."""

    @property
    def overrides(self) -> list[str]:
        return [f"{key}={value}" for key, value in self.items()]

    def setting(self, key: str, value: str) -> Callable[[str], None]:
        """A step that makes a setting, "" to remove it."""

        def step(told: str) -> None:
            self.pop(key, None)
            if value:
                self[key] = value

        return step


def get_over_all(told: Callable[[], str | None], steps: Mapping[str, Callable[[str], object]]) -> None:
    """Does what each run tells until none tells anything. `steps`: a part of each text, and what does it. Each is told once."""
    left = dict(steps)
    while (text := told()) is not None:
        says = next((part for part in left if part in text), None)
        assert says is not None, text
        left.pop(says)(text)
    assert list(left) == []


def in_source(source: Database, statements: tuple[str, ...]) -> None:
    source.execute(*[text.replace("SCHEMA", source.schema) for text in statements])


def told_by(job: Path, *overrides: str) -> str | None:
    """The error of a run, else its warnings that say what to do. None if there is nothing to do."""
    notes = Notes()
    try:
        run_epochs(job, *overrides, notes=notes)
        loaded = load_job_file(job, overrides)
        state = Checkpoint.at(loaded.checkpoint).job_state()
        assert state is not None
        require_none_parked(loaded, state)
    except TidemarkError as error:
        return str(error)
    texts = [facts["text"] for event, facts in notes.found if event == "warning"]
    return " ".join(text for text in texts if "Remedy: " in text and NOTHING_TO_DO not in text) or None


def told_of(job: Path, says: str, *overrides: str) -> str:
    """The same, which has these words."""
    told = told_by(job, *overrides)
    assert told is not None, f"not told: {says}"
    assert says in told, told
    return told


def require_copies(source: Database, target: Database, columns: str = "*", *, left: str | None = None) -> None:
    """Each table that the target has a copy of has the rows of its copy, but for one that left the job."""
    copied = target.query("SELECT source_table, target_table FROM tidemark_tables WHERE created")
    assert copied
    for table, copy in copied:
        if table == f"{source.schema}.{left}":
            continue
        held, wanted = target.query(f"SELECT {columns} FROM {copy}"), source.query(f"SELECT {columns} FROM {table}")
        assert sorted(held) == sorted(wanted), table


def start_over(job: Path, source: Database, target: Database, tidemark: CommandLine) -> None:
    """Does what docs/changing-a-job.md says."""
    if source.kind == "postgres":
        assert tidemark("drop", job, "--yes").code == 0
    shutil.rmtree(job.parent / "checkpoint", ignore_errors=True)
    copies = [copy for (copy,) in target.query("SELECT target_table FROM tidemark_tables")]
    target.execute(*[f"DROP TABLE IF EXISTS {copy}" for copy in copies], "DELETE FROM tidemark_tables")


def statements(pattern: str) -> Way:
    """Executes what the text has of this form."""

    def do(told: str, source: Database) -> tuple[str, ...]:
        found = re.findall(pattern, told)
        assert found, told
        source.execute(*found)
        return ()

    return do


def setting(told: str, source: Database) -> tuple[str, ...]:
    """Makes the setting that the text has."""
    return (setting_in(told),)


def written(template: str, pattern: str) -> Way:
    """Makes a setting from what the text has: SCHEMA is the schema of the tables, FOUND the group of the pattern."""

    def do(told: str, source: Database) -> tuple[str, ...]:
        found = re.search(pattern, told)
        assert found is not None, told
        return (template.replace("SCHEMA", source.schema).replace("FOUND", found[1]),)

    return do


def by_hand(*made: str, settings: tuple[str, ...] = ()) -> Way:
    """Executes statements, and makes settings, that the text says in words."""

    def do(told: str, source: Database) -> tuple[str, ...]:
        if made:
            in_source(source, made)
        return tuple(text.replace("SCHEMA", source.schema) for text in settings)

    return do


def left_out(told: str, source: Database) -> tuple[str, ...]:
    """Leaves out the table that the text is about."""
    assert re.search(r"[Ll]eave (it|the table) out: source\.exclude_tables|\bsource\.exclude_tables\b", told), told
    named = re.search(rf"{source.schema}\.\w+", told)
    assert named is not None, told
    return (f"source.exclude_tables=[{named[0]}]",)


def undone(told: str, source: Database) -> tuple[str, ...]:
    """Takes back the wrong settings."""
    return ()
