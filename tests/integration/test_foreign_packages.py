"""Tidemark runs beside packages of the users' own that have the names of its folders."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.jobs import ROOT

pytestmark = pytest.mark.integration

FOREIGN = ("jobs", "conf", "state")
"""Packages that users' repositories have; these define other things."""

BROKEN = ("enumerator", "readers", "sinks")
"""Packages that fail when they are imported."""

JOB = ROOT / "conf" / "examples" / "changes-to-console.yaml"
SYNC = ROOT / "jobs" / "sync.py"


@pytest.fixture
def users_repository(tmp_path: Path) -> Path:
    for name in FOREIGN:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
        for module in ("cli", "load", "plan", "checkpoint", "commands", "errors"):
            (tmp_path / name / f"{module}.py").write_text("raise ImportError('not this one')\n")
    for name in BROKEN:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise ImportError('not this one')\n")
    return tmp_path


def run(folder: Path, *command: str | Path, path: Path) -> "subprocess.CompletedProcess[str]":
    """Runs a command in `folder`, which comes before `path` on the import path."""
    environment = os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{path}", "SHOP_PASSWORD": "secret"}
    return subprocess.run(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )


def test_the_command_runs_beside_foreign_packages(users_repository: Path) -> None:
    ended = run(users_repository, sys.executable, "-m", "tidemark.jobs.cli", "validate", JOB, path=ROOT / "src")
    assert (ended.returncode, ended.stderr) == (0, "")
    ended = run(users_repository, sys.executable, "-c", "import jobs, conf; import jobs.cli", path=ROOT / "src")
    assert "not this one" in ended.stderr  # they are on the path


def test_the_script_of_spark_submit_runs_beside_foreign_packages(
    users_repository: Path, our_zip: Path, bare_python: Path
) -> None:
    ended = run(users_repository, bare_python, SYNC, "--help", path=our_zip)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "--summary" in ended.stdout


def test_spark_submit_runs_beside_foreign_packages(users_repository: Path, our_zip: Path, bare_python: Path) -> None:
    submit = Path(sys.executable).with_name("spark-submit")
    interpreter = f"--conf=spark.pyspark.python={bare_python}"
    ended = run(users_repository, submit, interpreter, "--py-files", our_zip, SYNC, "--help", path=users_repository)
    assert ended.returncode == 0, ended.stderr
    assert "--summary" in ended.stdout


def test_the_script_of_spark_submit_hides_no_module_of_python(tmp_path: Path) -> None:
    """Python puts a script's own folder first on the path."""
    script = Path(shutil.copy(SYNC, tmp_path))
    for name in ("inspect", "types", "logging"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('not this one')\n")
    assert "not this one" in run(ROOT, sys.executable, "-c", "import inspect", path=tmp_path).stderr
    ended = run(ROOT, sys.executable, script, "--help", path=ROOT / "src")
    assert (ended.returncode, ended.stderr) == (0, "")
