"""`tidemark init`: writes a first job file by looking at the source. Changes nothing there."""

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from typing_extensions import assert_never

from tidemark.conf.endpoint import DatabaseKind, Endpoint, parse_endpoint
from tidemark.conf.load import load_job_options
from tidemark.conf.model import JobFile
from tidemark.conf.redaction import redact
from tidemark.conf.tables import TableName, parse_table_name
from tidemark.conf.tls import warning_of_clear_text
from tidemark.jobs.sources import find_source, selected_tables
from tidemark.readers.findings import Finding
from tidemark.readers.source import FoundSource
from tidemark.state.errors import JobFileError, SourceNotUsableError
from tidemark.state.table import TableId

_WITH_VARIABLE = re.compile(
    r"(?P<before>[^@/]+://[^@/:]+):\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)\}@(?P<after>.*)", re.DOTALL
)
_WIDTH = 110


@dataclass(frozen=True, slots=True)
class _Login:
    """`variable`: holds the password in the job file's environment, "" if there is no password."""

    endpoint: Endpoint
    variable: str

    @property
    def url(self) -> str:
        """The URL as the job file has it, without the password."""
        at, database = self.endpoint, self.endpoint.database or ""
        password = f":${{{self.variable}}}" if self.variable else ""
        host = f"[{at.host}]" if ":" in at.host else at.host
        path = quote(database, safe="") if at.kind == "postgresql" else ""
        return f"{at.kind}://{quote(at.user, safe='')}{password}@{host}:{at.port}/{path}"

    @property
    def environ(self) -> dict[str, str]:
        return {self.variable: self.endpoint.password.get_secret_value()} if self.variable else {}


def init(url: str, output: Path | None) -> None:
    """Prints a job file for the database of `url`, or writes it to `output`. Raises JobFileError if that is there or the URL is
    wrong, SourceNotUsableError if no table can be copied."""
    if output is not None and output.exists():
        raise JobFileError(f"{output} exists already.", "Name another file: init overwrites none.")
    login = _login(url, os.environ)
    text, warnings = _written(login)
    clear = warning_of_clear_text("source", login.endpoint, None)
    for warning in [*warnings, *([] if clear is None else [clear])]:
        print(f"warning: {redact(warning)}", file=sys.stderr)
    if output is None:
        print(text, end="")
        return
    try:
        with output.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise JobFileError(f"{output} can't be written: {error.strerror}.", "Name another file.") from error
    export = f"export {login.variable}=…, then " if login.variable else ""
    print(f"Wrote {output}. Next: {export}tidemark validate {output} --connect")


def _login(url: str, environ: Mapping[str, str]) -> _Login:
    named = _WITH_VARIABLE.fullmatch(url)
    variable = "" if named is None else named["name"]
    if variable and not environ.get(variable):
        raise JobFileError(f"The environment variable {variable} is not set.", "Set it to the password.")
    try:
        endpoint = parse_endpoint(url if named is None else f"{named['before']}@{named['after']}")
    except ValueError as error:
        raise JobFileError(f"The URL {error}.", "See tidemark init --help.") from error
    if endpoint.kind == "postgresql" and endpoint.database is None:
        raise JobFileError(
            "The URL names no database.", "One PostgreSQL job reads one database: add it after the host."
        )
    derived = re.sub(r"[^A-Z0-9]", "_", (endpoint.database or endpoint.host).upper()) + "_PASSWORD"
    derived = derived if derived[0].isalpha() else f"DB_{derived}"
    if endpoint.password.get_secret_value():
        return _Login(endpoint, derived)
    variable = variable or (derived if environ.get(derived) else "")
    if not variable:
        return _Login(endpoint, "")
    password = type(endpoint.password)(environ[variable])
    found = Endpoint(endpoint.kind, endpoint.host, endpoint.port, endpoint.user, password, endpoint.database)
    return _Login(found, variable)


def _written(login: _Login) -> tuple[str, list[str]]:
    """Returns the job file's text, and what to warn of."""
    endpoint = login.endpoint
    database = None if endpoint.kind == "postgresql" else endpoint.database
    first = [f"{_part(database)}.*" if database else "*.*"]
    folders = sorted({table.database for table in selected_tables(_job(login, first))})
    globs = [f"{_part(folder)}.*" for folder in folders]
    with find_source(_job(login, globs)) as found:
        findings, reasons = found.findings, _left_out(found)
        if not any(schema.table not in reasons for schema in found.schemas):
            why = " ".join(f"{table}: {reason}" for table, reason in list(reasons.items())[:3])
            raise SourceNotUsableError(f"No table of {endpoint.host} can be copied. {why}", "Name another database.")
        about = [finding for finding in findings if finding.table is None]
        name = found.name
    text = _text(login, globs, reasons, name, about)
    warnings = [f"{table} is left out. {reason}" for table, reason in reasons.items()]
    warnings += [str(finding) for finding in about]
    warnings += [str(f) for f in findings if f.severity == "warn" and f.table is not None and f.table not in reasons]
    load_job_options(text, [], Path.cwd(), login.environ)  # what init writes is valid
    return text, warnings


def _left_out(found: FoundSource) -> dict[TableId, str]:
    """The tables that the job file leaves out, and why."""
    reasons = dict[TableId, str]()
    for finding in found.findings:
        if finding.table is not None and finding.severity == "refuse":
            reasons.setdefault(finding.table, f"{finding.message} {finding.remedy}")
    for schema in found.schemas:
        if not schema.key:
            reasons.setdefault(
                schema.table,
                "It has no primary key. If it has a unique key of NOT NULL columns, name it in source.keys; a sink of type "
                "files copies it without one.",
            )
    return dict(sorted(reasons.items(), key=lambda item: str(item[0])))


def _text(
    login: _Login, globs: Sequence[str], reasons: Mapping[TableId, str], server: str, about: Sequence[Finding]
) -> str:
    endpoint, job = login.endpoint, _job_name(login.endpoint)
    lines = [f"# Copies {', '.join(globs)} of {server}, and follows every change. Every key: docs/job-file.md"]
    if login.variable:
        lines.append(f"# The password comes from the environment: export {login.variable}=…")
    lines += ["#", "# Grants for the account, to be given by an administrator:"]
    quote = '"' if endpoint.kind == "postgresql" else "`"
    folders = [_in_sql(parse_table_name(f"{glob.removesuffix('.*')}.t").database, quote) for glob in globs]
    whole = ", ".join(folders) if endpoint.kind == "postgresql" else folders[0] + ".*"
    user = _in_sql(endpoint.user, quote)
    facts = {"user": user, "databases": whole, "publication": f"tidemark_{job.replace('-', '_')}"}
    lines += [f"#   {line.format(**facts)}" for line in _grants(endpoint.kind)]
    if len(folders) > 1 and endpoint.kind != "postgresql":
        lines.append(f"#   The same for {', '.join(f'{folder}.*' for folder in folders[1:])}")
    for finding in about:
        label = "To do before the first run" if finding.severity == "refuse" else "Note"
        lines += ["#", *_comment(f"{label}: {finding}")]
    lines += ["", f"job: {job}", "mode: full+incremental      # or full, incremental"]
    lines += ["trigger: once               # or an interval, such as 10s: runs until it is stopped"]
    lines += [f"checkpoint: ./checkpoints/{job}", "", "source:", f"  url: {login.url}"]
    lines += ["  tables:", *(f"    - {json.dumps(glob, ensure_ascii=False)}" for glob in globs)]
    if reasons:
        lines.append("  exclude_tables:")
        for table, reason in reasons.items():
            lines += _comment(reason, indent="    ")
            lines.append(f"    - {json.dumps(str(TableName(table.database, table.name)), ensure_ascii=False)}")
    lines += ["  # tls: {ca: ./ca.pem, verify: true}", "", "snapshot:"]
    lines += ["  parallelism: 4             # splits that are read at the same time"]
    lines += ["  # max_rows_per_second: 20000   # to reduce the load on the source", "", "sink:", "  type: files"]
    lines += [f"  path: ./copy/{job}", "  format: parquet"]
    lines += ["  # Or a mirror, which keeps the tables identical in another database:", "  # type: mirror"]
    lines += ["  # url: postgresql://etl:${TARGET_PASSWORD}@warehouse:5432/analytics", '  # table: "{schema}_{table}"']
    return "\n".join(lines) + "\n"


def _grants(kind: DatabaseKind) -> tuple[str, ...]:
    match kind:
        case "mysql":
            return (
                "GRANT SELECT ON {databases} TO {user};",
                "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO {user};",
                "Without GTIDs also: GRANT BACKUP_ADMIN, XA_RECOVER_ADMIN ON *.* TO {user};",
                "                    GRANT SELECT ON performance_schema.log_status TO {user};",
            )
        case "mariadb":
            return (
                "GRANT SELECT ON {databases} TO {user};",
                "GRANT REPLICATION SLAVE, BINLOG MONITOR ON *.* TO {user};",
            )
        case "postgresql":
            return (
                "ALTER ROLE {user} REPLICATION;",
                "GRANT USAGE ON SCHEMA {databases} TO {user}; GRANT SELECT ON ALL TABLES IN SCHEMA {databases} TO {user};",
                "CREATE PUBLICATION {publication} FOR TABLE … WITH (publish_via_partition_root = true);",
                "The job creates the publication itself if {user} owns the tables and has CREATE on the database.",
            )
        case _:
            assert_never(kind)


def _comment(text: str, indent: str = "") -> list[str]:
    """The text as lines of comments, without secrets."""
    lines, line = list[str](), ""
    for word in redact(text).split():
        if line and len(indent) + len(line) + len(word) > _WIDTH:
            lines.append(f"{indent}# {line}")
            line = word
        else:
            line = f"{line} {word}".strip()
    return [*lines, f"{indent}# {line}"]


def _job(login: _Login, tables: Sequence[str]) -> JobFile:
    draft = {
        "job": _job_name(login.endpoint),
        "checkpoint": "./checkpoint",
        "source": {"url": login.url, "tables": list(tables)},
        "sink": {"type": "files", "path": "./copy"},
    }
    return load_job_options(json.dumps(draft), [], Path.cwd(), login.environ)


def _job_name(endpoint: Endpoint) -> str:
    name = re.sub(r"[^a-z0-9]+", "-", (endpoint.database or endpoint.host).lower()).strip("-")
    return f"{name or 'source'}-copy"[-50:].strip("-")


def _in_sql(name: str, quote: str) -> str:
    """The name as SQL has it, in quotes where it needs them or may be a keyword."""
    is_plain = re.fullmatch(r"[a-z_][a-z0-9_]*", name) and name not in {"default", "order", "user"}
    return name if is_plain else quote + name.replace(quote, 2 * quote) + quote


def _part(name: str) -> str:
    """The name of a database or schema as a part of a table's name in the job file."""
    return str(TableName(name, "t")).removesuffix(".t")
