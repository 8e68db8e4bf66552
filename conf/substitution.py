"""`${NAME}`, `${NAME:-default}`, `${file:/run/secrets/x}` and `file:/run/secrets/x` in a job file's values.

Rules: `${NAME:-default}` uses the default if NAME is unset or empty. `$${` is a plain `${`. A plain (unquoted) value gets
its type from the text after substitution, so `${PARALLELISM:-4}` is a number; a quoted value is text. One line end at the
end of a secret file is removed. A value that is filled in for the user or password of a `url` needs no percent-encoding,
whatever characters it has. A single variable for both (`user:password`) is split at its first colon.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path as FilePath
from urllib.parse import quote

from tidemark.conf.problems import Problem
from tidemark.conf.yaml_tree import Node, Path, Scalar, map_scalars

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


STAND_IN = "unsetenvironmentvariable"
"""The text in place of a missing value, where one is allowed: letters only, so that it fits names, hosts and keys."""
STAND_IN_URL = f"https://{STAND_IN}/"
"""The text in place of a missing URL of `notify`."""
_STAND_IN_SECTIONS = frozenset({"source", "sink", "spark", "notify"})


class SubstitutionError(Exception):
    """A placeholder can't be filled in. The text becomes a Problem."""


class MissingValueError(SubstitutionError):
    """The variable is not set, or the file can't be read."""


@dataclass
class Substitution:
    """Fills in one job file's values. ``folder`` is where relative secret files start.

    Values of ``--set`` are filled in only with ``overrides``: a scheduler may let other people choose them. ``connects``
    False: values of the sections source, sink, spark and notify may be missing; STAND_IN takes their place, in a URL's port a
    number.
    """

    environ: Mapping[str, str]
    folder: FilePath
    overrides: bool
    connects: bool = True
    problems: list[Problem] = field(default_factory=list)

    def apply(self, root: Node) -> Node:
        """Returns the tree with all values filled in. Values that can't be filled in stay, and are added to ``problems``."""
        return map_scalars(root, self._fill)

    def _fill(self, path: Path, scalar: Scalar) -> Scalar:
        try:
            if scalar.place.line is None and not self.overrides:
                return replace(scalar, text=_without_substitution(scalar.text, path))
            if scalar.text.startswith(FILE_PREFIX) and reads_file(path):
                name, taken_from = self._expand(scalar.text, path)
                text = self._read_or_stand_in(name, path, shown=scalar.text)
                return replace(scalar, text=text, taken_from=taken_from or scalar.text)
            text, taken_from = self._expand(scalar.text, path)
        except SubstitutionError as error:
            self.problems.append(Problem(scalar.place, path, str(error)))
            return scalar
        return replace(scalar, text=text, taken_from=taken_from)

    def _expand(self, text: str, path: Path) -> tuple[str, str | None]:
        """Returns (the text with placeholders filled in, the placeholders or None if there were none)."""
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
            value = self._value_or_stand_in(match["inside"], path, text[: match.start()])
            if login is not None and login[0] <= match.start() < login[1]:
                both_in_one = ":" not in _without_placeholders(text)[login[0] : login[1]]
                value = quote(value, safe=":" if both_in_one else "")
            parts.append(value)
            taken.append("${" + match["inside"].partition(":-")[0] + "}")
        parts.append(text[end:])
        return "".join(parts), ", ".join(dict.fromkeys(taken)) or None

    def _value_or_stand_in(self, inside: str, path: Path, before: str) -> str:
        """``before``: the text before the placeholder."""
        try:
            return self._value(inside)
        except MissingValueError:
            if not self._may_stand_in(path):
                raise
            is_port = path[-1] == "url" and before.endswith(":") and "@" in before
            return "1" if is_port else _stand_in_of(path) if not before else STAND_IN

    def _read_or_stand_in(self, name: str, path: Path, *, shown: str) -> str:
        try:
            return self._read(name, shown=shown)
        except MissingValueError:
            if not self._may_stand_in(path):
                raise
            return _stand_in_of(path)

    def _may_stand_in(self, path: Path) -> bool:
        return not self.connects and bool(path) and path[0] in _STAND_IN_SECTIONS

    def _value(self, inside: str) -> str:
        if inside.startswith(FILE_PREFIX):
            return self._read(inside, shown=inside)
        match = _VARIABLE.fullmatch(inside)
        if match is None:
            raise SubstitutionError(
                "has a '${…}' that is not ${NAME}, ${NAME:-default} or ${file:/run/secrets/x}; "
                "a plain '${' is written '$${'"
            )
        name, default = match["name"], match["default"]
        value = self.environ.get(name)
        if value or (value is not None and default is None):
            return value
        if default is None:
            raise MissingValueError(
                f"the environment variable {name} is not set. Set it, or write ${{{name}:-default}}"
            )
        return default

    def _read(self, written: str, *, shown: str) -> str:
        """Returns the text of the file that ``written`` (`file:…`) names. Errors show ``shown`` instead, if it differs."""
        name = written.removeprefix(FILE_PREFIX)
        if name.startswith("//"):
            name = name.removeprefix("//")
            if not name.startswith("/"):
                raise SubstitutionError(f"'{shown}' names a host; write file:/path or file:///path")
        if not name:
            raise SubstitutionError(f"'{shown}' names no file; write file:/run/secrets/x")
        path = self.folder / name
        file = str(path) if shown == written else shown
        try:
            with path.open("rb") as stream:
                content = stream.read(MAX_SECRET_FILE_BYTES + 1)
        except OSError as error:
            raise MissingValueError(f"can't read the file {file}: {error.strerror or type(error).__name__}") from None
        if len(content) > MAX_SECRET_FILE_BYTES:
            raise SubstitutionError(
                f"the file {file} is larger than {MAX_SECRET_FILE_BYTES} bytes: is it the right one?"
            )
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise SubstitutionError(f"the file {file} is not UTF-8 text") from None
        text = text.removesuffix("\n").removesuffix("\r")
        if not text:
            raise SubstitutionError(f"the file {file} is empty")
        return text


def _without_substitution(text: str, path: Path) -> str:
    """Returns ``text`` with `${` for `$${`. Raises SubstitutionError for a text that would be filled in."""
    wanted = any(match.group() != "$${" for match in _PLACEHOLDER.finditer(text))
    if wanted or (text.startswith(FILE_PREFIX) and reads_file(path)):
        raise SubstitutionError(
            "has a '${…}' or 'file:…', which --set does not fill in. "
            "Add --substitute if you wrote the value yourself; a plain '${' is written '$${'"
        )
    return text.replace("$${", "${")


def is_path(path: Path) -> bool:
    """Tells whether the key's value is itself a path. Then `file:/…` is a URI of Hadoop or fsspec and stays as it is."""
    return path in _PATHS


def reads_file(path: Path) -> bool:
    """Tells whether a value `file:…` of the key is replaced by the file's text: for all keys but paths and those Spark
    settings that are not secrets."""
    if path[:2] == ("spark", "conf") and len(path) == 3:
        return is_secret_name(str(path[2]))
    return not is_path(path)


def is_secret_name(setting: str) -> bool:
    """Tells whether a Spark setting of this name contains a secret, rather than the path of one."""
    return _SECRET_NAME.search(setting) is not None and _FILE_NAME.search(setting) is None


def is_secret_setting(name: str, value: str) -> bool:
    """Tells whether a Spark setting is a secret by its name, or contains one, like the JVM option ``-Dpassword=x``."""
    if value in ("true", "false"):
        return False
    return is_secret_name(name) or _SECRET_OPTION.search(value) is not None


def _stand_in_of(path: Path) -> str:
    return STAND_IN_URL if path == ("notify", "webhook") else STAND_IN


def _login_span(text: str) -> tuple[int, int] | None:
    match = _URL_LOGIN.match(_without_placeholders(text))
    return None if match is None else match.span("login")


def _without_placeholders(text: str) -> str:
    """Returns ``text`` with every placeholder replaced by as many underscores, so that only the characters of the file
    itself are left."""
    return _PLACEHOLDER.sub(lambda match: "_" * len(match.group()), text)
