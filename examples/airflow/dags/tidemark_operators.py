"""Tasks that run a Tidemark job: `TidemarkOperator` by the command `tidemark`, `TidemarkSubmitOperator` by `spark-submit`.

Connection `shop` gives the job file ${SHOP_LOGIN} (user:password), ${SHOP_HOST} and ${SHOP_PORT}. These go by the
environment only, so that no command line, log, rendered template or XCom has them.
"""

import json
import os
import re
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.standard.hooks.subprocess import SubprocessHook
from airflow.sdk import BaseHook, BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException

NEEDS_A_PERSON = {
    2: "the job file or the command line is wrong",
    3: "the source is not usable",
    4: "the source's log no longer has the job's position",
}
"""Exit codes that a second try would meet again. All others are tried again, which is harmless: 6 means that the job runs
already, after 1, 5, 130 and a kill it goes on where it was."""


def environment(connections: Sequence[str], variables: Mapping[str, str]) -> dict[str, str]:
    """What the job file's ${NAME}s stand for."""
    found = dict(variables)
    for name in connections:
        connection = BaseHook.get_connection(name)
        prefix = name.upper()
        found[f"{prefix}_LOGIN"] = f"{connection.login}:{connection.password}"
        found[f"{prefix}_HOST"] = connection.host or ""
        if connection.port:
            found[f"{prefix}_PORT"] = str(connection.port)
    return found


def failure(exit_code: int, last_words: str) -> AirflowException:
    """Says whether Airflow tries again."""
    if exit_code in NEEDS_A_PERSON:
        return AirflowFailException(f"Exit code {exit_code}: {NEEDS_A_PERSON[exit_code]}. {last_words}")
    return AirflowException(f"Exit code {exit_code}, to be tried again. {last_words}")


class TidemarkOperator(BaseOperator):
    """`tidemark run JOB.yaml ARGUMENTS` with the job file's `variables` and `connections`. Returns the run's summary.

    When the task is killed the job gets SIGTERM: it finishes its epoch and ends.
    """

    template_fields = ("job_file", "arguments", "variables")

    def __init__(
        self,
        *,
        job_file: str,
        arguments: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
        connections: Sequence[str] = (),
        command: str = "tidemark",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.job_file, self.arguments, self.variables = job_file, list(arguments), dict(variables or {})
        self.connections, self.command = connections, command
        self._process = SubprocessHook()

    def execute(self, context: Any) -> dict[str, Any]:
        with TemporaryDirectory(prefix="tidemark-") as folder:
            summary = Path(folder, "summary.json")
            ended = self._process.run_command(
                [self.command, "run", self.job_file, *self.arguments, "--summary", str(summary)],
                env={**os.environ, **environment(self.connections, self.variables)},
                cwd=folder,
            )
            if ended.exit_code != 0:
                raise failure(ended.exit_code, ended.output)
            return json.loads(summary.read_text())

    def on_kill(self) -> None:
        self._process.send_sigterm()


class TidemarkSubmitOperator(SparkSubmitOperator):
    """`spark-submit` of jobs/sync.py in client mode; the job file and its arguments are `application_args`, the rest is as
    in SparkSubmitOperator. Returns the run's summary.

    When the task is killed spark-submit gets SIGTERM, which Tidemark hears: it finishes its epoch and ends.
    """

    template_fields = (*SparkSubmitOperator.template_fields, "variables")

    def __init__(
        self, *, variables: Mapping[str, str] | None = None, connections: Sequence[str] = (), **kwargs: Any
    ) -> None:
        super().__init__(deploy_mode="client", **kwargs)
        self.variables, self.connections = dict(variables or {}), connections

    def execute(self, context: Any) -> dict[str, Any]:
        # Not by env_vars: on YARN and Kubernetes these become a part of the command line.
        os.environ.update(environment(self.connections, self.variables))
        with TemporaryDirectory(prefix="tidemark-") as folder:
            summary = Path(folder, "summary.json")
            self.application_args = [*(self.application_args or ()), "--summary", str(summary)]
            try:
                super().execute(context)
            except AirflowException as error:
                found = re.search(r"Error code is: (-?\d+)", str(error))
                if found is None:
                    raise
                raise failure(int(found[1]), str(error)) from None
            return json.loads(summary.read_text())

    def on_kill(self) -> None:
        process = self._hook and self._hook._submit_sp
        if process is not None and process.poll() is None:  # SparkSubmitOperator would send SIGKILL
            process.send_signal(signal.SIGTERM)
