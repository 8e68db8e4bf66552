"""DAGs that copy all rows once and then increments: each run catches up to the log's end, then ends. Keep one of the two."""

import os
from datetime import datetime
from pathlib import Path

from airflow.sdk import DAG, Param
from tidemark_operators import TidemarkOperator, TidemarkSubmitOperator

TIDEMARK_HOME = Path(os.environ.get("TIDEMARK_HOME", "/opt/tidemark"))
JOB_FILE = str(Path(__file__).with_name("shop.yaml"))
ARGUMENTS = ["--set", "source.tables={{ params.tables | tojson }}"]
THE_JOB = {"variables": {"GENERATION": "{{ params.generation }}"}, "connections": ["shop", "copy"]}
SETTINGS = {
    "schedule": "@hourly",
    "start_date": datetime(2026, 1, 1),
    "catchup": False,
    "max_active_runs": 1,
    "default_args": {"retries": 5, "retry_exponential_backoff": True},
    "params": {
        "tables": Param(
            ["shop.*"],
            type="array",
            items={"type": "string"},
            minItems=1,
            description="database.table, with globs. Tables may be added; they join at the next run.",
        ),
        "generation": Param(
            1,
            type="integer",
            minimum=1,
            description="A new number copies everything again, to a new schema. Older copies stay.",
        ),
    },
}

with DAG("shop_copy_cli", **SETTINGS):
    TidemarkOperator(task_id="copy", job_file=JOB_FILE, arguments=ARGUMENTS, **THE_JOB)

with DAG("shop_copy_submit", **SETTINGS):
    TidemarkSubmitOperator(
        task_id="copy",
        application=str(TIDEMARK_HOME / "sync.py"),
        py_files=str(TIDEMARK_HOME / "tidemark.zip"),
        application_args=[JOB_FILE, *ARGUMENTS],
        name="shop-copy",
        **THE_JOB,
    )
