"""Somebody changes source, target or checkpoint of a job between two runs: the next run heals it, or stops with a
remedy that works. Nothing is silent (docs/disasters.md)."""

import os
import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.support.epochs import Notes, run_epochs
from tests.support.jobs import source_of, write_job
from tests.support.lost_logs import lose_log
from tests.support.servers import Database
from tests.support.workload import KEYS, UPDATE_ALL, Uids, create_tables
from tidemark.conf.load import load_job_file
from tidemark.conf.tables import TableName
from tidemark.jobs.commands.signal import resnapshot
from tidemark.jobs.tables.parking import require_none_parked
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import TidemarkError

pytestmark = pytest.mark.integration


@dataclass(frozen=True)
class Place:
    source: Database
    target: Database
    folder: Path

    @property
    def job(self) -> Path:
        return self.folder / "job.yaml"

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    def signal(self, *tables: str) -> None:
        resnapshot(load_job_file(self.job), [TableName(self.source.schema, table) for table in tables])


Act: TypeAlias = Callable[[Place], object]


def in_target(*statements: str) -> Act:
    return lambda place: place.target.execute(*statements)


def in_source(*statements: str) -> Act:
    return lambda place: place.source.execute(*[text.format(name=place.source.name) for text in statements])


def signal_for(*tables: str, first: Act | None = None) -> Act:
    def act(place: Place) -> None:
        if first is not None:
            first(place)
        place.signal(*tables)

    return act


def start_over(place: Place) -> None:
    if place.checkpoint.exists():
        shutil.rmtree(place.checkpoint)
    own = ("tidemark_ledger", "tidemark_tables", "tidemark_fence", "tidemark_rejects")
    place.target.execute(*[f"DROP TABLE IF EXISTS {table}" for table in (*own, *KEYS)])


def advance_slot(place: Place) -> None:
    place.source.query("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", (place.source.name,))


def lose_newest_plan(place: Place) -> None:
    folder = place.checkpoint / "plans"
    (folder / max(os.listdir(folder))).unlink()


def rename_back(place: Place) -> None:
    """The copies under the new names stay. Their tables are gone again."""
    place.source.execute(*[f"ALTER TABLE {table}_away RENAME TO {table}" for table in KEYS])
    text = place.job.read_text()
    assert "exclude_tables" not in text
    gone = ", ".join(f"{place.source.schema}.{table}_away" for table in KEYS)
    place.job.write_text(text.replace("source:\n", f"source:\n  exclude_tables: [{gone}]\n", 1))


def stop_and_keep(name: str) -> tuple[Act, Act]:
    """A file or folder of the checkpoint is gone, and put back."""

    def lose(place: Place) -> None:
        (place.checkpoint / name).rename(place.folder / "lost")

    def put_back(place: Place) -> None:
        (place.folder / "lost").rename(place.checkpoint / name)

    return lose, put_back


@dataclass(frozen=True)
class Disaster:
    """`code`: the exit code of the next run, 0 if it heals by itself. `says`: how its error names the cause. `remedy`: what the
    error says must be done then. `writes`: whether the source is changed after it."""

    act: Act
    code: int = 0
    says: str = ""
    remedy: Act | None = None
    writes: bool = True


_LOST_JOB, _JOB_BACK = stop_and_keep("job")

EVERYWHERE: dict[str, Disaster] = {
    "the ledger is dropped": Disaster(in_target("DROP TABLE tidemark_ledger")),
    "the ledger is emptied": Disaster(in_target("DELETE FROM tidemark_ledger")),
    "the list of copies is dropped": Disaster(
        in_target("DROP TABLE tidemark_tables"), 5, "not marked as written by this job", start_over
    ),
    "the fence is dropped": Disaster(in_target("DROP TABLE tidemark_fence")),
    "one copy is dropped": Disaster(in_target("DROP TABLE orders"), 9, "is gone", signal_for("orders")),
    "one copy is renamed": Disaster(
        in_target("ALTER TABLE orders RENAME TO elsewhere"), 9, "is gone", signal_for("orders")
    ),
    "all copies are dropped": Disaster(
        in_target(*[f"DROP TABLE {table}" for table in KEYS]), 5, "is gone", signal_for(*KEYS)
    ),
    "all copies are emptied": Disaster(
        in_target(*[f"TRUNCATE TABLE {table}" for table in KEYS]), 5, "was emptied", signal_for(*KEYS)
    ),
    "a column of a copy is dropped": Disaster(
        in_target("ALTER TABLE orders DROP COLUMN note"), 9, "note is missing", signal_for("orders")
    ),
    "a copy gets a column that must have a value": Disaster(
        in_target(
            "ALTER TABLE orders ADD COLUMN mine int NOT NULL DEFAULT 3", "ALTER TABLE orders ALTER mine DROP DEFAULT"
        ),
        9,
        "must have a value",
        signal_for("orders", first=in_target("ALTER TABLE orders DROP COLUMN mine")),
    ),
    "a copy loses its key": Disaster(
        in_target("ALTER TABLE orders DROP CONSTRAINT orders_pkey"),
        9,
        "primary key",
        signal_for("orders", first=in_target("ALTER TABLE orders ADD PRIMARY KEY (id)")),
    ),
    "a copy gets another unique index": Disaster(in_target("CREATE UNIQUE INDEX one ON orders (version, uid)")),
    "the checkpoint is gone": Disaster(lambda place: shutil.rmtree(place.checkpoint), 5, "belongs to job", start_over),
    "the checkpoint's file job is gone": Disaster(_LOST_JOB, 1, "has lost its file", _JOB_BACK),
    "the newest plan is gone": Disaster(lose_newest_plan, 1, "set back, or lost files", start_over),
    "the marks of committed epochs are gone": Disaster(lambda place: shutil.rmtree(place.checkpoint / "committed")),
    "all tables of the source are renamed": Disaster(
        in_source(*[f"ALTER TABLE {table} RENAME TO {table}_away" for table in KEYS]),
        9,
        "has no such table",
        rename_back,
        writes=False,
    ),
}

OF_POSTGRES: dict[str, Disaster] = {
    "the slot is dropped": Disaster(lambda place: lose_log(place.source)),
    "somebody else reads from the slot": Disaster(advance_slot),
    "the publication is dropped": Disaster(in_source('DROP PUBLICATION "{name}"')),
    "the publication is created again": Disaster(
        in_source('DROP PUBLICATION "{name}"', 'CREATE PUBLICATION "{name}" FOR ALL TABLES')
    ),
    "the publication leaves updates out": Disaster(
        in_source("""ALTER PUBLICATION "{name}" SET (publish = 'insert')"""),
        3,
        "does not publish all of",
        in_source("""ALTER PUBLICATION "{name}" SET (publish = 'insert, update, delete, truncate')"""),
    ),
    "a table leaves the publication for a moment": Disaster(
        in_source(
            'ALTER PUBLICATION "{name}" DROP TABLE orders', *UPDATE_ALL, 'ALTER PUBLICATION "{name}" ADD TABLE orders'
        ),
        9,
        "was altered for public.orders",
        signal_for("orders"),
    ),
    "a replica identity without columns": Disaster(
        in_source("ALTER TABLE orders REPLICA IDENTITY NOTHING"),
        9,
        "is NOTHING",
        in_source("ALTER TABLE orders REPLICA IDENTITY DEFAULT"),
        writes=False,
    ),
}


def run(place: Place, notes: Notes | None = None) -> None:
    """As `tidemark run`: parked tables are an error at the end."""
    run_epochs(place.job, notes=notes)
    state = Checkpoint.at(str(place.checkpoint)).job_state()
    assert state is not None
    require_none_parked(load_job_file(place.job), state)


def check(place: Place, disaster: Disaster) -> None:
    create_tables(place.source, rows=30, uids=Uids())
    write_job(
        place.folder,
        source=source_of(place.source, on_log_lost="resnapshot", on_table_error="park"),
        sink={"type": "mirror", "url": place.target.url, "table": "{table}", "on_schema_change": "evolve"},
    )
    for _ in range(2):  # rows, then changes
        run(place)
        place.source.execute(*UPDATE_ALL)
    disaster.act(place)
    if disaster.writes:
        place.source.execute(*UPDATE_ALL)
    for _ in range(2 if disaster.code else 0):  # it says the same again
        with pytest.raises(TidemarkError, match=disaster.says) as caught:
            run(place)
        assert caught.value.exit_code == disaster.code
    if disaster.remedy is not None:
        disaster.remedy(place)
    for _ in range(2):
        run(place)
        for table, key in KEYS.items():
            query = f"SELECT {', '.join(key)}, uid, version FROM {table} ORDER BY uid"
            assert place.target.query(query) == place.source.query(query), table
        place.source.execute(*UPDATE_ALL)


PORTABLE = (
    "the ledger is dropped",
    "the list of copies is dropped",
    "the fence is dropped",
    "one copy is dropped",
    "one copy is renamed",
    "all copies are dropped",
    "a column of a copy is dropped",
    "a copy gets a column that must have a value",
    "a copy gets another unique index",
    "the checkpoint is gone",
)


def in_turn(names: Collection[str], *, of_portable: int) -> list[Any]:
    """The names, of which PORTABLE ones are tried in one of the two directions, in turn."""
    left_out = PORTABLE[1 - of_portable :: 2]
    return [pytest.param(name, marks=pytest.mark.every_server if name in left_out else ()) for name in names]


@pytest.mark.parametrize("name", in_turn(EVERYWHERE, of_portable=0))
def test_mysql_into_postgresql(
    mysql_database: Database, postgres_database: Database, tmp_path: Path, name: str
) -> None:
    check(Place(mysql_database, postgres_database, tmp_path), EVERYWHERE[name])


@pytest.mark.parametrize("name", in_turn(PORTABLE, of_portable=1))
def test_postgresql_into_mysql(
    postgres18_database: Database, mysql_database: Database, tmp_path: Path, name: str
) -> None:
    check(Place(postgres18_database, mysql_database, tmp_path), EVERYWHERE[name])


@pytest.mark.parametrize("name", OF_POSTGRES)
def test_postgresql(postgres18_database: Database, postgres_database: Database, tmp_path: Path, name: str) -> None:
    check(Place(postgres18_database, postgres_database, tmp_path), OF_POSTGRES[name])
