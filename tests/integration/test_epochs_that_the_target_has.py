"""A run dies when the target has all of an epoch, before the checkpoint says so. Then somebody breaks a copy."""

from pathlib import Path

import pytest

from tests.integration.test_frozen_drivers import copied, job_into, mirror_into
from tests.support.epochs import die_at, run_epochs
from tests.support.remedies import remedy_of
from tests.support.servers import Database
from tidemark.conf.load import load_job_file
from tidemark.conf.tables import TableName
from tidemark.jobs.commands.signal import resnapshot
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import SinkError
from tidemark.state.table import TableId

pytestmark = pytest.mark.integration


@pytest.mark.servers_in_turn("point", "break_copy")
@pytest.mark.parametrize("point", ["sink.after_commit", "driver.epoch_written"])
@pytest.mark.parametrize(
    "break_copy",
    [
        "ALTER TABLE copy_orders DROP COLUMN note",
        "DROP TABLE copy_orders",
        "ALTER TABLE copy_orders DROP CONSTRAINT copy_orders_pkey",
    ],
)
def test_only_the_table_of_the_broken_copy_is_parked(
    mysql_database: Database, postgres_database: Database, tmp_path: Path, break_copy: str, point: str
) -> None:
    source, target = mysql_database, postgres_database
    for table in ("orders", "items"):
        source.execute(
            f"CREATE TABLE {table} (id INT PRIMARY KEY, note TEXT)", f"INSERT INTO {table} VALUES (1, 'first')"
        )
    job = job_into(tmp_path, source, mirror_into(target))
    run_epochs(job)
    change = "INSERT INTO {} SELECT max(id) + 1, 'next' FROM {}"
    for table in ("orders", "items"):
        source.execute(change.replace("{}", table))
    die_at(job, point)
    target.execute(break_copy)
    for table in ("orders", "items"):
        source.execute(change.replace("{}", table))
    run_epochs(job)
    assert copied(target, source, "items") == source.query("SELECT * FROM items ORDER BY id")
    state = Checkpoint.at(str(tmp_path / "checkpoint")).job_state()
    assert state is not None
    assert state.left_tables == {TableId(source.schema, "orders")}
    resnapshot(load_job_file(job), [TableName(source.schema, "orders")])
    run_epochs(job)
    for table in ("orders", "items"):
        assert copied(target, source, table) == source.query(f"SELECT * FROM {table} ORDER BY id")


def test_the_printed_signal_helps_if_a_table_must_not_be_parked(
    mysql_database: Database, postgres_database: Database, tmp_path: Path
) -> None:
    source, target = mysql_database, postgres_database
    source.execute("CREATE TABLE orders (id INT PRIMARY KEY, note TEXT)", "INSERT INTO orders VALUES (1, 'first')")
    job, stop = job_into(tmp_path, source, mirror_into(target)), "source.on_table_error=stop"
    run_epochs(job, stop)
    source.execute("INSERT INTO orders VALUES (2, 'second')")
    die_at(job, "sink.after_commit", stop)
    target.execute("DROP TABLE copy_orders")
    remedy = remedy_of(job, SinkError, stop)
    assert f"tidemark signal JOB.yaml resnapshot --table {source.schema}.orders" in remedy
    resnapshot(load_job_file(job), [TableName(source.schema, "orders")])
    run_epochs(job, stop)
    assert copied(target, source, "orders") == source.query("SELECT * FROM orders ORDER BY id")
