"""Writes the golden files and the fields of the checkpoint's current formats to tests/golden/checkpoint.

python -m scripts.checkpoint_formats            writes what is missing or has changed, and names it
python -m scripts.checkpoint_formats --check    exits 1 if something is missing or has changed

Each kind and version has `<kind>.v<version>.fields.json`, the fields and their types, and `<kind>.v<version>.<n>`, files as
this version writes them. The formats that are not JSON have one file each: published rows as Arrow and as Parquet, and the gap
filter's finished splits. Files of older versions are not changed. state/checkpoint/upgrades.py says when to raise a version
instead.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from devtools.checkpoint_files import FINISHED, PUBLISHED_REPORT, PUBLISHED_ROWS, PUBLISHED_SCHEMA, VALUES
from tidemark.readers.log.gap_filter import SEGMENT, segment_of
from tidemark.readers.snapshot.published_file import PublishedFormat, write_file
from tidemark.state.checkpoint.codec import CODECS, PUBLISHED_SPLIT, Codec

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden" / "checkpoint"

_PROSE = frozenset({"title", "description"})


def fields_file(codec: Codec[Any]) -> Path:
    return GOLDEN / f"{codec.kind}.v{codec.version}.fields.json"


def fields_text(codec: Codec[Any]) -> str:
    """Returns the JSON schema of the current version, without its prose."""
    return json.dumps(_without_prose(codec.json_schema()), indent=1, sort_keys=True) + "\n"


def golden_files(codec: Codec[Any], version: int) -> list[Path]:
    """Returns the golden files of a version. Each has the content of one checkpoint file."""
    return sorted(path for path in GOLDEN.glob(f"{codec.kind}.v{version}.*") if path.suffix != ".json")


def outdated() -> Iterator[tuple[Path, bytes]]:
    """Yields the files of current versions that are missing or differ, with their expected content."""
    for codec in CODECS:
        fields = fields_text(codec).encode()
        if not fields_file(codec).exists() or fields_file(codec).read_bytes() != fields:
            yield fields_file(codec), fields
        for number, value in enumerate(VALUES[codec.kind], 1):
            path = GOLDEN / f"{codec.kind}.v{codec.version}.{number}"
            if not path.exists() or _body(path.read_bytes()) != codec.body(value):
                yield path, codec.encode(value)

    for path, content, parts in binary_files():
        if not path.exists() or any(part not in path.read_bytes() for part in parts):
            yield path, content


def published_file(form: PublishedFormat) -> Path:
    return GOLDEN / f"published.v1.{form}"


def finished_file() -> Path:
    return GOLDEN / "finished.v1.segment"


def binary_files() -> Iterator[tuple[Path, bytes, list[bytes]]]:
    """Yields the golden files that are not JSON: path, content, and parts that the file must contain.

    The whole content is not compared, because another version of Arrow may write equal rows differently.
    """
    forms: tuple[PublishedFormat, ...] = ("arrow", "parquet")
    for form in forms:
        content = write_file(form, PUBLISHED_REPORT, [PUBLISHED_ROWS], PUBLISHED_SCHEMA, in_memory=True)
        yield published_file(form), bytes(memoryview(content)), [PUBLISHED_SPLIT.body(PUBLISHED_REPORT)]
    segment: pa.Buffer = segment_of([split for split, _ in FINISHED], [report for _, report in FINISHED])
    yield finished_file(), bytes(memoryview(segment)), [name.encode() for name in SEGMENT.names]


def main(arguments: list[str]) -> int:
    found = list(outdated())
    for path, content in found:
        if arguments != ["--check"]:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        print(f"{'outdated' if arguments == ['--check'] else 'wrote'} {path.name}")
    return 1 if found and arguments == ["--check"] else 0


def _body(content: bytes) -> bytes:
    return content.partition(b"\n")[2].removesuffix(b"\n")


def _without_prose(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_prose(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: {field: _without_prose(form) for field, form in value.items()}
        if name in {"properties", "$defs"}
        else _without_prose(value)
        for name, value in schema.items()
        if name not in _PROSE
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
