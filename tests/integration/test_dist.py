"""What `make dist` builds works without an installation: all packages with their data, and kernels that stay compiled."""

import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.support.jobs import ROOT

pytestmark = pytest.mark.integration

PACKAGES = ("jobs", "enumerator", "readers", "sinks", "state", "conf")
RUN_A_KERNEL = """
import numpy
from readers.mysql.gather import copy_padded

out = numpy.zeros(4, numpy.uint8)
rows = numpy.zeros(1, numpy.int64)
copy_padded(numpy.frombuffer(b"abc", numpy.uint8).copy(), rows, rows + 3, rows, numpy.array([0, 4], numpy.int32), out)
assert bytes(out) == b"abc\\0"
print(copy_padded.__code__.co_filename, sum(copy_padded.stats.cache_hits.values()))
"""


def test_the_zip_holds_every_module_and_all_data(our_zip: Path) -> None:
    files = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for pattern in ("**/*.py", "**/*.yaml", "**/*.jinja")
        for path in (ROOT / package).glob(pattern)
    }
    names = {name for name in zipfile.ZipFile(our_zip).namelist() if ".dist-info/" not in name}
    assert names == files
    assert [path.suffix for path in our_zip.parent.iterdir() if path != our_zip] == [".whl"]


def test_kernels_in_a_zip_stay_compiled_wherever_it_lies(our_zip: Path, bare_python: Path, tmp_path: Path) -> None:
    """Spark gives each application a copy of its own on each executor."""
    for folder, hits in (("app-1", 0), ("app-2", 1)):
        (tmp_path / folder).mkdir()
        copy = Path(shutil.copy(our_zip, tmp_path / folder))
        assert _run_a_kernel(copy, bare_python, tmp_path) == (f"{copy}/readers/mysql/gather.py", hits)


def test_changed_code_is_compiled_anew(our_zip: Path, bare_python: Path, tmp_path: Path) -> None:
    """Also where it comes under the same name: numba looks at the one file that a function stands in."""
    copy = Path(shutil.copy(our_zip, tmp_path))
    hits = []
    for changed in (None, "readers/mysql/json_kernel.py", None):
        with zipfile.ZipFile(our_zip) as old, zipfile.ZipFile(copy, "w") as new:
            for name in old.namelist():
                new.writestr(name, old.read(name) + (b"\n# changed\n" if name == changed else b""))
        hits.append(_run_a_kernel(copy, bare_python, tmp_path)[1])
    assert hits == [0, 0, 1]


def _run_a_kernel(our_zip: Path, python: Path, cache: Path) -> tuple[str, int]:
    """Where its code stands, and how many times its machine code was found."""
    environment = os.environ | {"PYTHONPATH": str(our_zip), "NUMBA_CACHE_DIR": str(cache)}
    command = [str(python), "-c", RUN_A_KERNEL]
    printed = subprocess.run(command, env=environment, cwd=cache, check=True, capture_output=True, text=True).stdout
    path, hits = printed.split()
    return path, int(hits)
