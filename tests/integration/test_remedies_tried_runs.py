"""Remedies for what happens to a PostgreSQL source while a job runs or starts, done as they are printed: the job goes on, and
its copies are those of the source."""

import contextlib
import os
import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from devtools.servers import start_server
from tests.support.cli import CommandLine
from tests.support.epochs import before_the_next_epoch, run_epochs
from tests.support.invisible_commits import invisible
from tests.support.postgres_roles import role
from tests.support.remedies import commands_in, run_command
from tests.support.remedy_ways import (
    Trouble,
    by_hand,
    mirror_job,
    require_copies,
    start_over,
    statements,
    told_by,
    told_of,
)
from tests.support.servers import Database, FindServer, fresh_database
from tidemark.readers.log import key_rereads
from tidemark.readers.postgres import source as postgres_source
from tidemark.readers.postgres.connect import Connection
from tidemark.readers.postgres.slot import open_transactions, publication, slot
from tidemark.readers.postgres.slot.publication import create_publication
from tidemark.state.errors import SourceUnavailableError
from tidemark.state.table import TableId

pytestmark = [pytest.mark.integration, pytest.mark.every_server]


def a_job(folder: Path, source: Database, target: Database, **settings: Any) -> Path:
    source.execute("CREATE TABLE orders (id int PRIMARY KEY, note varchar(90))", "INSERT INTO orders VALUES (1, 'a')")
    return mirror_job(folder, source, target, **settings)


BAD = "CREATE TABLE bad (id int PRIMARY KEY, code int NOT NULL, CONSTRAINT by_code UNIQUE (code))"
PARTS = (
    "CREATE TABLE bad (id int PRIMARY KEY, code int) PARTITION BY RANGE (id)",
    "CREATE TABLE low PARTITION OF bad DEFAULT",
)
ONE_BY_ONE = "snapshot.split_rows=10", "snapshot.parallelism=1", "snapshot.interleave=false"
ALTER = r"ALTER TABLE \S+ REPLICA IDENTITY \w+"
WHILE_IT_RUNS = {
    "a table is renamed": Trouble(
        ("ALTER TABLE bad RENAME TO away", "INSERT INTO away VALUES (7, 7)"),
        "Give it back its name",
        by_hand("ALTER TABLE away RENAME TO bad"),
        before=(BAD,),
    ),
    "a table is renamed for good": Trouble(
        ("ALTER TABLE bad RENAME TO away", "INSERT INTO away VALUES (7, 7)"),
        "write that in source.tables, and the old one in source.exclude_tables.",
        by_hand(settings=("source.tables=[public.orders, public.away]", "source.exclude_tables=[public.bad]")),
        before=(BAD,),
    ),
    "a table is unlogged": Trouble(
        ("ALTER TABLE bad SET UNLOGGED",),
        "ALTER TABLE",
        statements(r"ALTER TABLE \S+ SET LOGGED"),
        before=(BAD, 'CREATE PUBLICATION "NAME" FOR ALL TABLES'),
        later=("INSERT INTO bad VALUES (7, 7)",),
    ),
    "a partition has no log": Trouble(
        ("CREATE UNLOGGED TABLE off PARTITION OF bad FOR VALUES FROM (5000) TO (6000)",),
        "Detach it",
        by_hand("ALTER TABLE bad DETACH PARTITION off"),
        before=PARTS,
        later=("INSERT INTO bad VALUES (5001)",),
    ),
    "a key is null for a moment": Trouble(
        (
            "ALTER TABLE bad ALTER code DROP NOT NULL",
            "INSERT INTO bad VALUES (7, NULL)",
            "DELETE FROM bad WHERE id = 7",
            "ALTER TABLE bad ALTER code SET NOT NULL",
        ),
        "Declare the key's columns NOT NULL",
        by_hand("ALTER TABLE bad ALTER code SET NOT NULL"),
        before=("CREATE TABLE bad (id int, code int NOT NULL UNIQUE)", "ALTER TABLE bad REPLICA IDENTITY FULL"),
        kept=("source.keys={public.bad: [code]}",),
        later=("INSERT INTO bad VALUES (7, 7)",),
    ),
    "a table without a key is logged by one": Trouble(
        (
            "ALTER TABLE bad REPLICA IDENTITY USING INDEX by_id",
            "UPDATE bad SET id = 7",
            "ALTER TABLE bad REPLICA IDENTITY DEFAULT",
        ),
        "let it have a primary key, or ALTER TABLE",
        statements(ALTER),
        before=(
            "CREATE TABLE bad (id int NOT NULL)",
            "CREATE UNIQUE INDEX by_id ON bad (id)",
            "ALTER TABLE bad REPLICA IDENTITY FULL",
            "INSERT INTO bad VALUES (1)",
        ),
        kept=("sink.keyless=append",),
        later=("INSERT INTO bad VALUES (8)",),
    ),
}


@pytest.mark.parametrize("name", WHILE_IT_RUNS)
def test_a_table_that_is_altered_while_the_job_runs(
    postgres18_database: Database,
    mysql_database: Database,
    tidemark: CommandLine,
    tmp_path: Path,
    name: str,
) -> None:
    source = postgres18_database
    job = a_job(tmp_path, source, mysql_database, tables=["public.orders", "public.bad"], on_table_error="stop")
    trouble = WHILE_IT_RUNS[name]
    source.execute(*[text.replace("NAME", source.name) for text in trouble.before])
    assert told_by(job, *trouble.kept) is None
    source.execute("UPDATE orders SET note = 'c'")
    with pytest.MonkeyPatch.context() as patch:
        before_the_next_epoch(patch, lambda: source.execute(*trouble.made))
        told = told_by(job, *trouble.kept) or told_by(job, *trouble.kept)
    assert told is not None
    assert trouble.says in told
    settings = (*trouble.does(told, source), *trouble.kept)
    done = set()
    while (more := told_by(job, *settings)) is not None:
        assert more not in done, more
        done.add(more)
        if commands_in(more):
            run_command(more, job, tidemark)
        else:
            start_over(job, source, mysql_database, tidemark)
    source.execute("UPDATE orders SET note = 'z'", *trouble.later)
    assert told_by(job, *settings) is None
    require_copies(source, mysql_database, left="bad" if name == "a table is renamed for good" else None)


def test_a_role_that_loses_rights_while_the_job_runs(
    postgres18_database: Database, mysql_database: Database, tmp_path: Path
) -> None:
    """REPLICATION, and EXECUTE of a function that all roles have at first."""
    source = postgres18_database
    job = a_job(tmp_path, source, mysql_database)
    source.execute(f'CREATE PUBLICATION "{source.name}" FOR TABLE orders')
    with role(source, "USAGE ON SCHEMA public", "SELECT ON orders", attributes="LOGIN REPLICATION") as user:
        url = f"source.url={user.url_with_password()}"
        assert told_by(job, url) is None
        source.execute("UPDATE orders SET note = 'b'")
        with pytest.MonkeyPatch.context() as patch:
            before_the_next_epoch(patch, lambda: source.execute(f"ALTER ROLE {user.user} NOREPLICATION"))
            told = told_of(job, "The role may not read the log", url)
        statements(r'ALTER ROLE "\w+" REPLICATION')(told, source)
        assert told_by(job, url) is None
        require_copies(source, mysql_database)
        source.execute("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM public", "UPDATE orders SET note = 'c'")
        try:
            told_of(job, "GRANT the role of source.url what is missing.", url)
            source.execute(f"GRANT EXECUTE ON FUNCTION pg_control_system() TO {user.user}")
            assert told_by(job, url) is None
        finally:
            source.execute("GRANT EXECUTE ON FUNCTION pg_control_system() TO public")
        require_copies(source, mysql_database)


def test_a_server_that_refuses_to_publish(
    postgres18_database: Database, mysql_database: Database, tmp_path: Path
) -> None:
    """Here by a trigger of its administrators."""
    source = postgres18_database
    job = a_job(tmp_path, source, mysql_database)
    source.execute(
        "CREATE FUNCTION no() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'ask DB team: no() forbids it'; END $$",
        "CREATE EVENT TRIGGER no ON ddl_command_start WHEN TAG IN ('CREATE PUBLICATION') EXECUTE FUNCTION no()",
    )
    told = told_of(job, "The source refuses the job's publication: (P0001)")
    assert "Correct what the server's message says, then run the job again." in told
    source.execute("DROP EVENT TRIGGER no")
    require_it_goes_on(job, source, mysql_database)


def require_it_goes_on(job: Path, source: Database, target: Database, *settings: str) -> None:
    for _ in range(2):
        assert told_by(job, *settings) is None
        require_copies(source, target)
        source.execute("UPDATE orders SET note = 'z'")


def test_a_slot_that_is_older_than_the_publication(
    postgres18_database: Database, mysql_database: Database, tmp_path: Path
) -> None:
    source = postgres18_database
    job = a_job(tmp_path, source, mysql_database)
    source.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput', false, false, true)", (source.name,))
    source.execute("UPDATE orders SET note = 'b'", f'CREATE PUBLICATION "{source.name}" FOR TABLE orders')
    follow = "mode=incremental"
    told_of(job, "Write log.start: latest.", follow, "log.start=earliest")
    assert told_by(job, follow, "log.start=latest") is None
    source.execute("INSERT INTO orders VALUES (2, 'c')")
    assert told_by(job, follow, "log.start=latest") is None
    assert mysql_database.query("SELECT * FROM copy_orders") == [(2, "c")]


def test_what_a_start_waits_for_is_ended(
    postgres18_database: Database, mysql_database: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A session that keeps a table from being published, and transactions that are older than the slot."""
    monkeypatch.setattr(publication, "SETTLE_SECONDS", 0.3)
    monkeypatch.setattr(open_transactions, "SETTLE_SECONDS", 0.3)
    source = postgres18_database
    job = a_job(tmp_path, source, mysql_database)
    for statement in ("LOCK TABLE orders IN SHARE MODE", "INSERT INTO orders VALUES (2, 'b')"):
        with contextlib.closing(source.connect()) as other, other.cursor() as cursor:
            cursor.execute(f"BEGIN; {statement}")
            told = told_by(job)
            assert told is not None
            assert told.endswith("Then run the job again.")
            (ending,) = re.findall(r"SELECT pg_terminate_backend\(\d+\)", told)
            source.query(ending)
    require_it_goes_on(job, source, mysql_database)


def test_a_table_that_loses_its_identity_while_the_job_starts(
    postgres18_database: Database, mysql_database: Database, tmp_path: Path
) -> None:
    source = postgres18_database
    job = a_job(tmp_path, source, mysql_database)

    def create(connection: Connection, name: str, tables: Sequence[TableId]) -> bool:
        source.execute("ALTER TABLE orders REPLICA IDENTITY NOTHING")
        return create_publication(connection, name, tables)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(postgres_source, "create_publication", create)
        told_of(job, "Run the job again. It says what the table needs.")
    statements(ALTER)(told_of(job, "The replica identity of public.orders is NOTHING"), source)
    require_it_goes_on(job, source, mysql_database)


def test_a_publication_that_is_created_again_while_the_job_runs(
    postgres_database: Database, mysql_database: Database, tidemark: CommandLine, tmp_path: Path
) -> None:
    source = postgres_database
    job = a_job(tmp_path, source, mysql_database, on_log_lost="stop")
    assert told_by(job) is None
    name = f'PUBLICATION "{source.name}"'
    source.execute(f"DROP {name}", "UPDATE orders SET note = 'b'", f"CREATE {name} FOR TABLE orders")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(postgres_source, "require_memberships", lambda *_: None)  # as if it had been created after that
        told_of(job, "Do not drop a publication that a job uses.")
    start_over(job, source, mysql_database, tidemark)
    require_it_goes_on(job, source, mysql_database)


def test_a_server_whose_disk_stands_still(
    mysql_database: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Here the process that flushes the log does."""
    monkeypatch.setitem(slot.log_end.__kwdefaults__, "seconds", 1.0)
    with start_server("postgres", version="18") as server, fresh_database(server) as source:
        if server.data_folder is None:
            pytest.skip("the server's processes are not on this machine")
        job = a_job(tmp_path, source, mysql_database)
        assert told_by(job) is None
        ((process,),) = source.query("SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'")
        with contextlib.closing(source.connect()) as other, other.cursor() as cursor:
            os.kill(process, signal.SIGSTOP)
            try:
                cursor.execute("BEGIN; INSERT INTO orders VALUES (2, 'b')")
                told_of(job, "Check the server's disk, then run the job again: it continues.")
            finally:
                os.kill(process, signal.SIGCONT)
            cursor.execute("COMMIT")
        require_it_goes_on(job, source, mysql_database)


def test_commits_that_wait_for_a_synchronous_standby(
    find_server: FindServer, mysql_database: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The session's wait is ended, as by a standby that comes back."""
    monkeypatch.setattr(key_rereads, "MAX_WAIT_SECONDS", 0.5)
    server = find_server("postgres", "18", synchronous_standby_names="nobody", synchronous_commit="local")
    with fresh_database(server) as source:
        long = "(SELECT string_agg(md5(j::text), '') FROM generate_series(1, 100) AS j)"
        source.execute(
            "CREATE TABLE orders (id int PRIMARY KEY, note text)",
            "ALTER TABLE orders ALTER note SET STORAGE EXTERNAL",
            f"INSERT INTO orders SELECT i, {long} FROM generate_series(1, 40) AS i",
        )
        job = mirror_job(tmp_path, source, mysql_database)
        run_epochs(job, *ONE_BY_ONE, at_most=1)
        with invisible(source, "UPDATE orders SET id = 135 WHERE id = 5"):
            with pytest.raises(SourceUnavailableError) as caught:
                run_epochs(job, at_most=3)
            says = "bring it back (pg_stat_activity shows the wait event SyncRep), and start the job again"
            assert says in caught.value.remedy
            assert source.query("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'") == [(1,)]
        assert told_by(job) is None
        require_copies(source, mysql_database)
