"""A small valid job file, and loading it with changes."""

from pathlib import Path

import pytest

from conf.load import load_job_file
from conf.model import JobFile
from conf.problems import RefusedJobFileError

SMALL = """\
job: shop
checkpoint: /checkpoints/shop
source:
  url: mysql://cdc:pa55word@db/
  tables: ["shop.*"]
sink:
  type: files
  path: /out
"""


def load_text(folder: Path, text: str, *overrides: str, environ: dict[str, str] | None = None) -> JobFile:
    """The job file ``text``, written to ``folder``/job.yaml and loaded; the process's environment plays no part."""
    path = folder / "job.yaml"
    path.write_text(text, encoding="utf-8")
    return load_job_file(path, overrides, environ or {})


def problems_of(folder: Path, text: str, *overrides: str, environ: dict[str, str] | None = None) -> list[str]:
    """The lines of everything that is wrong with ``text``."""
    with pytest.raises(RefusedJobFileError) as caught:
        load_text(folder, text, *overrides, environ=environ)
    assert caught.value.exit_code == 2
    return [str(problem) for problem in caught.value.problems]
