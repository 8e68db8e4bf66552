"""Writes docs/job-file.md from the job file's models, so that the reference can't drift from what is accepted.

python -m scripts.job_file_reference            writes it
python -m scripts.job_file_reference --check    exits 1 if it is not up to date
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import PlainSerializer
from pydantic.fields import FieldInfo

from conf.explain import keys_in_order
from conf.model import JobFile, Metrics, Spark
from conf.reading import Log, Reconnect, Snapshot
from conf.section import Section, form_of
from conf.sink import LATER_SINK_TYPES, ConsoleSink, DeltaSink, FilesSink, MirrorSink
from conf.source import Source, TableColumns, Tls

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs" / "job-file.md"
EXAMPLES = ROOT / "conf" / "examples"

_NEEDS_QUOTES = re.compile(r"^[\[*&`\"'@%!|>#]|(?<!\$)\{|, |: | #")

SECTIONS: tuple[tuple[str, type[Section]], ...] = (
    ("Top level", JobFile),
    ("source", Source),
    ("source.columns.TABLE", TableColumns),
    ("source.tls, sink.tls", Tls),
    ("snapshot", Snapshot),
    ("log", Log),
    ("log.reconnect", Reconnect),
    ("sink: type mirror", MirrorSink),
    ("sink: type files", FilesSink),
    ("sink: type delta", DeltaSink),
    ("sink: type console", ConsoleSink),
    ("metrics", Metrics),
    ("spark", Spark),
)

INTRODUCTION = """\
# The job file

One YAML file says what is copied from where to where. `tidemark validate JOB.yaml` checks it. What is wrong is refused
with the line, the key and what is allowed there, all at once:

```
job.yaml:14: sink.typ: unknown key. Did you mean 'type'? Allowed here: type, path, format, on_schema_change
```

This page is written from the models in `conf/` by `python -m scripts.job_file_reference`.

## How values are written

- **YAML** as of version 1.2: only `true` and `false` are truth values; `on`, `no`, `5400-5499` and `12:30` are text.
  A key that stands twice, tags (`!!python/…`), merge keys (`<<`) and several documents in one file are refused.
- **`${NAME}`** is the environment variable, **`${NAME:-default}`** has a default for one that is unset or empty,
  `$${` is a plain `${`. Without quotes around it the value is typed by its text: `parallelism: ${PARALLELISM:-4}` is
  a number.
- **`file:/run/secrets/x`** as a whole value, or **`${file:/run/secrets/x}`** as a part of one, is the text of that
  file (without the line end at its end). Where a key is itself a path (`checkpoint`, `sink.path`, `tls`), and in
  those settings of `spark.conf` that are not named like a secret, a value `file:/…` is a URI and stays as it is.
- **Users and passwords in URLs**: a variable or file that fills them in is taken literally and needs no encoding,
  whatever characters it has. Written out in the file, or with the whole URL taken from a variable or file, `@ : / ? #
  %` are percent-encoded (`%40 %3A %2F %3F %23 %25`).
- **Relative paths** (`checkpoint`, `sink.path`, certificates, secret files) start at the job file's folder, wherever
  the command is run.
- **Table names** are `database.table`, with PostgreSQL `schema.table`. A part with a dot, a space, a backtick or one
  of `*?[]` in its name stands in backticks, a backtick in it doubled: ``"shop.`orders.2024`"``. In globs `*` is any
  characters, `?` one, `[abc]` and `[!abc]` one of (not) these. Letters match by case. In YAML, text that starts with
  `*` or a backtick stands in quotes.

Secrets (passwords in URLs, and settings of `spark.conf` named like one) appear in no output, log, error or checkpoint.

## Changes from the command line

`--set a.b=c` sets one key, later ones win; the value is YAML and replaces what was there, lists included.
A key with a dot in it stands in quotes, but a table's name and a Spark setting are understood without them:

```
--set snapshot.parallelism=8 --set source.tables='[shop.orders, "shop.cust*"]'
--set 'source.columns."shop.orders".exclude=[note]' --set spark.conf.spark.executor.memory=8g
--set 'sink.table="{schema}_{table}"'
```
"""


def reference() -> str:
    """The whole text of docs/job-file.md."""
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
    """As the file would write it: numbers of the model that the file writes with units are turned back."""
    value = field.default
    if isinstance(value, Section):
        return "all defaults"
    if value is None or value in ((), {}):
        return "none"
    return f"`{_yaml(_as_written(field, value))}`"


def _as_written(field: FieldInfo, value: Any) -> Any:
    for note in field.metadata:
        if isinstance(note, PlainSerializer):
            return note.func(value)  # type: ignore[call-arg] # the model's serializers take the value alone
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _yaml(value: Any) -> str:
    """One line of YAML; JSON is YAML, but its quotes are left away where plain text says the same."""
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
    later += [f"`sink.type: {kind}`" for kind in LATER_SINK_TYPES]
    later += [
        "`sink.on_schema_change: evolve` and `ignore`",
        "`snapshot.interleave: true`",
    ]
    introduction = "Known, but refused until they are there:"
    return "\n".join(["### Not yet", "", introduction, "", *(f"- {line}" for line in later), ""])


def _examples() -> Iterator[str]:
    yield "## Examples\n"
    for path in sorted(EXAMPLES.glob("*.yaml")):
        yield f"### {path.name}\n\n```yaml\n{path.read_text(encoding='utf-8')}```\n"


def main(arguments: list[str]) -> int:
    """The exit code: 1 if ``--check`` finds the file out of date."""
    text = reference()
    if arguments == ["--check"]:
        if not REFERENCE.exists() or REFERENCE.read_text(encoding="utf-8") != text:
            sys.stderr.write(
                f"{REFERENCE.relative_to(ROOT)} is out of date: run python -m scripts.job_file_reference\n"
            )
            return 1
        return 0
    REFERENCE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
