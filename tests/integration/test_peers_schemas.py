"""The regression schemas of Debezium and Flink CDC, as one job: each table is copied by the snapshot and by the log, and equals
the source. The tables that can't be copied are known, and stop no other."""

import contextlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.epochs import Notes, run_epochs
from tests.support.jobs import source_of, write_job
from tests.support.peer_tables import PeerTables
from tests.support.postgres_values import array_of, otherwise_selected
from tests.support.reference_rows import reference_rows
from tests.support.servers import Database, fresh_database
from tests.support.sink_state import SinkCase, as_numbers, plain_row
from tidemark.conf.load import load_job_file
from tidemark.conf.tables import TableName
from tidemark.jobs.reconcile.reconcile import reconcile_tables
from tidemark.jobs.sinks import make_sink
from tidemark.jobs.sources import find_source
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.job_state import JobState
from tidemark.state.table import TableId, TableSchema

pytestmark = pytest.mark.integration


SERVER_REFUSES: dict[str, dict[str, dict[int | str, int]]] = {
    "mysql": {
        "debezium/geometry_test_5.sql": {3548: 1},  # a spatial reference system that MySQL 8 does not know
        "debezium/maria_vector_test.sql": {1305: 1},  # a function of MariaDB
        "flink/polardbx_ddl_test.sql": {1064: 4, 1146: 3},  # the syntax of PolarDB-X
    },
    "mariadb": {
        "debezium/default_value_generated.sql": {1064: 1, 1146: 1},  # a generated column that is NOT NULL
        "debezium/json_test.sql": {1064: 15},  # CAST AS JSON
        "debezium/maria_vector_test.sql": {4161: 1, 1146: 1},  # MariaDB 11.7
        "debezium/vector_test.sql": {4161: 1, 1146: 1},
    },
    "postgres": {
        "debezium/init_pgvector.ddl": {"0A000": 1},  # extensions that these servers lack
        "debezium/init_postgis.ddl": {"0A000": 1, "42P01": 1},
        "debezium/postgis_create_tables.ddl": {"3F000": 2},
        "flink/column_type_test.sql": {"0A000": 1, "42704": 1, "42P01": 2},
    },
}
"""Kind of server → file → error → number of statements."""
DROPPED = {f"debezium/multitable_dbz_871.sql: t{number}": "has no such table" for number in (1, 2)}
DROPPED_LATER = DROPPED | {"debezium/multitable_dbz_871.sql: t3": "has no such table"}
"""One more of these tables was there at the first run of the job."""
ZERO_DATE = {"debezium/datetime_key_test.sql: dbz_1194_datetime_key_test": "dtval is null (perhaps a zero date)"}
PARKED: dict[str, dict[str, dict[str, str]]] = {
    "mysql": {"mirror": ZERO_DATE | DROPPED, "files": DROPPED},
    "mariadb": {"mirror": ZERO_DATE | DROPPED_LATER, "files": DROPPED_LATER},
    "postgres": {
        "mirror": {},
        "files": {
            "debezium/postgres_create_tables.ddl: numeric_decimal_table": "d_nan holds NaN",
            "debezium/postgres_create_tables.ddl: time_table": "date_pinf holds infinity",
        },
    },
}
"""Kind of server → copy → table → why it is parked."""


class Silent:
    def ranges(self, done: int, rows: int) -> None:
        pass

    def looking(self, suspects: int, look: int) -> None:
        pass


class Copy:
    """A job that copies all tables, but those that its first start would refuse. `told`: tables that don't join, and why."""

    def __init__(self, peers: PeerTables, folder: Path, sink: dict[str, Any]) -> None:
        self.peers, self.folder = peers, folder
        folder.mkdir()
        name = f"{peers.database.name}_{folder.name}"
        own = {"slot": name, "publication": name} if peers.is_postgres else {}
        source = source_of(peers.database, tables=[f"{peers.prefix}_*.*"], on_table_error="park", **own)
        settings = {
            "job": folder.name,
            "snapshot": {"split_rows": 8, "parallelism": 16},
            "sink": sink | {"on_schema_change": "evolve"},
        }
        self.path = write_job(folder, source=source, **settings)
        refused = self._refused_at_first()
        self.told = {peers.label(table.database, table.name): why for table, why in refused.items()}
        excluded = [str(TableName(table.database, table.name)) for table in refused]
        self.path = write_job(folder, source=source | {"exclude_tables": excluded}, **settings)

    def _refused_at_first(self) -> dict[TableId, str]:
        with find_source(load_job_file(self.path)) as found:
            return {f.table: f.message for f in found.findings if f.severity == "refuse" and f.table is not None}

    def run(self) -> None:
        notes = Notes()
        run_epochs(self.path, notes=notes)
        by_name = {f"{table.place}.{table.name}": table for table in self.peers.tables}
        for event, facts in notes.found:
            if event == "warning" and "does not join" in facts["text"]:
                table = by_name[facts["table"]]
                self.told[self.peers.label(table.place, table.name)] = facts["text"]

    def assert_complete(self, parked: Mapping[str, str], absent: Collection[str]) -> None:
        """All tables are in the job but those that are parked and absent, for these reasons."""
        state = self._state()
        left = {self.peers.label(left.table.database, left.table.name): left.why for left in state.left}
        assert left.keys() == parked.keys(), left
        assert {label for label, why in left.items() if parked[label] not in why} == set()
        assert self.told.keys() == set(absent)
        assert {label for label, why in self.told.items() if "primary key" not in why} == set()
        copied = {self.peers.label(schema.table.database, schema.table.name) for schema in state.schemas}
        assert copied == self.peers.labels() - left.keys() - self.told.keys()

    @property
    def schemas(self) -> tuple[TableSchema, ...]:
        return self._state().schemas

    def _state(self) -> JobState:
        state = Checkpoint.at(str(self.folder / "checkpoint")).job_state()
        assert state is not None
        return state

    def different_by_reconcile(self) -> dict[str, str]:
        """The differences in the mirror, by table; {} if all tables are equal."""
        found = reconcile_tables(load_job_file(self.path), watch=lambda _: Silent(), patience_seconds=0)
        results = [
            (result, self.peers.label(result.schema.table.database, result.schema.table.name)) for result in found
        ]
        assert {result.schema.table for result, _ in results} == {schema.table for schema in self.schemas}
        return {
            label: f"{result.counts} {result.behind} {result.skipped} {result.examples}"
            for result, label in results
            if result.differences or result.behind or result.skipped or result.moving
        }

    def different_files(self) -> dict[str, tuple[list[str], list[str]]]:
        """Rows of the files and of the source without a counterpart, by table."""
        different = {}
        case = self._case()
        with contextlib.closing(self.peers.database.connect()) as connection:
            for schema in self.schemas:
                held, expected = self._held(case, schema), self._expected(connection, schema)
                if held != expected:
                    label = self.peers.label(schema.table.database, schema.table.name)
                    different[label] = ([*(held - expected).elements()], [*(expected - held).elements()])
        return different

    def last_read_from_the_log(self) -> set[str]:
        """The tables of the files whose newest change is from the log."""
        newest = {schema.table: self._case().changes(schema)[-1] for schema in self.schemas}
        return {self.peers.label(t.database, t.name) for t, change in newest.items() if not change["_is_snapshot"]}

    def _case(self) -> SinkCase:
        return SinkCase("parquet", make_sink(load_job_file(self.path)), self.folder / "out")

    def _held(self, case: SinkCase, schema: TableSchema) -> Counter[str]:
        if schema.key:
            return Counter(map(repr, case.rows(schema)))
        rows = Counter[str]()
        for change in case.changes(schema):
            row = plain_row(schema, [change[column.name] for column in schema.captured])
            rows[repr(row)] += {"insert": 1, "delete": -1}[change["_change_type"]]
        assert min(rows.values(), default=0) >= 0
        return +rows

    def _expected(self, connection: Any, schema: TableSchema) -> Counter[str]:
        if not self.peers.is_postgres:
            rows = [list(row.values()) for row in reference_rows(connection, schema, order_by=None)]
            return Counter(repr(plain_row(schema, row)) for row in rows)
        with connection.cursor() as cursor:
            cursor.execute("SET TimeZone = 'UTC'")
            table = ".".join(
                '"{}"'.format(name.replace('"', '""')) for name in (schema.table.database, schema.table.name)
            )
            cursor.execute(f"SELECT {', '.join(otherwise_selected(column) for column in schema.captured)} FROM {table}")
            texts = cursor.fetchall()
        arrays = [
            array_of(column, values) for column, values in zip(schema.captured, zip(*texts, strict=True), strict=True)
        ]
        numbers = [array.cast(as_numbers(array.type)) for array in arrays]
        return Counter(
            repr(plain_row(schema, row)) for row in zip(*(array.to_pylist() for array in numbers), strict=True)
        )


@pytest.fixture
def peers(request: pytest.FixtureRequest) -> Iterator[PeerTables]:
    server = request.getfixturevalue(request.param)
    with fresh_database(server) as database, contextlib.closing(PeerTables(database)) as tables:
        yield tables


# The share of the statements before the first run: so the zero date is read by a SELECT, and from the log.
@pytest.mark.pitfall(109)
@pytest.mark.parametrize(
    ("peers", "share"),
    [
        pytest.param("mysql_server", 0.5, marks=pytest.mark.every_server),
        pytest.param("mariadb_server", 0.67, marks=pytest.mark.every_server),
        pytest.param("postgres_server", 0.5, marks=pytest.mark.every_server),
        ("postgres18_server", 0.67),
    ],
    indirect=["peers"],
)
def test_tables_of_the_peers_are_copied_and_a_zero_date_in_a_key_stops_no_other(
    peers: PeerTables, share: float, postgres18_database: Database, tmp_path: Path
) -> None:
    peers.begin(share)
    kind = peers.database.kind
    into_mirror = {"type": "mirror", "url": postgres18_database.url, "table": "{schema}.{table}"}
    mirror = Copy(peers, tmp_path / "mirror", into_mirror)
    files = Copy(peers, tmp_path / "files", {"type": "files", "path": "./out"})
    mirror.run()
    files.run()
    peers.complete()
    assert peers.refused == SERVER_REFUSES[kind]
    for run in (2, 3):
        mirror.run()
        files.run()
        mirror.assert_complete(PARKED[kind]["mirror"], peers.labels(keyless=True))
        files.assert_complete(PARKED[kind]["files"], peers.labels(keyless=True) if peers.is_postgres else set())
        assert mirror.different_by_reconcile() == {}
        assert files.different_files() == {}
        if run == 2:
            peers.change_all()
    assert files.last_read_from_the_log() == {peers.label(s.table.database, s.table.name) for s in files.schemas}
