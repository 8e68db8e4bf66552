"""The start of Spark's JVM: its settings travel in a private file, and a local one can be reached from this machine only.

Every user of a machine sees the command lines of all processes, and settings may be secrets. Spark itself would give each
setting to the JVM as an option `--conf`.
"""

import argparse
import contextlib
import os
import re
import shlex
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.find_spark_home import _find_spark_home
from pyspark.java_gateway import launch_gateway

from tidemark.conf.substitution import is_secret_setting
from tidemark.jobs.monitoring.ending import debugging

JAVA_OPTIONS = "spark.driver.extraJavaOptions"
LOOPBACK = "127.0.0.1"
_STDERR = 2
INCUBATOR_WARNING = b"WARNING: Using incubator modules: jdk.incubator.vector"
_SUBMIT_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
_LOCAL_ADDRESS = "SPARK_LOCAL_IP"
_ADDRESSES = ("spark.driver.host", "spark.driver.bindAddress")
_LOCAL_MASTER = re.compile(r"local(?:\[.*)?")

_REDACTION = "spark.redaction.regex"
_SPARKS_REDACTION = "(?i)secret|password|token|access[.]?key"
_OUR_REDACTION = r"(?i:passwd|credential|(?:access|account|api|private|encryption)[._-]?key|[a-z][a-z0-9+.-]*://[^/?#\s]*:[^/?#\s]*@)"
"""The secrets of job files (conf/substitution.py), and logins in URLs. Spark searches names and values."""


def start_jvm(settings: Mapping[str, str]) -> None:
    """Starts the JVM, unless this process has one. `settings`: with `spark.master`."""
    local = _LOCAL_MASTER.fullmatch(settings["spark.master"]) is not None
    with tempfile.TemporaryDirectory(prefix="tidemark-") as folder:  # mode 700
        given = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        given.add_argument("--properties-file")
        user, others = given.parse_known_args(shlex.split(os.environ.get(_SUBMIT_ARGUMENTS, "pyspark-shell")))
        other = Path(user.properties_file) if user.properties_file else _defaults_file()
        text = other.read_text() if other.is_file() else ""
        properties = Path(folder, "spark.properties")
        properties.write_text(f"{text}\n{_as_properties(_without_secret_options(settings, Path(folder)))}")
        arguments = {_SUBMIT_ARGUMENTS: shlex.join(["--properties-file", str(properties), *others])}
        if local and not set(_ADDRESSES) & settings.keys():
            arguments[_LOCAL_ADDRESS] = os.environ.get(_LOCAL_ADDRESS, LOOPBACK)
        if SparkContext._gateway is None:
            with environment(arguments), _passed_on() as errors:
                launch: Any = launch_gateway  # it has no types
                gateway = launch(popen_kwargs={"stderr": errors})
            SparkContext._ensure_initialized(gateway=gateway)


@contextlib.contextmanager
def _passed_on() -> Iterator[int]:
    """Yields a file descriptor for processes that are started inside. What they write there is printed on stderr, without a
    warning that each start of Spark 4 brings and that no option turns off."""
    readable, writable = os.pipe()
    threading.Thread(target=_pass_on, args=(readable,), name="tidemark JVM errors", daemon=True).start()
    try:
        yield writable
    finally:
        os.close(writable)


def _pass_on(readable: int) -> None:
    with open(readable, "rb") as errors:
        for line in errors:
            if line.rstrip() != INCUBATOR_WARNING or debugging():
                with contextlib.suppress(OSError):  # nobody reads stderr any more
                    os.write(_STDERR, line)  # sys.stderr has a lock, which the end of the interpreter needs


def protection(given: SparkConf) -> dict[str, str]:
    """Returns settings that keep secrets out of the event log and web pages, and a local session on loopback.

    `given`: the settings of the JVM, which win. Their pattern of secrets is extended.
    """
    found = {_REDACTION: f"(?:{given.get(_REDACTION, _SPARKS_REDACTION)})|{_OUR_REDACTION}"}
    if _LOCAL_MASTER.fullmatch(given.get("spark.master", "")):
        if not given.contains("spark.authenticate"):
            found["spark.authenticate"] = "true"
        if _LOCAL_ADDRESS not in os.environ and not any(map(given.contains, _ADDRESSES)):
            found |= dict.fromkeys(_ADDRESSES, LOOPBACK)
    return found


def _defaults_file() -> Path:
    """The settings that Spark reads unless it is given a properties file."""
    folder = os.environ.get("SPARK_CONF_DIR")
    return Path(folder or Path(_find_spark_home(), "conf"), "spark-defaults.conf")


@contextlib.contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Sets environment variables for processes that are started inside."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _without_secret_options(settings: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Moves the JVM's options to a file if they contain a secret: they are a command line, too."""
    options = settings.get(JAVA_OPTIONS, "")
    if not is_secret_setting(JAVA_OPTIONS, options):
        return dict(settings)
    words = (word.replace("\\", "\\\\").replace('"', '\\"') for word in shlex.split(options))
    file = folder / "java-options"
    file.write_text("\n".join(f'"{word}"' for word in words))
    return {**settings, JAVA_OPTIONS: f"@{file}"}


def _as_properties(settings: Mapping[str, str]) -> str:
    """Returns the text of a Java properties file."""
    return "".join(f"{_escaped(name)}={_escaped(value)}\n" for name, value in settings.items())


def _escaped(text: str) -> str:
    """Escapes all but letters, digits and a few signs: the form has many special characters."""
    units = memoryview(text.encode("utf-16-be")).cast("B")
    codes = (units[i] << 8 | units[i + 1] for i in range(0, len(units), 2))
    return "".join(chr(code) if re.match(r"[A-Za-z0-9./_-]", chr(code)) else f"\\u{code:04x}" for code in codes)
