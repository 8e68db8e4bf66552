"""The state that all benchmarks share: the size of the run, a folder, and the source, which starts at its first use."""

from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType

from benchmarks.postgres_source import PostgresSource
from benchmarks.source import OPTIONS, Source
from benchmarks.tidemark import orders_job, run_tidemark
from devtools.databases import fresh_database
from devtools.server import Server
from devtools.servers import start_server


class Bench:
    """A context manager. `rows` is the size of the large table; every other size follows from it."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self._stack = ExitStack()
        self._folders = 0

    def __enter__(self) -> "Bench":
        self._root = Path(self._stack.enter_context(TemporaryDirectory(prefix="tidemark-bench-")))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def folder(self) -> Path:
        """Returns a new folder name. The caller creates the folder."""
        self._folders += 1
        return self._root / str(self._folders)

    def server(self, kind: str) -> Server:
        """Starts a private server, which ends with the run."""
        return self._stack.enter_context(start_server(kind, OPTIONS.get(kind)))

    @cached_property
    def source(self) -> Source:
        return Source(self.server("mysql"), "mysql-gtid")

    @cached_property
    def postgres(self) -> PostgresSource:
        return PostgresSource(self._stack.enter_context(fresh_database(self.server("postgres"))))

    @cached_property
    def warmed_up(self) -> bool:
        """True, after a first job was run: code that is compiled at first use is compiled, and library files are cached."""
        table = self.source.orders("warm_up", 4000)
        folder = self.folder()
        run_tidemark(orders_job(folder, self.source.server.url, table, {"type": "files", "path": str(folder / "out")}))
        self.source.change(table, 4000, transaction_rows=100)
        run_tidemark(folder / "job.yaml")
        return True

    @property
    def server_url(self) -> str:
        return self.source.server.url
