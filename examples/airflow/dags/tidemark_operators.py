"""Operators that run a Tidemark job: `TidemarkOperator` with `tidemark`, `TidemarkSubmitOperator` with `spark-submit`.

A connection `shop` sets ${SHOP_LOGIN} (user:password), ${SHOP_HOST} and ${SHOP_PORT} of the job file. They are passed in the
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
    9: "tables are parked, all others are up to date",
    10: "a signal has paused the job",
}
"""Exit codes that a retry can't change. After all others Airflow retries, which is safe. 6: the job is already running. 7: the
source is out of reach. After 1, 5, 130 and a kill the job continues where it was."""


def environment(connections: Sequence[str], variables: Mapping[str, str]) -> dict[str, str]:
    """Returns the values of the job file's ${NAME}s."""
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
    """Returns the exception that makes Airflow retry, or fail at once for the codes of NEEDS_A_PERSON."""
    if exit_code in NEEDS_A_PERSON:
        return AirflowFailException(f"Exit code {exit_code}: {NEEDS_A_PERSON[exit_code]}. {last_words}")
    return AirflowException(f"Exit code {exit_code}, to be tried again. {last_words}")


class TidemarkOperator(BaseOperator):
    """Runs `tidemark run JOB.yaml ARGUMENTS` with the job file's `variables` and `connections`. Returns the run's summary.

    If the task is killed, the job gets SIGTERM. It finishes its epoch and ends.
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
    """Runs `spark-submit` of jobs/sync.py in client mode. Returns the run's summary.

    `application_args` are the job file and its arguments. Other parameters are those of SparkSubmitOperator. If the task is
    killed, spark-submit gets SIGTERM and passes it to Tidemark, which finishes its epoch and ends.
    """

    template_fields = (*SparkSubmitOperator.template_fields, "variables")

    def __init__(
        self, *, variables: Mapping[str, str] | None = None, connections: Sequence[str] = (), **kwargs: Any
    ) -> None:
        super().__init__(deploy_mode="client", **kwargs)
        self.variables, self.connections = dict(variables or {}), connections

    def execute(self, context: Any) -> dict[str, Any]:
        # Not with env_vars: on YARN and Kubernetes they become a part of the command line.
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
