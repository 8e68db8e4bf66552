"""Signals by SQL: rows of a table of the source become signals of the job, each once."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.epochs import die_at
from tests.support.jobs import BY_DRIVER, running, source_of
from tests.support.servers import Database
from tests.support.steered import Case
from tidemark.jobs.commands.signal import list_signals
from tidemark.readers.signal_rows import MAX_ROWS
from tidemark.state.errors import PausedError

pytestmark = [
    pytest.mark.integration,
    pytest.mark.once_per_family,
    pytest.mark.servers_in_turn(always="postgres18_server"),
]

SIGNALS = "tidemark_signals"
CREATE = f"CREATE TABLE {SIGNALS} (id VARCHAR(36), type VARCHAR(40), data TEXT)"


class SqlCase(Case):
    """A job with a signal table."""

    def __init__(self, database: Database, folder: Path, *, conditions: bool = False, **changes: Any) -> None:
        self.table = f"{database.schema}.{SIGNALS}"
        changes["source"] = source_of(database, on_table_error="park", exclude_tables=[self.table])
        super().__init__(database, folder, signals={"table": self.table, "conditions": conditions}, **changes)

    def insert(self, row_id: str, type_: str | None, data: Any = None) -> None:
        text = data if data is None or isinstance(data, str) else json.dumps(data)
        if text is not None and self.database.kind != "postgres":
            text = text.replace("\\", "\\\\")
        values = ("NULL" if value is None else "'" + value.replace("'", "''") + "'" for value in (row_id, type_, text))
        self.database.execute(f"INSERT INTO {SIGNALS} VALUES ({', '.join(values)})")

    def warnings(self) -> list[str]:
        """Those of a run about the signal table."""
        notes = self.run()
        return [facts["text"] for event, facts in notes.found if event == "warning" and SIGNALS in facts["text"]]

    def told(self) -> dict[str, str]:
        """The answers by the ids of the rows."""
        told = dict[str, str]()
        for signal, answer in self.checkpoint.signals().values():
            assert signal.row is not None
            assert signal.row.id not in told
            assert answer is not None
            told[signal.row.id] = f"{'' if answer.accepted else 'failed: '}{answer.text}"
        return told


@pytest.fixture
def case(any_source_database: Database, tmp_path: Path) -> SqlCase:
    any_source_database.execute(CREATE)
    return SqlCase(any_source_database, tmp_path)


def test_each_row_is_a_signal_once(case: SqlCase, capsys: pytest.CaptureFixture[str]) -> None:
    case.insert("1", "pause")
    assert "1 rows from before the job's first look" in case.warnings()[0]
    case.change()
    case.insert("10", "resume")
    case.insert("9", "pause", {})  # before 10, in the order of numbers
    case.insert("11", "pause", "null")
    for _ in range(2):
        with pytest.raises(PausedError):
            case.run()
    case.insert("12", "resume")
    case.run()
    case.assert_copied()
    assert list(case.told()) == ["9", "10", "11", "12"]
    case.insert("13", "resnapshot", {"table": str(case.customers)})
    case.insert("x", "set", {"snapshot.parallelism": 1})
    case.change()
    case.run()
    case.assert_copied()
    assert [table.name for table in case.state.came_back] == ["customers"]
    before = case.checkpoint.signals()
    case.database.execute(
        f"UPDATE {SIGNALS} SET data = '{{\"table\": 5}}' WHERE id = '9'",
        f"DELETE FROM {SIGNALS} WHERE id IN ('10', '11')",
    )
    case.insert("10", "pause")
    kept = sorted(case.database.query(f"SELECT id, type, data FROM {SIGNALS}"))
    told = case.warnings()
    assert sorted(text.split(" ")[1] for text in told) == ["10", "9"]
    assert all("which is no signal" in text for text in told)
    assert case.checkpoint.signals() == before
    assert sorted(case.database.query(f"SELECT id, type, data FROM {SIGNALS}")) == kept, "it is never written"
    capsys.readouterr()
    list_signals(case.job)
    assert f"resnapshot {case.customers} (row 13)" in " ".join(capsys.readouterr().out.split())


POINTS = ("signals.first_rows", "signals.row_taken", "signals.left")


@pytest.mark.servers_in_turn
@pytest.mark.parametrize("point", POINTS)
def test_a_run_dies_while_it_takes_rows(any_source_database: Database, tmp_path: Path, point: str) -> None:
    case = SqlCase(any_source_database, tmp_path)
    case.database.execute(CREATE)
    case.insert("1", "pause")
    if point == "signals.first_rows":
        die_at(case.path, point)
    case.run()
    case.change()
    case.insert("2", "set", {"snapshot.parallelism": 1})
    case.insert("3", "resnapshot", {"table": str(case.customers)})
    if point != "signals.first_rows":
        die_at(case.path, point)
    case.run()
    case.assert_copied()
    assert list(case.told()) == ["2", "3"]
    assert not any(text.startswith("failed") for text in case.told().values())
    assert case.checkpoint.left_count() == 1, "it was read again once"


def test_rows_that_ask_for_nothing_sensible_fail_and_the_job_goes_on(
    case: SqlCase, capsys: pytest.CaptureFixture[str]
) -> None:
    case.run()
    table = {"table": str(case.customers)}
    bad: dict[str, tuple[str | None, Any, str]] = {
        "a": ("execute-snapshot", None, "Its type must be one of resnapshot, pause"),
        "b": (None, None, "Its type must be one of"),
        "c": ("pau\x1b[2Jse", None, "Its type must be one of"),
        "d": ("pause", "{", "Its data is no JSON"),
        "e": ("pause", '{"table": "a.b", "table": "c.d"}', "Its data is no JSON"),
        "f": ("pause", "[" * 9000, "Its data is no JSON"),
        "g": ("pause", "[]", "Its data is no JSON object"),
        "h": ("pause", {"tables": ["a.b"]}, "Its data has 'tables'. Allowed for pause: table"),
        "i": ("pause", {"table": "nothing.there"}, "The job does not copy nothing.there"),
        "j": ("pause", {"table": "noname"}, "is no table"),
        "k": ("pause", {"table": "a.\ud800"}, "no printable text"),
        "l": ("resnapshot", None, "needs a table"),
        "m": ("set", None, "needs a setting"),
        "n": ("set", {"sink.path": "/other"}, "can't change sink.path"),
        "o": ("set", {"snapshot.parallelism": "${HOME}"}, "must be a whole number"),
        "p": ("set", {"snapshot.parallelism": 1, "log.max_batch_seconds": 2}, "more than one signal"),
        "q": ("resnapshot", table | {"where": "1 = 1"}, "signals.conditions of the job file is not true"),
        "r": ("resnapshot", table | {"keys": ["5,6"]}, "has 2 values"),
        "s": ("pause", {"table": "a" * 17_000}, "more than 16,384 characters"),
        "t": ("stop-snapshot", table, "All its splits are read"),
    }
    for row_id, (type_, data, _) in bad.items():
        case.insert(row_id, type_, data)
    case.database.execute(f"INSERT INTO {SIGNALS} VALUES (NULL, 'pause', NULL), ('', 'pause', NULL)")
    case.change()
    assert ["without an id of its own" in text for text in case.warnings()] == [True]
    case.assert_copied()
    told = case.told()
    assert told.keys() == bad.keys()
    for row_id, (_, _, why) in bad.items():
        assert told[row_id].startswith("failed: ")
        assert why in told[row_id], row_id
    capsys.readouterr()
    list_signals(case.job)
    out = capsys.readouterr().out
    assert "execute-snapshot (row a)" in out
    assert "\x1b[2J" not in out


def test_conditions_and_keys_are_checked_as_those_of_the_command(
    any_source_database: Database, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    source = any_source_database
    source.execute(CREATE)
    target: Database = request.getfixturevalue(f"{source.kind}_database")
    sink = {"type": "mirror", "url": target.url, "table": "copy_{table}"}
    case = SqlCase(source, tmp_path, conditions=True, sink=sink)
    case.run()
    table = {"table": str(case.customers)}
    bad = {
        "a": {"where": "1 = 1; DELETE FROM customers"},
        "b": {"where": "1 = 1) OR (1 = 1"},
        "c": {"where": "1 = 1 -- all"},
        "d": {"where": ""},
        "e": {"keys": ["x"], "where": "1 = 1"},
        "f": {"keys": ["1..2", "3..4"]},
        "g": {"keys": "1..2..3"},
        "h": {"keys": [True]},
        "i": {"where": "nothing_there = 1"},  # only the server knows
    }
    for row_id, data in bad.items():
        case.insert(row_id, "resnapshot", table | data)
    case.insert("good", "resnapshot", table | {"where": "version >= 0"})
    target.execute("UPDATE copy_customers SET note = 'wrong'")
    case.run()
    told = case.told()
    assert [row_id for row_id, text in told.items() if not text.startswith("failed")] == ["good"]
    assert told.keys() == {*bad, "good"}
    query = "SELECT uid, version, note FROM {}customers ORDER BY uid"
    assert target.query(query.format("copy_")) == source.query(query.format(""))


def test_a_table_that_can_t_be_read_is_told_and_the_job_goes_on(case: SqlCase) -> None:
    kinds = {
        "it has no column data": f"CREATE TABLE {SIGNALS} (id INT PRIMARY KEY, type VARCHAR(9))",
        "its column id has type": f"CREATE TABLE {SIGNALS} (id DATE, type VARCHAR(9), data TEXT)",
        "it is no ordinary table": f"CREATE VIEW {SIGNALS} AS SELECT '1' AS id, 'pause' AS type, '' AS data",
        "There is no signal table": "",
    }
    case.run()
    case.database.execute(f"DROP TABLE {SIGNALS}")
    for why, create in kinds.items():
        case.database.execute(*([create] if create else []))
        case.change()
        (told,) = case.warnings()
        assert why in told
        case.assert_copied()
        if create:
            case.database.execute(f"DROP {create.split()[1]} {SIGNALS}")
    case.database.execute(CREATE)
    for number in range(MAX_ROWS // 100):
        values = ", ".join(f"('{number}-{n}', 'pause', NULL)" for n in range(100))
        case.database.execute(f"INSERT INTO {SIGNALS} VALUES {values}")
    case.insert("one more", "pause")
    assert "more than 1,000 rows" in case.warnings()[0]
    assert not case.checkpoint.signals()
    case.database.execute(f"DELETE FROM {SIGNALS} WHERE id <> 'one more'")
    with pytest.raises(PausedError):
        case.run()


def test_a_table_that_is_created_later_gives_all_its_rows(any_source_database: Database, tmp_path: Path) -> None:
    case = SqlCase(any_source_database, tmp_path)
    assert "There is no signal table" in case.warnings()[0]
    case.database.execute(CREATE)
    case.insert("1", "pause")
    with pytest.raises(PausedError):
        case.run()


def test_a_row_that_a_replaced_driver_has_taken_too_is_one_signal(mysql_database: Database, tmp_path: Path) -> None:
    mysql_database.execute(CREATE)
    case = SqlCase(mysql_database, tmp_path)
    case.run()
    case.insert("1", "resume")
    case.run()
    (first,) = case.checkpoint.signals().values()
    case.checkpoint.create_signal(first[0])
    case.insert("2", "resnapshot", {"table": str(case.customers)})
    die_at(case.path, "signals.row_taken")
    case.checkpoint.create_signal(case.checkpoint.signals()[3][0])
    case.run()
    answers = [answer is not None and answer.text for _, answer in case.checkpoint.signals().values()]
    assert answers[1] == "Signal 1 is of the same row."
    assert answers[3] == "Signal 3 is of the same row."
    assert not case.checkpoint.has_open_signals()
    assert case.checkpoint.left_count() == 1


def test_a_running_job_that_is_paused_takes_the_row_that_resumes_it(mysql_database: Database, tmp_path: Path) -> None:
    mysql_database.execute(CREATE)
    case = SqlCase(mysql_database, tmp_path)
    case.run()
    with running(case.path, *BY_DRIVER, "--set", "trigger=100ms") as process:

        def count(event: str) -> int:
            return len([found for found in process.events() if found["event"] == event])

        process.wait_until(lambda: count("resumed") == 1)
        case.insert("1", "pause")
        process.wait_until(lambda: count("paused") == 1)
        case.insert("2", "resume")
        process.wait_until(lambda: count("resumed") == 3)
    assert list(case.told()) == ["1", "2"]
