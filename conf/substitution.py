"""`${NAME}`, `${NAME:-default}`, `${file:/run/secrets/x}` and `file:/run/secrets/x` in a job file's values.

Rules: `${NAME:-default}` takes the default if NAME is unset or empty. `$${` is a plain `${`. A substituted plain
(unquoted) value is typed by its text, so that `${PARALLELISM:-4}` is a number; a quoted one is text. One line end at
the end of a secret file is dropped. Where user or password of a `url` are filled in, the value is taken literally,
whatever characters it has: it needs no percent-encoding. A single variable for both (`user:password`) is parted at its
first colon.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path as FilePath
from urllib.parse import quote

from conf.problems import Problem
from conf.yaml_tree import Node, Path, Scalar, map_scalars

MAX_SECRET_FILE_BYTES = 65_536
FILE_PREFIX = "file:"

_PLACEHOLDER = re.compile(r"\$\$\{|\$\{(?P<inside>[^{}]*)\}|(?P<open>\$\{)")
_VARIABLE = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>.*))?", re.DOTALL)
_URL_LOGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://(?P<login>[^/?#]*)@")

_PATHS: frozenset[Path] = frozenset(
    [
        ("checkpoint",),
        ("sink", "path"),
        *((end, "tls", key) for end in ("source", "sink") for key in ("ca", "cert", "key")),
    ]
)
_SECRET_NAME = re.compile(
    r"secret|password|passwd|token|credential|(?:access|account|api|private|encryption)[._-]?key", re.IGNORECASE
)
_SECRET_OPTION = re.compile(r"(?:secret|password|passwd|token|credential)[\w.-]*\s*=", re.IGNORECASE)
_FILE_NAME = re.compile(r"(?:file|path|dir|location|store|provider|class|type|enabled)$", re.IGNORECASE)


class SubstitutionError(Exception):
    """One placeholder can't be filled in; its text becomes a Problem."""


@dataclass
class Substitution:
    """Fills in one job file's values. ``folder`` is where relative secret files start."""

    environ: Mapping[str, str]
    folder: FilePath
    problems: list[Problem] = field(default_factory=list)

    def apply(self, root: Node) -> Node:
        """The tree with all values filled in; what can't be is left as it is and added to ``problems``."""
        return map_scalars(root, self._fill)

    def _fill(self, path: Path, scalar: Scalar) -> Scalar:
        try:
            if scalar.text.startswith(FILE_PREFIX) and reads_file(path):
                name, taken_from = self._expand(scalar.text, path)
                text = self._read(name)
                return replace(scalar, text=text, taken_from=taken_from or scalar.text)
            text, taken_from = self._expand(scalar.text, path)
        except SubstitutionError as error:
            self.problems.append(Problem(scalar.place, path, str(error)))
            return scalar
        return replace(scalar, text=text, taken_from=taken_from)

    def _expand(self, text: str, path: Path) -> tuple[str, str | None]:
        """(text with placeholders filled in, the placeholders or None if there were none)."""
        login = _login_span(text) if path and path[-1] == "url" else None
        parts: list[str] = []
        taken: list[str] = []
        end = 0
        for match in _PLACEHOLDER.finditer(text):
            parts.append(text[end : match.start()])
            end = match.end()
            if match["open"] is not None:
                raise SubstitutionError("has '${' without a '}' after it; a plain '${' is written '$${'")
            if match["inside"] is None:
                parts.append("${")
                continue
            value = self._value(match["inside"])
            if login is not None and login[0] <= match.start() < login[1]:
                both_in_one = ":" not in _without_placeholders(text)[login[0] : login[1]]
                value = quote(value, safe=":" if both_in_one else "")
            parts.append(value)
            taken.append("${" + match["inside"].partition(":-")[0] + "}")
        parts.append(text[end:])
        return "".join(parts), ", ".join(dict.fromkeys(taken)) or None

    def _value(self, inside: str) -> str:
        if inside.startswith(FILE_PREFIX):
            return self._read(inside)
        match = _VARIABLE.fullmatch(inside)
        if match is None:
            raise SubstitutionError(
                "has a '${…}' that is none of ${NAME}, ${NAME:-default}, ${file:/run/secrets/x}; "
                "a plain '${' is written '$${'"
            )
        name, default = match["name"], match["default"]
        value = self.environ.get(name)
        if value or (value is not None and default is None):
            return value
        if default is None:
            raise SubstitutionError(
                f"the environment variable {name} is not set. Set it, or write ${{{name}:-default}}"
            )
        return default

    def _read(self, written: str) -> str:
        name = written.removeprefix(FILE_PREFIX)
        if name.startswith("//"):
            name = name.removeprefix("//")
            if not name.startswith("/"):
                raise SubstitutionError(f"'{written}' names a host; write file:/path or file:///path")
        if not name:
            raise SubstitutionError("'file:' names no file; write file:/run/secrets/x")
        path = self.folder / name
        try:
            with path.open("rb") as stream:
                content = stream.read(MAX_SECRET_FILE_BYTES + 1)
        except OSError as error:
            raise SubstitutionError(f"can't read the file {path}: {error.strerror or type(error).__name__}") from None
        if len(content) > MAX_SECRET_FILE_BYTES:
            raise SubstitutionError(
                f"the file {path} is larger than {MAX_SECRET_FILE_BYTES} bytes: is it the right one?"
            )
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise SubstitutionError(f"the file {path} is not UTF-8 text") from None
        text = text.removesuffix("\n").removesuffix("\r")
        if not text:
            raise SubstitutionError(f"the file {path} is empty")
        return text


def is_path(path: Path) -> bool:
    """True for keys whose value is itself a path: there `file:/…` is a URI of Hadoop or fsspec and stays as it is."""
    return path in _PATHS


def reads_file(path: Path) -> bool:
    """True for keys where a value `file:…` is replaced by the file's text: all but paths and Spark's harmless
    settings.
    """
    if path[:2] == ("spark", "conf") and len(path) == 3:
        return is_secret_name(str(path[2]))
    return not is_path(path)


def is_secret_name(setting: str) -> bool:
    """True if a Spark setting of this name holds a secret, rather than the place of one."""
    return _SECRET_NAME.search(setting) is not None and _FILE_NAME.search(setting) is None


def is_secret_setting(name: str, value: str) -> bool:
    """True if a Spark setting is a secret by its name, or holds one, as JVM options like ``-Dpassword=x`` do."""
    if value in ("true", "false"):
        return False
    return is_secret_name(name) or _SECRET_OPTION.search(value) is not None


def _login_span(text: str) -> tuple[int, int] | None:
    match = _URL_LOGIN.match(_without_placeholders(text))
    return None if match is None else match.span("login")


def _without_placeholders(text: str) -> str:
    """``text`` with every placeholder blanked out at the same length, so that only the template's own marks are
    left.
    """
    return _PLACEHOLDER.sub(lambda match: "_" * len(match.group()), text)
