"""An account that may read only some columns of a table: the error names table and columns, and only that table is parked."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from tests.support.epochs import Notes, run_epochs
from tests.support.history import read_history
from tests.support.jobs import source_of, write_job
from tests.support.mysql_accounts import account
from tests.support.postgres_roles import role
from tests.support.servers import Database
from tidemark.conf.endpoint import Endpoint
from tidemark.conf.load import load_job_file
from tidemark.jobs.epoch.planner import Planner
from tidemark.jobs.epoch.run_context import RunContext
from tidemark.jobs.startup import open_job
from tidemark.readers.source import RereadsKeys
from tidemark.state.errors import SourceNotUsableError
from tidemark.state.split import KeyRange, Split
from tidemark.state.table import TableId

pytestmark = [pytest.mark.integration, pytest.mark.pitfall(115)]

LOG = "REPLICATION SLAVE, REPLICATION CLIENT ON *.*"


class Limited:
    """A job of two tables, by an account that may read both."""

    def __init__(self, database: Database, login: Endpoint, folder: Path) -> None:
        self.database, self.account, self.folder = database, login.user, folder
        self.schema = "shop" if database.kind == "postgres" else database.schema
        password = login.password.get_secret_value()
        path = f"/{database.name}" if database.kind == "postgres" else "/"
        scheme = "postgresql" if database.kind == "postgres" else database.kind
        self.url = f"{scheme}://{login.user}:{password}@{login.host}:{login.port}{path}"
        self.path = self.write()

    def write(self, **settings: Any) -> Path:
        """Writes the job file, with these settings of the source."""
        tables = [f"{self.schema}.*"]
        source = source_of(self.database, url=self.url, tables=tables, on_table_error="park", **settings)
        sink: dict[str, Any] = {"type": "files", "path": str(self.folder / "out")}
        return write_job(self.folder, source=source, sink=sink)

    @property
    def table(self) -> TableId:
        return TableId(self.schema, "people")

    def narrow(self) -> None:
        """Leaves SELECT on two of the three columns."""
        name = f"{self.schema}.people"
        self.database.execute(
            f"REVOKE SELECT ON {name} FROM {self.account}", f"GRANT SELECT (id, town) ON {name} TO {self.account}"
        )

    def insert(self, number: int) -> None:
        self.database.execute(
            f"INSERT INTO {self.schema}.people VALUES ({number}, 'secret', 1)",
            f"INSERT INTO {self.schema}.notes VALUES ({number})",
        )


@pytest.fixture(params=["mysql", "mariadb", "postgres"])
def limited(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Limited]:
    database: Database = request.getfixturevalue(f"{request.param}_database")
    schema = "shop" if request.param == "postgres" else database.schema
    if request.param == "postgres":
        database.execute("CREATE SCHEMA shop")
    database.execute(
        f"CREATE TABLE {schema}.towns (id INT PRIMARY KEY)",
        f"CREATE TABLE {schema}.people (id INT PRIMARY KEY, ssn VARCHAR(9), town INT, FOREIGN KEY (town) "
        f"REFERENCES {schema}.towns (id))",
        f"CREATE TABLE {schema}.notes (id INT PRIMARY KEY)",
        f"INSERT INTO {schema}.towns VALUES (1)",
    )
    tables = [f"SELECT ON {schema}.{name}" for name in ("towns", "people", "notes")]
    with contextlib.ExitStack() as stack:
        if request.param == "postgres":
            database.execute(f"CREATE PUBLICATION {database.name} FOR ALL TABLES")
            grants = ("USAGE ON SCHEMA shop", *tables)
            login = stack.enter_context(role(database, *grants, attributes="LOGIN REPLICATION"))
        else:
            more = ["BACKUP_ADMIN ON *.*"] if request.param == "mysql" else []
            login = stack.enter_context(account(database.server, LOG, *more, *tables))
        yield Limited(database, login, tmp_path)


def test_only_that_table_is_parked(limited: Limited) -> None:
    limited.insert(1)
    run_epochs(limited.path)
    limited.narrow()
    limited.insert(2)
    run_epochs(limited.path, notes=(notes := Notes()))
    (told,) = [facts for event, facts in notes.found if event == "parked"]
    assert told["table"] == str(limited.table)
    named = "ssn" if limited.database.kind == "postgres" else "only id, town"  # MySQL hides the others from the account
    assert named in told["text"]
    assert read_history(limited.folder / "out", limited.schema, "notes").num_rows == 2
    assert read_history(limited.folder / "out", limited.schema, "people").num_rows == 1


def test_a_split_that_may_not_be_read_concerns_its_table(limited: Limited) -> None:
    limited.insert(1)
    job = load_job_file(limited.path)
    with open_job(job, Notes()) as opened:
        context = RunContext(job, opened.held.server, opened.held.state)
        schema = next(schema for schema in context.state.schemas if schema.table == limited.table)
        split = Split(1, schema.table, schema.version, schema.key, KeyRange(None, None))
        limited.narrow()
        reading = opened.held.server.split_reading([schema], "job")
        with reading as reader, pytest.raises(SourceNotUsableError, match=r"refuses to read \w+\.people") as caught:
            reader.read(split, schema, context.state.start)
    assert caught.value.table == limited.table


@pytest.mark.parametrize("limited", ["mysql", "mariadb"], indirect=True)
def test_columns_that_are_left_out_must_be_in_the_catalog(limited: Limited) -> None:
    """The log has them. That is what REFERENCES on the table is for."""
    limited.write(columns={str(limited.table): {"exclude": ["ssn"]}})
    limited.insert(1)
    limited.narrow()
    with pytest.raises(SourceNotUsableError, match=r"only id, town.*GRANT SELECT \(`id`, `town`\), REFERENCES ON"):
        run_epochs(limited.path)


def test_columns_that_are_left_out_need_not_be_readable(limited: Limited) -> None:
    limited.write(columns={str(limited.table): {"exclude": ["ssn"]}})
    limited.insert(1)
    limited.narrow()
    if limited.database.kind != "postgres":
        limited.database.execute(f"GRANT REFERENCES ON {limited.schema}.people TO {limited.account}")
    run_epochs(limited.path)
    limited.insert(2)
    limited.database.execute(f"UPDATE {limited.schema}.people SET ssn = 'other', town = NULL WHERE id = 1")
    run_epochs(limited.path)
    found = (
        read_history(limited.folder / "out", limited.schema, "people")
        .select(["id", "town", "_change_type"])
        .to_pylist()
    )
    assert [tuple(row.values()) for row in found] == [(1, 1, "insert"), (2, 1, "insert"), (1, None, "update_postimage")]


@pytest.mark.parametrize("limited", ["postgres"], indirect=True)
def test_a_refused_table_comes_after_its_columns_are_left_out(limited: Limited) -> None:
    """The remedy as it is printed."""
    limited.insert(1)
    limited.narrow()
    with pytest.raises(SourceNotUsableError, match=r"The role may not read ssn of shop\.people") as caught:
        run_epochs(limited.path)
    setting = caught.value.remedy.partition("; or leave them out: ")[2].rstrip(".").removeprefix("source.")
    limited.write(**yaml.safe_load(setting))
    run_epochs(limited.path)
    assert read_history(limited.folder / "out", "shop", "people")["town"].to_pylist() == [1]


def test_tables_of_all_kinds_are_followed_by_their_columns(
    postgres_source_database: Database, postgres_database: Database, tmp_path: Path
) -> None:
    """One whose rows move, one with partitions, one that is rewritten."""
    source = postgres_source_database
    columns = "id int {}, secret int DEFAULT 1, n int, body text"
    names = ["moved", "parts", "rewritten"]
    source.execute(
        "CREATE SCHEMA shop",
        *(f"CREATE TABLE shop.{name} ({columns.format('PRIMARY KEY')})" for name in ("moved", "rewritten")),
        f"CREATE TABLE shop.parts ({columns.format('PRIMARY KEY')}) PARTITION BY RANGE (id)",
        "CREATE TABLE shop.low PARTITION OF shop.parts FOR VALUES FROM (0) TO (1000)",
        "ALTER TABLE shop.moved ALTER body SET STORAGE EXTERNAL",
        *(
            f"INSERT INTO shop.{name} SELECT i, 1, 0, repeat('x', 3000) FROM generate_series(1, 60) AS i"
            for name in names
        ),
        "ANALYZE",
        f"CREATE PUBLICATION {source.name} FOR ALL TABLES WITH (publish_via_partition_root = true)",
    )
    grants = [f"SELECT (id, n, body) ON shop.{name}" for name in names]
    system = "SELECT (tableoid, xmin, cmin) ON shop.parts"
    with role(source, "USAGE ON SCHEMA shop", *grants, system, attributes="LOGIN REPLICATION") as login:
        limited = Limited(source, login, tmp_path)
        left_out = {f"shop.{name}": {"exclude": ["secret"]} for name in names}
        tables = [f"shop.{name}" for name in names]
        section = source_of(source, url=limited.url, tables=tables, columns=left_out, on_table_error="park")
        sink = {"type": "mirror", "url": postgres_database.url, "table": "{table}"}
        snapshot = {"split_rows": 10, "parallelism": 1}
        job = write_job(tmp_path, source=section, sink=sink | {"on_schema_change": "evolve"}, snapshot=snapshot)
        run_epochs(job, at_most=1)
        source.execute(
            "UPDATE shop.moved SET id = id + 100, n = 1 WHERE id % 7 = 0",
            "CREATE TABLE shop.high PARTITION OF shop.parts FOR VALUES FROM (1000) TO (2000)",
            "INSERT INTO shop.parts VALUES (1001, 1, 1, 'y')",
        )
        run_epochs(job)
        source.execute("UPDATE shop.rewritten SET n = 7", "VACUUM FULL shop.rewritten")
        run_epochs(job, notes=(notes := Notes()))
        assert not [facts for event, facts in notes.found if event == "parked"]
        source.execute("TRUNCATE shop.parts", "INSERT INTO shop.parts VALUES (3, 1, 1, 'z')")
        run_epochs(job)
    for name in names:
        query = "SELECT id, n, md5(body) FROM {} ORDER BY id"
        assert postgres_database.query(query.format(name)) == source.query(query.format(f"shop.{name}")), name


@pytest.mark.parametrize("limited", ["postgres"], indirect=True)
@pytest.mark.parametrize("change", ["narrow", "drop"])
def test_a_key_that_may_not_be_read_again_concerns_the_right_table(limited: Limited, change: str) -> None:
    """All tables are locked together."""
    limited.insert(1)
    job = load_job_file(limited.path)
    with open_job(job, Notes()) as opened:
        schemas = RunContext(job, opened.held.server, opened.held.state).state.schemas
        notes = next(schema for schema in schemas if schema.table.name == "notes")
        if change == "narrow":
            limited.narrow()
        else:
            limited.database.execute("DROP TABLE shop.people")
        server = opened.held.server
        assert isinstance(server, RereadsKeys)
        with server.key_reading(schemas) as reading, pytest.raises(SourceNotUsableError) as caught:
            reading.read_again(notes, pa.RecordBatch.from_pydict({"id": pa.array([1], pa.int32())}))
    assert caught.value.table == limited.table


def test_partitions_that_may_not_be_looked_at_concern_their_table(
    postgres_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that runs looks into a partition that was attached."""
    source, next_epoch, altered, notes = postgres_database, Planner.next_epoch, list[bool](), Notes()
    source.execute(
        "CREATE SCHEMA shop",
        "CREATE TABLE shop.people (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE shop.low PARTITION OF shop.people FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE shop.others (id int PRIMARY KEY)",
        f"CREATE PUBLICATION {source.name} FOR TABLE shop.people, shop.others WITH (publish_via_partition_root = true)",
    )
    grants = "USAGE ON SCHEMA shop", "SELECT ON ALL TABLES IN SCHEMA shop"
    with role(source, *grants, attributes="LOGIN REPLICATION") as login:
        job = Limited(source, login, tmp_path).path
        run_epochs(job)

        def plan(self: Planner, committed: int, **settings: Any) -> int:
            if not altered:
                altered.append(True)
                source.execute(
                    f"REVOKE SELECT ON shop.people FROM {login.user}",
                    "CREATE TABLE shop.high (id int PRIMARY KEY)",
                    "ALTER TABLE shop.people ATTACH PARTITION shop.high FOR VALUES FROM (10) TO (20)",
                    "INSERT INTO shop.others VALUES (1)",
                )
            return next_epoch(self, committed, **settings)

        monkeypatch.setattr(Planner, "next_epoch", plan)
        run_epochs(job, notes=notes)
    (parked,) = [facts for event, facts in notes.found if event == "parked"]
    assert parked["table"] == "shop.people"
    assert "the role may not read its rows" in parked["text"]
    assert read_history(tmp_path / "out", "shop", "others")["id"].to_pylist() == [1]
