"""What the subjects share: the size of the run, a folder, and the source, which starts when it is first asked for."""

from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType

from benchmarks.postgres_source import PostgresSource
from benchmarks.source import OPTIONS, Source
from benchmarks.tidemark import orders_job, run_tidemark
from scripts.server import Server
from scripts.servers import start_server
from tests.support.servers import fresh_database


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
        """A new name; whoever uses it makes the folder."""
        self._folders += 1
        return self._root / str(self._folders)

    def server(self, kind: str) -> Server:
        """A server of our own until the end of the run."""
        return self._stack.enter_context(start_server(kind, OPTIONS.get(kind)))

    @cached_property
    def source(self) -> Source:
        return Source(self.server("mysql"), "mysql-gtid")

    @cached_property
    def postgres(self) -> PostgresSource:
        return PostgresSource(self._stack.enter_context(fresh_database(self.server("postgres"))))

    @cached_property
    def warmed_up(self) -> bool:
        """After a first job: what is compiled at first use is compiled, and files of libraries are in memory."""
        table = self.source.orders("warm_up", 4000)
        folder = self.folder()
        run_tidemark(orders_job(folder, self.source.server.url, table, {"type": "files", "path": str(folder / "out")}))
        self.source.change(table, 4000, transaction_rows=100)
        run_tidemark(folder / "job.yaml")
        return True

    @property
    def server_url(self) -> str:
        return self.source.server.url
