"""A table's identity is its OID, whatever its name. The job follows it, or stops: changes are never lost silently."""

import pytest

from tests.support.postgres_jobs import ALL, BY_NAME, IN_SCHEMA, Job, MakeJob, make_job
from tests.support.servers import Database
from tidemark.jobs.epoch.read_parts import read_part, tasks_of
from tidemark.readers.postgres import source
from tidemark.readers.postgres.partitions.checks import look_again
from tidemark.state.errors import LogPositionLostError, SchemaChangedError, SourceNotUsableError, TidemarkError

__all__ = ["make_job"]

pytestmark = [pytest.mark.integration, pytest.mark.once_per_family]
RUNS_ON_POSTGRES_14 = True

TRIES = 5


@pytest.mark.pitfall(97)
@pytest.mark.parametrize("publication", [BY_NAME, ALL, IN_SCHEMA])
def test_changes_under_another_name_are_followed(publication: str, make_job: MakeJob) -> None:
    job = make_job(publication)
    job.do(
        "ALTER TABLE shop.t RENAME TO away",
        "UPDATE shop.away SET v = 'b' WHERE id = 1",
        "DELETE FROM shop.away WHERE id = 2",
        "ALTER TABLE shop.away RENAME TO t",
    )
    job.follows()
    job.do(
        "ALTER SCHEMA shop RENAME TO closed",
        "UPDATE closed.t SET v = 'c' WHERE id = 3",
        "ALTER SCHEMA closed RENAME TO shop",
    )
    job.follows()
    if publication == BY_NAME:  # else such a TRUNCATE can't be told from a load while the table was unlogged
        job.do("ALTER TABLE shop.t RENAME TO away", "TRUNCATE shop.away", "ALTER TABLE shop.away RENAME TO t")
        job.follows()
        assert job.copied() == {}


@pytest.mark.pitfall(97)
def test_a_renamed_table_stops_the_job_until_it_has_its_name_again(make_job: MakeJob) -> None:
    job = make_job()
    with job.running() as (context, committed):
        planner = context.planner()
        job.do("INSERT INTO shop.t VALUES (6, 'b')", "ALTER TABLE shop.t RENAME TO away")
        job.do("INSERT INTO shop.away VALUES (7, 'b')")
        with pytest.raises(SchemaChangedError, match=r"shop\.t is called shop\.away now"):
            planner.next_epoch(committed)
    job.stops(SourceNotUsableError, r"shop\.t")
    job.do("ALTER TABLE shop.away RENAME TO t")
    job.follows()


@pytest.mark.pitfall(97)
@pytest.mark.parametrize("publication", [BY_NAME, ALL, IN_SCHEMA])
def test_a_table_that_was_swapped_stops_the_job_until_it_is_swapped_back(publication: str, make_job: MakeJob) -> None:
    job = make_job(publication)
    job.do(
        "CREATE TABLE shop.rebuilt (LIKE shop.t INCLUDING ALL)",
        "INSERT INTO shop.rebuilt SELECT id, 'rebuilt' FROM shop.t",
        "BEGIN; ALTER TABLE shop.t RENAME TO old; ALTER TABLE shop.rebuilt RENAME TO t; COMMIT",
        "UPDATE shop.t SET v = 'new' WHERE id = 1",
        "UPDATE shop.old SET v = 'old' WHERE id = 2",
    )
    job.stops(SchemaChangedError, r"shop\.t is another table now")
    job.do("BEGIN; ALTER TABLE shop.t RENAME TO rebuilt; ALTER TABLE shop.old RENAME TO t; COMMIT")
    job.follows()


@pytest.mark.pitfall(97)
@pytest.mark.parametrize("publication", [BY_NAME, ALL, IN_SCHEMA])
def test_a_table_that_was_dropped_and_created_again_stops_the_job(publication: str, make_job: MakeJob) -> None:
    job = make_job(publication)
    job.do("DROP TABLE shop.t", "CREATE TABLE shop.t (id int PRIMARY KEY, v text)")
    if publication == BY_NAME:
        job.do(f"ALTER PUBLICATION {job.database.name} ADD TABLE shop.t")
    job.do("INSERT INTO shop.t VALUES (1, 'new')")
    job.stops(TidemarkError, r"shop\.t")


@pytest.mark.pitfall(97)
def test_a_table_that_is_swapped_while_it_is_copied_stops_the_job(make_job: MakeJob) -> None:
    job = make_job(ALL, run=False)
    assert job.run(at_most=2) == ["snapshot", "snapshot"]
    job.do(
        "CREATE TABLE shop.rebuilt (LIKE shop.t INCLUDING ALL)",
        "INSERT INTO shop.rebuilt SELECT id, 'rebuilt' FROM shop.t",
        "BEGIN; ALTER TABLE shop.t RENAME TO old; ALTER TABLE shop.rebuilt RENAME TO t; COMMIT",
    )
    job.stops(SchemaChangedError, r"shop\.t is another table now")


@pytest.mark.pitfall(97)
@pytest.mark.parametrize("publication", [ALL, IN_SCHEMA])
def test_a_load_while_unlogged_stops_the_job(publication: str, make_job: MakeJob) -> None:
    job = make_job(publication)
    job.do(
        "ALTER TABLE shop.t SET UNLOGGED",
        "INSERT INTO shop.t VALUES (6, 'b')",
        "ALTER TABLE shop.t SET LOGGED",
    )
    job.stops(SchemaChangedError, r"All rows of shop\.t were rewritten")


def test_a_rewrite_that_leaves_no_old_row_is_taken_for_such_a_load(make_job: MakeJob) -> None:
    job = make_job(ALL)
    job.do("UPDATE shop.t SET v = 'new'", "VACUUM FULL shop.t")
    job.stops(SchemaChangedError, r"All rows of shop\.t were rewritten")


@pytest.mark.pitfall(97)
def test_an_unlogged_table_stops_a_running_job(make_job: MakeJob) -> None:
    job = make_job(ALL)
    with job.running() as (context, committed):
        planner = context.planner()
        job.do("ALTER TABLE shop.t SET UNLOGGED", "INSERT INTO shop.t VALUES (6, 'b')")
        with pytest.raises(SchemaChangedError, match=r"shop\.t is unlogged"):
            planner.next_epoch(committed)


@pytest.mark.pitfall(97)
@pytest.mark.parametrize("publication", [IN_SCHEMA])
def test_a_load_in_another_schema_stops_the_job(publication: str, make_job: MakeJob) -> None:
    job = make_job(publication)
    job.do(
        "CREATE SCHEMA closed",
        "ALTER TABLE shop.t SET SCHEMA closed",
        "INSERT INTO closed.t VALUES (6, 'b')",
        "ALTER TABLE closed.t SET SCHEMA shop",
    )
    job.stops(LogPositionLostError, r"shop\.t")


@pytest.mark.pitfall(97)
@pytest.mark.parametrize("publication", [BY_NAME, ALL])
def test_values_that_a_change_of_type_made_after_a_truncate_stop_the_job(publication: str, make_job: MakeJob) -> None:
    """The log has the TRUNCATE and the rows that came after it, with the values of before the change."""
    job = make_job(publication)
    job.transact(
        "TRUNCATE shop.t", "INSERT INTO shop.t VALUES (6, 'b')", "ALTER TABLE shop.t ALTER v TYPE text USING v || v"
    )
    job.stops(SchemaChangedError, r"All rows of shop\.t were rewritten")


@pytest.mark.pitfall(97)
@pytest.mark.parametrize("publication", [ALL, IN_SCHEMA])
def test_a_load_while_unlogged_after_a_truncate_stops_the_job(publication: str, make_job: MakeJob) -> None:
    job = make_job(publication)
    job.transact(
        "TRUNCATE shop.t",
        "ALTER TABLE shop.t SET UNLOGGED",
        "INSERT INTO shop.t VALUES (6, 'b')",
        "ALTER TABLE shop.t SET LOGGED",
    )
    job.stops(SchemaChangedError, r"All rows of shop\.t were rewritten")


@pytest.mark.pitfall(97)
def test_a_transaction_that_was_rolled_back_hides_no_such_load(make_job: MakeJob) -> None:
    """It leaves the number of its own command at the table's row in pg_class."""
    job = make_job(ALL)
    job.transact(
        "TRUNCATE shop.t",
        "ALTER TABLE shop.t SET UNLOGGED",
        "INSERT INTO shop.t VALUES (6, 'b')",
        "ALTER TABLE shop.t SET LOGGED",
    )
    job.transact("GRANT SELECT ON shop.t TO PUBLIC", "ROLLBACK")
    job.stops(SchemaChangedError, r"All rows of shop\.t were rewritten")


@pytest.mark.pitfall(97)
@pytest.mark.parametrize("publication", [BY_NAME, ALL])
def test_a_load_after_a_truncate_is_followed(publication: str, make_job: MakeJob) -> None:
    job = make_job(publication)
    job.transact(
        "INSERT INTO shop.t VALUES (6, 'b')",
        "TRUNCATE shop.t",
        "INSERT INTO shop.t VALUES (7, 'b'), (8, 'b')",
        "UPDATE shop.t SET v = 'c' WHERE id = 8",
        "TRUNCATE shop.t",
        "INSERT INTO shop.t VALUES (9, 'b'), (10, 'b')",
        "CREATE INDEX ON shop.t (v)",
        "ANALYZE shop.t",
        "SELECT * FROM shop.t FOR UPDATE",
        "UPDATE shop.t SET v = 'd' WHERE id = 10",
    )
    job.follows()
    assert job.copied() == {9: "b", 10: "d"}


@pytest.mark.pitfall(97)
@pytest.mark.parametrize("publication", [BY_NAME, ALL])
def test_rewrites_that_keep_the_rows_are_followed(publication: str, make_job: MakeJob) -> None:
    job = make_job(publication)
    job.do("VACUUM FULL shop.t", "INSERT INTO shop.t VALUES (6, 'b')")
    job.follows()
    job.do("CLUSTER shop.t USING t_pkey", "ANALYZE shop.t", "GRANT SELECT ON shop.t TO PUBLIC")
    job.follows()
    job.do("TRUNCATE shop.t", "INSERT INTO shop.t VALUES (7, 'b')")
    job.follows()
    assert job.copied() == {7: "b"}


@pytest.mark.pitfall(97)
def test_a_table_that_is_published_by_name_may_be_rewritten_whatever_its_rows_are(make_job: MakeJob) -> None:
    """It can't become unlogged, so a rewrite that leaves its columns alone keeps the rows."""
    job = make_job()
    job.do("UPDATE shop.t SET v = 'b'", "VACUUM FULL shop.t")
    job.follows()
    job.do("DELETE FROM shop.t", "VACUUM FULL shop.t")
    job.follows()
    job.do("VACUUM FULL shop.t", "TRUNCATE shop.t", "VACUUM FULL shop.t", "INSERT INTO shop.t VALUES (7, 'b')")
    job.follows()


TWO_COLUMNS = "id int PRIMARY KEY, v text, w text"
SWAP = [f"ALTER TABLE shop.t RENAME {names}" for names in ("v TO x", "w TO v", "x TO w")]


@pytest.mark.pitfall(99)
@pytest.mark.parametrize("rows_follow", [False, True])
@pytest.mark.parametrize("publication", [BY_NAME, ALL])
def test_a_column_that_was_dropped_and_added_again_stops_the_job(
    publication: str, rows_follow: bool, make_job: MakeJob
) -> None:
    job = make_job(publication)
    job.do("ALTER TABLE shop.t DROP COLUMN v, ADD COLUMN v text DEFAULT 'z'")
    if rows_follow:
        job.do("INSERT INTO shop.t VALUES (6, 'b')")
    job.stops(SchemaChangedError, r"v of shop\.t is another column now")


@pytest.mark.pitfall(99)
def test_two_columns_that_swap_names_stop_the_job_until_they_have_their_names_again(make_job: MakeJob) -> None:
    job = make_job(table=TWO_COLUMNS)
    job.do(*SWAP)
    job.stops(SchemaChangedError, r"v, w of shop\.t are other columns now")
    job.do(*SWAP)
    job.follows()
    job.do(*SWAP, "INSERT INTO shop.t (id, v, w) VALUES (6, 'was w', 'was v')", *SWAP)
    job.stops(SchemaChangedError, r"shop\.t has its columns in another order")


@pytest.mark.pitfall(99)
def test_columns_that_swap_names_stop_a_running_job(make_job: MakeJob) -> None:
    job = make_job(table=TWO_COLUMNS)
    with job.running() as (context, committed):
        job.do(*SWAP)
        with pytest.raises(SchemaChangedError, match=r"v, w of shop\.t are other columns now"):
            context.planner().next_epoch(committed)


@pytest.mark.pitfall(99)
def test_rows_of_a_time_when_a_column_had_the_name_of_an_excluded_one_stop_the_job(make_job: MakeJob) -> None:
    """The catalog has the first names again, and the log has values of the excluded column under the other's name."""
    without_w = "source.columns={shop.t: {exclude: [w]}}"
    job = make_job(table=TWO_COLUMNS, run=False)
    job.run(without_w)
    before = job.copied()
    job.do(*SWAP, "UPDATE shop.t SET w = 'b' WHERE id < 3", *SWAP)
    for _ in range(2):
        with pytest.raises(SchemaChangedError, match=r"shop\.t has its columns in another order"):
            job.run(without_w)
    assert job.copied() == before


@pytest.mark.pitfall(99)
@pytest.mark.parametrize("publication", [BY_NAME, ALL])
def test_values_that_a_change_of_type_made_stop_the_job(publication: str, make_job: MakeJob) -> None:
    job = make_job(publication)
    job.do("ALTER TABLE shop.t ALTER v TYPE text USING upper(v)")
    job.stops(SchemaChangedError, r"All rows of shop\.t were rewritten")


@pytest.mark.pitfall(99)
@pytest.mark.parametrize(
    ("before", "now", "value"),
    [
        ("timestamp", "timestamptz", "2020-01-01"),
        ("timestamptz", "timestamp", "2020-01-01"),
        ("cidr", "inet", "10.0.0.1"),
        ("int", "oid", "-1"),
    ],
)
def test_another_type_that_writes_no_row_stops_the_job(before: str, now: str, value: str, make_job: MakeJob) -> None:
    """The stored bytes mean another value, or are shown in another form."""
    job = make_job(table=f"id int PRIMARY KEY, v text, w {before} DEFAULT '{value}'")
    job.do(f"SET TimeZone = 'UTC'; ALTER TABLE shop.t ALTER w TYPE {now}")
    job.stops(SchemaChangedError, r"shop\.t has w as .*, which was ")


@pytest.mark.pitfall(99)
def test_changes_of_columns_that_leave_their_values_alone_are_followed(make_job: MakeJob) -> None:
    job = make_job()
    job.do(
        "ALTER TABLE shop.t ALTER v SET STATISTICS 10",
        "GRANT SELECT (v) ON shop.t TO PUBLIC",
        "ALTER TABLE shop.t ALTER v SET DEFAULT 'd', ALTER v SET NOT NULL",
        "ANALYZE shop.t",
        "CREATE INDEX ON shop.t (v)",
    )
    job.follows()
    job.do("INSERT INTO shop.t (id) VALUES (6)", "VACUUM FULL shop.t")
    job.follows()


TENANTS = "id int PRIMARY KEY, v text, tenant int NOT NULL DEFAULT 1"
WIDER = "ALTER TABLE shop.t DROP CONSTRAINT t_pkey, ADD CONSTRAINT t_pkey PRIMARY KEY (tenant, id)"
NARROWER = "ALTER TABLE shop.t DROP CONSTRAINT t_pkey, ADD CONSTRAINT t_pkey PRIMARY KEY (id)"


@pytest.mark.pitfall(100)
def test_a_wider_key_stops_the_job(make_job: MakeJob) -> None:
    job = make_job(table=TENANTS)
    with job.running() as (context, committed):
        job.do(WIDER)
        with pytest.raises(SchemaChangedError, match=r"The key of shop\.t is \(tenant, id\) now"):
            context.planner().next_epoch(committed)
    job.stops(SchemaChangedError, r"The key of shop\.t is \(tenant, id\) now")
    job.do(NARROWER)
    job.follows()


@pytest.mark.pitfall(100)
def test_a_key_that_was_wider_when_rows_came_stops_the_job(make_job: MakeJob) -> None:
    job = make_job(table=TENANTS)
    job.do(WIDER, "INSERT INTO shop.t VALUES (1, 'b', 2)", "DELETE FROM shop.t WHERE tenant = 1 AND id = 1", NARROWER)
    job.stops(SchemaChangedError, r"shop\.t has \(id, tenant\) as its replica identity")


PARTITIONED = "CREATE TABLE shop.root (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)"
ATTACH = "ALTER TABLE shop.root ATTACH PARTITION shop.t FOR VALUES FROM (0) TO (100)"
ABOVE = r"publishes the changes of shop\.t as those of shop\.root"


@pytest.mark.pitfall(98)
@pytest.mark.parametrize("publication", [BY_NAME, ALL, IN_SCHEMA])
def test_a_partition_is_refused_where_its_root_is_published(publication: str, make_job: MakeJob) -> None:
    job = make_job(publication, table="id int PRIMARY KEY, v text", run=False)
    job.do(PARTITIONED, ATTACH)
    if publication == BY_NAME:
        job.run()
        job.do("INSERT INTO shop.root VALUES (6, 'b')")
        job.follows()
        job.do(f"ALTER PUBLICATION {job.database.name} ADD TABLE shop.root", "INSERT INTO shop.t VALUES (7, 'b')")
    with pytest.raises(SourceNotUsableError, match=ABOVE):
        job.run()


@pytest.mark.pitfall(98)
@pytest.mark.parametrize("publication", [ALL, IN_SCHEMA])
def test_a_table_that_is_attached_where_its_root_is_published_stops_the_job(
    publication: str, make_job: MakeJob
) -> None:
    job = make_job(publication)
    with job.running() as (context, committed):
        job.do(PARTITIONED, ATTACH, "INSERT INTO shop.t VALUES (6, 'b')")
        epoch = context.planner().next_epoch(committed)
        (task,) = tasks_of(context, epoch)
        with pytest.raises(LogPositionLostError, match=r"shop\.t"):
            list(read_part(task))
    job.stops(SourceNotUsableError, ABOVE)


@pytest.mark.pitfall(117)
@pytest.mark.parametrize("publication", [BY_NAME, ALL, IN_SCHEMA])
def test_a_publication_with_default_options_will_do_where_nothing_is_partitioned(
    publication: str, make_job: MakeJob
) -> None:
    job = make_job(publication, options="", run=False)
    job.follows()
    job.do(
        "INSERT INTO shop.t VALUES (6, 'b')", "UPDATE shop.t SET id = 7 WHERE id = 1", "DELETE FROM shop.t WHERE id = 2"
    )
    job.follows()
    job.do(PARTITIONED, ATTACH, "INSERT INTO shop.root VALUES (8, 'b')")
    job.follows()  # the changes of a partition keep their table's name


@pytest.mark.pitfall(117)
def test_a_publication_with_default_options_is_refused_for_a_partitioned_table(make_job: MakeJob) -> None:
    job = make_job(options="", run=False)
    job.do(
        "DROP TABLE shop.t",
        "CREATE TABLE shop.t (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE shop.low PARTITION OF shop.t FOR VALUES FROM (0) TO (100)",
        "INSERT INTO shop.t VALUES (1, 'a')",
        f"ALTER PUBLICATION {job.database.name} ADD TABLE shop.t",
    )
    with pytest.raises(SourceNotUsableError, match=r"publishes partitions instead of shop\.t") as caught:
        job.run()
    job.do(statement_of(caught.value))
    job.do("UPDATE shop.t SET v = 'b'")
    job.follows()
    job.do("UPDATE shop.t SET id = 2")
    job.follows()


def statement_of(error: TidemarkError) -> str:
    """The statement that a remedy consists of."""
    return error.remedy.removesuffix(".")


LEAVES = (
    "DROP TABLE shop.t",
    "CREATE TABLE shop.t (id int PRIMARY KEY, v text, n int NOT NULL DEFAULT 1) PARTITION BY RANGE (id)",
    "CREATE TYPE shop.mood AS ENUM ('fine')",
    "CREATE TABLE shop.low (n int NOT NULL DEFAULT 1, m shop.mood DEFAULT 'fine', id int NOT NULL, v text)",
    "ALTER TABLE shop.low DROP COLUMN m",
    "ALTER TABLE shop.t ATTACH PARTITION shop.low FOR VALUES FROM (0) TO (100)",
    "CREATE TABLE shop.high PARTITION OF shop.t FOR VALUES FROM (100) TO (200)",
    "CREATE UNIQUE INDEX low_n ON shop.low (n)",
    "INSERT INTO shop.t (id, v, n) VALUES (1, 'a', 1), (2, 'a', 2), (101, 'a', 101)",
)
BY_INDEX = "ALTER TABLE shop.low REPLICA IDENTITY USING INDEX low_n"


def make_partitioned(make_job: MakeJob, publication: str) -> Job:
    job = make_job(publication, run=False)
    publish = [f"ALTER PUBLICATION {job.database.name} ADD TABLE shop.t"] if publication == BY_NAME else []
    job.do(*LEAVES, *publish)
    job.run()
    return job


@pytest.mark.pitfall(102)
@pytest.mark.parametrize("publication", [BY_NAME, ALL])
@pytest.mark.parametrize("put_back", [False, True])
def test_a_key_that_changes_in_a_partition_with_another_identity_stops_the_job(
    publication: str, put_back: bool, make_job: MakeJob
) -> None:
    """The log has the old row's n then, not its id."""
    job = make_partitioned(make_job, publication)
    job.do(BY_INDEX, "UPDATE shop.t SET id = 3 WHERE id = 1")
    if put_back:
        job.do("ALTER TABLE shop.low REPLICA IDENTITY DEFAULT", "DROP INDEX shop.low_n")
    job.stops(SchemaChangedError if put_back else SourceNotUsableError, r"shop\.low.* replica identity")


@pytest.mark.pitfall(102)
def test_a_partition_with_another_identity_stops_a_running_job(make_job: MakeJob) -> None:
    job = make_partitioned(make_job, BY_NAME)
    with job.running() as (context, committed):
        job.do(BY_INDEX, "UPDATE shop.t SET id = 3 WHERE id = 1")
        epoch = context.planner().next_epoch(committed)
        (task,) = tasks_of(context, epoch)
        with pytest.raises(SchemaChangedError, match=r"shop\.low.* replica identity"):
            list(read_part(task))


@pytest.mark.pitfall(102)
@pytest.mark.parametrize("publication", [BY_NAME, ALL])
def test_partitions_whose_identity_has_the_key_are_followed(publication: str, make_job: MakeJob) -> None:
    job = make_partitioned(make_job, publication)
    job.do(
        "ALTER TABLE shop.low REPLICA IDENTITY FULL",
        "UPDATE shop.t SET id = 3 WHERE id = 1",
        "UPDATE shop.t SET v = 'b' WHERE id = 101",
        "UPDATE shop.t SET id = 102 WHERE id = 2",
    )
    job.follows()


@pytest.mark.pitfall(102)
@pytest.mark.parametrize("publication", [BY_NAME, ALL])
def test_an_identity_of_an_unrelated_table_stops_nothing(publication: str, make_job: MakeJob) -> None:
    """A TRUNCATE of two tables has the descriptions of both in a row, as the changes of a partition do."""
    job = make_partitioned(make_job, publication)
    job.do(
        "CREATE TABLE shop.other (a int PRIMARY KEY, b int NOT NULL UNIQUE)",
        "ALTER TABLE shop.other REPLICA IDENTITY USING INDEX other_b_key",
    )
    if publication == BY_NAME:
        job.do(f"ALTER PUBLICATION {job.database.name} ADD TABLE shop.other")
        job.follows()
    job.do(
        "TRUNCATE shop.t, shop.other",
        "BEGIN; INSERT INTO shop.other VALUES (1, 1); INSERT INTO shop.t VALUES (7, 'c'); UPDATE shop.other SET a = 2; COMMIT",
        "INSERT INTO shop.t (id, v, n) VALUES (8, 'd', 2)",
    )
    job.follows()


def test_tables_are_compared_only_if_the_catalogs_changed(make_job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    job = make_job(ALL, table=TWO_COLUMNS)
    looks = []
    monkeypatch.setattr(source, "look_again", lambda *args, **options: looks.append(1) or look_again(*args, **options))
    with job.running() as (context, _):
        access = context.server.planner_access(context.state)
        known = context.state.partitions
        assert known is not None
        for statement, changed in [
            ("SELECT", True),
            ("INSERT INTO shop.t VALUES (6, 'b')", False),
            ("CREATE TABLE shop.unrelated (id int PRIMARY KEY)", False),
            ("VACUUM FULL shop.t", True),
            ("ALTER TABLE shop.t ALTER v SET STATISTICS 7", True),
            ("CREATE UNIQUE INDEX ON shop.t (w)", True),
            ("ANALYZE shop.t", False),
        ]:
            looks.clear()
            job.do(statement)
            seen = access.look_at_partitions(known)
            assert bool(looks) == changed, statement
            assert seen.now.ended_xid >= known.ended_xid
            known = seen.now


@pytest.mark.pitfall(97)
@pytest.mark.parametrize("publication", [BY_NAME, ALL])
def test_a_new_column_stops_the_job_before_a_row_has_it(publication: str, make_job: MakeJob) -> None:
    """Its default fills all rows, and no row of them is in the log."""
    job = make_job(publication)
    job.do("ALTER TABLE shop.t ADD COLUMN w int DEFAULT 7")
    job.stops(SchemaChangedError, r"shop\.t has a new column \(w\), which the copy lacks")
    job.do("ALTER TABLE shop.t DROP COLUMN w")
    job.follows()


@pytest.mark.pitfall(97)
def test_a_generated_column_that_becomes_an_ordinary_one_stops_the_job(make_job: MakeJob) -> None:
    job = make_job()
    job.do("ALTER TABLE shop.t ADD COLUMN g int GENERATED ALWAYS AS (id * 2) STORED")
    job.follows()
    job.do("ALTER TABLE shop.t ALTER COLUMN g DROP EXPRESSION")
    job.stops(SchemaChangedError, r"shop\.t has a new column \(g\)")


BLUE, SAD = "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'", "ALTER TYPE mood RENAME VALUE 'blue' TO 'sad'"
FEW = "id int PRIMARY KEY, v text, m mood"


@pytest.mark.pitfall(97)
@pytest.mark.parametrize(
    ("column", "change"),
    [
        ("mood[]", BLUE),
        ("moodmultirange", BLUE),
        ("pair", BLUE),
        ("pair", "ALTER TYPE pair ADD ATTRIBUTE c int"),
        ("pair", "ALTER TYPE pair DROP ATTRIBUTE b"),
    ],
)
def test_an_altered_type_stops_the_job(
    column: str, change: str, make_job: MakeJob, postgres_source_database: Database
) -> None:
    postgres_source_database.execute(
        "CREATE TYPE mood AS ENUM ('ok', 'sad')",
        "CREATE TYPE pair AS (a mood, b int)",
        "CREATE TYPE moodrange AS RANGE (subtype = mood)",
    )
    job = make_job(table=f"id int PRIMARY KEY, v text, m {column}")
    job.do("ALTER TYPE mood ADD VALUE 'happy'", "INSERT INTO shop.t VALUES (60, 'b')")
    job.follows()
    job.do(change)
    job.stops(SchemaChangedError, r"The type of m of shop\.t was altered")


@pytest.mark.pitfall(97)
@pytest.mark.parametrize("written", ["between", "in one transaction"])
def test_a_label_that_had_another_name_for_a_while_stops_the_job(
    written: str, make_job: MakeJob, postgres_source_database: Database
) -> None:
    """The log has the label as it was when the row was written."""
    postgres_source_database.execute("CREATE TYPE mood AS ENUM ('ok', 'sad')")
    job = make_job(table=FEW)
    job.do("ALTER TYPE mood ADD VALUE 'happy'", "UPDATE shop.t SET m = 'sad' WHERE id = 1")
    job.follows()
    statements = [BLUE, "UPDATE shop.t SET m = 'blue' WHERE id = 2", SAD]
    job.do(*(statements if written == "between" else ["; ".join(["BEGIN", *statements, "COMMIT"])]))
    job.stops(SchemaChangedError, r"The type of m of shop\.t was altered")


@pytest.mark.pitfall(97)
def test_an_altered_row_type_of_a_table_stops_a_running_job(make_job: MakeJob) -> None:
    job = make_job(run=False)
    job.do("CREATE TABLE shop.line (a int, b text)", "CREATE DOMAIN shop.lines AS shop.line[]")
    job.do("ALTER TABLE shop.t ADD m shop.lines", "UPDATE shop.t SET m = ARRAY[(1, 'b')::shop.line]")
    for _ in range(TRIES):
        job.run()
        with job.running() as (context, committed):
            planner = context.planner()
            if planner.next_epoch(committed) != committed:
                continue  # the server has written into its log by itself
            job.do("ALTER TABLE shop.line ADD c int")
            with pytest.raises(SchemaChangedError, match=r"The type of m of shop\.t was altered"):
                planner.next_epoch(committed)
            return
    pytest.fail("there was something to read each time")
