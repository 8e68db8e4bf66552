"""The remedies that several errors share, each in one wording. `docs/changing-a-job.md` says how to do them.

`START_OVER` is a part of a sentence, the others are whole sentences.
"""

import re
import shlex
from collections.abc import Iterable

from tidemark.state.table import TableId

START_OVER = "start over with an empty checkpoint and an empty target"
START_OVER_NOW = "Start over with an empty checkpoint and an empty target."
LEAVE_OUT = (
    f"To continue without the table, name it in source.exclude_tables: its copy stays as it is. Otherwise {START_OVER}."
)
RESTORE_CHECKPOINT = (
    f"Restore the checkpoint folder from a copy that was made after the job's last run, or {START_OVER}."
)
NO_KEY = (
    "Correct these rows, or name another key (source.keys; not for a table with a primary key), or leave the table out "
    f"(source.exclude_tables); then {START_OVER}."
)
ANOTHER_KEY = (
    "Name another unique key (source.keys; not for a table with a primary key), or leave the table out: "
    "source.exclude_tables."
)
NEEDS_KEY = "Give it a primary key (or a UNIQUE index of NOT NULL columns, named in source.keys), or leave it out."
DAMAGED_SOURCE = f"Look for a damaged disk or network on the source, then {START_OVER}."
LATE = "Nothing is lost. If the job fails with this error, start it again."
"""A task came after the epoch was committed. The job does not need it."""
ONE_NAME = "Give them different names by sink.table or sink.rename, or leave one of them out."
"""Two tables would have one copy. The names of a job that has started can't be changed."""
ONE_DRIVER = "Only one driver may run a job: stop the others, then start one."


def reason(message: str, remedy: str) -> str:
    """Returns why a table is parked, or could not come back, and what must be done before its rows are read again."""
    cure = without_start_over(remedy).replace(" and run the job again: nothing is lost", "")
    return f"{message} {cure}".rstrip()


def without_start_over(remedy: str) -> str:
    """Returns what a remedy says to do besides starting over, "" if that is nothing. For a table that can be read again."""
    kept = []
    for sentence in re.split(r"(?<=\.) (?=[A-Z])", remedy.replace(LEAVE_OUT, "")):
        head, joined, others = sentence.rpartition(START_OVER)
        cut = re.fullmatch(r"(.*[^,;])[,;] (?:then|or) ", head)
        if not joined and not sentence.startswith(START_OVER_NOW.rstrip(".")):
            kept.append(sentence)
        elif cut is not None:
            kept.append(cut[1] + (others if others.startswith(";") else "."))
    return " ".join(kept)


def log_whole_rows(table: TableId) -> str:
    """PostgreSQL: how the log gets the values that it leaves out of changes (TOAST)."""
    quoted = ".".join('"' + name.replace('"', '""') + '"' for name in (table.database, table.name))
    return f"Let the log contain whole rows (ALTER TABLE {quoted} REPLICA IDENTITY FULL), then {START_OVER}."


def read_again(name: object) -> str:
    """How a table of the job is read again, with a copy that is adapted or created. `name`: as the job file writes it."""
    return f"To read the table again: {resnapshot_of([name])}."


def resnapshot_of(names: Iterable[object]) -> str:
    """The command by which tables are read again. `names`: as the job file writes them."""
    return f"tidemark signal JOB.yaml resnapshot {' '.join(f'--table {in_shell(name)}' for name in names)}"


def in_shell(name: object) -> str:
    """Returns a name as one word of a command line. A shell runs what is between backticks, which a name may have."""
    return shlex.quote(str(name))
