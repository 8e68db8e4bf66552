"""Writes docs/job-file.md and docs/job-file.schema.json from the job file's models, so that they always match them.

python -m scripts.job_file_reference            writes them
python -m scripts.job_file_reference --check    exits 1 if one is not up to date
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import PlainSerializer
from pydantic.fields import FieldInfo

from tidemark.conf.checkpoints import Checkpoints
from tidemark.conf.explain import keys_in_order
from tidemark.conf.json_schema import json_schema
from tidemark.conf.model import JobFile, Metrics, Spark
from tidemark.conf.notify import Notify
from tidemark.conf.reading import Log, Snapshot
from tidemark.conf.reconnect import Reconnect
from tidemark.conf.schema_changes import SchemaChanges
from tidemark.conf.section import Section, form_of
from tidemark.conf.signals import Signals
from tidemark.conf.sink import LATER_SINK_TYPES, AuditColumns, ConsoleSink, DeltaSink, FilesSink, MirrorSink, Rename
from tidemark.conf.source import Source, TableColumns, Tls
from tidemark.conf.table_options import TableOptions

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs" / "job-file.md"
SCHEMA = ROOT / "docs" / "job-file.schema.json"
EXAMPLES = ROOT / "conf" / "examples"

_NEEDS_QUOTES = re.compile(r"^[\[*&`\"'@%!|>#]|(?<!\$)\{|, |: | #")

SECTIONS: tuple[tuple[str, type[Section]], ...] = (
    ("Top level", JobFile),
    ("checkpoints", Checkpoints),
    ("tables.TABLE", TableOptions),
    ("source", Source),
    ("source.columns.TABLE", TableColumns),
    ("source.tls, sink.tls", Tls),
    ("sink.audit_columns", AuditColumns),
    ("snapshot", Snapshot),
    ("log", Log),
    ("reconnect", Reconnect),
    ("sink: type mirror", MirrorSink),
    ("sink.rename", Rename),
    ("sink: type files", FilesSink),
    ("sink: type delta", DeltaSink),
    ("sink: type console", ConsoleSink),
    ("sink.on_schema_change", SchemaChanges),
    ("metrics", Metrics),
    ("notify", Notify),
    ("signals", Signals),
    ("spark", Spark),
)

INTRODUCTION = """\
# The job file

A job file is one YAML file. It says what is copied, from where and to where. `tidemark validate JOB.yaml` checks it and
reports all problems at once, each with its line, its key and the allowed values:

```
job.yaml:14: sink.typ: unknown key. Did you mean 'type'? Allowed here: type, path, format, …
```

This page is generated from the models in `conf/` by `python -m scripts.job_file_reference`.

**Editors** complete and describe the keys while you write, if they know the file's [JSON schema](job-file.schema.json).
`tidemark validate --schema > job-file.schema.json` writes that of the installed version. Name it in the first line of the
job file (Visual Studio Code with the YAML extension, and every other editor with yaml-language-server):

```yaml
# yaml-language-server: $schema=job-file.schema.json
```

## How to write values

- **YAML 1.2**: only `true` and `false` are truth values; `on`, `no`, `5400-5499` and `12:30` are text. These are refused:
  duplicate keys, tags (`!!python/…`), merge keys (`<<`), several documents in one file, more than 200,000 keys and values,
  more than 40 levels.
- **Environment variables**: `${NAME}` is a variable, `${NAME:-default}` has a default for a variable that is unset or
  empty, and `$${` is a plain `${`. A value without quotes gets its type after the substitution:
  `parallelism: ${PARALLELISM:-4}` is a number.
- **Files**: `file:/run/secrets/x` as a whole value, or `${file:/run/secrets/x}` as a part of one, is the content of that
  file, without the line end at its end. A value `file:/…` is not read but stays a URI for keys that are paths
  (`checkpoint`, `sink.path`, `tls`), and for settings of `spark.conf` whose names do not say that they are secrets.
- **Users and passwords in URLs** need no encoding if they come from a variable or a file, whatever characters they have.
  Otherwise, and if the whole URL comes from a variable or a file, `@ : / ? # %` must be percent-encoded
  (`%40 %3A %2F %3F %23 %25`).
- **Relative paths** (`checkpoint`, `sink.path`, certificates, secret files) start at the job file's folder, not at the
  folder in which the command runs.
- **Table names** are `database.table`, for PostgreSQL `schema.table`. They are case-sensitive. A part with a dot, a space,
  a backtick or one of `*?[]` must be in backticks, with backticks in it doubled: ``"shop.`orders.2024`"``. In globs, `*`
  matches any characters, `?` one character, `[abc]` and `[!abc]` one of (not) these. In YAML, text that starts with `*` or
  a backtick must be in quotes.

Secrets (passwords in URLs, `source.mask_key`, `notify.webhook`, and settings of `spark.conf` whose names say so) appear in
no output, log, error or checkpoint.

## Changes from the command line

`--set a.b=c` sets one key. If a key is set twice, the last value is used. The value is YAML, and replaces the old value;
lists are replaced as a whole. A key with a dot must be in quotes; table names and Spark settings need none:

```
--set snapshot.parallelism=8 --set source.tables='[shop.orders, "shop.cust*"]'
--set 'source.columns."shop.orders".exclude=[note]' --set spark.conf.spark.executor.memory=8g
--set 'sink.table="{schema}_{table}"'
```

A value with `${NAME}` or `file:…` in `--set` is refused, because a scheduler may let other people choose the value: they
could read secrets with it. If you write the values yourself, `--substitute` fills them in as in the job file.
"""


def schema_text() -> str:
    """Returns the text of docs/job-file.schema.json."""
    return json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"


def reference() -> str:
    """Returns the text of docs/job-file.md."""
    parts = [INTRODUCTION, "## Keys\n", *(_section(title, model) for title, model in SECTIONS), _later(), *_examples()]
    return "\n".join(parts)


def _section(title: str, model: type[Section]) -> str:
    heading = f"### {title}" if title == "Top level" else f"### `{title}`"
    lines = [heading, "", " ".join((model.__doc__ or "").split()), ""]
    lines += ["| key | value | default | meaning |", "|---|---|---|---|"]
    lines += [_row(key, model.model_fields[key]) for key in keys_in_order(model)]
    return "\n".join([*lines, ""])


def _row(key: str, field: FieldInfo) -> str:
    examples = [f"`{_yaml(example)}`" for example in field.examples or []]
    meaning = (field.description or "") + (f" Example: {', '.join(examples)}" if examples else "")
    default = "**required**" if field.is_required() else _default(field)
    return "| " + " | ".join(_cell(text) for text in (f"`{key}`", form_of(field), default, meaning)) + " |"


def _default(field: FieldInfo) -> str:
    """Returns the default as the file writes it, with units."""
    value = field.default
    if isinstance(value, Section):
        return f"`{value.words[0]}`" if value.words else "all defaults"
    if value is None or value in ((), {}):
        return "none"
    return f"`{_yaml(_as_written(field, value))}`"


def _as_written(field: FieldInfo, value: Any) -> Any:
    for note in field.metadata:
        if isinstance(note, PlainSerializer):
            return note.func(value)  # type: ignore[call-arg] # the model's serializers take the value alone
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _yaml(value: Any) -> str:
    """Returns one line of YAML. JSON is YAML; its quotes are left out if they are not needed."""
    match value:
        case dict():
            return "{" + ", ".join(f"{_yaml(key)}: {_yaml(item)}" for key, item in value.items()) + "}"
        case list() | tuple():
            return "[" + ", ".join(_yaml(item) for item in value) + "]"
        case str() if not _NEEDS_QUOTES.search(value):
            return value
        case _:
            return json.dumps(value)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _later() -> str:
    later = [f"`{key}`: {reason}" for _, model in SECTIONS for key, reason in model.refused_keys.items()]
    later += [f"`sink.type: {kind}`: {instead}" for kind, instead in LATER_SINK_TYPES.items()]
    introduction = "Planned, and refused until they are supported:"
    return "\n".join(["### Not supported yet", "", introduction, "", *(f"- {line}" for line in later), ""])


def _examples() -> Iterator[str]:
    yield "## Examples\n"
    for path in sorted(EXAMPLES.glob("*.yaml")):
        yield f"### {path.name}\n\n```yaml\n{path.read_text(encoding='utf-8')}```\n"


def main(arguments: list[str]) -> int:
    """Returns the exit code: 1 if ``--check`` finds that a file is out of date."""
    outdated = False
    for path, text in ((REFERENCE, reference()), (SCHEMA, schema_text())):
        if arguments != ["--check"]:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            sys.stderr.write(f"{path.relative_to(ROOT)} is out of date: run python -m scripts.job_file_reference\n")
            outdated = True
    return int(outdated)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
