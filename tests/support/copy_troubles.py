"""Troubles with the copies of a mirror, and what is done about them as it is printed: the job then goes on, and its copies are
those of the source."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.cli import CommandLine
from tests.support.remedies import commands_in, run_command
from tests.support.remedy_ways import Way, in_source, mirror_job, require_copies, start_over, told_by, told_of, undone
from tests.support.servers import Database
from tidemark.state.remedies import START_OVER

CREATE = ("CREATE TABLE orders (id int PRIMARY KEY, note varchar(90))", "INSERT INTO orders VALUES (1, 'a'), (2, 'b')")
WRITE = "INSERT INTO orders VALUES (3, 'c')"


@dataclass(frozen=True)
class CopyTrouble:
    """`says`: a part of what is printed. `done`: statements for the target that it says. `does`: settings that it says.

    `source`: creates the table. `target`: statements for the target before the job starts. `made`: those after its first run,
    None if the first run has the trouble. `written`: what the source writes then. `sink`: settings of all runs, `wrong`: those
    of the runs before the remedy. `then`: statements for the target after it, and `later` what the source writes. `compared`:
    the columns that are compared, `left`: a table that is not."""

    says: str
    done: tuple[str, ...] = ()
    does: Way = undone
    source: tuple[str, ...] = CREATE
    target: tuple[str, ...] = ()
    made: tuple[str, ...] | None = None
    written: tuple[str, ...] = (WRITE,)
    later: tuple[str, ...] = ("UPDATE orders SET note = 'z'", "INSERT INTO orders VALUES (9, 'n')")
    sink: Mapping[str, Any] = field(default_factory=dict)
    wrong: tuple[str, ...] = ()
    then: tuple[str, ...] = ()
    compared: str = "*"
    left: str | None = None


def get_over_copy(
    folder: Path, source: Database, target: Database, trouble: CopyTrouble, tidemark: CommandLine
) -> list[str]:
    """Makes the trouble, does what is printed until nothing is, and compares after later changes. Returns what was printed."""
    in_source(source, trouble.source)
    target.execute(*trouble.target)
    job = mirror_job(folder, source, target, sink=trouble.sink)
    wrong = [text.replace("SCHEMA", source.schema) for text in trouble.wrong]
    if trouble.made is not None:
        assert told_by(job, *wrong) is None
        target.execute(*trouble.made)
        in_source(source, trouble.written)
    told = told_of(job, trouble.says, *wrong)
    texts = [told]
    target.execute(*trouble.done)
    settings = trouble.does(told, source)
    if commands_in(told):
        run_command(told, job, tidemark)
    while (more := told_by(job, *settings)) is not None:
        assert more not in texts[1:], more
        texts.append(more)
        if commands_in(more):
            run_command(more, job, tidemark)
        else:
            assert START_OVER in more.lower(), more
            start_over(job, source, target, tidemark)
    target.execute(*trouble.then)
    in_source(source, trouble.later)
    assert told_by(job, *settings) is None
    if trouble.compared:
        target.close()  # a session has the settings that its database had when it began
        require_copies(source, target, trouble.compared, left=trouble.left)
    return texts
