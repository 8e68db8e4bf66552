"""Connections to MySQL and MariaDB that a shutdown or a failover ends while a job starts: the source is out of reach, exit
code 7."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.epochs import run_epochs
from tests.support.history import read_history
from tests.support.jobs import source_of, write_job
from tests.support.servers import Database
from tidemark.readers.mysql import source
from tidemark.state.errors import SourceUnavailableError

pytestmark = [pytest.mark.integration, pytest.mark.pitfall(114)]


def ends_its_connection(database: Database, function: Callable[..., Any]) -> Callable[..., Any]:
    """Lets the server end the connection before the first call of a function whose first argument it is."""
    left = [1]

    def ended(connection: Any, *arguments: Any, **options: Any) -> Any:
        if left[0]:
            left[0] -= 1
            database.execute(f"KILL {connection.thread_id()}")
        return function(connection, *arguments, **options)

    return ended


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
@pytest.mark.parametrize("step", ["read_server", "visible_kinds", "read_tables", "preflight", "binary_logs", "log_end"])
def test_a_connection_that_is_lost_during_a_start_is_out_of_reach(
    step: str, kind: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database: Database = request.getfixturevalue(f"{kind}_database")
    database.execute("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    sink = {"type": "files", "path": str(tmp_path / "out")}
    path = write_job(tmp_path, source=source_of(database), sink=sink)
    run_epochs(path)
    database.execute("INSERT INTO t VALUES (2)")
    with monkeypatch.context() as patch:
        patch.setattr(source, step, ends_its_connection(database, getattr(source, step)))
        with pytest.raises(SourceUnavailableError, match="connection") as caught:
            run_epochs(path)
    assert caught.value.exit_code == 7
    run_epochs(path)
    assert read_history(tmp_path / "out", database.schema, "t").num_rows == 2
