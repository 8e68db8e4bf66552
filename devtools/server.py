"""A database server for tests and tools: its address, and how to connect to it, stop, kill and start it."""

import select
import time
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

import psycopg2
import pymysql

from devtools.server_packages import ServerUnavailableError

START_TIMEOUT_SECONDS = 90
DEFAULT_PORTS = {"mysql": 3306, "mariadb": 3306, "postgres": 5432}
SCHEMES = {"mysql": "mysql", "mariadb": "mariadb", "postgres": "postgresql"}
SUPERUSERS = {"mysql": "root", "mariadb": "root", "postgres": "postgres"}


class ServerProcess(Protocol):
    """A supervised process or a container that runs a server."""

    host: str
    port: int
    data_folder: Path | None

    def start(self) -> None: ...
    def exit_code(self) -> int | None: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...
    def close(self) -> None: ...
    def log(self) -> str: ...


class Server:
    """One server. `process` is None if the server is shared or given by URL, and may not be stopped.

    `kind` is mysql, mariadb or postgres. `version` is the server's own text, known once it has started. `url` ends with a
    slash and has no database. `data_folder` is None if the data are not on this machine.
    """

    def __init__(
        self,
        kind: str,
        url: str,
        process: ServerProcess | None = None,
        *,
        version: str = "",
        data_folder: Path | None = None,
    ) -> None:
        parts = urlsplit(url)
        self.kind, self.process, self.version, self.data_folder = kind, process, version, data_folder
        self.host, self.port = parts.hostname or "127.0.0.1", parts.port or DEFAULT_PORTS[kind]
        self.user, self.password = unquote(parts.username or SUPERUSERS[kind]), unquote(parts.password or "")
        self.url = f"{SCHEMES[kind]}://{parts.netloc}/"

    @classmethod
    def of_process(cls, kind: str, process: ServerProcess) -> "Server":
        url = f"{SCHEMES[kind]}://{SUPERUSERS[kind]}@{process.host}:{process.port}/"
        return cls(kind, url, process, data_folder=process.data_folder)

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{self.kind} {self.version} on {self.host}:{self.port}>"

    @property
    def processlist(self) -> str:
        """The table of a MySQL or MariaDB server's sessions.

        MySQL's older table, in information_schema, fails with error 3854 while any session runs a statement that
        contains a character of four bytes. MySQL 5.7 has only that one.
        """
        is_newer = self.kind == "mysql" and not self.version.startswith("5.")
        return f"{'performance_schema' if is_newer else 'information_schema'}.processlist"

    def connect(self, database: str | None = None, **settings: Any) -> Any:
        """Opens a PyMySQL or psycopg2 connection with autocommit. `settings` go to the driver.

        Without TLS: by default PyMySQL reads all of this machine's certificate authorities for each connection, which
        takes a hundred times as long as to connect. `ssl_disabled=False` is needed where `settings` ask for TLS.
        """
        account: dict[str, Any] = {"host": self.host, "port": self.port, "user": self.user, "password": self.password}
        if self.kind == "postgres":
            connection = psycopg2.connect(**{**account, "dbname": database or "postgres", **settings})
            connection.autocommit = True
            return connection
        defaults = {"database": database, "autocommit": True, "charset": "utf8mb4", "ssl_disabled": True}
        return pymysql.connect(**{**account, **defaults, **settings})

    def start(self) -> None:
        """Starts the server, or restarts it with the same port and data. Returns once it accepts connections."""
        process = self._ours()
        process.start()
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while True:
            try:
                connection = self.connect(connect_timeout=5)
            except (pymysql.Error, psycopg2.Error) as error:
                code = process.exit_code()
                if code is not None or time.monotonic() > deadline:
                    how = f"ended with {code} while starting" if code is not None else f"does not answer: {error}"
                    raise ServerUnavailableError(f"{self.kind} {how}\n{process.log()[-3000:]}") from error
                select.select([], [], [], 0.05)
            else:
                with connection.cursor() as cursor:
                    cursor.execute("SHOW server_version" if self.kind == "postgres" else "SELECT VERSION()")
                    self.version = cursor.fetchone()[0]
                connection.close()
                return

    def stop(self) -> None:
        """Shuts the server down cleanly. The data stay."""
        self._ours().stop()

    def kill(self) -> None:
        """Sends SIGKILL to the server and all its processes. The data stay."""
        self._ours().kill()

    def restart(self) -> None:
        self.stop()
        self.start()

    def close(self) -> None:
        """Ends the server and deletes its data. Does nothing to a server that is shared or given by URL."""
        if self.process is not None:
            self.process.close()

    def _ours(self) -> ServerProcess:
        if self.process is None:
            raise ServerUnavailableError(f"{self!r} is shared or was given by URL: start your own with start_server")
        return self.process
