"""Looks for new tables while a job runs."""

import logging
import threading
import time
from collections.abc import Collection

from tidemark.conf.model import JobFile
from tidemark.jobs.sources import selected_tables
from tidemark.jobs.tables.job_tables import is_of_a_tool
from tidemark.jobs.tables.parking import without_tables
from tidemark.state.errors import TidemarkError
from tidemark.state.table import TableId


class Discovery:
    """One per run. A thread asks the source, because an answer may take long. `look` is called often, by one thread."""

    def __init__(self, job: JobFile) -> None:
        self._job = job
        self._looked_at = time.monotonic()
        self._looking: threading.Thread | None = None
        self._found: tuple[TableId, ...] = ()
        self._told: set[TableId] = set()

    def look(self, known: Collection[TableId]) -> bool:
        """Returns True once for each new table: one that the job file selects, and that is not in `known`. If it can't join,
        the start has said why, and the next start of the job tries again."""
        seconds = self._job.source.discover_seconds
        if seconds and self._looking is None and time.monotonic() >= self._looked_at + seconds:
            self._looked_at = time.monotonic()
            self._looking = threading.Thread(target=self._ask, name="tidemark discovery", daemon=True)
            self._looking.start()
        if self._looking is None or self._looking.is_alive():
            return False
        self._looking = None
        self._told &= set(self._found)  # one that goes and comes again is new
        new = set(self._found) - set(known) - self._told
        self._told |= new
        return bool(new)

    def _ask(self) -> None:
        gone = set[TableId]()
        while True:
            try:
                job = without_tables(self._job, gone)
                found = selected_tables(job) if job.source.tables else []
                self._found = tuple(table for table in found if not is_of_a_tool(self._job, table))
            except TidemarkError as error:
                if error.table is not None and error.table not in gone:
                    gone.add(error.table)  # it is named, and not there now; the log has told so
                    continue
                # The job's own connections tell of an outage.
                logging.getLogger("tidemark").debug("new tables can't be looked for: %s", error)
            return
