"""A table that the source refuses to read, for its files or for a value of it, is parked. The others are copied."""

from pathlib import Path

import pytest

from tests.support.epochs import Notes, run_epochs
from tests.support.jobs import source_of, write_job
from tests.support.servers import Database, fresh_database
from tidemark.conf.load import load_job_file
from tidemark.conf.tables import TableName
from tidemark.jobs.commands.signal import resnapshot

pytestmark = [pytest.mark.integration, pytest.mark.once_per_family]


def parked_in(notes: Notes) -> list[str]:
    return [facts["table"].rpartition(".")[2] for event, facts in notes.found if event == "parked"]


def test_a_value_that_can_not_be_computed_concerns_its_table(any_source_database: Database, tmp_path: Path) -> None:
    """In snapshot.where, for one row. The job comes to the table once the row is corrected."""
    source = any_source_database
    kind, where, corrected = "INT UNSIGNED", "a - b < 100", "UPDATE wrong SET b = 1"
    if source.kind == "postgres":
        kind, where = "INT", "a / (b - 2) < 100"
    source.execute(
        f"CREATE TABLE wrong (id INT PRIMARY KEY, a {kind}, b {kind})",
        "INSERT INTO wrong VALUES (1, 1, 2)",
        "CREATE TABLE right_one (id INT PRIMARY KEY)",
        "INSERT INTO right_one VALUES (1)",
    )
    with fresh_database(source.server) as target:
        job = write_job(
            tmp_path,
            source=source_of(source, on_table_error="park"),
            snapshot={"where": {f"{source.schema}.wrong": where}},
            sink={"type": "mirror", "url": target.url, "table": "{table}", "on_schema_change": "evolve"},
        )
        run_epochs(job)
        source.execute("INSERT INTO right_one VALUES (2)", corrected)
        run_epochs(job, notes=(notes := Notes()))
        assert parked_in(notes) == ["wrong"]
        assert target.query("SELECT id FROM right_one ORDER BY id") == [(1,), (2,)]
        resnapshot(load_job_file(job), [TableName(source.schema, "wrong")])
        run_epochs(job)
        assert target.query("SELECT * FROM wrong") == source.query("SELECT * FROM wrong")


def test_a_table_without_its_tablespace_concerns_no_other(source_database: Database, tmp_path: Path) -> None:
    """As between DISCARD and IMPORT TABLESPACE, when single tables are restored. The split keys can't be read either."""
    source = source_database
    source.execute(
        "CREATE TABLE away (id INT PRIMARY KEY, v INT)",
        "INSERT INTO away VALUES (1, 1)",
        "CREATE TABLE other (id INT PRIMARY KEY)",
    )
    with fresh_database(source.server) as target:
        job = write_job(
            tmp_path,
            source=source_of(source, on_table_error="park"),
            sink={"type": "mirror", "url": target.url, "table": "{table}", "on_schema_change": "evolve"},
        )
        run_epochs(job)
        source.execute("ALTER TABLE away DISCARD TABLESPACE", "INSERT INTO other VALUES (1)")
        for number in (1, 2):
            run_epochs(job, notes=(notes := Notes()))
            assert target.query("SELECT COUNT(*) FROM other") == [(number,)]
            source.execute(f"INSERT INTO other VALUES ({number + 1})")
        assert parked_in(notes) == ["away"]
        source.execute(
            "DROP TABLE away", "CREATE TABLE away (id INT PRIMARY KEY, v INT)", "INSERT INTO away VALUES (2, 2)"
        )
        resnapshot(load_job_file(job), [TableName(source.schema, "away")])
        run_epochs(job)
        assert target.query("SELECT * FROM away") == [(2, 2)]
        assert target.query("SELECT COUNT(*) FROM other") == [(3,)]
