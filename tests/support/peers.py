"""The regression schemas of Debezium and Flink CDC: SQL files out of the test jars that they publish, and their statements.

The jars are downloaded once into the cache, as servers are. Nothing of them is in this repository.
"""

import re
import zipfile
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from devtools.server_packages import built_once, cache_folder, download_jar


@dataclass(frozen=True, slots=True)
class PeerJar:
    """A jar with SQL files, pinned by its digest."""

    peer: str
    artifact: str  # group:name:version:classifier
    sha256: str


BINLOG = PeerJar(
    "debezium",
    "io.debezium:debezium-connector-binlog:3.5.0.Final:tests",
    "5cbdff1a04fe34b0fb5a33ea99f93338a73f77ee08af7000d4389517d9cf788b",
)
JARS = {
    "mysql": (
        BINLOG,
        PeerJar(  # the last version whose test jar is published
            "flink",
            "org.apache.flink:flink-connector-mysql-cdc:3.1.0:tests",
            "61ace21622d909f02cfa938028efb69c448c64a0e1cec5f3add94ed32c86daf6",
        ),
    ),
    "mariadb": (
        BINLOG,
        PeerJar(
            "debezium-mariadb",
            "io.debezium:debezium-connector-mariadb:3.5.0.Final:tests",
            "8cacd126a56ab7fb267649deeb1ec3a9fa64c0e84f39d366ac386c90c442b08d",
        ),
    ),
    "postgres": (
        PeerJar(
            "debezium",
            "io.debezium:debezium-connector-postgres:3.5.0.Final:tests",
            "5af508c7acf05df8a2fcca0da7ec09984ab9d234bc3e05a0c9fc0e71cad3e0c0",
        ),
        PeerJar(  # the last version whose test jar is published
            "flink",
            "com.ververica:flink-connector-postgres-cdc:2.4.2:tests",
            "890300a59a3a2e6fa574839f512c86d38093079f174dbe0e5244fba8b33cb9d5",
        ),
    ),
}
"""Kind of server → jars. Flink CDC has no connector for MariaDB."""


SUFFIXES = {"mysql": ".sql", "mariadb": ".sql", "postgres": (".sql", ".ddl")}
"""Kind of server → files that the peers' tests execute on it. MySQL's .ddl files are input of a parser only."""


def sql_files(kind: str) -> dict[str, str]:
    """The SQL files for a kind of server: their names, as `peer/file`, and their texts."""
    return {
        f"{jar.peer}/{path.name}": path.read_text(encoding="utf-8")
        for jar in JARS[kind]
        for path in sorted(_unpacked(jar).rglob("*"))
        if path.name.endswith(SUFFIXES[kind])
    }


def _unpacked(jar: PeerJar) -> Path:
    target = cache_folder().with_name("peers") / jar.artifact.replace(":", "-")
    with built_once(target) as filling:
        if filling is not None:
            downloaded = download_jar(jar.artifact, jar.sha256, filling)
            with zipfile.ZipFile(downloaded) as archive:
                archive.extractall(filling, [name for name in archive.namelist() if name.endswith((".sql", ".ddl"))])
            downloaded.unlink()
    return target


_QUOTED = r"""'(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*" | `(?:[^`]|``)*`"""
_END = (
    r"(?P<end>; | \n(?=(?:CREATE\s+(?:TABLE|DATABASE)|INSERT\s+INTO|FLUSH)\s))"  # in some files nothing else ends them
)
_MYSQL = re.compile(
    rf"(?P<comment>--(?=[\s-])[^\n]* | \#[^\n]* | /\*(?!!).*?\*/) | {_QUOTED} | {_END} | .", re.S | re.X
)
_POSTGRES = re.compile(
    rf"(?P<comment>--[^\n]* | /\*.*?\*/) | {_QUOTED} | \$(?P<tag>\w*)\$.*?\$(?P=tag)\$ | {_END} | .", re.S | re.X
)
_ABOUT_TABLES = re.compile(
    r"""( (CREATE|DROP)\s+(TEMPORARY\s+)?TABLE | (ALTER|RENAME|ANALYZE|OPTIMIZE|REPAIR|TRUNCATE)\s+TABLE | ALTER\s+SEQUENCE
        | CREATE\s+(UNIQUE\s+)?INDEX | INSERT | UPDATE | DELETE | (CREATE|DROP)\s+(DATABASE|SCHEMA) | USE | CREATE\s+EXTENSION
        | SET\s+(sql_mode|character_set_\w+|search_path) )\b""",
    re.I | re.X,
)


def table_statements(text: str, kind: str) -> list[str]:
    """The statements of a file that are about tables, without comments. The others are not needed for the tables, or would
    change the whole server: accounts, routines, triggers, views, events, publications, tablespaces."""
    return [statement for statement in _statements(text, kind) if _ABOUT_TABLES.match(statement)]


def _statements(text: str, kind: str) -> Iterator[str]:
    parts: list[str] = []
    for token in (_POSTGRES if kind == "postgres" else _MYSQL).finditer(f"{text}\n;"):
        if token["comment"] is not None:
            parts.append(" ")
        elif token["end"] is None:
            parts.append(token[0])
        elif statement := "".join(parts).strip():
            yield statement
            parts = []


_NAME = r"""(?:[`"]((?:[^`"]|``|"")+)[`"]|(\w+))"""
_DATABASES = re.compile(
    rf"(?:\b(?:DATABASE|SCHEMA)\s+(?:IF\s+(?:NOT\s+)?EXISTS\s+)?|^USE\s+|search_path\s+TO\s+){_NAME}", re.I
)
_QUALIFIERS = re.compile(rf"\b(?:TABLE|EXISTS|INTO|UPDATE|FROM|REFERENCES|LIKE|RENAME)\s+{_NAME}\.", re.I)


@dataclass(frozen=True, slots=True)
class Renaming:
    """Gives the databases (PostgreSQL: the schemas) that a file names names of its own: files use the same ones, and the
    server is shared. `own`: where the tables are that have no database in the file. The others' names begin with it."""

    own: str
    names: tuple[str, ...]

    @classmethod
    def of(cls, own: str, statements: Iterable[str], kept: Container[str]) -> "Renaming":
        """`kept`: names that stay."""
        found = [match for text in statements for form in (_DATABASES, _QUALIFIERS) for match in form.finditer(text)]
        names = {match[1] or match[2] for match in found}
        return cls(own, tuple(sorted(name for name in names if name not in kept)))

    def apply(self, statement: str) -> str:
        def renamed(match: re.Match[str]) -> str:
            name = match[1] or match[2]
            if name not in self.names:
                return match[0]
            start = match.start(1 if match[1] else 2) - match.start()
            return f"{match[0][:start]}{self.own}_{match[0][start:]}"

        for form in (_DATABASES, _QUALIFIERS):
            statement = form.sub(renamed, statement)
        return statement
