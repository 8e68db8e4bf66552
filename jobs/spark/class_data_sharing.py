"""JVM class data sharing: an archive of Spark's loaded classes, which halves the processor time of a start.

The first JVM writes the archive when it ends; later JVMs map it. The JVM itself refuses an archive of another JVM or class
path, or an incomplete one, and then loads its classes as usual.
https://docs.oracle.com/en/java/javase/17/vm/class-data-sharing.html
"""

import contextlib
import hashlib
import os
import shutil
from pathlib import Path

import pyspark

_SILENT = "-Xlog:disable -Xlog:all=warning:stderr:uptime,level,tags -Xlog:cds*=off:stderr"
"""Without this the JVM logs about archives on stdout, where our events are, and on stderr, whose last line is the cause."""


def archive_options() -> str:
    """The JVM's options. '' if there is no folder for an archive."""
    archive = _archive_file()
    if archive is None:
        return ""
    keeping = "SharedArchiveFile" if _is_whole(archive) else "ArchiveClassesAtExit"
    return f"-XX:{keeping}={archive} {_SILENT}"


def _archive_file() -> Path | None:
    """The archive for this JVM and these classes: if one of them is replaced, the name changes."""
    java = shutil.which("java", path=_java_home_bin()) or shutil.which("java")
    if java is None:
        return None
    jars = Path(pyspark.__file__).parent / "jars"
    with contextlib.suppress(OSError, RuntimeError):  # no such folder, or a user without a home
        real = Path(java).resolve()
        known = f"{real} {real.stat().st_mtime_ns} {pyspark.__version__} {jars} {jars.stat().st_mtime_ns}"
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "tidemark", "jvm")
        if " " in str(folder):  # options are words
            return None
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder / f"{hashlib.sha256(known.encode()).hexdigest()[:16]}.jsa"
    return None


def _is_whole(archive: Path) -> bool:
    """False if the archive is incomplete (the JVM writes its header last), missing or unreadable."""
    with contextlib.suppress(OSError), archive.open("rb") as file:
        return any(file.read(4))
    return False


def _java_home_bin() -> str | None:
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin")) if home else None
