"""The command line in this process: a command that ends before Spark starts needs no JVM to be tested, and no process of
its own, whose start takes a second and a half of processor time."""

import contextlib
import json
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.jobs import write_job
from tests.support.servers import Database
from tidemark.conf.redaction import install_redaction
from tidemark.jobs import cli

INTERRUPTED = "tidemark: interrupted; the state is safe. Remedy: run the same command again to continue."


def waits_for_lease(source: Database) -> bool:
    """Whether a session waits for a job's lease on this server."""
    waiting = f"SELECT 1 FROM {source.server.processlist} WHERE info LIKE 'SELECT GET_LOCK(%'"
    return bool(source.query(waiting))


@dataclass(frozen=True)
class Ended:
    """The end of a command line: its code and output."""

    code: int
    out: str
    err: str

    def events(self) -> list[dict[str, Any]]:
        """The events of a run."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def last_line(self) -> str:
        return self.err.splitlines()[-1] if self.err else ""


CommandLine = Callable[..., Ended]


@pytest.fixture
def tidemark(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """Runs `tidemark ARGUMENTS`. A failure must name cause and remedy in its last line, without a traceback."""

    def run(*arguments: object) -> Ended:
        capsys.readouterr()
        with _undone(monkeypatch), pytest.raises(SystemExit) as caught:
            cli.main([str(argument) for argument in arguments])
        ended = Ended(caught.value.code, *capsys.readouterr())  # type: ignore[arg-type]
        if ended.code != 0:
            assert ended.last_line.startswith("tidemark: ")
            assert "Remedy: " in ended.last_line
            assert "Traceback" not in ended.err
        return ended

    return run


@contextlib.contextmanager
def _undone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Takes back what a command line does to its process. A process that is started later would inherit ignored signals."""
    undo: list[Callable[[], None]] = []
    monkeypatch.setattr(cli, "install_redaction", lambda: undo.append(install_redaction()))
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for uninstall in undo:
            uninstall()
        for number, handler in previous.items():
            signal.signal(number, handler)


@pytest.fixture
def shop(mysql_database: Database) -> Database:
    """Orders in seven rows, and notes without a key."""
    mysql_database.execute(
        "CREATE TABLE orders (id INT AUTO_INCREMENT PRIMARY KEY, note TEXT)",
        "INSERT INTO orders (note) VALUES ('a'), ('b'), ('c'), ('d'), ('e'), ('f'), ('g')",
        "CREATE TABLE notes (text TEXT)",
    )
    return mysql_database


def job_of(folder: Path, database: Database, table: str = "orders", **changes: Any) -> Path:
    """A job that copies `table` into files."""
    settings: dict[str, Any] = {
        "source": {"url": database.server.url, "tables": [f"{database.name}.{table}"]},
        "snapshot": {"split_rows": 2, "parallelism": 2},
        "sink": {"type": "files", "path": str(folder / "out")},
    }
    return write_job(folder, **{**settings, **changes})
