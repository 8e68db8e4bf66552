"""Copies in MySQL and MariaDB have all characters of their tables, also of those that have got another character set."""

from pathlib import Path

import pytest

from tests.support.cli import CommandLine
from tests.support.epochs import Notes, run_epochs
from tests.support.jobs import source_of, write_job
from tests.support.remedies import advice_of, run_command, run_through
from tests.support.servers import Database
from tidemark.state.errors import SinkError

pytestmark = [pytest.mark.integration, pytest.mark.once_per_family, pytest.mark.servers_in_turn]

COLUMNS = "id INT NOT NULL, code VARCHAR(20) NOT NULL, name VARCHAR(20), kind ENUM('a', 'b'), note TEXT"
ROWS = "INSERT INTO t VALUES (1, 'a', 'one', 'a', 'x'), (2, 'b', 'two', 'b', NULL)"
WIDER = "ALTER TABLE t CONVERT TO CHARACTER SET utf8mb4"
CHARACTERS = ("\u00e9", "\u6f22", "\U0001f4a9")


@pytest.fixture(params=["mysql", "mariadb"])
def source(request: pytest.FixtureRequest) -> Database:
    database: Database = request.getfixturevalue(f"{request.param}_database")
    return database


@pytest.fixture
def target(source: Database, request: pytest.FixtureRequest) -> Database:
    """The other one of the two servers."""
    kind = {"mysql": "mariadb", "mariadb": "mysql"}[source.kind]
    database: Database = request.getfixturevalue(f"{kind}_database")
    return database


def job_of(source: Database, target: Database, folder: Path) -> Path:
    mirror = {"type": "mirror", "url": target.url, "table": "copy_{table}", "on_schema_change": "evolve"}
    tables = {"tables": [f"{source.schema}.{name}" for name in ("t", "other")]}
    given = source_of(source, on_table_error="park", **tables)
    return write_job(folder, source=given, checkpoint=str(folder / "c"), sink=mirror)


def create(source: Database, key: str, charset: str) -> None:
    source.execute(
        f"CREATE TABLE t ({COLUMNS}, PRIMARY KEY ({key})) CHARACTER SET {charset}",
        ROWS,
        "CREATE TABLE other (id INT PRIMARY KEY)",
        "INSERT INTO other VALUES (1)",
    )


def write_characters(source: Database) -> None:
    for number, text in enumerate(CHARACTERS, start=10):
        source.execute(f"INSERT INTO t VALUES ({number}, '{text}', '{text}', 'a', '{text * 9}')")


def assert_equal(source: Database, target: Database) -> None:
    query = (
        "SELECT id, CONVERT(code USING utf8mb4), CONVERT(name USING utf8mb4), kind, CONVERT(note USING utf8mb4) FROM %s"
    )
    assert target.query(f"{query % 'copy_t'} ORDER BY id") == source.query(f"{query % 't'} ORDER BY id")
    assert target.query("SELECT id FROM copy_other") == source.query("SELECT id FROM other")


@pytest.mark.parametrize(
    "charset",
    ["latin1", *(pytest.param(name, marks=pytest.mark.every_server) for name in ("utf8mb3", "ascii"))],
)
@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("id", [WIDER]),
        ("code", [WIDER]),
        ("id", [WIDER, "ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (id, code)"]),
        ("id", ["DROP TABLE t", f"CREATE TABLE t ({COLUMNS}, PRIMARY KEY (id)) CHARACTER SET utf8mb4", ROWS]),
    ],
    ids=["columns", "key", "another-key", "another-table"],
)
def test_a_copy_gets_the_characters_that_its_table_has_got(
    charset: str, key: str, change: list[str], source: Database, target: Database, tmp_path: Path
) -> None:
    create(source, key, charset)
    run_epochs(job := job_of(source, target, tmp_path))
    source.execute(*change)
    write_characters(source)
    run_epochs(job, notes=(notes := Notes()))
    assert "parked" not in [event for event, _ in notes.found]
    assert_equal(source, target)


def test_a_copy_that_lacks_characters_goes_on_until_one_comes_and_gets_them_by_a_signal(
    source: Database, target: Database, tidemark: CommandLine, tmp_path: Path
) -> None:
    create(source, "id", "utf8mb4")
    run_epochs(job := job_of(source, target, tmp_path))
    target.execute("ALTER TABLE copy_t MODIFY name VARCHAR(20) CHARACTER SET latin1")
    source.execute("UPDATE t SET name = 'three' WHERE id = 2")
    run_through(job)
    assert_equal(source, target)
    write_characters(source)
    source.execute("INSERT INTO other VALUES (2)")
    told = advice_of(job)
    assert "Incorrect string value" in told
    assert target.query("SELECT id FROM copy_other") == source.query("SELECT id FROM other")
    run_command(told, job, tidemark)
    run_through(job)
    assert_equal(source, target)


@pytest.mark.parametrize("charset", ["latin1", "utf8mb3"])
def test_an_existing_table_that_lacks_characters_is_refused(
    charset: str, source: Database, target: Database, tmp_path: Path
) -> None:
    create(source, "id", "utf8mb4")
    labels = "kind ENUM('a', 'b') CHARACTER SET latin1"  # its labels are all that it needs
    name = f"name VARCHAR(20) CHARACTER SET {charset}"
    columns = f"id INT PRIMARY KEY, code VARCHAR(20), {name}, {labels}, note TEXT"
    target.execute(f"CREATE TABLE copy_t ({columns}) CHARACTER SET utf8mb4")
    job = job_of(source, target, tmp_path)
    with pytest.raises(
        SinkError, match=f"column name is in the character set {charset}, which lacks characters"
    ) as caught:
        run_epochs(job)
    assert "Drop that table and let the job create it" in caught.value.remedy
    target.execute("ALTER TABLE copy_t MODIFY name VARCHAR(20) CHARACTER SET utf8mb4")
    run_through(job)
    write_characters(source)
    run_through(job)
    assert_equal(source, target)
