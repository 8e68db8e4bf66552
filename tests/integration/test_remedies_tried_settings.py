"""Remedies for settings that do not fit the source, whatever server it is, and for signals, done as they are printed: the job
goes on, and its copies are those of the source."""

import re
import zlib
from pathlib import Path

import pytest

from tests.support.cli import CommandLine
from tests.support.remedies import run_through
from tests.support.remedy_ways import (
    Trouble,
    by_hand,
    get_over,
    left_out,
    mirror_job,
    require_copies,
    told_by,
    undone,
)
from tests.support.rewriting import closing_at, replacing, rewriting
from tests.support.servers import Database
from tidemark.conf import reconnect

pytestmark = pytest.mark.integration


def a_job(folder: Path, source: Database, target: Database) -> Path:
    source.execute("CREATE TABLE orders (id int PRIMARY KEY, note varchar(90))", "INSERT INTO orders VALUES (1, 'a')")
    return mirror_job(folder, source, target)


JSON = """snapshot.where={SCHEMA.orders: "JSON_EXTRACT(note, '$.a') = 1"}"""
OF_SETTINGS = {
    "a column of the key is excluded": Trouble(
        (),
        "Copy the column, or name another unique key in source.keys.",
        undone,
        wrong=("source.columns={SCHEMA.orders: {exclude: [id]}}",),
    ),
    "a column that is not there": Trouble(
        (),
        "Correct the name. If the column was dropped, take it out of source.columns. The table's columns are id, note.",
        undone,
        wrong=("source.columns={SCHEMA.orders: {exclude: [notes]}}",),
    ),
    "a table that is not there": Trouble(
        (),
        "Correct the name. Names are case-sensitive.",
        undone,
        wrong=("source.columns={SCHEMA.Orders: {exclude: [note]}}",),
    ),
    "another key than the primary key": Trouble(
        (), "Take the table out of source.keys.", undone, wrong=("source.keys={SCHEMA.orders: [note]}",)
    ),
    "a column of the key that is not there": Trouble(
        ("CREATE TABLE bad (id int NOT NULL UNIQUE)",),
        "Its columns are id.",
        by_hand(settings=("source.keys={SCHEMA.bad: [id]}",)),
        wrong=("source.keys={SCHEMA.bad: [code]}",),
        later=("INSERT INTO bad VALUES (7)",),
    ),
    "no key": Trouble(
        ("CREATE TABLE bad (id int NOT NULL)",),
        "Give it a primary key (or a UNIQUE index of NOT NULL columns, named in source.keys), or leave it out.",
        by_hand("ALTER TABLE bad ADD PRIMARY KEY (id)"),
        later=("INSERT INTO bad VALUES (7)",),
    ),
    "a table of Tidemark's own": Trouble(
        (),
        "Take it out of source.tables. Wildcards leave it out by themselves.",
        undone,
        wrong=("source.tables=[SCHEMA.orders, SCHEMA.tidemark_tables]",),
    ),
    "a condition that is none": Trouble(
        (), "Correct it, or remove it.", undone, wrong=("snapshot.where={SCHEMA.orders: nothing > 1}",)
    ),
    "a condition that rows do not allow": Trouble(
        (),
        "Correct these rows, or the condition if there is one (snapshot.where), or leave the table out",
        undone,
        wrong=(JSON,),
    ),
    "rows that a condition does not allow": Trouble(
        (),
        "Correct these rows, or the condition if there is one (snapshot.where), or leave the table out",
        by_hand("""UPDATE orders SET note = '{"a": 1}'"""),
        kept=(JSON,),
    ),
    "rows that a condition does not allow, left out": Trouble(
        ("CREATE TABLE bad (id int PRIMARY KEY, note text)", "INSERT INTO bad VALUES (1, 'x')"),
        "or leave the table out: source.exclude_tables.",
        left_out,
        kept=(JSON.replace("orders", "bad"),),
        later=("DELETE FROM bad",),
    ),
    "a TRUNCATE that stops the job": Trouble(
        ("TRUNCATE TABLE orders", "INSERT INTO orders VALUES (3, 'c')"),
        "it continues with truncate: ignore, which keeps the copy's rows, or with evolve, which empties the copy.",
        by_hand(settings=("sink.on_schema_change={truncate: evolve}",)),
        before=(),
        wrong=("sink.on_schema_change={truncate: stop}",),
    ),
}


@pytest.mark.parametrize("name", OF_SETTINGS)
def test_a_setting_is_corrected(
    mysql_database: Database, postgres_database: Database, tidemark: CommandLine, tmp_path: Path, name: str
) -> None:
    job = a_job(tmp_path, mysql_database, postgres_database)
    get_over(job, mysql_database, postgres_database, OF_SETTINGS[name], tidemark)


@pytest.mark.parametrize(
    ("wrong", "says", "right"),
    [
        (
            ["resnapshot"],
            "Name it: --table database.table; more than one may be given.",
            ["resnapshot", "--table", "ORDERS"],
        ),
        (
            ["resnapshot", "--table", "SCHEMA.order"],
            "tidemark tables JOB.yaml lists its tables.",
            ["resnapshot", "--table", "ORDERS"],
        ),
        (["stop-snapshot", "--set", "mode=incremental"], "There is nothing to stop.", None),
        (
            ["resnapshot", "--table", "ORDERS", "--keys", "1,2,3"],
            "Write 5, or 5..90, which has both ends.",
            ["resnapshot", "--table", "ORDERS", "--keys", "5..90", "--keys", "5"],
        ),
        (
            ["resnapshot", "--table", "ORDERS", "--keys", "1", "--where", "id > 0"],
            "Give more than one signal.",
            ["resnapshot", "--table", "ORDERS", "--where", "id > 0"],
        ),
        (
            ["resnapshot", "--table", "ORDERS", "--where", ""],
            "Leave it out to have all rows read again.",
            ["resnapshot", "--table", "ORDERS"],
        ),
        (
            ["resnapshot", "--table", "ORDERS", "--where", "id > 0) OR (1 = 1"],
            """Write a condition in the source's SQL, such as "created_at >= '2024-01-01'".""",
            ["resnapshot", "--table", "ORDERS", "--where", "note >= 'a'"],
        ),
        (["set"], "Write tidemark signal JOB.yaml set snapshot.parallelism=2.", ["set", "snapshot.parallelism=2"]),
        (
            ["set", "snapshot.parallelism=many"],
            "Write tidemark signal JOB.yaml set snapshot.parallelism=VALUE.",
            ["set", "snapshot.parallelism=2"],
        ),
        (["set", "sink.path=away"], "It can change ", ["set", "FOUND=2"]),
        (["set", "snapshot.parallelism=8"], "Write another value.", ["set", "snapshot.parallelism=2"]),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else "",
)
def test_a_signal_is_given_as_it_is_printed(
    mysql_database: Database,
    postgres_database: Database,
    tidemark: CommandLine,
    tmp_path: Path,
    wrong: list[str],
    says: str,
    right: list[str] | None,
) -> None:
    source = mysql_database
    job = a_job(tmp_path, source, postgres_database)
    first = 7000 + 5 * (zlib.crc32(source.name.encode()) % 100_000)  # other cases may read the same server's log
    ids = f"source.server_ids={first}-{first + 4}"
    run_through(job, ids)

    def give(words: list[str], found: str = "") -> list[str]:
        named = {"SCHEMA.order": f"{source.name}.order", "ORDERS": f"{source.name}.orders"}
        return ["signal", str(job), *[named.get(word, word.replace("FOUND", found)) for word in words], "--set", ids]

    told = tidemark(*give(wrong))
    assert told.code != 0
    assert says in told.last_line
    if right is not None:
        found = re.search(r"It can change .*?(snapshot\.parallelism)", told.last_line)
        assert tidemark(*give(right, found[1] if found else "")).code == 0
    for _ in range(2):
        run_through(job, ids)
        require_copies(source, postgres_database)
        source.execute("UPDATE orders SET note = 'z'")


def test_a_table_that_the_job_file_excludes_is_selected_first(
    mysql_database: Database, postgres_database: Database, tidemark: CommandLine, tmp_path: Path
) -> None:
    source = mysql_database
    source.execute("CREATE TABLE other (id int PRIMARY KEY)")
    job = a_job(tmp_path, source, postgres_database)
    run_through(job)
    excluded = f"source.exclude_tables=[{source.name}.other]"
    run_through(job, excluded)
    command = ["signal", job, "resnapshot", "--table", f"{source.name}.other"]
    assert "Change source.tables or source.exclude_tables first." in tidemark(*command, "--set", excluded).last_line
    source.execute("INSERT INTO other VALUES (1)")
    assert tidemark(*command).code == 0
    run_through(job)
    require_copies(source, postgres_database)


OF_POSTGRES = {
    "a proxy that filters settings": (
        {"of_client": replacing("pg_catalog.set_config", "pg_catalog.set_none")},
        "and connect directly, not through a proxy or pooler that filters settings.",
    ),
    "a proxy that changes rows": (
        {"of_server": lambda chunk: chunk.replace(b"PGCOPY\n\xff", b"PGCOPY\n\x00")},
        "Check proxies and poolers between the job and the source.",
    ),
    "a log that breaks": (
        {"of_client": closing_at(b"pg_logical_slot_peek_binary_changes")},
        "Check the network and the source's server log, and that nobody else reads the job's slot.",
    ),
}


@pytest.mark.parametrize("name", OF_POSTGRES)
def test_postgresql_behind_a_proxy(
    postgres18_database: Database,
    mysql_database: Database,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    name: str,
) -> None:
    monkeypatch.setattr(reconnect, "FIRST_DELAY_SECONDS", 0.01)
    does, says = OF_POSTGRES[name]
    source = postgres18_database
    job = a_job(tmp_path, source, mysql_database)
    if name == "a log that breaks":
        assert told_by(job) is None
        source.execute("UPDATE orders SET note = 'b'")
    with rewriting(source.server, **does) as port:
        url = source.url.replace(f":{source.server.port}", f":{port}")
        told = told_by(job, f"source.url={url}", "reconnect.attempts=0")
    assert told is not None
    assert says in told
    for _ in range(2):
        assert told_by(job) is None
        require_copies(source, mysql_database)
        source.execute("UPDATE orders SET note = 'z'")
