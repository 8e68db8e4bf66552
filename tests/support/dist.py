"""What `make dist` builds, and a Python that has nothing of ours but the packages that it needs."""

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.support.jobs import ROOT


@pytest.fixture(scope="session")
def our_zip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tidemark.zip, with the wheel beside it."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(["make", "--silent", "dist", f"DIST={folder}"], cwd=ROOT, check=True, stdin=subprocess.DEVNULL)
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
    installed = subprocess.run([python, "-c", "import pyspark, jobs"], cwd=folder, capture_output=True, text=True)
    assert "No module named 'jobs'" in installed.stderr
    return python
