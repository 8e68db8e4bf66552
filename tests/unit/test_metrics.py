"""The output of a scrape, without a job."""

import json
import re
from dataclasses import replace
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tidemark.jobs.monitoring.metrics import MAX_TABLES, OTHER_TABLES, JobMetrics
from tidemark.jobs.monitoring.progress import JobProgress, TableProgress

ROOT = Path(__file__).parents[2]
TABLE = TableProgress("shop.orders", 1, None, 10, 100, complete=False, inserts=1, updates=2, deletes=3)
PROGRESS = JobProgress(
    mode="full+incremental",
    phase="stream",
    committed_epoch=7,
    position="b.000001:4",
    lag_seconds=5.0,
    lag_bytes=None,
    epochs=2,
    epoch_seconds=1.5,
    changes=6,
    transactions=4,
    filtered_changes=2,
    reconnects=1,
    caught_up=False,
    tables=(TABLE,),
)


def scraped(progress: JobProgress | None, *events: str) -> dict[str, float]:
    metrics, registry = JobMetrics("shop"), CollectorRegistry()
    registry.register(metrics)
    if progress is not None:
        metrics.show(progress)
    for event in events:
        metrics.note(event)
    families = text_string_to_metric_families(generate_latest(registry).decode())
    samples = [sample for family in families for sample in family.samples]
    assert len({(sample.name, tuple(sample.labels.items())) for sample in samples}) == len(samples)
    return {" ".join([sample.name, *list(sample.labels.values())[1:]]): sample.value for sample in samples}


def test_only_the_runs_state_is_said_before_anything_is_known() -> None:
    found = scraped(None)
    assert {name for name, value in found.items() if value} == {"tidemark_run_state starting"}
    assert all(name.startswith("tidemark_run_state ") for name in found)


def test_lag_grows_until_the_job_has_caught_up() -> None:
    assert 5.0 <= scraped(PROGRESS)["tidemark_lag_seconds"] < 60
    assert scraped(replace(PROGRESS, caught_up=True))["tidemark_lag_seconds"] == 0
    assert "tidemark_lag_seconds" not in scraped(replace(PROGRESS, lag_seconds=None))
    assert "tidemark_lag_bytes" not in scraped(PROGRESS)
    assert "tidemark_table_splits shop.orders" not in scraped(PROGRESS)


def test_the_lag_of_a_job_that_waits_for_all_its_tables_grows() -> None:
    caught_up = replace(PROGRESS, caught_up=True, lag_bytes=0)
    known = scraped(caught_up, "warning")
    assert (known["tidemark_caught_up"], known["tidemark_lag_seconds"], known["tidemark_lag_bytes"]) == (1, 0, 0)
    found = scraped(caught_up, "waiting")
    assert found["tidemark_caught_up"] == 0
    assert 5.0 <= found["tidemark_lag_seconds"] < 60
    assert "tidemark_lag_bytes" not in found
    assert (found["tidemark_run_state waiting"], found["tidemark_run_state following"]) == (1, 0)


def test_many_tables_have_bounded_series_and_none_is_left_out_of_the_sums() -> None:
    tables = tuple(replace(TABLE, table=f"shop.t{i}", splits_total=2) for i in range(MAX_TABLES + 1_000))
    found = scraped(replace(PROGRESS, tables=tables))
    changes = {name: value for name, value in found.items() if name.startswith("tidemark_table_changes_total")}
    assert len(changes) == 3 * (MAX_TABLES + 1)
    assert sum(changes.values()) == 6 * len(tables)
    assert found[f"tidemark_table_rows_total {OTHER_TABLES}"] == 10 * 1_000
    assert found[f"tidemark_table_splits {OTHER_TABLES}"] == 2 * 1_000


def test_the_dashboard_and_the_documentation_name_metrics_that_there_are() -> None:
    there = {
        name.partition(" ")[0]
        for name in scraped(replace(PROGRESS, lag_bytes=1, tables=(replace(TABLE, splits_total=2),)))
    }
    panels = json.loads((ROOT / "examples/grafana/tidemark.json").read_text())["panels"]
    asked = " ".join(target["expr"] for panel in panels for target in panel["targets"])
    assert set(re.findall(r"tidemark_\w+", asked)) <= there
    documented = (ROOT / "docs/monitoring.md").read_text()
    assert [name for name in sorted(there) if name not in documented and not name.endswith("_count")] == []


def test_names_of_tables_are_escaped() -> None:
    name = 'shop."a\\b\n<script>'
    assert scraped(replace(PROGRESS, tables=(replace(TABLE, table=name),)))[f"tidemark_table_rows_total {name}"] == 10
