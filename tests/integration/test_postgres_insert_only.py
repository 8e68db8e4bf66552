"""Tables of PostgreSQL with neither a key nor a replica identity: accepted where their owner has published them, because the
server then refuses every UPDATE and DELETE. The job never publishes them by itself."""

import contextlib
import dataclasses
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg2
import psycopg2.errors
import pytest

from tests.support.epochs import LocalEngine, Notes, die_at, run_epochs
from tests.support.history import read_history
from tests.support.jobs import source_of, write_job
from tests.support.keyless import assert_keyless_copied
from tests.support.postgres_roles import role, superuser
from tests.support.servers import Database, fresh_database
from tidemark.conf.load import load_job_file
from tidemark.conf.tables import TableName
from tidemark.enumerator import enumerator
from tidemark.jobs.commands.signal import resnapshot
from tidemark.jobs.sources import find_source
from tidemark.readers import long_waits
from tidemark.readers.findings import Finding
from tidemark.readers.postgres import source as postgres_source
from tidemark.readers.postgres.connect import connect
from tidemark.readers.postgres.schema.preflight import Demands, preflight
from tidemark.readers.postgres.schema.server_checks import doubt_of_refusals
from tidemark.readers.postgres.schema.table_facts import read_tables
from tidemark.readers.postgres.server import read_server
from tidemark.readers.postgres.slot import open_transactions
from tidemark.state.errors import LogPositionLostError, SchemaChangedError, SourceNotUsableError
from tidemark.state.plan import PlanRecord
from tidemark.state.table import TableId

pytestmark = [pytest.mark.integration]

T = TableId("public", "t")
REFUSED = "t has no key and no replica identity"


@dataclasses.dataclass(frozen=True)
class Case:
    """Table `t`, some rows of which are alike, and a job that copies it into files."""

    database: Database
    folder: Path

    @property
    def name(self) -> str:
        """The name of the publication, as SQL has it."""
        return f'"{self.database.name}"'

    @property
    def path(self) -> Path:
        return self.folder / "job.yaml"

    @property
    def files(self) -> dict[str, Any]:
        return {"type": "files", "path": str(self.folder / "out")}

    def do(self, *statements: str) -> None:
        self.database.execute(*statements)

    def publish(self) -> None:
        exists = self.database.query("SELECT FROM pg_publication")
        self.do(
            f"ALTER PUBLICATION {self.name} ADD TABLE t" if exists else f"CREATE PUBLICATION {self.name} FOR TABLE t"
        )

    def insert(self, start: int, count: int = 10) -> None:
        """Each row twice."""
        rows = f"SELECT i, 1, 'x' FROM generate_series({start}, {start + count - 1}) AS i, generate_series(1, 2)"
        self.do(f"INSERT INTO t {rows}")

    def job(self, *, sink: dict[str, Any] | None = None, split_rows: int = 1000, **source: Any) -> Path:
        sink = self.files if sink is None else sink
        snapshot = {"split_rows": split_rows, "parallelism": 2}
        return write_job(self.folder, source=source_of(self.database, **source), snapshot=snapshot, sink=sink)

    def follows(self, *overrides: str) -> None:
        run_epochs(self.path, *overrides)
        assert_keyless_copied(self.folder, self.database)

    def findings(self) -> list[Finding]:
        with find_source(load_job_file(self.path)) as found:
            return [finding for finding in found.findings if finding.table == T]

    def refusal(self) -> Finding:
        (finding,) = (finding for finding in self.findings() if finding.severity == "refuse")
        return finding

    def members(self) -> set[str]:
        return {table for (table,) in self.database.query("SELECT tablename::text FROM pg_publication_tables")}

    def read_again(self) -> None:
        resnapshot(load_job_file(self.path), [TableName(self.database.schema, "t")])


@pytest.fixture
def case(postgres_source_database: Database, tmp_path: Path) -> Case:
    made = Case(postgres_source_database, tmp_path)
    made.do("CREATE TABLE t (uid bigint, version int, note text)")
    made.insert(0)
    made.job()
    return made


STATEMENTS = [
    "UPDATE t SET version = 2 WHERE uid = 1",
    "DELETE FROM t WHERE uid = 1",
    "WITH gone AS (DELETE FROM t RETURNING uid) SELECT count(*) FROM gone",
    "INSERT INTO t VALUES (1, 3, 'y') ON CONFLICT (uid, version) DO UPDATE SET note = 'y'",
    "MERGE INTO t USING (SELECT 1 AS uid) AS s ON t.uid = s.uid WHEN MATCHED THEN DELETE",
    "MERGE INTO t USING (SELECT 1 AS uid) AS s ON t.uid = s.uid WHEN MATCHED THEN UPDATE SET version = 2",
    "SET session_replication_role = replica; DELETE FROM t",
    "DELETE FROM above",
    "DELETE FROM parents",
]


@pytest.mark.parametrize("identity", ["DEFAULT", "NOTHING"])
def test_the_server_refuses_what_the_log_would_lack(case: Case, identity: str) -> None:
    """By whichever way, to whomever: this is what the copies rest on."""
    case.do(
        f"ALTER TABLE t REPLICA IDENTITY {identity}",
        "TRUNCATE t",
        "CREATE UNIQUE INDEX ON t (uid, version)",
        "CREATE TABLE above (LIKE t)",
        "ALTER TABLE t INHERIT above",
        "CREATE TABLE parents (id bigint PRIMARY KEY)",
        "INSERT INTO parents VALUES (1)",
        "ALTER TABLE t ADD FOREIGN KEY (uid) REFERENCES parents ON DELETE CASCADE",
        "INSERT INTO t VALUES (1, 1, 'x')",
    )
    case.publish()
    for statement in STATEMENTS:
        with pytest.raises(psycopg2.errors.ObjectNotInPrerequisiteState, match="does not have a replica identity"):
            case.do(statement)
    case.do("INSERT INTO t VALUES (1, 1, 'x') ON CONFLICT DO NOTHING", "SELECT * FROM t FOR UPDATE")


@pytest.mark.parametrize("identity", ["DEFAULT", "NOTHING"])
def test_rows_are_copied_as_they_are_inserted(case: Case, identity: str) -> None:
    case.do(f"ALTER TABLE t REPLICA IDENTITY {identity}")
    case.publish()
    (finding,) = case.findings()
    assert (finding.severity, finding.table) == ("warn", T)
    case.follows()
    case.insert(10)
    case.follows()
    case.do("BEGIN; INSERT INTO t VALUES (98, 1, 'gone'); TRUNCATE t; INSERT INTO t VALUES (99, 1, 'x'); COMMIT")
    case.insert(99)
    case.follows()


@pytest.mark.once_per_family
@pytest.mark.parametrize("publication", ["ALL TABLES", "TABLES IN SCHEMA public"])
def test_a_publication_of_all_tables_does(case: Case, publication: str) -> None:
    case.do(f"CREATE PUBLICATION {case.name} FOR {publication}")
    case.follows()
    case.insert(10)
    case.follows()


@pytest.mark.once_per_family
def test_a_mirror_may_append_them(case: Case, mysql_database: Database) -> None:
    sink = {"type": "mirror", "url": mysql_database.url, "table": "copy_{table}"}
    case.publish()
    case.job(sink=sink)
    assert "has no primary key: a mirror" in "; ".join(finding.message for finding in case.findings())
    case.job(sink=sink | {"keyless": "append"})
    for start in (10, 20):
        run_epochs(case.path)
        assert Counter(mysql_database.query("SELECT uid, version, note FROM copy_t")) == Counter(
            case.database.query("SELECT * FROM t")
        )
        case.insert(start)


# What the job publishes, and what it does not


def statement_in(remedy: str, word: str) -> str:
    found = re.search(rf"{word}.*?(?=\. |\.$)", remedy)
    assert found is not None, remedy
    return found[0]


@pytest.mark.once_per_family
@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize("remedy", ["ALTER TABLE", "a primary key", "PUBLICATION"])
def test_the_job_does_not_publish_them_by_itself(case: Case, exists: bool, remedy: str) -> None:
    """The application could no longer update and delete."""
    case.do("CREATE TABLE other (id int PRIMARY KEY)")
    if exists:
        case.do(f"CREATE PUBLICATION {case.name} FOR TABLE other")
    with pytest.raises(SourceNotUsableError, match=REFUSED):
        run_epochs(case.path)
    assert case.members() == ({"other"} if exists else set())
    case.do("UPDATE t SET version = 2 WHERE uid = 1", "DELETE FROM t WHERE uid = 2")
    printed = case.refusal().remedy
    assert remedy in printed
    if remedy == "a primary key":
        case.do("DELETE FROM t USING t AS other WHERE t.uid = other.uid AND t.ctid < other.ctid")
        case.do("ALTER TABLE t ADD PRIMARY KEY (uid)")
    else:
        words = {"PUBLICATION": "ALTER PUBLICATION" if exists else "CREATE PUBLICATION"}
        case.do(statement_in(printed, words.get(remedy, remedy)))
    case.follows()
    assert case.members() == {"t", "other"}
    case.do("INSERT INTO t VALUES (20, 1, 'x')", *([] if remedy == "PUBLICATION" else ["DELETE FROM t WHERE uid = 20"]))
    case.do("INSERT INTO t VALUES (21, 1, 'x')")
    run_epochs(case.path)
    rows = read_history(case.folder / "out", "public", "t")
    assert rows["uid"].to_pylist()[-1] == 21


@pytest.mark.once_per_family
def test_no_other_remedy_asks_to_publish_them(case: Case) -> None:
    case.do("CREATE TABLE other (id int PRIMARY KEY)")
    with role(case.database, "USAGE ON SCHEMA public", attributes="LOGIN REPLICATION") as endpoint:
        case.do(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {endpoint.user}")
        login = f"{endpoint.user}:{endpoint.password.get_secret_value()}"
        url = f"postgresql://{login}@{endpoint.host}:{endpoint.port}/{case.database.name}"
        case.job(url=url)
        with find_source(load_job_file(case.path)) as found:
            remedies = {finding.table: finding.remedy for finding in found.findings if finding.severity == "refuse"}
        assert f'CREATE PUBLICATION {case.name} FOR TABLE ONLY "public"."other" WITH' in remedies[None]
        case.do(statement_in(remedies[None], "CREATE PUBLICATION"))
        with find_source(load_job_file(case.path)) as found:
            (finding,) = (finding for finding in found.findings if finding.severity == "refuse")
        assert finding.table == T


@pytest.mark.once_per_family
def test_a_table_that_loses_its_identity_meanwhile_is_not_published(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job has looked at it, and it was published then."""
    case.publish()
    joins = postgres_source.add_tables

    def taken_out(*arguments: Any, **options: Any) -> Any:
        case.do(f"ALTER PUBLICATION {case.name} DROP TABLE t")
        return joins(*arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(postgres_source, "add_tables", taken_out)
        with pytest.raises(SourceNotUsableError, match=r"public\.t has no replica identity") as caught:
            run_epochs(case.path)
    assert case.members() == set()
    assert caught.value.remedy.startswith("Run the job again.")
    with pytest.raises(SourceNotUsableError, match=REFUSED):
        run_epochs(case.path)


@pytest.mark.once_per_family
@pytest.mark.parametrize("publish", ["insert", "insert, update, truncate", "insert, delete"])
def test_a_publication_of_inserts_is_refused_until_it_publishes_all(case: Case, publish: str) -> None:
    """An UPDATE or a DELETE would pass unseen."""
    case.do(f"CREATE PUBLICATION {case.name} FOR TABLE t WITH (publish = '{publish}')")
    if publish == "insert":
        case.do("DELETE FROM t WHERE uid = 1")
    with pytest.raises(SourceNotUsableError, match="does not publish all of insert, update, delete and truncate"):
        run_epochs(case.path)
    remedy = case.refusal().remedy
    assert "From then on the server refuses every UPDATE and DELETE" in remedy
    case.do(statement_in(remedy, "ALTER PUBLICATION"))
    case.follows()
    with pytest.raises(psycopg2.Error, match="does not have a replica identity"):
        case.do("DELETE FROM t WHERE uid = 2")


@pytest.mark.once_per_family
@pytest.mark.parametrize("seen", [False, True])
@pytest.mark.parametrize(
    "out",
    [
        ("ALTER PUBLICATION {p} DROP TABLE t", "ALTER PUBLICATION {p} ADD TABLE t"),
        (
            "ALTER PUBLICATION {p} SET (publish = 'insert')",
            "ALTER PUBLICATION {p} SET (publish = 'insert, update, delete, truncate')",
        ),
        ("DROP PUBLICATION {p}", "CREATE PUBLICATION {p} FOR TABLE t"),
    ],
    ids=["table", "operations", "publication"],
)
def test_a_table_that_was_out_of_the_publication_is_read_again(case: Case, out: tuple[str, str], seen: bool) -> None:
    """Rows may have been deleted meanwhile, as here."""
    case.publish()
    run_epochs(case.path)
    leaves, comes = (statement.format(p=case.name) for statement in out)
    case.insert(10)
    case.do(leaves, "DELETE FROM t WHERE uid = 3")
    if seen:
        with pytest.raises((SourceNotUsableError, LogPositionLostError)):
            run_epochs(case.path)
    case.do(comes)
    case.insert(20)
    with pytest.raises(LogPositionLostError, match=r"was altered for public\.t") as caught:
        run_epochs(case.path)
    assert "tidemark signal JOB.yaml resnapshot --table public.t" in caught.value.remedy
    case.read_again()
    case.follows()
    case.insert(30)
    case.follows()


@pytest.mark.once_per_family
def test_a_table_out_of_the_publication_is_parked_until_it_is_back(case: Case) -> None:
    case.do("CREATE TABLE other (id int PRIMARY KEY)")
    case.publish()
    case.job(sink=case.files | {"on_schema_change": "evolve"}, on_table_error="park")
    run_epochs(case.path)
    case.do(
        f"ALTER PUBLICATION {case.name} DROP TABLE t", "DELETE FROM t WHERE uid = 3", "INSERT INTO other VALUES (1)"
    )
    for _ in range(2):
        run_epochs(case.path, notes=(notes := Notes()))
        (parked,) = (facts for event, facts in notes.found if event == "parked")
        assert (parked["table"], REFUSED in parked["text"]) == ("public.t", True)
        assert case.members() == {"other"}
    assert read_history(case.folder / "out", "public", "other")["id"].to_pylist() == [1]
    case.do(statement_in(case.refusal().remedy, "ALTER PUBLICATION"))
    case.insert(10)
    case.follows()
    case.insert(20)
    case.follows()


# Statements that began before the table was published


@contextlib.contextmanager
def deleting(case: Case) -> Iterator[Callable[[], None]]:
    """A DELETE that began before the table was published, and has deleted nothing yet. Yields what lets it go on."""
    with (
        contextlib.closing(case.database.connect()) as keeper,
        contextlib.closing(case.database.connect()) as connection,
    ):
        keeper.cursor().execute("SELECT pg_advisory_lock(7)")

        def delete() -> None:
            with connection.cursor() as cursor, contextlib.suppress(psycopg2.OperationalError):
                cursor.execute("DELETE FROM t WHERE (SELECT pg_advisory_xact_lock_shared(7)) IS NOT NULL AND uid = 3")

        thread = threading.Thread(target=delete)
        thread.start()
        waits = f"SELECT FROM pg_stat_activity WHERE pid = {connection.info.backend_pid} AND wait_event = 'advisory'"
        while not case.database.query(waits):
            assert thread.is_alive()
        case.publish()
        try:
            yield lambda: keeper.cursor().execute("SELECT pg_advisory_unlock(7)")
        finally:
            keeper.close()
            thread.join()


@pytest.mark.parametrize("joins", [False, True])
def test_an_older_statement_is_waited_for(case: Case, joins: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server did not refuse it, and the log lacks the rows that it deletes. It has no transaction id yet."""
    told = list[str]()
    monkeypatch.setattr(long_waits, "WARN_SECONDS", 0.0)
    if joins:
        case.do("CREATE TABLE other (id int PRIMARY KEY)", f"CREATE PUBLICATION {case.name} FOR TABLE other")
        case.job(tables=["public.other"])
        run_epochs(case.path)
        case.job()
    with deleting(case) as go_on:

        def tell(text: str) -> None:
            told.append(text)
            go_on()

        with long_waits.waits_told_to(tell):
            case.follows()
    assert "The job waits until older transactions have ended: process" in told[0]
    assert case.database.query("SELECT count(*) FROM t WHERE uid = 3") == [(0,)]
    case.insert(30)
    case.follows()


@pytest.mark.once_per_family
def test_an_older_statement_that_stays_is_named(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_transactions, "SETTLE_SECONDS", 0.3)
    with deleting(case):
        with pytest.raises(SourceNotUsableError, match=r"while older transactions are open: process \d+") as caught:
            run_epochs(case.path)
        case.do(statement_in(caught.value.remedy, "SELECT pg_terminate_backend"))
        case.follows()
    assert case.database.query("SELECT count(*) FROM t WHERE uid = 3") == [(2,)]


@pytest.mark.once_per_family
def test_the_log_of_before_the_start_is_not_read(case: Case) -> None:
    """An older statement may have deleted rows that such a log lacks."""
    case.publish()
    case.do(f"SELECT pg_create_logical_replication_slot('{case.database.name}', 'pgoutput')")
    case.insert(10)
    with pytest.raises(LogPositionLostError, match=r"from before public\.t was published") as caught:
        run_epochs(case.path, "mode=incremental", "log.start=earliest")
    assert "Write log.start: latest." in caught.value.remedy
    run_epochs(case.path, "mode=incremental", "log.start=latest")
    case.insert(20)
    run_epochs(case.path, "mode=incremental", "log.start=latest")
    assert set(read_history(case.folder / "out", "public", "t")["uid"].to_pylist()) == set(range(20, 30))


# The first load, and deaths


@pytest.mark.once_per_family
@pytest.mark.parametrize("point", ["planner.after_plan", "publish.after", "sink.after_commit", "driver.epoch_written"])
@pytest.mark.parametrize("when", ["first load", "log"])
def test_no_row_is_doubled_or_lost_by_a_death(case: Case, when: str, point: str) -> None:
    if when == "log" and point == "publish.after":
        point = "log.before_report"
    case.publish()
    if when == "log":
        run_epochs(case.path)
        case.insert(10)
    die_at(case.path, point)
    case.insert(20)
    case.follows()


@pytest.mark.once_per_family
@pytest.mark.parametrize("point", ["tables.before_joined", "tables.after_joined"])
def test_a_death_while_it_joins_leaves_it_to_the_next_start(case: Case, point: str) -> None:
    case.do("CREATE TABLE other (id int PRIMARY KEY)", f"CREATE PUBLICATION {case.name} FOR TABLE other, t")
    case.job(tables=["public.other"])
    run_epochs(case.path)
    case.job()
    die_at(case.path, point)
    case.insert(20)
    case.follows()
    case.insert(30)
    case.follows()


@pytest.mark.once_per_family
@pytest.mark.parametrize("point", [None, "publish.after", "sink.after_commit"])
def test_rows_that_come_while_pages_are_read_are_copied_once(
    case: Case, point: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large table, in several epochs under one snapshot. Rows that come meanwhile are equal to some in it."""
    case.insert(1000, 3000)
    case.do("ANALYZE t")
    case.publish()
    case.job(split_rows=500)
    planned, is_small = list[str](), LocalEngine.is_small

    def inserting(engine: LocalEngine, record: PlanRecord) -> bool:
        planned.append(record.plan.phase.value)
        if len(planned) < 20:
            case.insert(1000 + len(planned))
        return is_small(engine, record)

    monkeypatch.setattr(enumerator, "MAX_SPLITS_PER_TASK", 1)
    with monkeypatch.context() as patched:
        patched.setattr(LocalEngine, "is_small", inserting)
        if point is not None:
            die_at(case.path, point)
        run_epochs(case.path)
    assert planned.count("snapshot") >= 4
    case.follows()
    case.insert(5000)
    case.follows()


# A table that changes


@pytest.mark.once_per_family
def test_a_table_may_get_an_identity_and_lose_it(case: Case) -> None:
    case.publish()
    run_epochs(case.path)
    case.do(
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "UPDATE t SET version = 2 WHERE uid = 3",
        "DELETE FROM t WHERE uid = 4",
        "ALTER TABLE t REPLICA IDENTITY NOTHING",
    )
    case.insert(10)
    case.follows()
    case.do("ALTER TABLE t REPLICA IDENTITY FULL", "DELETE FROM t WHERE uid = 3")
    case.follows()
    assert case.findings() == []


@pytest.mark.servers_in_turn("postgres_source_server")
@pytest.mark.parametrize("put_back", [False, True])
@pytest.mark.parametrize("change", ["UPDATE t SET version = 2 WHERE uid = 3", "DELETE FROM t WHERE uid = 3"])
def test_a_change_that_a_new_key_allows_is_noticed(case: Case, change: str, put_back: bool) -> None:
    """The log has no old row, or one of the key alone."""
    case.do("TRUNCATE t", "INSERT INTO t SELECT i, 1, 'x' FROM generate_series(1, 5) AS i")
    case.publish()
    run_epochs(case.path)
    case.do("ALTER TABLE t ADD CONSTRAINT k PRIMARY KEY (uid)", "INSERT INTO t VALUES (6, 1, 'x')")
    run_epochs(case.path)
    case.do(change, *(["ALTER TABLE t DROP CONSTRAINT k"] if put_back else []))
    for _ in range(2):
        with pytest.raises(SchemaChangedError, match="without the whole old row") as caught:
            run_epochs(case.path)
    assert "tidemark signal JOB.yaml resnapshot --table public.t" in caught.value.remedy
    case.read_again()
    case.follows()
    if put_back:
        case.do(statement_in(caught.value.remedy, "ALTER TABLE"))
    case.do("UPDATE t SET version = 3 WHERE uid = 5", "DELETE FROM t WHERE uid = 4", "INSERT INTO t VALUES (7, 1, 'x')")
    run_epochs(case.path)
    rows = dict[int, int]()
    for change in read_history(case.folder / "out", "public", "t").to_pylist():
        if change["_change_type"] in ("truncate", "delete"):
            rows = {} if change["_change_type"] == "truncate" else rows
            rows.pop(change["uid"], None)
        elif change["_change_type"] != "update_preimage":
            rows[change["uid"]] = change["version"]
    assert rows == dict(case.database.query("SELECT uid, version FROM t"))


# What the server's version and kind say


@pytest.mark.parametrize(
    ("version", "newest"),
    [((15, 14), "15.15"), ((16, 10), "16.11"), ((17, 6), "17.7"), ((18, 0), "18.1")],
    ids=lambda value: str(value),
)
def test_a_release_that_accepts_merge_is_refused(
    postgres_database: Database, version: tuple[int, int], newest: str
) -> None:
    """No test runs such a release: the log lacks the rows that MERGE deletes there."""
    with contextlib.closing(connect(superuser(postgres_database), None)) as connection:
        server = dataclasses.replace(read_server(connection), version=version)
        postgres_database.execute("CREATE TABLE t (a int)", "CREATE PUBLICATION p FOR TABLE t")
        found = preflight(connection, server, read_tables(connection, [T]), Demands(False, slot="s", publication="p"))
        (finding,) = (finding for finding in found.findings if finding.severity == "refuse")
        assert "accepts MERGE, and the log lacks the rows that it deletes" in finding.message
        assert f"Update the server to PostgreSQL {newest} or newer." in finding.remedy
        major, minor = map(int, newest.split("."))
        for accepted in ((major, minor), (14, 0), (19, 0)):
            assert doubt_of_refusals(dataclasses.replace(server, version=accepted)) is None
        postgres_database.execute(statement_in(finding.remedy, "ALTER TABLE"))
        found = preflight(connection, server, read_tables(connection, [T]), Demands(False, slot="s", publication="p"))
        assert [finding for finding in found.findings if finding.severity == "refuse"] == []


def test_a_standby_does_not_show_older_statements(postgres_database: Database) -> None:
    with contextlib.closing(connect(superuser(postgres_database), None)) as connection:
        doubt = doubt_of_refusals(dataclasses.replace(read_server(connection), in_recovery=True))
    assert doubt is not None
    assert doubt.remedy == "Name the primary in source.url."


@pytest.mark.once_per_family
def test_a_leaf_of_a_partitioned_table(case: Case) -> None:
    """Its table is not published, and changes through it are refused, too."""
    case.do("CREATE TABLE root (LIKE t) PARTITION BY RANGE (uid)")
    case.do("ALTER TABLE root ATTACH PARTITION t FOR VALUES FROM (0) TO (100)")
    case.publish()
    case.job(tables=["public.t"])
    run_epochs(case.path)
    with pytest.raises(psycopg2.Error, match='"t" because it does not have a replica identity'):
        case.do("DELETE FROM root")
    case.do("INSERT INTO root VALUES (50, 1, 'through it')")
    case.follows()


def test_a_table_that_loses_its_key_is_read_again_as_one_without(case: Case) -> None:
    case.do("TRUNCATE t", "INSERT INTO t SELECT i, 1, 'x' FROM generate_series(1, 5) AS i")
    case.do("ALTER TABLE t ADD CONSTRAINT k PRIMARY KEY (uid)")
    case.publish()
    case.job(sink=case.files | {"on_schema_change": "evolve"})
    case.follows()
    case.do("ALTER TABLE t DROP CONSTRAINT k", "INSERT INTO t VALUES (5, 1, 'x'), (6, 1, 'x')")
    case.follows()
    with pytest.raises(psycopg2.Error, match="does not have a replica identity"):
        case.do("DELETE FROM t WHERE uid = 5")
    case.insert(10)
    case.follows()


@pytest.mark.once_per_family
def test_the_worker_of_a_subscription_is_refused_too(case: Case) -> None:
    """It is a superuser, and sets session_replication_role to replica."""
    case.publish()
    with fresh_database(case.database.server) as publisher:
        publisher.execute(
            "CREATE TABLE t (uid bigint, version int, note text)",
            "ALTER TABLE t REPLICA IDENTITY FULL",
            "INSERT INTO t VALUES (3, 1, 'x')",
            "CREATE PUBLICATION p FOR TABLE t",
            f"SELECT pg_create_logical_replication_slot('{publisher.name}', 'pgoutput')",
            "DELETE FROM t",
        )
        options = f"create_slot = false, copy_data = false, slot_name = '{publisher.name}', disable_on_error = true"
        server = case.database.server
        where = f"host=127.0.0.1 port={server.port} user={server.user} dbname={publisher.name}"
        subscribed = f'"{case.database.name}"'
        case.do(f"CREATE SUBSCRIPTION {subscribed} CONNECTION '{where}' PUBLICATION p WITH ({options})")
        try:
            failed = f"SELECT FROM pg_subscription WHERE NOT subenabled AND subname = '{case.database.name}'"
            deadline = time.monotonic() + 60
            while not case.database.query(failed):
                assert time.monotonic() < deadline
                time.sleep(0.05)
        finally:
            case.do(
                f"ALTER SUBSCRIPTION {subscribed} DISABLE",
                f"ALTER SUBSCRIPTION {subscribed} SET (slot_name = NONE)",
                f"DROP SUBSCRIPTION {subscribed}",
            )
            publisher.execute(f"SELECT pg_drop_replication_slot('{publisher.name}')")
    assert case.database.query("SELECT count(*) FROM t WHERE uid = 3") == [(2,)]


@pytest.mark.parametrize("published", ["root", "root, t"])
def test_a_partition_whose_root_is_published_needs_no_entry_of_its_own(
    postgres_source_database: Database, tmp_path: Path, published: str
) -> None:
    """Its changes come as the root's. The remedies, as they are printed: the root is copied, or the publication is another."""
    case = Case(postgres_source_database, tmp_path)
    case.do(
        "CREATE TABLE root (uid bigint, version int, note text) PARTITION BY LIST (version)",
        "CREATE TABLE t PARTITION OF root FOR VALUES IN (1)",
        f"CREATE PUBLICATION {case.name} FOR TABLE {published} WITH (publish_via_partition_root = true)",
    )
    case.insert(0)
    case.job(tables=["public.t"])
    refusal = case.refusal()
    assert "publishes the changes of public.t as those of public.root" in refusal.message
    assert "ADD TABLE" not in refusal.remedy
    assert "Name public.root in source.tables instead of public.t; or name a publication" in refusal.remedy
    case.do("CREATE PUBLICATION other FOR TABLE ONLY t")
    case.job(tables=["public.t"], publication="other")
    case.follows()
    case.insert(10)
    case.follows()
    case.do("ALTER TABLE root ADD COLUMN id bigserial", "ALTER TABLE root ADD PRIMARY KEY (id, version)")
    folder = tmp_path / "of_root"
    folder.mkdir()
    of_root = Case(case.database, folder)
    job = of_root.job(tables=["public.root"], slot="of_root", publication=case.database.name)
    for _ in range(2):
        run_epochs(job)
        copied = read_history(folder / "out", "public", "root")
        assert [(copied.num_rows,)] == case.database.query("SELECT count(*) FROM root")
        case.insert(20)
