"""The command line: `tidemark run | validate | plan | status | report | checkpoints | drop`."""

import json
import signal
import sys
import traceback
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer
from typer.exceptions import TyperException

from conf.load import load_job_file
from conf.model import JobFile
from conf.redaction import install_redaction, redact
from jobs import inspect, run
from jobs.drop import drop
from jobs.events import open_events
from jobs.projections import lines_of
from jobs.session import debugging
from state.errors import JobFileError, TidemarkError

UNEXPECTED = 1
USAGE_ERROR = 2
INTERRUPTED = 130

_UNEXPECTED_REMEDY = (
    "start it again, for the state is safe; if it comes again, report what it prints with TIDEMARK_DEBUG=1 set."
)
_INTERRUPTED_TEXT = "interrupted; the state is safe. Remedy: start the same command again to go on."

app = typer.Typer(
    name="tidemark",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Copies MySQL, MariaDB and PostgreSQL tables with Apache Spark and keeps the copies current.",
    epilog="Exit codes: 0 done · 1 unexpected · 2 job file or usage · 3 source not usable · 4 log position no longer "
    "available · 5 sink failed · 6 another driver holds the job · 130 interrupted, state safe.",
)

JobPath = Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job file.", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Replaces a value of the job file, e.g. snapshot.parallelism=8."),
]


@app.command(
    "run",
    epilog="Examples: tidemark run shop.yaml · tidemark run shop.yaml --set trigger=10s · "
    "tidemark run shop.yaml --summary out.json",
)
def run_command(
    job_path: JobPath,
    overrides: Overrides = None,
    standby: Annotated[bool, typer.Option("--standby", help="Wait while another driver runs the job.")] = False,
    summary: Annotated[Path | None, typer.Option("--summary", help="Write a summary as JSON to this file.")] = None,
) -> None:
    """Runs the job: the rows that exist, then every change. Goes on from the last checkpoint."""
    job = _load(job_path, overrides)
    if summary is not None and not summary.resolve().parent.is_dir():
        raise JobFileError(
            f"--summary {summary} is in a folder that does not exist.", "Create it, or name another file."
        )
    with open_events() as events:
        finished = run.run_job(job, events, standby=standby)
    if summary is not None:
        summary.write_text(json.dumps(finished.as_dict(), indent=2) + "\n")
    if finished.interrupted:
        raise KeyboardInterrupt


@app.command("validate", epilog="Example: tidemark validate shop.yaml --connect")
def validate_command(
    job_path: JobPath,
    overrides: Overrides = None,
    connect: Annotated[
        bool, typer.Option("--connect", help="Also check the source's settings, grants and tables, and the sink.")
    ] = False,
) -> None:
    """Checks the job file; with --connect also the source and the sink. Changes nothing."""
    job = _load(job_path, overrides)
    for warning in job.warnings():
        typer.echo(f"warning: {redact(warning)}")
    for line in lines_of(job):
        typer.echo(f"columns: {redact(line)}")
    if connect:
        inspect.validate(job)
    typer.echo(f"{job_path.name}: valid")


@app.command("plan", epilog="Example: tidemark plan shop.yaml")
def plan_command(job_path: JobPath, overrides: Overrides = None) -> None:
    """Dry run: tables, keys, watermark method, estimated splits, and what would be created."""
    inspect.plan(_load(job_path, overrides))


@app.command("status", epilog="Example: tidemark status shop.yaml --json")
def status_command(
    job_path: JobPath,
    overrides: Overrides = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """From the checkpoint: phase, splits done per table, position, lag, last epoch."""
    inspect.status(_load(job_path, overrides), as_json=as_json)


@app.command(
    "report",
    epilog="Examples: tidemark report shop.yaml · tidemark report shop.yaml -o /tmp/shop.html",
)
def report_command(
    job_path: JobPath,
    overrides: Overrides = None,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The page to write.")] = Path(
        "report.html"
    ),
) -> None:
    """From the checkpoint, as one HTML page: tables, splits with their watermarks, epochs, lag, events. The job may run."""
    job = _load(job_path, overrides)
    from jobs.report.write import write_report

    size_bytes = write_report(job, output)
    typer.echo(f"Wrote {output} ({size_bytes / 1e6:.1f} MB).")


@app.command("checkpoints", epilog="Example: tidemark checkpoints shop.yaml list")
def checkpoints_command(
    job_path: JobPath,
    action: Annotated[str, typer.Argument(metavar="[list]", help="What to do.")] = "list",
    overrides: Overrides = None,
) -> None:
    """Lists the consistent cuts that the checkpoint holds."""
    if action == "rollback":
        raise JobFileError("checkpoints rollback is not supported yet.", "Use `checkpoints list`.")
    if action != "list":
        raise JobFileError(f"checkpoints has no action {action!r}.", "Use `checkpoints list`.")
    inspect.checkpoints(_load(job_path, overrides))


@app.command("drop", epilog="Examples: tidemark drop shop.yaml · tidemark drop shop.yaml --yes")
def drop_command(
    job_path: JobPath,
    overrides: Overrides = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Drops the job's replication slot and publication in a PostgreSQL source, for good. Asks first."""
    drop(_load(job_path, overrides), yes=yes)


def _load(path: Path, overrides: list[str] | None) -> JobFile:
    return load_job_file(path, overrides or ())


def main(arguments: list[str] | None = None) -> NoReturn:
    """The console script. Ends the process with the exit code of interface.md; never returns."""
    install_redaction()
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        exit_code = app(args=arguments, standalone_mode=False)
    except TidemarkError as error:
        _end(error.exit_code, str(error))
    except TyperException as error:  # usage
        _end(USAGE_ERROR, f"{error.format_message()} Remedy: see tidemark --help.")
    except (KeyboardInterrupt, typer.Abort):
        exit_code = INTERRUPTED
    except Exception as error:  # noqa: BLE001 -- the process ends here
        if debugging():
            sys.excepthook(type(error), error, error.__traceback__)
        _end(UNEXPECTED, f"unexpected: {_described(error)}. Remedy: {_UNEXPECTED_REMEDY}")
    if exit_code == INTERRUPTED:  # also typer's answer to a KeyboardInterrupt
        _end(INTERRUPTED, _INTERRUPTED_TEXT)
    _end(exit_code if isinstance(exit_code, int) else 0)


def _end(exit_code: int, last_line: str = "") -> NoReturn:
    """Nothing may be said after the last line: signals that come now are not heard any more."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if last_line:
        sys.stdout.flush()
        print(f"tidemark: {redact(last_line)}", file=sys.stderr, flush=True)
    sys.exit(exit_code)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """Until the query runs, and after it, there is nothing to finish."""
    raise KeyboardInterrupt


def _described(error: Exception) -> str:
    """Its class, the first line of its text, and where it was raised."""
    text = " ".join(str(error).partition("\n")[0].split())
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{Path(frame.filename).name}:{frame.lineno}"
    return f"{type(error).__name__} at {place}" + (f": {text.rstrip('.')}" if text else "")


if __name__ == "__main__":
    main()
