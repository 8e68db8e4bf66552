"""Foreign keys with CASCADE or SET NULL, where the server does not log what they change (`source.cascades`)."""

from pathlib import Path

import pytest

from tests.support.epochs import Notes, run_epochs
from tests.support.jobs import source_of, write_job
from tests.support.servers import Database
from tidemark.state.errors import SourceNotUsableError

pytestmark = [pytest.mark.integration, pytest.mark.pitfall(39)]


def test_tables_are_copied_without_these_changes_where_the_job_file_says_so(
    mariadb_database: Database, postgres_database: Database, tmp_path: Path
) -> None:
    source, target = mariadb_database, postgres_database
    key = "FOREIGN KEY (p) REFERENCES parent (id) ON DELETE"
    source.execute(
        "CREATE TABLE parent (id INT PRIMARY KEY)",
        f"CREATE TABLE child (id INT PRIMARY KEY, p INT, {key} CASCADE)",
        "CREATE TABLE later (id INT PRIMARY KEY, p INT)",
        "INSERT INTO parent VALUES (1), (2)",
        "INSERT INTO child VALUES (1, 1), (2, 2)",
        "INSERT INTO later VALUES (1, 1), (2, 2)",
    )
    job = write_job(
        tmp_path,
        source=source_of(source),
        sink={"type": "mirror", "url": target.url, "table": "{table}"},
    )
    with pytest.raises(SourceNotUsableError, match="child is changed by foreign keys") as caught:
        run_epochs(job)
    assert "source.cascades: warn" in caught.value.remedy
    notes = Notes()
    run_epochs(job, "source.cascades=warn", notes=notes)
    warned = [facts["table"] for event, facts in notes.found if event == "warning" and "foreign keys" in facts["text"]]
    assert warned == [f"{source.name}.child"]
    source.execute(
        f"ALTER TABLE later ADD {key} SET NULL",
        "DELETE FROM parent WHERE id = 1",
        "INSERT INTO child VALUES (3, 2)",
        "UPDATE later SET p = NULL WHERE id = 2",
    )
    run_epochs(job, "source.cascades=warn")
    assert source.query("SELECT id FROM child ORDER BY id") == [(2,), (3,)]
    assert target.query("SELECT id FROM parent") == [(2,)]
    assert target.query("SELECT id, p FROM child ORDER BY id") == [(1, 1), (2, 2), (3, 2)]
    assert target.query("SELECT id, p FROM later ORDER BY id") == [(1, 1), (2, None)]
