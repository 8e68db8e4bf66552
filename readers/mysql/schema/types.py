"""Maps a column's type, as the server writes it, to its canonical Arrow type."""

import re
from dataclasses import dataclass

from tidemark.conf.tables import setting_of
from tidemark.readers.mysql.decoding.charsets import MAX_CHARACTER_BYTES
from tidemark.state.errors import UnsupportedTypeError
from tidemark.state.source_types import SPATIAL_TYPES
from tidemark.state.table import TableId

_TYPE = re.compile(r"(?P<base>[a-z_][a-z0-9_]*)(?P<arguments>\((?:[0-9, ]+)\))?(?P<rest>[^()']*)", re.I)
_LABELLED = re.compile(r"(?P<base>enum|set)\((?P<labels>.*)\)(?P<rest>[^()']*)", re.I | re.S)
_LABEL = re.compile(r"(?P<prefix>x?)'(?P<label>(?:[^'\\]|''|\\.)*)'(?P<after>,|$)", re.S)
_ESCAPED = re.compile(r"''|\\(.)", re.S)
_ESCAPES = {"0": "\0", "n": "\n", "r": "\r", "t": "\t", "b": "\b", "Z": "\x1a"}

MAX_ARROW_PRECISION = 38

_SIGNED = {"tinyint": "int8", "smallint": "int16", "mediumint": "int32", "int": "int32", "bigint": "int64"}
_UNSIGNED = {
    "tinyint": "int16",
    "smallint": "int32",
    "mediumint": "int32",
    "int": "int64",
    "bigint": "decimal(20,0)",
}
_PLAIN = {
    "float": "float32",
    "double": "float64",
    "date": "date32",
    "datetime": "timestamp",
    "timestamp": "timestamptz",
    "time": "string",
    "year": "int16",
    "json": "string",
    "binary": "binary",
    "varbinary": "binary",
    "tinyblob": "binary",
    "blob": "binary",
    "mediumblob": "binary",
    "longblob": "binary",
    "vector": "list<float32>",
    "uuid": "string",
    "inet4": "string",
    "inet6": "string",
}
CHARACTER_TYPES = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext"})
_TEMPORAL = frozenset({"time", "datetime", "timestamp"})


@dataclass(frozen=True, slots=True)
class SourceType:
    """`int(10) unsigned zerofill` is base `int`, numbers (10,), attributes {unsigned, zerofill}.

    `labels`: those of an ENUM or SET, in order. A label that the server can only show in hex stays as written (`x'ff'`):
    its charset is `binary`, whose labels are not text. Characters beyond U+FFFF are `?`: the catalog is in utf8mb3, only
    the log has the real labels. `attributes`: lower-case words, including those in a comment (`/*M!100301 COMPRESSED*/`),
    and `mariadb` for a temporal type in the format before 10.1.
    """

    base: str
    numbers: tuple[int, ...] = ()
    labels: tuple[str, ...] = ()
    attributes: frozenset[str] = frozenset()

    @property
    def unsigned(self) -> bool:
        return "unsigned" in self.attributes or "zerofill" in self.attributes


def parse_source_type(text: str) -> SourceType:
    """Parses information_schema.COLUMNS.COLUMN_TYPE. Raises ValueError if the text is not a type.

    In labels the servers double quotes and write backslash, NUL, newline and carriage return with a backslash, in any SQL
    mode (seen on MySQL 9.7, MariaDB 10.11 and 11.4). Other characters are unchanged.
    """
    labelled = _LABELLED.fullmatch(text.strip())
    if labelled is not None:
        return SourceType(
            labelled["base"].lower(), labels=_labels(text, labelled["labels"]), attributes=_words(labelled["rest"])
        )
    match = _TYPE.fullmatch(text.strip())
    if match is None or match["base"].lower() in {"enum", "set"}:
        raise ValueError(f"not a column type: {text!r}")
    arguments = match["arguments"]
    numbers = tuple(int(number) for number in arguments[1:-1].split(",")) if arguments else ()
    return SourceType(match["base"].lower(), numbers, attributes=_words(match["rest"]))


def canonical_type(table: TableId, column: str, source_type: str, charset: str | None) -> str:
    """The name of the canonical Arrow type (see `state.table.arrow_type_of`). `charset`: the column's; None for `binary` and
    for types without one.

    Raises UnsupportedTypeError, which names the column, if values can't be copied without loss.
    """
    try:
        parsed = parse_source_type(source_type)
    except ValueError:
        raise _unsupported(table, column, source_type, "is unknown to this version") from None
    check_logged_form(table, column, source_type)
    reason = _obstacle(parsed, charset)
    if reason is not None:
        raise _unsupported(table, column, source_type, *reason)
    name = _name(parsed)
    if name is None:
        raise _unsupported(table, column, source_type, "is unknown to this version")
    return name


def check_logged_form(table: TableId, column: str, source_type: str) -> None:
    """Raises UnsupportedTypeError for a column whose form in the log can't even be skipped, so excluding the column does not
    help. Accepts a type that can't be parsed."""
    try:
        parsed = parse_source_type(source_type)
    except ValueError:
        return
    if "compressed" in parsed.attributes:
        reason, change = (
            "is compressed in the log in MariaDB's own format",
            "Change it to the type without COMPRESSED",
        )
    elif parsed.base in _TEMPORAL and parsed.attributes & {"mariadb", "binary"}:
        reason = "is stored in the format before MySQL 5.6"
        change = "Rebuild the table (ALTER TABLE … FORCE, in MariaDB with mysql56_temporal_format=ON)"
    else:
        return
    raise UnsupportedTypeError(
        f"Column {column} of {table}, {source_type}, {reason}.",
        f"{change}, or leave the table out: source.exclude_tables.",
    )


def _name(parsed: SourceType) -> str | None:
    match parsed.base:
        case base if base in _SIGNED:
            return (_UNSIGNED if parsed.unsigned else _SIGNED)[base]
        case "decimal":
            precision, scale = parsed.numbers if len(parsed.numbers) == 2 else (parsed.numbers[0], 0)
            return f"decimal({precision},{scale})" if precision <= MAX_ARROW_PRECISION else "string"
        case "bit":
            return "int64" if parsed.numbers[0] < 64 else "decimal(20,0)"
        case base if base in SPATIAL_TYPES:
            return "binary"
        case base if base in CHARACTER_TYPES or base in {"enum", "set"}:
            return "string"
        case base:
            return _PLAIN.get(base)


def _obstacle(parsed: SourceType, charset: str | None) -> tuple[str, str] | None:
    """(why a value would not survive, a remedy besides excluding the column). None if values are copied without loss."""
    if parsed.base == "year" and parsed.numbers == (2,):
        return "shows two digits of its four", "Or change it to YEAR(4)."
    if parsed.base == "decimal" and "zerofill" in parsed.attributes and parsed.numbers[0] > MAX_ARROW_PRECISION:
        return "is printed with zeros that the log does not have", "Or change it to the type without ZEROFILL."
    if parsed.base in CHARACTER_TYPES | {"enum", "set"}:
        if charset is None or charset == "binary":
            return "has character set binary, so its values are not text", "Or give it a character set."
        if charset not in MAX_CHARACTER_BYTES:
            return f"has character set {charset}, which is not supported", "Or convert it to utf8mb4."
    return None


def _unsupported(
    table: TableId, column: str, source_type: str, reason: str, otherwise: str = ""
) -> UnsupportedTypeError:
    shown = source_type if len(source_type) <= 100 else f"{source_type[:97]}..."
    left_out = setting_of("source.columns", table, {"exclude": [column]})
    remedy = f"Leave the column out: {left_out}. {otherwise}".strip()
    return UnsupportedTypeError(f"Column {column} of {table}, {shown}, {reason}.", remedy)


def _labels(text: str, listed: str) -> tuple[str, ...]:
    labels: list[str] = []
    at = 0
    while True:
        match = _LABEL.match(listed, at)
        if match is None:
            raise ValueError(f"not a column type: {text!r}")
        labels.append(f"x'{match['label']}'" if match["prefix"] else _ESCAPED.sub(_unescape, match["label"]))
        at = match.end()
        if not match["after"]:
            if at != len(listed):
                raise ValueError(f"not a column type: {text!r}")
            return tuple(labels)


def _unescape(match: re.Match[str]) -> str:
    escaped: str | None = match[1]
    return "'" if escaped is None else _ESCAPES.get(escaped, escaped)


def _words(rest: str) -> frozenset[str]:
    return frozenset(re.findall(r"[a-z]+", rest.lower()))
