"""Bytes of MySQL's and MariaDB's texts that are no character of their column's charset: they obey `sink.on_bad_value` on
both read paths, or concern their own table only."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from tests.support.epochs import Notes, run_epochs
from tests.support.history import read_history
from tests.support.jobs import source_of, write_job
from tests.support.servers import Database
from tidemark.readers.bad_values import BadValueRule
from tidemark.state.errors import SinkError, SourceNotUsableError

pytestmark = [
    pytest.mark.integration,
    pytest.mark.pitfall(38),
    pytest.mark.pitfall(109),
    pytest.mark.servers_in_turn("kind"),
]

BAD = {"u": "D83D0041", "g": "41A14042", "p": "815A", "w": "D83DDE00"}
"""A lone surrogate, and codes without a character. The letters beside them are good."""
SHOWN = {"u": r"\xed\xa0\xbdA", "g": r"A\xa1\x40B", "p": r"\x81Z", "w": r"\xd8\x3d\xde\x00"}
CHARSETS = {"u": "utf8mb4", "g": "gbk", "p": "cp1250", "w": "ucs2"}


def create(database: Database) -> None:
    columns = ", ".join(f"{name} VARCHAR(60) CHARACTER SET {charset}" for name, charset in CHARSETS.items())
    database.execute(
        f"CREATE TABLE texts (id INT PRIMARY KEY, {columns})",
        "CREATE TABLE notes (id INT PRIMARY KEY, v VARCHAR(9))",
        "INSERT INTO texts VALUES (1, 'ok', 'ok', 'ok', 'ok')",
        "INSERT INTO notes VALUES (1, 'a')",
    )


def spoil(database: Database, number: int) -> None:
    """The servers refuse a lone surrogate in UTF-8, but make it of one in UCS-2."""
    values = ", ".join(f"_{'ucs2' if name == 'u' else CHARSETS[name]} 0x{code}" for name, code in BAD.items())
    database.execute(f"INSERT INTO texts VALUES ({number}, {values})", f"INSERT INTO notes VALUES ({number}, 'b')")


def job_of(source: Database, target: Database, folder: Path, *, on_table_error: str = "stop") -> Path:
    url = target.url if target.kind == "postgres" else f"{target.server.url}{target.name}"
    sink: dict[str, Any] = {"type": "mirror", "url": url, "table": "copy_{table}"}
    tables = [f"{source.schema}.texts", f"{source.schema}.notes"]
    return write_job(folder, source=source_of(source, tables=tables, on_table_error=on_table_error), sink=sink)


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
@pytest.mark.parametrize("target_kind", ["same", "postgres"])
@pytest.mark.parametrize("in_log", [False, True], ids=["snapshot", "log"])
def test_a_mirrors_policy_decides(
    kind: str, target_kind: str, in_log: bool, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    source: Database = request.getfixturevalue(f"{kind}_database")
    target: Database = request.getfixturevalue(f"{kind if target_kind == 'same' else target_kind}_database")
    create(source)
    path = job_of(source, target, tmp_path)
    if in_log:
        run_epochs(path)
    spoil(source, 2)
    table = f"{source.schema}.texts"
    with pytest.raises(SinkError, match=rf"{table}: a value of column \w has bytes that are not valid") as caught:
        run_epochs(path, "sink.on_bad_value=stop")
    assert "null}} (or text, or reject), then" in caught.value.remedy
    run_epochs(path, f"sink.on_bad_value_in={{{table}: {{u: text, g: text, p: text, w: null}}}}")
    query = "SELECT id, u, g, p, w FROM copy_texts ORDER BY id"
    assert target.query(query) == [(1, "ok", "ok", "ok", "ok"), (2, SHOWN["u"], SHOWN["g"], SHOWN["p"], None)]
    spoil(source, 3)
    run_epochs(path, "sink.on_bad_value=reject")
    assert [row[0] for row in target.query(query)] == [1, 2]
    source.execute("UPDATE texts SET u = 'u', g = 'g', p = 'p', w = 'w' WHERE id = 3", "DELETE FROM texts WHERE id = 2")
    run_epochs(path, "sink.on_bad_value=reject")
    assert target.query(query) == [(1, "ok", "ok", "ok", "ok"), (3, "u", "g", "p", "w")]
    assert target.query("SELECT row_data FROM tidemark_rejects") == []
    assert target.query("SELECT count(*) FROM copy_notes") == [(3,)]


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
@pytest.mark.parametrize("in_log", [False, True], ids=["snapshot", "log"])
def test_files_have_null_or_lack_that_table_only(
    kind: str, in_log: bool, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    source: Database = request.getfixturevalue(f"{kind}_database")
    create(source)
    sink = {"type": "files", "path": str(tmp_path / "out")}
    path = write_job(tmp_path, source=source_of(source, on_table_error="park"), sink=sink)
    if in_log:
        run_epochs(path)
    spoil(source, 2)
    with pytest.raises(SourceNotUsableError, match=r"texts\.\w has bytes that are not valid"):
        run_epochs(path, "sink.on_bad_value=stop")
    if in_log:  # nothing is lost by the stop
        run_epochs(path, "sink.on_bad_value=null")
        found = read_history(tmp_path / "out", source.schema, "texts").select(["id", *BAD]).to_pylist()
        assert [row for row in found if row["id"] == 2] == [{"id": 2, **dict.fromkeys(BAD)}]
        spoil(source, 3)
    run_epochs(path, notes=(notes := Notes()))
    assert [facts["table"] for event, facts in notes.found if event == "parked"] == [f"{source.schema}.texts"]
    assert read_history(tmp_path / "out", source.schema, "notes").num_rows == (3 if in_log else 2)


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
@pytest.mark.parametrize("in_log", [False, True], ids=["snapshot", "log"])
def test_in_a_key_it_parks_the_table(
    kind: str, in_log: bool, request: pytest.FixtureRequest, postgres_database: Database, tmp_path: Path
) -> None:
    """A key that has no characters can't be sent back to the server, so no policy but `park` and `stop` applies."""
    source: Database = request.getfixturevalue(f"{kind}_database")
    target = postgres_database
    source.execute(
        "CREATE TABLE texts (id VARCHAR(9) CHARACTER SET cp1250 PRIMARY KEY)",
        "CREATE TABLE notes (id INT PRIMARY KEY)",
        "INSERT INTO texts VALUES ('a')",
        "INSERT INTO notes VALUES (1)",
    )
    path = job_of(source, target, tmp_path, on_table_error="park")
    if in_log:
        run_epochs(path)
    source.execute("INSERT INTO texts VALUES (_cp1250 0x81)", "INSERT INTO notes VALUES (2)")
    run_epochs(path, "sink.on_bad_value=reject", notes=(notes := Notes()))
    (parked,) = [facts for event, facts in notes.found if event == "parked"]
    assert parked["table"] == f"{source.schema}.texts"
    assert "texts.id has bytes that are not valid cp1250" in parked["text"]
    assert target.query("SELECT id FROM copy_notes ORDER BY id") == [(1,), (2,)]


TWICE = {
    "armscii8": ("27", "FF"),
    "cp932": ("FA5C", "ED40"),
    "eucjpms": ("A2C0", "ADFC"),
    "sjis": ("815F", "5C"),
    "ujis": ("7E", "8FA2B7"),
}
"""Two codes of one character, the server's own first."""


@pytest.mark.parametrize(("kind", "target"), [("mysql", "postgres"), ("mariadb", "mariadb"), ("mysql", "files")])
@pytest.mark.parametrize("in_log", [False, True], ids=["snapshot", "log"])
def test_keys_that_are_one_text_park_their_table(
    kind: str, target: str, in_log: bool, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """By their own collation they are two keys. One of the two rows would be lost in a copy."""
    source: Database = request.getfixturevalue(f"{kind}_database")
    for charset, (usual, _) in TWICE.items():
        source.execute(
            f"CREATE TABLE {charset} (id VARCHAR(9) CHARACTER SET {charset} COLLATE {charset}_bin PRIMARY KEY, v INT)",
            f"INSERT INTO {charset} VALUES ('a', 0), (_{charset} 0x{usual}, 1)",
        )
    sink: dict[str, Any] = {"type": "files", "path": str(tmp_path / "out")}
    if target != "files":
        into = request.getfixturevalue("postgres_database") if target == "postgres" else source
        url = into.url if target == "postgres" else f"{into.server.url}{into.name}"
        sink = {"type": "mirror", "url": url, "table": "copy_{table}"}
    source.execute("CREATE TABLE notes (id INT PRIMARY KEY)")
    tables = [f"{source.schema}.{charset}" for charset in (*TWICE, "notes")]
    path = write_job(tmp_path, source=source_of(source, tables=tables, on_table_error="park"), sink=sink)
    if in_log:
        run_epochs(path, notes=(notes := Notes()))
        assert not [event for event, _ in notes.found if event == "parked"]
    for charset, (_, other) in TWICE.items():
        source.execute(f"INSERT INTO {charset} VALUES (_{charset} 0x{other}, 2)")
    run_epochs(path, notes=(notes := Notes()))
    parked = {facts["table"]: facts["text"] for event, facts in notes.found if event == "parked"}
    assert sorted(parked) == sorted(tables[:-1])
    assert all("Two keys of the source could be one text" in text for text in parked.values())


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
@pytest.mark.parametrize("in_log", [False, True], ids=["snapshot", "log"])
def test_a_zero_date_parks_its_table_where_it_is_refused(
    kind: str, in_log: bool, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    source: Database = request.getfixturevalue(f"{kind}_database")
    source.execute(
        "CREATE TABLE days (id INT PRIMARY KEY, day DATE)",
        "CREATE TABLE notes (id INT PRIMARY KEY)",
        "INSERT INTO days VALUES (1, '2024-01-10')",
        "INSERT INTO notes VALUES (1)",
    )
    sink = {"type": "files", "path": str(tmp_path / "out")}
    path = write_job(tmp_path, source=source_of(source, on_table_error="park", zero_dates="error"), sink=sink)
    if in_log:
        run_epochs(path)
    source.execute("SET sql_mode = ''", "INSERT INTO days VALUES (2, '2024-00-10')", "INSERT INTO notes VALUES (2)")
    run_epochs(path, notes=(notes := Notes()))
    (parked,) = [facts for event, facts in notes.found if event == "parked"]
    assert "days.day holds a date whose year, month or day is zero" in parked["text"]
    assert read_history(tmp_path / "out", source.schema, "notes").num_rows == 2


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
@pytest.mark.parametrize("in_log", [False, True], ids=["snapshot", "log"])
def test_a_zero_date_in_a_key_concerns_its_table_for_a_sink_that_finds_rows_by_key(
    kind: str, in_log: bool, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Delta mirror refuses such keys. The files sink is used here, because epochs of Delta need Spark."""
    source: Database = request.getfixturevalue(f"{kind}_database")
    source.execute(
        "CREATE TABLE days (day DATE PRIMARY KEY)",
        "CREATE TABLE notes (id INT PRIMARY KEY)",
        "INSERT INTO days VALUES ('2024-01-10')",
        "INSERT INTO notes VALUES (1)",
    )
    made = BadValueRule.of
    monkeypatch.setattr(BadValueRule, "of", lambda job: dataclasses.replace(made(job), takes_null_keys=False))
    sink = {"type": "files", "path": str(tmp_path / "out")}
    path = write_job(tmp_path, source=source_of(source, on_table_error="park"), sink=sink)
    if in_log:
        run_epochs(path)
    source.execute("SET sql_mode = ''", "INSERT INTO days VALUES ('0000-00-00')", "INSERT INTO notes VALUES (2)")
    run_epochs(path, notes=(notes := Notes()))
    (parked,) = [facts for event, facts in notes.found if event == "parked"]
    assert "days has an invalid date (such as 0000-00-00) in its key column day" in parked["text"]
    assert read_history(tmp_path / "out", source.schema, "notes").num_rows == 2
