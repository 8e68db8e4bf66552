"""Remedies around the failover of a PostgreSQL source, done as they are printed: the job goes on, and its copy is that of the
source."""

from pathlib import Path

import pytest

from tests.support.epochs import before_the_next_epoch
from tests.support.postgres_standby import Pair, primary_and_standby
from tests.support.remedy_ways import mirror_job, require_copies, told_by, told_of
from tests.support.servers import Database, restart_with

pytestmark = [pytest.mark.integration, pytest.mark.every_server]


def test_servers_that_answer_in_place_of_the_jobs(
    mysql_database: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A standby while the job runs, a promoted one without a replication connection to spare, a former primary, and a server
    that went its own way."""
    with primary_and_standby("shop") as pair:
        pair.database.execute(
            "CREATE TABLE orders (id int PRIMARY KEY, note varchar(90))",
            "INSERT INTO orders VALUES (1, 'a')",
            "CREATE PUBLICATION shop FOR TABLE orders",
        )
        pair.create_slot("shop")
        job = mirror_job(tmp_path, pair.database, mysql_database, url=pair.url)
        assert told_by(job) is None
        write(pair.database)
        with pytest.MonkeyPatch.context() as patch:
            before_the_next_epoch(patch, lambda: lead_to(pair, pair.standby))
            remedy = "Run the job again once the failover is over: it continues. Or name the primary in source.url."
            told_of(job, remedy)
        there = f"source.url={pair.database.url}"
        assert told_by(job, there) is None
        require_copies(pair.database, mysql_database)
        write(pair.database)
        pair.await_standby()
        pair.fail_over()
        restart_with(pair.standby, max_wal_senders="0")
        told_of(job, "raise max_wal_senders if all of them are taken. Then run the job again: it continues.")
        restart_with(pair.standby, max_wal_senders="10")
        require_it_goes_on(pair, job, mysql_database)
        pair.primary.start()
        lead_to(pair, pair.primary)
        told = told_of(job, "a former primary answers")
        assert told.endswith("Remedy: Connect to the server that was promoted.")
        lead_to(pair, pair.standby)
        require_it_goes_on(pair, job, mysql_database)
        go_own_way(pair)
        lead_to(pair, pair.primary)
        told_of(job, "is on timeline 3, which does not come from timeline 2")
        told_of(job, "Connect to the server that the job has read. If it is gone, start over")
        lead_to(pair, pair.standby)
        require_it_goes_on(pair, job, mysql_database)


def write(database: Database) -> None:
    database.execute("INSERT INTO orders SELECT max(id) + 1, 'b' FROM orders")


def lead_to(pair: Pair, server: object) -> None:
    pair.address.server = server


def require_it_goes_on(pair: Pair, job: Path, target: Database) -> None:
    for _ in range(2):
        write(pair.promoted)
        assert told_by(job) is None
        require_copies(pair.promoted, target)


def go_own_way(pair: Pair) -> None:
    """Promotes the former primary to a timeline of its own, the third."""
    here, there = pair.primary.data_folder, pair.standby.data_folder
    assert here is not None
    assert there is not None
    pair.primary.stop()
    (history,) = (there / "pg_wal").glob("00000002.history")
    (here / "pg_wal" / history.name).write_bytes(history.read_bytes())
    (here / "standby.signal").touch()
    with (here / "postgresql.auto.conf").open("a") as lines:
        lines.write("recovery_target_timeline = 'current'\n")
    pair.primary.start()
    pair.database.query("SELECT pg_promote()")
