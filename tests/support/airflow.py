"""Airflow on SQLite with the DAGs of examples/airflow, run by `airflow dags test`."""

import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.jobs import ROOT, Process, start_process

AIRFLOW = ROOT / ".venv-airflow" / "bin" / "airflow"
POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Login:
    """The content of an Airflow connection."""

    host: str
    port: int
    user: str
    password: str

    def as_connection(self, kind: str) -> str:
        fields = {"conn_type": kind, "host": self.host, "port": self.port}
        return json.dumps({**fields, "login": self.user, "password": self.password})


class Airflow:
    """An AIRFLOW_HOME in `folder`. `failpoints`: the folder where tests arm the jobs' failpoints. `scratch`: for
    temporary files."""

    def __init__(self, folder: Path, our_zip: Path, *, shop: Login, copy: Login) -> None:
        self.folder, self.home, self.failpoints = folder, folder / "airflow", folder / "failpoints"
        self.checkpoints, self.scratch = folder / "checkpoints", folder / "scratch"
        self.secrets = (shop.password, copy.password)
        tidemark = folder / "tidemark"
        for made in (self.home, self.failpoints, self.scratch, tidemark):
            made.mkdir()
        shutil.copytree(ROOT / "examples" / "airflow" / "dags", self.home / "dags")
        shutil.copy(ROOT / "jobs" / "sync.py", tidemark)
        shutil.copy(our_zip, tidemark)
        self._environment = {
            "AIRFLOW_HOME": str(self.home),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DEFAULT_TASK_RETRY_DELAY": "1",
            "AIRFLOW_CONN_SHOP": shop.as_connection("mysql"),
            "AIRFLOW_CONN_COPY": copy.as_connection("postgres"),
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2,4]"}),
            "CHECKPOINT_ROOT": str(self.checkpoints),
            "TIDEMARK_HOME": str(tidemark),
            "TIDEMARK_FAILPOINTS": str(self.failpoints),
            "TMPDIR": str(self.scratch),
            "SPARK_LOCAL_DIRS": str(self.scratch),
            "PATH": f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}",
        }
        made_db = subprocess.run(
            [AIRFLOW, "db", "migrate"], env=os.environ | self._environment, capture_output=True, text=True
        )
        assert made_db.returncode == 0, made_db.stderr[-3000:]

    @contextlib.contextmanager
    def running(self, dag: str, **params: Any) -> Iterator[Process]:
        """A run of the DAG that is killed when the block ends, if it still lives."""
        arguments = ("dags", "test", dag, "--conf", json.dumps(params))
        process = start_process(
            self.folder, str(AIRFLOW), *arguments, environment=self._environment, working_folder=self.home
        )
        try:
            yield process
        finally:
            process.kill()

    def run(self, dag: str, *, expect: int = 0, **params: Any) -> str:
        """Runs the DAG to its end, and returns its output. Fails if a secret shows up on a command line meanwhile."""
        with self.running(dag, **params) as process:
            return self.ended(process, expect=expect)

    def ended(self, process: Process, *, expect: int = 0) -> str:
        while process.popen.poll() is None:
            assert not [line for line in _command_lines() for secret in self.secrets if secret.encode() in line]
            time.sleep(POLL_SECONDS)
        printed = process.out.read_text() + process.err.read_text()
        assert process.popen.returncode == expect, printed[-6000:]
        return printed

    def task(self, dag: str) -> tuple[str, int]:
        """The state and number of tries of the newest run."""
        (row,) = self._query(
            "SELECT state, try_number FROM task_instance WHERE dag_id = ? ORDER BY start_date DESC LIMIT 1", dag
        )
        return row

    def summary(self, dag: str) -> dict[str, Any]:
        """The XCom that the newest run left."""
        (row,) = self._query("SELECT value FROM xcom WHERE dag_id = ? ORDER BY timestamp DESC LIMIT 1", dag)
        value = json.loads(row[0])
        return json.loads(value) if isinstance(value, str) else value

    def _query(self, statement: str, *arguments: str) -> list[Any]:
        with contextlib.closing(sqlite3.connect(self.home / "airflow.db")) as connection:
            return connection.execute(statement, arguments).fetchall()


def _command_lines() -> Iterator[bytes]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            yield path.read_bytes()
