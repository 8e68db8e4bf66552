"""Values of a source that Arrow's types have no place for: infinite dates, NaN, invalid dates in keys. They obey
`sink.on_bad_value`, and one of them does not end a job for its other tables."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.epochs import Notes, run_epochs
from tests.support.history import read_history
from tests.support.jobs import source_of, write_job
from tests.support.servers import Database
from tidemark.state.errors import SinkError, SourceNotUsableError

pytestmark = [pytest.mark.integration, pytest.mark.pitfall(109)]

COLUMNS = "d date, t timestamp, z timestamptz, n numeric(12,2)"
ODD = "'infinity', '-infinity', 'infinity', 'NaN'"
PLAIN = "'2024-02-29', '2024-02-29 12:00', '2024-02-29 12:00+00', 1.50"
MINUS = "'-infinity', 'infinity', '-infinity', -1.50"
BC = "'0044-03-15 BC', '0044-03-15 12:00 BC', '0044-03-15 12:00+00 BC', 0"


def mirror_of(target: Database, **settings: Any) -> dict[str, Any]:
    return {"type": "mirror", "url": target.url, "table": "{table}", **settings}


def test_postgres_copies_hold_infinities_and_nan_as_they_are(
    postgres_source_database: Database, postgres_database: Database, tmp_path: Path
) -> None:
    source, target = postgres_source_database, postgres_database
    text = "SELECT concat(k, id), d::text, t::text, z::text, n::text FROM {} ORDER BY 1"
    source.execute(
        "CREATE SCHEMA shop",
        f"CREATE TABLE shop.odd_values (k date, id int, {COLUMNS}, PRIMARY KEY (k, id))",
        f"INSERT INTO shop.odd_values SELECT '2024-01-01', i, {PLAIN} FROM generate_series(1, 40) i",
        f"INSERT INTO shop.odd_values SELECT '-infinity', i, {ODD} FROM generate_series(1, 40) i",
        f"INSERT INTO shop.odd_values SELECT 'infinity', i, {BC} FROM generate_series(1, 40) i",
    )
    path = write_job(
        tmp_path,
        source=source_of(source, tables=["shop.*"]),
        sink=mirror_of(target),
        snapshot={"split_rows": 7, "parallelism": 1},
    )
    run_epochs(path, at_most=4)
    source.execute(  # some of these keys are in splits that are read, and some in others
        f"UPDATE shop.odd_values SET (d, t, z, n) = ROW({MINUS}) WHERE id % 3 = 0",
        "DELETE FROM shop.odd_values WHERE id % 5 = 0",
        f"INSERT INTO shop.odd_values VALUES ('infinity', 99, {ODD}), ('-infinity', 99, {PLAIN})",
    )
    run_epochs(path)
    assert target.query(text.format("odd_values")) == source.query(text.format("shop.odd_values"))
    source.execute(
        "UPDATE shop.odd_values SET k = 'infinity' WHERE k = '2024-01-01' AND id = 1 AND false",
        f"UPDATE shop.odd_values SET (d, t, z, n) = ROW({ODD}) WHERE k = 'infinity'",
        "UPDATE shop.odd_values SET k = 'infinity', id = 1000 + id WHERE k = '-infinity' AND id < 10",
        "DELETE FROM shop.odd_values WHERE k = '-infinity' AND id > 30",
    )
    run_epochs(path)
    assert target.query(text.format("odd_values")) == source.query(text.format("shop.odd_values"))


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
@pytest.mark.parametrize("in_log", [False, True], ids=["snapshot", "log"])
def test_a_value_of_the_source_obeys_the_mirrors_policy(
    kind: str, in_log: bool, request: pytest.FixtureRequest, postgres_database: Database, tmp_path: Path
) -> None:
    source, target = postgres_database, request.getfixturevalue(f"{kind}_database")
    source.execute(
        "CREATE SCHEMA shop",
        f"CREATE TABLE shop.odd_values (id int PRIMARY KEY, {COLUMNS})",
        "CREATE TABLE shop.notes (id int PRIMARY KEY, v text)",
        "INSERT INTO shop.notes VALUES (1, 'a')",
    )
    path = write_job(
        tmp_path,
        source=source_of(source, tables=["shop.*"]),
        sink=mirror_of(target, url=f"{target.server.url}{target.name}"),
    )
    if in_log:
        run_epochs(path)
    source.execute(
        f"INSERT INTO shop.odd_values VALUES (1, {ODD}), (2, {PLAIN})",
        "INSERT INTO shop.notes VALUES (2, 'b')",
    )
    with pytest.raises(SinkError, match=r"shop\.odd_values: a value of column (d|t|z|n) is .*can't hold\.") as caught:
        run_epochs(path)
    assert "sink.on_bad_value_in: {shop.odd_values: {" in caught.value.remedy
    assert "infinity" not in caught.value.message
    source.execute("UPDATE shop.odd_values SET d = '2024-01-01' WHERE id = 1")  # is not enough, says the remedy
    if in_log:
        with pytest.raises(SinkError, match="can't hold"):
            run_epochs(path)
    policies = "{d: null, t: null, z: null, n: reject}"
    run_epochs(path, f"sink.on_bad_value_in={{shop.odd_values: {policies}}}")
    assert [row[0] for row in target.query("SELECT id FROM odd_values ORDER BY id")] == [2]
    ((rejected,),) = target.query("SELECT row_data FROM tidemark_rejects")
    assert '"t":"-infinity","z":"infinity","n":"NaN"' in rejected.replace("+00:00", "")
    source.execute("UPDATE shop.odd_values SET n = 7 WHERE id = 1")
    run_epochs(path, "sink.on_bad_value=null")
    assert target.query("SELECT id, t IS NULL, n FROM odd_values ORDER BY id")[0] == (1, 1, 7)
    assert target.query("SELECT row_data FROM tidemark_rejects") == []
    assert [row[0] for row in target.query("SELECT id FROM notes ORDER BY id")] == [1, 2]


@pytest.mark.parametrize("in_log", [False, True], ids=["snapshot", "log"])
def test_files_stop_or_have_null(postgres_database: Database, tmp_path: Path, in_log: bool) -> None:
    source = postgres_database
    source.execute("CREATE SCHEMA shop", f"CREATE TABLE shop.odd_values (id int PRIMARY KEY, {COLUMNS})")
    path = write_job(
        tmp_path,
        source=source_of(source, tables=["shop.*"]),
        sink={"type": "files", "path": str(tmp_path / "out")},
    )
    if in_log:
        run_epochs(path)
    source.execute(f"INSERT INTO shop.odd_values VALUES (1, {ODD}), (2, {PLAIN})")
    settings: dict[str, str] = {}
    for column in ("d", "t", "z", "n"):  # one remedy after the other
        with pytest.raises(
            SourceNotUsableError, match=rf"shop\.odd_values\.{column} holds .*a copy can't hold"
        ) as caught:
            run_epochs(path, *_overrides(settings))
        assert f"Set sink.on_bad_value_in: {{shop.odd_values: {{{column}: null}}}}, then start" in caught.value.remedy
        settings[column] = "null"
    run_epochs(path, *_overrides(settings))
    rows = read_history(tmp_path / "out", "shop", "odd_values").to_pylist()
    first, second = sorted(rows, key=lambda row: row["id"])
    assert [first[name] for name in ("d", "t", "z", "n")] == [None] * 4
    assert None not in [second[name] for name in ("d", "t", "z", "n")]


def _overrides(columns: dict[str, str]) -> list[str]:
    inner = ", ".join(f"{name}: {policy}" for name, policy in columns.items())
    return [f"sink.on_bad_value_in={{shop.odd_values: {{{inner}}}}}"] if columns else []


def test_transforms_never_see_marks(postgres_database: Database, mysql_database: Database, tmp_path: Path) -> None:
    source, target = postgres_database, mysql_database
    source.execute(
        "CREATE SCHEMA shop",
        f"CREATE TABLE shop.odd_values (id int PRIMARY KEY, {COLUMNS})",
        f"INSERT INTO shop.odd_values VALUES (1, {ODD})",
    )
    path = write_job(
        tmp_path,
        source=source_of(source, tables=["shop.*"]),
        sink=mirror_of(target, url=f"{target.server.url}{target.name}"),
        transforms={"shop.odd_values": "SELECT *, extract(year FROM d) AS year FROM input"},
    )
    with pytest.raises(SourceNotUsableError, match=r"shop\.odd_values\.d holds") as caught:
        run_epochs(path)
    assert "Set sink.on_bad_value: null, then start" in caught.value.remedy
    run_epochs(path, "sink.on_bad_value=null")
    assert target.query("SELECT id, d, t, n, year FROM odd_values") == [(1, None, None, None, None)]


def make_dated(database: Database, *dates: str) -> None:
    """Two tables with invalid dates in their keys, and one without."""
    database.execute(
        "SET sql_mode = 'ALLOW_INVALID_DATES'",
        "CREATE TABLE days (day date, id int, n int, PRIMARY KEY (day, id))",
        "CREATE TABLE moments (at datetime PRIMARY KEY, n int)",
        "CREATE TABLE notes (id int PRIMARY KEY, note text)",
        "INSERT INTO notes VALUES (1, 'ok'), (2, 'ok')",
        *(f"INSERT INTO days VALUES ('{date}', {i}, {i})" for i, date in enumerate(dates)),
        *(f"INSERT IGNORE INTO moments VALUES ('{date} 00:00:00', {i})" for i, date in enumerate(dates)),
    )


DATES = ("0000-00-00", "0000-00-00", "2024-00-00", "2023-12-31", "2024-01-01", "2024-01-02", "2024-02-00", "2024-02-01")


def test_a_zero_date_in_a_key_of_the_first_snapshot_does_not_end_the_job(
    source_database: Database, postgres_database: Database, tmp_path: Path
) -> None:
    source, target = source_database, postgres_database
    make_dated(source, *DATES)
    path = write_job(
        tmp_path,
        source=source_of(source),
        sink=mirror_of(target),
        snapshot={"split_rows": 1, "parallelism": 1},
    )
    with pytest.raises(SinkError, match=r"\.(days|moments): a value of column (day|at) is null") as caught:
        run_epochs(path)
    assert "reject" in caught.value.remedy
    policies = f"{{{source.schema}.days: {{day: reject}}, {source.schema}.moments: {{at: reject}}}}"
    notes = Notes()
    run_epochs(path, f"sink.on_bad_value_in={policies}", at_most=5, notes=notes)
    source.execute(
        "SET sql_mode = 'ALLOW_INVALID_DATES'",
        "UPDATE days SET n = 100 + n",
        "INSERT INTO days VALUES ('2024-03-01', 50, 50)",
        "UPDATE moments SET n = 100 + n WHERE at > '2024-01-01'",
    )
    run_epochs(path, f"sink.on_bad_value_in={policies}", notes=notes)
    assert target.query("SELECT day::text, id, n FROM days ORDER BY id") == [
        *((date, i, 100 + i) for i, date in enumerate(DATES) if "-00" not in date),
        ("2024-03-01", 50, 50),
    ]
    assert target.query("SELECT n FROM moments ORDER BY n") == [(3,), (4,), (105,), (107,)]
    assert target.query("SELECT count(*) FROM notes") == [(2,)]
    rejected = {row for (row,) in target.query("SELECT row_data FROM tidemark_rejects WHERE source_table = 'days'")}
    assert {f'{{"day":null,"id":{i},"n":{100 + i}}}' for i in (0, 1, 2, 6)} <= rejected
