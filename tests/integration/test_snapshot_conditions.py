"""Conditions of `snapshot.where`: which are taken, and when those that the server refuses are told."""

from pathlib import Path

import pytest

from tests.support.epochs import Notes, run_epochs
from tests.support.history import read_history
from tests.support.jobs import source_of, write_job
from tests.support.servers import Database
from tidemark.conf.load import load_job_file
from tidemark.jobs.sources import find_source
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import JobFileError

pytestmark = [
    pytest.mark.integration,
    pytest.mark.once_per_family,
    pytest.mark.servers_in_turn(always="postgres18_server"),
]


def job_of(database: Database, folder: Path, conditions: dict[str, str]) -> Path:
    return write_job(
        folder,
        source=source_of(database, on_table_error="park"),
        snapshot={"split_rows": 2, "where": {f"{database.schema}.{name}": text for name, text in conditions.items()}},
        sink={"type": "files", "path": str(folder / "out"), "on_schema_change": "evolve"},
    )


def create(database: Database, *tables: str) -> None:
    for table in tables:
        database.execute(
            f"CREATE TABLE {table} (id INT PRIMARY KEY)", f"INSERT INTO {table} VALUES (1), (2), (3), (4), (5)"
        )


@pytest.mark.parametrize(
    "condition",
    [
        "orders.id > 2",
        "{schema}.orders.id > 2 OR orders.id IS NULL",
        "EXISTS (SELECT 1 FROM {schema}.order_lines AS l WHERE l.id = orders.id + 0 AND orders.id > 2)",
    ],
)
def test_a_condition_may_write_the_tables_name_before_columns(
    condition: str, any_source_database: Database, tmp_path: Path
) -> None:
    database = any_source_database
    create(database, "orders", "order_lines")
    notes = Notes()
    run_epochs(job_of(database, tmp_path, {"orders": condition.format(schema=database.schema)}), notes=notes)
    assert sorted(read_history(tmp_path / "out", database.schema, "orders")["id"].to_pylist()) == [3, 4, 5]
    assert not [event for event, _ in notes.found if event in {"left", "parked"}]


def test_one_that_the_server_refuses_is_told_before_anything_is_created(
    any_source_database: Database, tmp_path: Path
) -> None:
    database = any_source_database
    create(database, "orders", "order_lines")
    job = job_of(database, tmp_path, {"orders": "misspelt > 2"})
    with pytest.raises(JobFileError, match=r"snapshot\.where of .*orders is refused: .*misspelt") as caught:
        run_epochs(job)
    assert caught.value.exit_code == 2
    assert Checkpoint.at(load_job_file(job).checkpoint).job_state() is None
    if database.kind == "postgres":
        assert database.query(f"SELECT FROM pg_publication WHERE pubname = '{database.name}'") == []


def test_a_new_table_with_such_a_condition_does_not_join(any_source_database: Database, tmp_path: Path) -> None:
    database = any_source_database
    create(database, "orders")
    conditions = {"fresh": "misspelt > 2"}
    run_epochs(job_of(database, tmp_path, conditions))
    create(database, "fresh", "other")
    notes = Notes()
    run_epochs(job_of(database, tmp_path, conditions), notes=notes)
    assert [facts["text"] for event, facts in notes.found if event == "warning" and "does not join" in facts["text"]]
    assert read_history(tmp_path / "out", database.schema, "other").num_rows == 5
    assert not (tmp_path / "out" / f"{database.schema}.fresh").exists()
    with find_source(load_job_file(tmp_path / "job.yaml")) as found:
        assert len(found.schemas) == 3
    run_epochs(job_of(database, tmp_path, {"fresh": "id > 2"}))
    assert sorted(read_history(tmp_path / "out", database.schema, "fresh")["id"].to_pylist()) == [3, 4, 5]


def test_a_row_for_which_the_server_can_t_compute_it_concerns_its_table(
    postgres_database: Database, tmp_path: Path
) -> None:
    create(postgres_database, "orders", "order_lines")
    run_epochs(job_of(postgres_database, tmp_path, {"orders": "10 / (id - 3) >= -10"}), notes=(notes := Notes()))
    (parked,) = [facts for event, facts in notes.found if event == "parked"]
    assert parked["table"] == "public.orders"
    assert "division by zero" in parked["text"]
    assert read_history(tmp_path / "out", "public", "order_lines").num_rows == 5
