"""`tidemark report`: the page of one job, or the catalogue of many with a page for each."""

import os
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from tidemark.conf.model import JobFile
from tidemark.jobs.monitoring.ending import ending_of
from tidemark.jobs.report.facts import read_facts
from tidemark.jobs.signals.steering import steering_at
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import JobFileError

if TYPE_CHECKING:
    from tidemark.jobs.report.catalogue import CatalogueEntry


def write_report(job: JobFile, output: Path) -> int:
    """Writes the page completely or not at all. Returns its size in bytes. Raises JobFileError if `output` can't be written or
    packages are missing, CheckpointError if the job was never started."""
    _require_packages()
    from tidemark.jobs.report.page import render

    return _write(render(job, read_facts(job), time.time_ns() // 1000), output)


def job_files_in(paths: Iterable[Path]) -> list[Path]:
    """The files, and in place of each folder the files `*.yaml` and `*.yml` in it. Raises JobFileError if a folder has none."""
    found: dict[Path, None] = {}
    for path in paths:
        inside = (
            sorted(file for file in path.iterdir() if file.suffix in (".yaml", ".yml")) if path.is_dir() else [path]
        )
        if not inside:
            raise JobFileError(
                f"The folder {path} has no job files (*.yaml).", "Name a folder with job files, or job files."
            )
        found |= dict.fromkeys(inside)
    return list(found)


def write_catalogue(paths: Sequence[Path], load: Callable[[Path], JobFile], output: Path) -> int:
    """Writes the catalogue, and the page of each job into the folder `<name of output>-jobs` beside it. Returns the number of
    jobs. The page names a job that can't be read, with the reason. `load` reads a job file. Raises JobFileError if a page can't
    be written or packages are missing."""
    _require_packages()
    from tidemark.jobs.report.catalogue import render_catalogue

    pages = output.with_name(f"{output.stem}-jobs")
    try:
        pages.mkdir(exist_ok=True)
    except OSError as error:
        raise JobFileError(
            f"The folder {pages} can't be created: {error.strerror}.", "Name another file with -o."
        ) from error
    now_us = time.time_ns() // 1000
    names = _page_names(paths)
    entries = [_entry(path, load, pages / names[path], now_us) for path in paths]
    _write(render_catalogue(entries, now_us), output)
    return len(entries)


def _entry(path: Path, load: Callable[[Path], JobFile], page: Path, now_us: int) -> "CatalogueEntry":
    from tidemark.jobs.report.catalogue import CatalogueEntry
    from tidemark.jobs.report.page import render

    name = path.stem
    try:
        job = load(path)
        name = job.job
        checkpoint = Checkpoint.at(job.checkpoint)
        if checkpoint.job_state() is None:
            return CatalogueEntry(str(path), name, None)
        facts = read_facts(job)
        is_paused = steering_at(checkpoint).paused_us is not None
        text = render(job, facts, now_us)
    except Exception as error:  # noqa: BLE001 -- a job's trouble, of its storage for example, must not hide the other jobs
        return CatalogueEntry(str(path), name, ending_of(error))
    _write(text, page)
    return CatalogueEntry(str(path), name, facts, quote(f"{page.parent.name}/{page.name}"), is_paused)


def _page_names(paths: Iterable[Path]) -> dict[Path, str]:
    """Names of pages that differ also where upper and lower case are one."""
    found: dict[Path, str] = {}
    taken: set[str] = set()
    for path in paths:
        number, name = 1, path.stem
        while name.lower() in taken:
            number += 1
            name = f"{path.stem}-{number}"
        taken.add(name.lower())
        found[path] = f"{name}.html"
    return found


def _require_packages() -> None:
    try:
        import_module("tidemark.jobs.report.page")
    except ImportError as error:
        raise JobFileError(
            f"A report needs packages that are not installed ({error.name}).",
            "Run pip install 'tidemark-cdc[report]'.",
        ) from error


def _write(text: str, output: Path) -> int:
    """Writes a page completely or not at all. Returns its size in bytes."""
    page = text.encode()
    unfinished = output.with_name(f".{output.name}.{uuid.uuid4().hex}.part")
    try:
        unfinished.write_bytes(page)
        os.replace(unfinished, output)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise JobFileError(
            f"-o {output} can't be written: {error.strerror}.", "Create the folder, or name another file."
        ) from error
    return len(page)
