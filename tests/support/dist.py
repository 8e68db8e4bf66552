"""The artifacts of `make dist`, and a Python that has only the packages that they need."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.support.jobs import ROOT


@pytest.fixture(scope="session")
def our_zip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The path of tidemark.zip, with the wheel beside it."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(["make", "--silent", "wheel", f"DIST={folder}"], cwd=ROOT, check=True, stdin=subprocess.DEVNULL)
    return folder / "tidemark.zip"


@pytest.fixture(scope="session")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter that imports the same packages as this one, but no editable installation: .pth files in a folder
    that a .pth file names are not read."""
    folder = tmp_path_factory.mktemp("python")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = folder / "lib" / version / "site-packages"
    (packages / "packages.pth").write_text(sysconfig.get_path("purelib"))
    python = folder / "bin" / "python"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [python, "-c", "import pyspark, tidemark"]
    installed = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert "No module named 'tidemark'" in installed.stderr
    return python
