"""The log's view of tables as mysql-replication reads it, independent of Tidemark's readers."""

import contextlib
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.row_event import DeleteRowsEvent, TableMapEvent, UpdateRowsEvent, WriteRowsEvent

from tests.support.servers import Database


@dataclass
class Logged:
    """The logged facts by table: column names of its TABLE_MAP; number of inserted, updated and deleted rows."""

    columns: dict[str, list[str]] = field(default_factory=dict)
    rows: Counter[tuple[str, str]] = field(default_factory=Counter)


@contextlib.contextmanager
def logged(database: Database) -> Iterator[Logged]:
    """Yields an object that is filled, when the block ends, with what was logged for the database's tables
    meanwhile."""
    found = Logged()
    file, pos = _log_end(database)
    yield found
    stream = BinLogStreamReader(
        connection_settings={
            "host": database.server.host,
            "port": database.server.port,
            "user": database.server.user,
            "password": database.server.password,
        },
        server_id=4_100_000_007,
        blocking=False,
        log_file=file,
        log_pos=pos,
        resume_stream=True,
        only_schemas=[database.name],
        only_events=[TableMapEvent, WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent],
    )
    with contextlib.closing(stream), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "'db' is deprecated", DeprecationWarning)  # how the library calls its driver
        for event in stream:
            _count(found, event)


def _count(found: Logged, event: Any) -> None:
    match event:
        case TableMapEvent():
            found.columns[event.table] = list(event.optional_metadata.column_name_list)
        case WriteRowsEvent():
            found.rows[event.table, "insert"] += len(event.rows)
        case UpdateRowsEvent():
            found.rows[event.table, "update"] += len(event.rows)
        case DeleteRowsEvent():
            found.rows[event.table, "delete"] += len(event.rows)


def _log_end(database: Database) -> tuple[str, int]:
    new_words = database.kind == "mysql" and not database.server.version.startswith("8.0")
    file, pos, *_ = database.query("SHOW BINARY LOG STATUS" if new_words else "SHOW MASTER STATUS")[0]
    return file, pos
