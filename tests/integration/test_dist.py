"""The output of `make dist` works without an installation: all packages with their data, and kernels that stay compiled."""

import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.support.jobs import ROOT

pytestmark = pytest.mark.integration

PACKAGES = tuple(path.name for path in (ROOT / "src" / "tidemark").iterdir() if path.is_symlink())
READER_MODULE = "tidemark/readers/mysql/decoding/gather.py"
SINK_MODULE = "tidemark/sinks/rows/fields.py"
RUN_KERNELS = """
import numpy
from tidemark.readers.mysql.decoding.gather import copy_padded
from tidemark.sinks.rows.fields import copy_bytes

source = numpy.frombuffer(b"abc", numpy.uint8).copy()
out = numpy.zeros(4, numpy.uint8)
rows = numpy.zeros(1, numpy.int64)
copy_padded(source, rows, rows + 3, rows, numpy.array([0, 4], numpy.int32), out)
assert bytes(out) == b"abc\\0"
copy_bytes(source, numpy.uint64(1), out, numpy.uint64(0), numpy.uint64(2))
assert bytes(out) == b"bcc\\0"
for kernel in (copy_padded, copy_bytes):
    print(kernel.__code__.co_filename, sum(kernel.stats.cache_hits.values()))
"""


def test_the_zip_holds_every_module_and_all_data(our_zip: Path) -> None:
    files = {
        f"tidemark/{path.relative_to(ROOT).as_posix()}"
        for package in PACKAGES
        for pattern in ("**/*.py", "**/*.yaml", "**/*.jinja", "**/*.properties")
        for path in (ROOT / package).glob(pattern)
    } | {"tidemark/__init__.py", "tidemark/py.typed"}
    names = {name for name in zipfile.ZipFile(our_zip).namelist() if ".dist-info/" not in name}
    assert names == files
    assert [path.suffix for path in our_zip.parent.iterdir() if path != our_zip] == [".whl"]


def test_kernels_of_readers_and_sinks_stay_compiled_in_every_copy_of_the_zip(
    our_zip: Path, bare_python: Path, tmp_path: Path
) -> None:
    """Spark gives each application its own copy on each executor."""
    for folder, hits in (("app-1", 0), ("app-2", 1)):
        (tmp_path / folder).mkdir()
        copy = Path(shutil.copy(our_zip, tmp_path / folder))
        paths = [f"{copy}/{module}" for module in (READER_MODULE, SINK_MODULE)]
        assert _run_kernels(copy, bare_python, {"NUMBA_CACHE_DIR": str(tmp_path)}) == [(path, hits) for path in paths]


@pytest.mark.parametrize("changed", ["tidemark/readers/mysql/decoding/json_kernel.py", "tidemark/sinks/rows/text.py"])
def test_a_change_of_any_kernel_module_compiles_all_kernels_again(
    our_zip: Path, bare_python: Path, tmp_path: Path, changed: str
) -> None:
    """numba itself looks only at the file of the compiled function, not at those of the functions that it calls."""
    copy = Path(shutil.copy(our_zip, tmp_path))
    hits = []
    for change in (None, changed, None):
        with zipfile.ZipFile(our_zip) as old, zipfile.ZipFile(copy, "w") as new:
            for name in old.namelist():
                new.writestr(name, old.read(name) + (b"\n# changed\n" if name == change else b""))
        ran = _run_kernels(copy, bare_python, {"NUMBA_CACHE_DIR": str(tmp_path)})
        hits.append([count for _, count in ran])
    assert hits == [[0, 0], [0, 0], [1, 1]]


def test_kernels_run_where_nothing_can_be_cached(our_zip: Path, bare_python: Path) -> None:
    ran = _run_kernels(our_zip, bare_python, {"NUMBA_CACHE_DIR": "", "XDG_CACHE_HOME": "/dev/null/cache"})
    assert [path.removeprefix(f"{our_zip}/") for path, _ in ran] == [READER_MODULE, SINK_MODULE]


def _run_kernels(our_zip: Path, python: Path, environment: dict[str, str]) -> list[tuple[str, int]]:
    """Returns for each kernel its file, and how often its machine code was found in the cache."""
    command = [str(python), "-c", RUN_KERNELS]
    settings = os.environ | {"PYTHONPATH": str(our_zip)} | environment
    done = subprocess.run(command, env=settings, cwd=our_zip.parent, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = [line.rpartition(" ") for line in done.stdout.splitlines()]
    return [(path, int(hits)) for path, _, hits in lines]
