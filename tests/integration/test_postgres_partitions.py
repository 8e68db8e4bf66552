"""Changes to a single partition are in no log: the job checks before each plan, and stops where rows came or went."""

import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.epochs import Notes, run_epochs
from tests.support.history import read_history
from tests.support.jobs import source_of, write_job
from tests.support.servers import Database
from tidemark.conf.load import load_job_file
from tidemark.jobs.epoch.run_context import RunContext
from tidemark.jobs.startup import open_job
from tidemark.jobs.tables.parking import require_none_parked
from tidemark.state import failpoints
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import PartitionsChangedError, SchemaChangedError
from tidemark.state.failpoints import FailpointError

pytestmark = [pytest.mark.integration, pytest.mark.pitfall(66), pytest.mark.servers_in_turn("postgres_source_server")]

KEEP = "source.partitions_removed=keep"
LIKE = "CREATE TABLE {0} (LIKE r INCLUDING ALL)"
ATTACH = "ALTER TABLE r ATTACH PARTITION {0} FOR VALUES FROM ({1}) TO ({1} + 10)"


@dataclass(frozen=True)
class Job:
    """A job that has copied r, whose partitions p0 (0 to 9) and p10 (10 to 19) have a row each, and p20, which has
    none."""

    database: Database
    path: Path

    def do(self, *statements: str) -> None:
        self.database.execute(*statements)

    def transact(self, *statements: str) -> None:
        with closing(self.database.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("BEGIN")
            for statement in statements:
                cursor.execute(statement)
            cursor.execute("COMMIT")

    def let_older_transactions_end(self) -> None:
        """Waits for transactions that other sessions of this server have begun: those of other tests, and autovacuum's ANALYZE.
        While one of them is open, a look can't prove that rows which were written since are older than the look."""
        ((own,),) = self.database.query("SELECT pg_current_xact_id()::text::bigint")
        while self.database.query("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint")[0][0] <= own:
            time.sleep(0.05)

    def run(self, *overrides: str, at_most: int | None = None) -> list[str]:
        return run_epochs(self.path, *overrides, at_most=at_most)

    def stops(self, match: str) -> None:
        """Asserts that the job stops, also at the next start."""
        for _ in range(2):
            with pytest.raises(PartitionsChangedError, match=match) as caught:
                self.run()
            assert caught.value.exit_code == 3

    def warnings(self) -> tuple[str, ...]:
        checkpoint = Checkpoint.at(load_job_file(self.path).checkpoint)
        return checkpoint.plan(max(checkpoint.plan_epochs())).warnings

    def copied(self) -> set[int]:
        """The keys that an insert or a snapshot brought, whatever came later."""
        return set(read_history(self.path.parent / "out", "public", "r")["id"].to_pylist())


def tables(database: Database) -> None:
    database.execute(
        "CREATE TABLE r (id int PRIMARY KEY, v text DEFAULT 'x') PARTITION BY RANGE (id)",
        *[f"CREATE TABLE p{n} PARTITION OF r FOR VALUES FROM ({n}) TO ({n + 10})" for n in (0, 10, 20)],
        "INSERT INTO r VALUES (1), (11)",
    )


def job_file(folder: Path, database: Database, **changes: object) -> Path:
    return write_job(
        folder,
        source=source_of(database, tables=["public.r"]) | changes,
        snapshot={"split_rows": 1, "parallelism": 1},
        sink={"type": "files", "path": str(folder / "out")},
    )


@pytest.fixture
def job(postgres_source_database: Database, tmp_path: Path) -> Job:
    tables(postgres_source_database)
    made = Job(postgres_source_database, job_file(tmp_path, postgres_source_database))
    made.run()
    return made


def test_partitions_that_came_without_rows_are_followed(job: Job) -> None:
    job.do("CREATE TABLE p30 PARTITION OF r FOR VALUES FROM (30) TO (40)", "INSERT INTO r VALUES (31)")
    job.transact(LIKE.format("p40"), ATTACH.format("p40", 40), "INSERT INTO r VALUES (41)")
    job.do(LIKE.format("p50"), ATTACH.format("p50", 50), "INSERT INTO r VALUES (51)")
    job.do(
        "DO $$ BEGIN BEGIN PERFORM txid_current(); "
        f"{LIKE.format('p60')}; {ATTACH.format('p60', 60)}; EXCEPTION WHEN division_by_zero THEN NULL; END; END $$",
        "CREATE TABLE p70 PARTITION OF r FOR VALUES FROM (70) TO (90) PARTITION BY RANGE (id)",
        "CREATE TABLE p71 PARTITION OF p70 FOR VALUES FROM (70) TO (80)",
        "CREATE TABLE p80 PARTITION OF p70 DEFAULT",
    )
    with closing(job.database.connect()) as older, older.cursor() as cursor:
        cursor.execute("BEGIN; SELECT txid_current()")
        job.do("CREATE TABLE p90 PARTITION OF r FOR VALUES FROM (90) TO (100)")
        job.transact(LIKE.format("p100"), ATTACH.format("p100", 100))
        cursor.execute("INSERT INTO r VALUES (91), (101); COMMIT")
    first = (32, 33, 42, 43, 44, 45, 46, 47, 48, 61, 62, 63, 64, 65, 71, 81)
    job.transact(*[f"INSERT INTO r VALUES ({n})" for n in first])  # their commands have the numbers that creating had
    job.transact(*[f"INSERT INTO r VALUES ({n})" for n in (49, 66, 67, 68, 69)])
    assert job.run() == ["stream"]
    wanted = {row[0] for row in job.database.query("SELECT id FROM r")}
    assert job.copied() == wanted
    job.do("VACUUM FULL p10", "CLUSTER p40 USING p40_pkey", "TRUNCATE r", "INSERT INTO r VALUES (2), (72)")
    job.let_older_transactions_end()
    assert job.run() == ["stream"]
    job.do("VACUUM FULL p0", "VACUUM FULL p71")
    assert job.run() == ["stream"]
    assert job.warnings() == ()


def test_a_table_that_was_truncated_after_a_savepoint_is_read_again(job: Job) -> None:
    """The log has the transaction's id, and the partitions have the subtransaction's."""
    job.transact("INSERT INTO r VALUES (12)", "SAVEPOINT s", "TRUNCATE r", "INSERT INTO r VALUES (3)")
    with pytest.raises(SchemaChangedError, match="truncated the table itself after a savepoint"):
        job.run()
    job.run("source.on_table_error=park", "sink.on_schema_change=evolve")
    state = Checkpoint.at(load_job_file(job.path).checkpoint).job_state()
    assert state is not None
    require_none_parked(load_job_file(job.path), state)
    history = read_history(job.path.parent / "out", "public", "r").to_pylist()
    emptied = max(i for i, row in enumerate(history) if row["_change_type"] == "truncate")
    assert [row["id"] for row in history[emptied + 1 :]] == [3]


@pytest.mark.parametrize(
    "alters",
    [
        ("ALTER TABLE r ALTER v TYPE text USING v || 'x'",),
        ("ALTER TABLE p0 SET UNLOGGED", "INSERT INTO p0 VALUES (4)", "ALTER TABLE p0 SET LOGGED"),
    ],
)
def test_a_partition_that_was_rewritten_after_a_truncate_of_the_table_is_read_again(
    job: Job, alters: tuple[str, ...]
) -> None:
    """The log has the TRUNCATE and the rows that came after it, with the values of before the rewrite."""
    job.transact("TRUNCATE r", "INSERT INTO r VALUES (3)", *alters)
    with pytest.raises(SchemaChangedError, match=r"All rows of public\.r were rewritten"):
        job.run()


def test_rows_written_beside_an_open_transaction_do_not_prove_that_a_rewrite_kept_them(job: Job) -> None:
    """The transaction may be another database's, and has nothing to do with the table."""
    with closing(job.database.server.connect()) as other, other.cursor() as cursor:
        cursor.execute("BEGIN; SELECT pg_current_xact_id()")
        job.do("TRUNCATE r", "INSERT INTO r VALUES (2)")
        assert job.run() == ["stream"]
        job.do("VACUUM FULL p0")
        for _ in range(2):  # the VACUUM could be a part of the TRUNCATE
            with pytest.raises(
                SchemaChangedError, match=r"public\.p0 of public\.r was truncated, or all its rows were"
            ):
                job.run()
    assert job.run(KEEP) == ["stream"]
    job.do("INSERT INTO r VALUES (3)")
    job.let_older_transactions_end()
    assert job.run() == ["stream"]
    job.do("VACUUM FULL p0")
    assert job.run() == ["stream"]


def test_a_partition_that_came_with_rows_stops_the_job_until_it_is_detached(job: Job) -> None:
    rows = "INSERT INTO {0} SELECT generate_series({1}, {1} + 3)"
    came = r"Partition public\.(q|s) of public\.r was attached with rows"
    job.do(LIKE.format("q"), rows.format("q", 30), ATTACH.format("q", 30), "INSERT INTO r VALUES (39)")
    job.stops(came)
    job.do("ALTER TABLE r DETACH PARTITION q", "CREATE TABLE p30 PARTITION OF r FOR VALUES FROM (30) TO (40)")
    assert job.run() == ["stream"]
    job.do("INSERT INTO r SELECT * FROM q", "DROP TABLE q")
    assert job.run() == ["stream"]
    assert job.copied() == {1, 11, 30, 31, 32, 33, 39}
    for statements in (
        [LIKE.format("q"), rows.format("q", 40), ATTACH.format("q", 40)],
        [LIKE.format("q"), "SAVEPOINT s", rows.format("q", 40), "RELEASE s", ATTACH.format("q", 40)],
        [LIKE.format("q"), "SAVEPOINT s", rows.format("q", 40), ATTACH.format("q", 40), "RELEASE s"],
        ["CREATE TABLE q AS SELECT 40 AS id, 'x' AS v", "ALTER TABLE q ALTER id SET NOT NULL", ATTACH.format("q", 40)],
        [
            "CREATE TABLE q (LIKE r INCLUDING ALL) PARTITION BY RANGE (id)",
            "CREATE TABLE s PARTITION OF q FOR VALUES FROM (40) TO (45)",
            rows.format("q", 40),
            ATTACH.format("q", 40),
        ],
    ):
        job.transact(*statements)
        job.stops(came)
        job.do("DROP TABLE q")
        job.run()


def test_rows_that_went_with_a_partition_stop_the_job_or_are_kept(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.do("ALTER TABLE r DETACH PARTITION p0", "INSERT INTO r VALUES (12)")
    job.stops(r"Partition public\.p0 of public\.r was detached or dropped")
    job.do("ALTER TABLE r ATTACH PARTITION p0 FOR VALUES FROM (0) TO (10)")
    job.stops(r"public\.p0 of public\.r was detached or dropped")
    job.do("DROP TABLE p0")
    armed = tmp_path / "failpoints"
    armed.mkdir()
    monkeypatch.setattr(failpoints, "_FOLDER", str(armed))
    for name in ("planner.before_plan", "planner.after_plan"):
        (armed / name).write_text("raise")
        with pytest.raises(FailpointError):
            job.run(KEEP)
    assert "p0 of public.r was detached or dropped" in job.warnings()[0]
    job.do("CREATE TABLE other (id int)")  # the server logs something, as it may at any time by itself
    assert job.run() == ["stream", "stream"]  # the plan that was left, up to the log's end of then, and the rest
    assert job.copied() == {1, 11, 12}
    job.do("TRUNCATE p10", "INSERT INTO r VALUES (13)")
    job.stops(r"public\.p10 of public\.r was truncated, or all its rows were rewritten")
    assert job.run(KEEP) == ["stream"]
    assert len(job.warnings()) == 1
    job.do("CREATE TABLE p30 PARTITION OF r FOR VALUES FROM (30) TO (40)", "INSERT INTO r VALUES (31)", "TRUNCATE p30")
    job.stops(r"public\.p30 of public\.r was truncated")
    assert job.run(KEEP) == ["stream"]
    job.do("INSERT INTO r VALUES (32)")
    assert job.run() == ["stream"]
    assert job.copied() == {1, 11, 12, 13, 31, 32}
    checkpoint = Checkpoint.at(load_job_file(job.path).checkpoint)
    assert len(kept_looks(checkpoint)) > 2
    checkpoint.forget_plans(checkpoint.plan_epochs()[:-1])
    job.do("CREATE TABLE p40 PARTITION OF r FOR VALUES FROM (40) TO (50)", "INSERT INTO r VALUES (41)")
    assert job.run() == ["stream"]
    assert len(kept_looks(checkpoint)) == 2


def kept_looks(checkpoint: Checkpoint) -> set[str]:
    """The looks that the checkpoint has: those that its plans name."""
    named = {kept.name for epoch in checkpoint.plan_epochs() if (kept := checkpoint.plan(epoch).partitions) is not None}
    assert {name.rpartition("/")[2] for name in checkpoint.store.list("partitions")} == named
    return named


def test_a_job_that_runs_looks_before_each_plan(job: Job) -> None:
    file = load_job_file(job.path)
    checkpoint = Checkpoint.at(file.checkpoint)
    with open_job(file, Notes()) as opened:
        planner = RunContext(file, opened.held.server, opened.held.state).planner()
        committed = checkpoint.committed_epoch()
        for statement, match in (
            (ATTACH.format("q", 40), r"public\.q of public\.r was attached with rows"),
            (
                "DROP TABLE q; CREATE UNLOGGED TABLE q PARTITION OF r FOR VALUES FROM (40) TO (50)",
                r"public\.q .* is unlogged",
            ),
            ("DROP TABLE q, p10", r"public\.p10 of public\.r was detached or dropped"),
        ):
            job.do(
                "CREATE TABLE IF NOT EXISTS q AS SELECT 40 AS id, 'x' AS v; ALTER TABLE q ALTER id SET NOT NULL",
                statement,
            )
            with pytest.raises(PartitionsChangedError, match=match):
                planner.next_epoch(committed)
    assert max(checkpoint.plan_epochs()) == committed


def test_what_happens_while_rows_are_copied_and_to_tables_that_join(
    postgres_source_database: Database, tmp_path: Path
) -> None:
    """The role may read the partitioned table, and none of its partitions."""
    database = postgres_source_database
    tables(database)
    role = f"reader_{database.name}"
    database.execute(
        f"CREATE ROLE {role} LOGIN REPLICATION",
        "CREATE TABLE late (LIKE r INCLUDING ALL) PARTITION BY HASH (id)",
        "CREATE TABLE l0 PARTITION OF late FOR VALUES WITH (MODULUS 2, REMAINDER 0)",
        f"GRANT SELECT ON r, late TO {role}",
        f"CREATE PUBLICATION {database.name} FOR TABLE r, late WITH (publish_via_partition_root = true)",
    )
    try:
        url = database.url.replace("postgres@", f"{role}@")
        job = Job(database, job_file(tmp_path, database, url=url))
        assert job.run(at_most=1) == ["snapshot"]
        job.do("CREATE TABLE q (LIKE r INCLUDING ALL)", "INSERT INTO q VALUES (31)", ATTACH.format("q", 30))
        job.stops(r"public\.q of public\.r was attached with rows")
        job.do("ALTER TABLE r DETACH PARTITION q", "VACUUM FULL p10", "INSERT INTO r VALUES (12)")
        job.run()
        assert "snapshot" in job.run("source.tables=['public.r', 'public.late']")
        job.do("DROP TABLE l0")
        with pytest.raises(PartitionsChangedError, match=r"public\.l0 of public\.late was detached"):
            job.run("source.tables=['public.r', 'public.late']")
        assert job.copied() == {1, 11, 12}
    finally:
        database.execute(f"DROP OWNED BY {role}", f"DROP ROLE {role}")


@pytest.mark.parametrize(
    "statements",
    [
        (
            "ALTER TABLE p0 SET UNLOGGED",
            "INSERT INTO r VALUES (2)",
            "UPDATE r SET v = 'X'",
            "ALTER TABLE p0 SET LOGGED",
        ),
        ("INSERT INTO r VALUES (2)", "ALTER TABLE r ALTER COLUMN v TYPE text USING upper(v)"),
    ],
    ids=["loaded while unlogged", "another type by USING"],
)
def test_keep_takes_other_values_for_a_truncated_partition(job: Job, statements: tuple[str, ...]) -> None:
    """The writes are in no log, so the copy lacks them."""
    job.do(*statements)
    job.run(KEEP)
    assert any("p0" in warning for warning in job.warnings())
    history = read_history(job.path.parent / "out", "public", "r").to_pylist()
    assert "X" not in {row["v"] for row in history if row["id"] < 10}
    assert job.database.query("SELECT v FROM r WHERE id = 2") == [("X",)]


@pytest.mark.parametrize(
    "change",
    [
        "DROP TABLE child",
        "TRUNCATE child",
        "ALTER TABLE child NO INHERIT parent",
        "ALTER TABLE other INHERIT parent",
        "ALTER TABLE child SET UNLOGGED",
        "VACUUM FULL child",
        "ALTER TABLE parent ADD more int",
    ],
)
def test_tables_that_inherit_from_a_table_are_no_partitions_of_it(
    change: str, postgres_source_database: Database, tmp_path: Path
) -> None:
    """The table is copied without their rows."""
    postgres_source_database.execute(
        "CREATE TABLE parent (id int PRIMARY KEY, v text)",
        "CREATE TABLE child (PRIMARY KEY (id)) INHERITS (parent)",
        "CREATE TABLE other (LIKE parent)",
        "INSERT INTO parent VALUES (1)",
        "INSERT INTO child VALUES (2)",
        "INSERT INTO other VALUES (3)",
    )
    path = job_file(tmp_path, postgres_source_database, tables=["public.parent"])
    run_epochs(path)
    postgres_source_database.execute("VACUUM FULL child", change, "INSERT INTO parent VALUES (4)")
    assert run_epochs(path, "sink.on_schema_change=evolve") == ["stream"]
    assert read_history(tmp_path / "out", "public", "parent")["id"].to_pylist() == [1, 4]
