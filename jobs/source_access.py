"""What the planner asks the source, on one connection that is opened anew when it was lost."""

from conf.model import JobFile
from enumerator.log_extent import BinlogExtent, LogFile
from enumerator.source import KeySource
from readers.mysql.connect import Connection, connect
from readers.mysql.keys import MySqlKeys
from readers.mysql.log_positions import binary_logs, log_end
from readers.mysql.server import ServerIdentity, ServerInfo, require_identity
from readers.mysql.session import SqlSession
from state.errors import SourceNotUsableError
from state.position import BinlogPosition
from state.table import TableSchema


def connect_to_job_server(job: JobFile, identity: ServerIdentity) -> Connection:
    """Raises LogPositionLostError where another server answers than the one that the job's positions belong to."""
    connection = connect(job.source.url, job.source.tls)
    try:
        require_identity(connection, identity)
    except BaseException:
        connection.close()
        raise
    return connection


class SourceAccess:
    """Opens its connection at the first question."""

    def __init__(self, job: JobFile, server: ServerInfo, schemas: tuple[TableSchema, ...]) -> None:
        self._server = server
        self._session = SqlSession(lambda: connect_to_job_server(job, server.identity))
        self.keys: KeySource = MySqlKeys(self._session, {schema.table: schema for schema in schemas})

    def log_end(self) -> BinlogPosition:
        return self._session.ask(lambda connection: log_end(connection, self._server))

    def log_extent(self) -> BinlogExtent:
        """The files up to the log's end; the end is asked first, for the log may grow and rotate between the two."""
        return BinlogExtent(self._session.ask(lambda connection: _log_files(connection, self._server)))


def _log_files(connection: Connection, server: ServerInfo) -> tuple[LogFile, ...]:
    end = log_end(connection, server)
    files: list[LogFile] = []
    for name, size_bytes in binary_logs(connection):
        if name == end.file:
            return (*files, LogFile(name, end.pos))
        files.append(LogFile(name, size_bytes))
    raise SourceNotUsableError(
        f"The source says that its log ends in {end.file}, but does not list that file.",
        "Check the source's binlog index file.",
    )
