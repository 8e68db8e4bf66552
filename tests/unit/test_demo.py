"""The parts of the demo that need no server."""

import json
import sys
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scripts import demo, demo_job
from scripts.demo_compare import rows_in_files
from scripts.demo_job import JobFailedError, JobProcess, in_short
from scripts.demo_shop import SHOPS
from scripts.demo_table import ShopTable
from scripts.demo_writers import BUSINESS

TARIFFS = next(table for table in SHOPS["mysql"].tables if table.name == "tariffs")

FAMILY = """\
#!{python}
import os, subprocess, sys, time
child = "import os, time; os.setpgid(0, 0); print(os.getpid(), flush=True); time.sleep(600)"
running = [subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE) for _ in range(2)]
pids = [process.stdout.readline().decode().strip() for process in running]
with open(sys.argv[1] + ".new", "w") as file:
    file.write(" ".join(pids))
os.rename(sys.argv[1] + ".new", sys.argv[1])
time.sleep(600)
"""


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "tidemark"
    monkeypatch.setattr(demo_job, "COMMAND", path)
    return path


def write_command(path: Path, text: str) -> None:
    path.write_text(text.format(python=sys.executable))
    path.chmod(0o755)


def is_alive(pid: str) -> bool:
    """Whether the process runs. A process that ended and was not waited for counts as ended."""
    try:
        return Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_kill_ends_the_run_with_all_its_children_in_whatever_group(command: Path, tmp_path: Path) -> None:
    write_command(command, FAMILY)
    pids = tmp_path / "pids"
    with JobProcess([str(pids)], tmp_path / "log", {}) as job:
        while not pids.exists():
            job.raise_if_ended()
        assert job.kill() == 3
        assert not any(is_alive(pid) for pid in pids.read_text().split())
    assert job.kill() == 0


def test_a_run_that_ends_otherwise_than_expected_is_an_error_with_its_last_words(command: Path, tmp_path: Path) -> None:
    write_command(command, "#!{python}\nimport sys\nsys.exit('tidemark: no such server')\n")
    with JobProcess([], tmp_path / "log", {}) as job, pytest.raises(JobFailedError, match="no such server"):
        job.wait(60)


def test_events_are_shown_in_short() -> None:
    def short(**event: object) -> str:
        return in_short(json.dumps({"at": "2024-01-01", **event}))

    assert short(event="epoch", phase="snapshot", committed_epoch=3, splits_done=14, rows=70000) == (
        "epoch 3: 14 splits, 70,000 rows"
    )
    assert short(
        event="epoch", phase="stream", committed_epoch=9, changes=1234, position="binlog.000001:99", lag_seconds=0.52
    ) == ("epoch 9: 1,234 changes, at binlog.000001:99, lag 0.5 s")
    assert short(event="resumed", job="shop", epoch=4, tables=[1]) == "resumed job=shop epoch=4"
    assert in_short("plain text") == "plain text"


def test_what_the_files_add_up_to_is_the_last_state_of_each_key(tmp_path: Path) -> None:
    def row(change: str, version: int, seq: int, day: int, price: int) -> dict[str, object]:
        return {
            "_change_type": change,
            "_commit_version": version,
            "_seq": seq,
            "valid_from": date(2024, 1, day),
            "weight_kg": 1,
            "price": price,
        }

    folder = tmp_path / "shop.tariffs"
    folder.mkdir()
    changes = [row("delete", 20, 0, 2, 7), row("insert", 20, 1, 3, 8), row("update_postimage", 30, 0, 1, 9)]
    pq.write_table(pa.Table.from_pylist(changes), folder / "e2.parquet")
    pq.write_table(
        pa.Table.from_pylist([row("insert", 10, 0, 1, 5), row("insert", 10, 1, 2, 7)]), folder / "e1.parquet"
    )
    found = rows_in_files(tmp_path, "shop")(TARIFFS, ("valid_from", "weight_kg", "price"))
    assert set(found) == {(date(2024, 1, 1), 1, 9), (date(2024, 1, 3), 1, 8)}


def test_values_that_a_change_left_out_are_those_of_the_row_that_it_replaced(tmp_path: Path) -> None:
    notes = ShopTable("notes", ("id",), 0, "", "")
    changes = [
        ("insert", 1, 7, "long", None),
        ("insert", 2, 8, "other", None),
        ("update_postimage", 3, 7, None, ["note"]),
        ("delete", 4, 7, None, None),
        ("insert", 5, 9, None, ["note"]),
        ("update_postimage", 6, 8, None, None),
    ]
    names = ["_change_type", "_seq", "id", "note", "_unchanged"]
    rows = [{"_commit_version": 1, **dict(zip(names, change, strict=True))} for change in changes]
    kinds = pa.schema([*((name, pa.int64()) for name in ("_commit_version", "_seq", "id")),
                       *((name, pa.string()) for name in ("_change_type", "note")),
                       ("_unchanged", pa.list_(pa.string()))])  # fmt: skip
    folder = tmp_path / "public.notes"
    folder.mkdir()
    pq.write_table(pa.Table.from_pylist(rows, kinds), folder / "e1.parquet")
    found = rows_in_files(tmp_path, "public")(notes, ("id", "note"))
    assert set(found) == {(8, None), (9, "long")}


def test_the_shops_of_all_sources_have_the_same_tables_and_keys() -> None:
    described = {
        kind: [(table.name, len(table.key), table.share) for table in shop.tables] for kind, shop in SHOPS.items()
    }
    assert set(described) == set(BUSINESS) == {"mysql", "mariadb", "postgres"}
    assert described["postgres"] == described["mariadb"] == described["mysql"]
    assert sum(share for _, _, share in described["mysql"]) == 1000


def test_writers_do_the_same_in_all_sources() -> None:
    done = [{kind.__name__: weight for kind, weight in business.weights.items()} for business in BUSINESS.values()]
    assert done[0] == done[1] == done[2]


@pytest.mark.parametrize(("name", "value"), [("SOURCE", "oracle"), ("SINK", "tape"), ("ROWS", "10")])
def test_wrong_settings_are_refused(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name, value)
    assert demo.main() == 2
    assert capsys.readouterr().err.startswith(f"{name} is {value!r}: it must be ")
