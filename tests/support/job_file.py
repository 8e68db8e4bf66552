"""A small valid job file, and loading it with changes."""

from pathlib import Path

import pytest

from tidemark.conf.load import load_job_file
from tidemark.conf.model import JobFile
from tidemark.conf.problems import RefusedJobFileError

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


def load_text(
    folder: Path,
    text: str,
    *overrides: str,
    environ: dict[str, str] | None = None,
    substitute_overrides: bool = False,
) -> JobFile:
    """Loads the job file ``text``, written to ``folder``/job.yaml, without the process's environment."""
    path = folder / "job.yaml"
    path.write_text(text, encoding="utf-8")
    return load_job_file(path, overrides, environ or {}, substitute_overrides=substitute_overrides)


def problems_of(
    folder: Path,
    text: str,
    *overrides: str,
    environ: dict[str, str] | None = None,
    substitute_overrides: bool = False,
) -> list[str]:
    """The problems of ``text``, one line each."""
    with pytest.raises(RefusedJobFileError) as caught:
        load_text(folder, text, *overrides, environ=environ, substitute_overrides=substitute_overrides)
    assert caught.value.exit_code == 2
    return [str(problem) for problem in caught.value.problems]
