"""The command line: `tidemark init | run | validate | plan | status | tables | signal | reconcile | report | …`."""

import json
import os
import platform
import signal
import sys
from enum import Enum
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer

from tidemark import __version__
from tidemark.conf.json_schema import json_schema
from tidemark.conf.load import load_job_file
from tidemark.conf.model import JobFile
from tidemark.conf.redaction import install_redaction, redact
from tidemark.conf.tables import TableName, parse_table_name
from tidemark.jobs import run
from tidemark.jobs.commands.checkpoints import checkpoints
from tidemark.jobs.commands.drop import drop
from tidemark.jobs.commands.init import init
from tidemark.jobs.commands.plan import plan
from tidemark.jobs.commands.signal import (
    accept_server,
    list_signals,
    pause,
    resnapshot,
    resume,
    set_settings,
    stop_snapshot,
)
from tidemark.jobs.commands.status import status
from tidemark.jobs.commands.tables import tables
from tidemark.jobs.commands.validate import validate
from tidemark.jobs.monitoring.ending import INTERRUPTED, INTERRUPTION, UNEXPECTED, Ending, debugging, ending_of
from tidemark.jobs.monitoring.events import JsonEvents, open_events
from tidemark.jobs.monitoring.run_summary import summarised
from tidemark.jobs.reconcile import EXAMPLES
from tidemark.jobs.recovery.rollback import roll_back
from tidemark.jobs.signals.steering import SETTINGS
from tidemark.readers.projection.settings import lines_of
from tidemark.state.errors import JobFileError, TidemarkError

app = typer.Typer(
    name="tidemark",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Copies MySQL, MariaDB and PostgreSQL tables with Apache Spark and keeps the copies current. "
    "Start with: tidemark init URL -o JOB.yaml, tidemark validate JOB.yaml --connect, tidemark plan JOB.yaml, "
    "tidemark run JOB.yaml.",
    epilog="Exit codes: 0 done · 1 unexpected error, or checkpoint not usable · 2 job file or usage · 3 source not usable · "
    "4 log position no longer available · 5 sink failed · 6 another driver holds the job · 7 source or target out of reach, "
    "try again later · 8 reconcile found differences · 9 done, but tables are parked · 10 paused by a signal · "
    "130 interrupted, state safe.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tidemark {__version__} (Python {platform.python_version()}, PySpark {version('pyspark')})")
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option(
        "--version",
        callback=_print_version,
        is_eager=True,
        help="Print the versions of Tidemark, Python and PySpark.",
    ),
]


class SignalKind(Enum):
    RESNAPSHOT = "resnapshot"
    PAUSE = "pause"
    RESUME = "resume"
    STOP_SNAPSHOT = "stop-snapshot"
    SET = "set"
    ACCEPT_SERVER = "accept-server"
    LIST = "list"


@app.callback()
def options(_version: Version = False) -> None:
    """Options of `tidemark` itself; `--version` is handled by its callback."""


JobPath = Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job file.", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Replace a value of the job file, e.g. snapshot.parallelism=8."),
]
Substitute = Annotated[
    bool, typer.Option("--substitute", help="Fill in ${NAME} and file:… in the values of --set, as in the job file.")
]


@app.command(
    "run",
    epilog="Examples: tidemark run shop.yaml · tidemark run shop.yaml --set trigger=10s · "
    "tidemark run shop.yaml --summary out.json",
)
def run_command(
    job_path: JobPath,
    overrides: Overrides = None,
    substitute: Substitute = False,
    standby: Annotated[
        bool, typer.Option("--standby", help="Wait while another driver runs the job, then take over.")
    ] = False,
    summary: Annotated[
        Path | None,
        typer.Option(
            "--summary", metavar="FILE", help="Write a summary of the run to this file as JSON, also if it fails."
        ),
    ] = None,
    before_upgrade: Annotated[
        bool,
        typer.Option(
            "--before-upgrade",
            help="PostgreSQL: read the log to its end, so that pg_upgrade takes the replication slot over. Stop all writes "
            "first.",
        ),
    ] = False,
) -> None:
    """Copies the existing rows, then follows every change. Continues from the last checkpoint."""
    changes = [*(overrides or ()), "trigger=once"] if before_upgrade else overrides
    with open_events() as events, summarised(events, summary) as told:
        job = _load(job_path, changes, substitute=substitute)
        run.run_job(job, events, told, standby=standby, before_upgrade=before_upgrade)
    if told.interrupted:
        raise KeyboardInterrupt


@app.command(
    "init",
    epilog="Examples: tidemark init 'mysql://cdc:${SHOP_PASSWORD}@db:3306/shop' -o shop.yaml · "
    "tidemark init 'postgresql://cdc:${SHOP_PASSWORD}@db:5432/shop' · tidemark init mariadb://cdc@db/ -o all.yaml",
)
def init_command(
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL",
            help="The source: mysql://, mariadb:// or postgresql://user:password@host:port/database. In single quotes, "
            "${NAME} takes the password from the environment.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="The job file to write. Without it the text is printed.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Looks at the source and writes a first job file: its tables, and what to grant and set. Changes nothing in the source.

    Without a database in the URL, all databases of a MySQL or MariaDB server are taken. Tables without a primary key, and
    those that can't be copied, are left out, with the reason. The file never has the password. No file is overwritten."""
    init(url, output)


def _print_schema(wanted: bool) -> None:
    if wanted:
        typer.echo(json.dumps(json_schema(), indent=1))
        raise typer.Exit


@app.command(
    "validate",
    epilog="Examples: tidemark validate shop.yaml · tidemark validate shop.yaml --connect · "
    "tidemark validate --schema > job-file.schema.json",
)
def validate_command(
    job_path: JobPath,
    overrides: Overrides = None,
    substitute: Substitute = False,
    connect: Annotated[
        bool,
        typer.Option(
            "--connect", help="Also check the source's settings, grants and tables, the sink, and the checkpoint."
        ),
    ] = False,
    _schema: Annotated[
        bool,
        typer.Option(
            "--schema",
            callback=_print_schema,
            is_eager=True,
            help="Print the job file's JSON schema, for editors. Needs no job file.",
        ),
    ] = False,
) -> None:
    """Checks the job file, and with --connect also the source and the sink. Changes nothing."""
    job = _load(job_path, overrides, substitute=substitute)
    for warning in job.warnings():
        typer.echo(f"warning: {redact(warning)}")
    for line in lines_of(job):
        typer.echo(f"columns: {redact(line)}")
    if connect:
        validate(job)
    typer.echo(f"{job_path.name}: valid")


@app.command(
    "plan", epilog="Examples: tidemark plan shop.yaml · tidemark plan shop.yaml --set snapshot.split_rows=100000"
)
def plan_command(job_path: JobPath, overrides: Overrides = None, substitute: Substitute = False) -> None:
    """Dry run: shows tables, keys, watermark method, estimated splits, and what a run would create. Changes nothing."""
    plan(_load_to_connect(job_path, overrides, substitute=substitute))


@app.command("status", epilog="Examples: tidemark status shop.yaml · tidemark status shop.yaml --json")
def status_command(
    job_path: JobPath,
    overrides: Overrides = None,
    substitute: Substitute = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Shows whether the job runs, its phase, position and lag, and the splits of each table. Reads only the checkpoint."""
    status(_load(job_path, overrides, substitute=substitute, connects=False), as_json=as_json)


@app.command("tables", epilog="Example: tidemark tables shop.yaml")
def tables_command(job_path: JobPath, overrides: Overrides = None, substitute: Substitute = False) -> None:
    """Shows the state of every table and what can be done about it. Reads only the checkpoint, needs no passwords."""
    tables(_load(job_path, overrides, substitute=substitute, connects=False))


@app.command(
    "signal",
    epilog="Examples: tidemark signal shop.yaml resnapshot --table shop.orders · tidemark signal shop.yaml resnapshot "
    "--table shop.orders --keys 5..90 · tidemark signal shop.yaml pause · "
    "tidemark signal shop.yaml set snapshot.parallelism=2 snapshot.max_rows_per_second=5000 · "
    "tidemark signal shop.yaml set snapshot.parallelism=default · "
    "tidemark signal shop.yaml accept-server 7436592817365928173 · tidemark signal shop.yaml list",
)
def signal_command(
    job_path: JobPath,
    what: Annotated[
        SignalKind,
        typer.Argument(
            help="resnapshot: read rows again; pause, resume: the job, or tables; stop-snapshot: read no more splits; "
            "set: change settings; accept-server: go on at another PostgreSQL server; list: show all signals."
        ),
    ],
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]…",
            help=f"For set: {', '.join(SETTINGS)}. For accept-server: the server's system identifier.",
        ),
    ] = None,
    table: Annotated[
        list[str] | None, typer.Option("--table", metavar="NAME", help="A table as database.table; may be given again.")
    ] = None,
    keys: Annotated[
        list[str] | None,
        typer.Option(
            "--keys",
            metavar="A..B",
            help="For resnapshot: only these keys, such as 5, 5..90 or 5,2 (a key of two columns); may be given again.",
        ),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(
            "--where", metavar="SQL", help="For resnapshot: only the rows of the source that match this condition."
        ),
    ] = None,
    overrides: Overrides = None,
    substitute: Substitute = False,
) -> None:
    """Steers a job: pauses it, reads tables again, changes settings. The running driver follows the signal. If none runs, the
    next run does. Needs no passwords.

    resnapshot reads the rows of a table again, while the other tables continue. A parked table comes back. In a mirror, the
    new rows replace the old ones range by range, if the table's key allows that. Other copies are emptied first. With --keys
    or --where, only some rows are read again, and the rest of the copy stays (mirrors only).

    pause finishes the running epoch. No more epochs are planned until resume. The source must keep its log meanwhile. A run
    with trigger once ends with exit code 10.

    pause --table takes a table out of the job: its copy stays as it is. resume --table reads all rows again, as resnapshot,
    because the changes in between are not kept.

    stop-snapshot reads no more splits until resume, while the log is followed. With --table, only these tables stop; resume
    --table continues where it stopped.

    set changes settings from the next epoch on, also in later runs. The value default brings back the job file's value.

    accept-server says that the PostgreSQL server with this system identifier is the job's, upgraded or moved. The job goes on
    there: with the log if nothing can be missing, else it reads all rows again."""
    job = _load(job_path, overrides, substitute=substitute, connects=False)
    tables = [_table_name(text) for text in table or ()]
    _check_arguments(what, settings, has_tables=bool(tables), has_rows=bool(keys) or where is not None)
    match what:
        case SignalKind.RESNAPSHOT:
            resnapshot(job, tables, keys=keys or (), where=where)
        case SignalKind.PAUSE:
            pause(job, tables)
        case SignalKind.RESUME:
            resume(job, tables)
        case SignalKind.STOP_SNAPSHOT:
            stop_snapshot(job, tables)
        case SignalKind.SET:
            set_settings(job, settings or ())
        case SignalKind.ACCEPT_SERVER:
            accept_server(job, settings or ())
        case SignalKind.LIST:
            list_signals(job)


def _check_arguments(what: SignalKind, settings: list[str] | None, *, has_tables: bool, has_rows: bool) -> None:
    """Raises JobFileError for arguments that the signal does not take. `has_rows`: of --keys or --where."""
    if settings and what not in {SignalKind.SET, SignalKind.ACCEPT_SERVER}:
        raise JobFileError(f"signal {what.value} takes no {settings[0]}.", "Name tables with --table.")
    if has_tables and what in {SignalKind.SET, SignalKind.ACCEPT_SERVER, SignalKind.LIST}:
        raise JobFileError(f"signal {what.value} is about the whole job.", "Leave --table out.")
    if has_rows and what is not SignalKind.RESNAPSHOT:
        raise JobFileError(f"signal {what.value} takes no --keys and no --where.", "Only resnapshot takes them.")


@app.command(
    "reconcile",
    epilog="Examples: tidemark reconcile shop.yaml · tidemark reconcile shop.yaml --table shop.orders --json · "
    "tidemark reconcile shop.yaml --repair",
)
def reconcile_command(
    job_path: JobPath,
    table: Annotated[
        list[str] | None,
        typer.Option("--table", metavar="NAME", help="Compare only this table (database.table); may be given again."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    repair: Annotated[bool, typer.Option("--repair", help="Let the job read the rows that differ again.")] = False,
    examples: Annotated[int, typer.Option("--examples", min=0, help="How many keys to print per table.")] = EXAMPLES,
    wait: Annotated[
        float | None,
        typer.Option(
            "--wait",
            metavar="SECONDS",
            min=0,
            show_default=False,
            help="How long to wait while the job commits nothing. Default: 60, or two intervals of its trigger if that is "
            "longer; 0 if the job does not run.",
        ),
    ] = None,
    overrides: Overrides = None,
    substitute: Substitute = False,
) -> None:
    """Compares every row of the source with its copy, while both change (sinks mirror, files and delta).

    Changes neither side and takes no locks. Run it while the job runs: a row that differs is read again until the job has
    passed the row's last change. Exit code 8 if rows differ, or if some could not be judged."""
    job = _load_to_connect(job_path, overrides, substitute=substitute)
    names = [_table_name(text) for text in table or ()]
    from tidemark.jobs.commands.reconcile import reconcile

    reconcile(job, names, as_json=as_json, repair=repair, examples=examples, patience_seconds=wait)


@app.command(
    "report",
    epilog="Examples: tidemark report shop.yaml · tidemark report shop.yaml -o /tmp/shop.html · "
    "tidemark report /etc/tidemark -o /var/www/jobs/index.html",
)
def report_command(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="JOB.yaml|FOLDER…", help="One or more job files, or folders of job files.", show_default=False
        ),
    ],
    overrides: Overrides = None,
    substitute: Substitute = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="The page to write: report.html, or index.html.", show_default=False
        ),
    ] = None,
) -> None:
    """Writes one HTML page: tables, splits with their watermarks, epochs, lag, events. Reads only the checkpoint.

    For a folder or several job files: one page that lists the jobs with their states, and a folder beside it with a page for
    each job. A job that can't be read is listed with the reason."""
    from tidemark.jobs.report.write import job_files_in, write_catalogue, write_report

    def load(path: Path) -> JobFile:
        return _load(path, overrides, substitute=substitute, connects=False)

    if len(paths) == 1 and not paths[0].is_dir():
        page = output or Path("report.html")
        size_bytes = write_report(load(paths[0]), page)
        typer.echo(f"Wrote {page} ({size_bytes / 1e6:.1f} MB).")
    else:
        page = output or Path("index.html")
        count = write_catalogue(job_files_in(paths), load, page)
        typer.echo(f"Wrote {page} ({count} {'job' if count == 1 else 'jobs'}).")


@app.command(
    "checkpoints",
    epilog="Examples: tidemark checkpoints shop.yaml list · tidemark checkpoints shop.yaml rollback 42",
)
def checkpoints_command(
    job_path: JobPath,
    action: Annotated[str, typer.Argument(metavar="[list|rollback]", help="list, or rollback EPOCH.")] = "list",
    epoch: Annotated[int | None, typer.Argument(metavar="[EPOCH]", help="For rollback: an epoch of the list.")] = None,
    overrides: Overrides = None,
    substitute: Substitute = False,
) -> None:
    """Lists the newest epochs with their log positions, or rolls a stopped job back to one of them: its next run reads the log
    again from there on. The list reads only the checkpoint."""
    if action == "list" and epoch is None:
        checkpoints(_load(job_path, overrides, substitute=substitute, connects=False))
    elif action == "rollback" and epoch is not None:
        position = roll_back(_load_to_connect(job_path, overrides, substitute=substitute), epoch)
        typer.echo(f"The next run reads the log again from {position} on, where epoch {epoch} ended.")
    else:
        raise JobFileError(
            f"checkpoints has no action {action!r}{'' if epoch is None else f' with an epoch {epoch}'}.",
            "Write `tidemark checkpoints JOB.yaml list`, or `tidemark checkpoints JOB.yaml rollback EPOCH`.",
        )


@app.command("drop", epilog="Examples: tidemark drop shop.yaml · tidemark drop shop.yaml --yes")
def drop_command(
    job_path: JobPath,
    overrides: Overrides = None,
    substitute: Substitute = False,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask. Required if there is no terminal.")] = False,
) -> None:
    """Drops the job's slot and publication in a PostgreSQL source. For a job that is no longer needed. Asks first.

    The job loses its position in the log. If it runs again, it creates a new slot and reads all rows again, or stops with exit
    code 4 (source.on_log_lost)."""
    drop(_load_to_connect(job_path, overrides, substitute=substitute), yes=yes)


def _table_name(text: str) -> TableName:
    try:
        return parse_table_name(text)
    except ValueError as error:
        raise JobFileError(f"--table {text}: {error}.", "Write database.table, as tidemark tables shows it.") from error


def _load(path: Path, overrides: list[str] | None, *, substitute: bool, connects: bool = True) -> JobFile:
    """`connects` False: for commands that read the checkpoint alone, which need no passwords."""
    return load_job_file(path, overrides or (), substitute_overrides=substitute, connects=connects)


def _load_to_connect(path: Path, overrides: list[str] | None, *, substitute: bool) -> JobFile:
    """The same for a command that connects, and is not to be silent about connections that are not encrypted."""
    job = _load(path, overrides, substitute=substitute)
    for warning in job.clear_text_warnings():
        typer.echo(f"warning: {redact(warning)}", err=True)
    return job


def main(arguments: list[str] | None = None) -> NoReturn:
    """The console script. Ends the process with an exit code of docs/operating.md; never returns."""
    install_redaction()
    for number in (signal.SIGINT, signal.SIGTERM):  # SIGINT too: shells let what they start with & ignore it
        signal.signal(number, _interrupt)
    as_json = "--json" in (sys.argv[1:] if arguments is None else arguments)
    try:
        exit_code = app(args=arguments, standalone_mode=False)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 -- the process ends here
        ending = ending_of(error)
        if ending.exit_code == UNEXPECTED and not isinstance(error, TidemarkError) and debugging():
            sys.excepthook(type(error), error, error.__traceback__)
        _fail(ending, as_json=as_json)
    if exit_code == INTERRUPTED:  # typer's answer to a KeyboardInterrupt
        _fail(INTERRUPTION, as_json=as_json)
    _ignore_signals()
    sys.exit(exit_code if isinstance(exit_code, int) else 0)


def _fail(ending: Ending, *, as_json: bool) -> NoReturn:
    """Ends the process with the cause and the remedy, the last line on stderr. `as_json`: and with the event `failed`, the last
    line on stdout."""
    _ignore_signals()
    try:
        if as_json:
            JsonEvents().note("failed", exit_code=ending.exit_code, cause=ending.cause, remedy=ending.remedy)
        sys.stdout.flush()
    except OSError:  # nobody reads it any more, or its disk is full
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python writes the rest when it ends
    print(f"tidemark: {redact(ending.last_line)}", file=sys.stderr, flush=True)
    sys.exit(ending.exit_code)


def _ignore_signals() -> None:
    """Ignores signals until the process ends, so that nothing is printed after the last line."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """Raises KeyboardInterrupt: before the query runs, and after it, there is nothing to finish."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
