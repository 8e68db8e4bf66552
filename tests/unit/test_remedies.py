"""The advice of messages and documents can be followed: command lines parse, and keys of the job file exist."""

import re
import shlex
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from typer import Exit
from typer.exceptions import TyperException
from typer.main import get_command

from tests.support.job_file import SMALL, load_text
from tests.support.printed_texts import ROOT, Text, arguments_in, code_of_documents, messages
from tidemark.conf.model import JobFile
from tidemark.conf.section import Section, section_in, sections_in_union
from tidemark.conf.sink import LATER_SINK_TYPES
from tidemark.conf.tables import TableName, parse_table_name, setting_of
from tidemark.jobs.cli import app
from tidemark.jobs.monitoring.ending import INTERRUPTED, USAGE_ERROR
from tidemark.jobs.signals.steering import resume_of
from tidemark.jobs.tables.parking import way_back
from tidemark.state.errors import TidemarkError
from tidemark.state.job_state import Left
from tidemark.state.remedies import (
    LEAVE_OUT,
    START_OVER,
    START_OVER_NOW,
    log_whole_rows,
    read_again,
    without_start_over,
)
from tidemark.state.table import TableId

COMMAND = get_command(app)
COMMANDS = frozenset(COMMAND.commands)  # type: ignore[attr-defined]
NAMES = frozenset(
    {
        "discovery",
        "webhook",
        "heartbeat",
        "epochs",
        "reader",
        "lease",
        "mirror",
        "mask",
        "epoch",
    }  # of threads and sessions
    | {"is", "needs"}  # the format of that name
)
DESCRIPTIONS = ("conf/", "jobs/cli.py")
"""Where commands are described. The documents have the descriptions of `conf`, too."""
SECTIONS = "source|sink|snapshot|log|reconnect|metrics|notify"
KEY = re.compile(rf"(?<![\w./{{-])(?P<key>(?:{SECTIONS})(?:\.[a-z_]+)+)(?![\w(/])(?:: (?P<value>[a-z]+)\b(?!:))?")
LATER = frozenset({*LATER_SINK_TYPES, "ignore"})
"""Values that the documents name as not supported yet."""
WRITTEN = re.compile(rf"(?<![\w.])(?P<key>(?:{SECTIONS})\.[a-z_]+): (?P<value>\{{.*\}})")
"""A key with a mapping, as a remedy writes it."""
OTHERS = re.compile(
    r".*\.py|sink\.(before|after)_commit|source\.(stays|missing|new|at|deleted)|sink\.typ|log\.reconnect"
)
"""Files, failpoints, columns of a MERGE, the example of a wrong key, and one that the changelog says was renamed."""


def commands_of_messages() -> Iterator[tuple[str, list[str]]]:
    for message in messages():
        for match in re.finditer(r"(?<![\w/.-])tidemark (?=[a-z])", message.text):
            arguments = arguments_in(message.text[match.end() :])
            if arguments[0] not in NAMES and not message.place.startswith(DESCRIPTIONS):
                yield message.place, arguments


def commands_of_documents() -> Iterator[tuple[str, list[str]]]:
    """The syntax of documents: `[…]` is optional, `…` is any text."""
    for code in code_of_documents():
        for match in re.finditer(r"(?:^|\$ |&& |; |^\s*)tidemark (?=[a-z])", code.text):
            rest = re.split(r" #| && | \| | > |;|\s·\s", code.text[match.end() :])[0]
            if re.match(r"\S+:|\w+ JOB.yaml …$", code.text[match.end() :]):
                continue  # a description of a Spark job; a command as such
            arguments = shlex.split(
                re.sub(r"[\[\]]|…(?=\]|$)", " ", rest.replace(" … ", " JOB.yaml ")).replace("…", " ")
            )
            yield code.place, arguments


def refusal_of(arguments: list[str]) -> str:
    """Why the real command line refuses these arguments; "" if it takes them. Nothing is run."""
    name, *rest = arguments
    if name not in COMMANDS:
        return f"there is no command {name}"
    command = COMMAND.commands[name]  # type: ignore[attr-defined]
    try:
        command.make_context(name, ["1" if argument == "EPOCH" else argument for argument in rest])
    except Exit:
        pass  # it has printed what --help or --schema ask for
    except TyperException as error:
        return error.format_message()
    return ""


def fields_of(key: str) -> list[Any]:
    """The annotations of the key in the job file's model, of each sink that has it; [] if there is no such key. What is below
    a mapping from tables is not looked at."""
    open_: list[Any] = [JobFile]
    for step in key.split("."):
        sections = [section for found in open_ for section in sections_of(found)]
        if not sections:
            return open_
        open_ = [section.model_fields[step].annotation for section in sections if step in section.model_fields]
    return open_


def sections_of(annotation: Any) -> tuple[type[Section], ...]:
    section = section_in(annotation)
    return sections_in_union(annotation) if section is None else (section,)


def words_of(annotation: Any) -> set[str] | None:
    """The words that a key takes, None if it takes other values."""
    if get_origin(annotation) is Literal:
        return set(map(str, get_args(annotation)))
    found = [words_of(inner) for inner in get_args(annotation) if inner is not type(None) and not callable_note(inner)]
    return set[str]().union(*(words for words in found if words is not None)) if any(found) else None


def callable_note(note: Any) -> bool:
    """True for metadata of Annotated, which is no type."""
    return not isinstance(note, type) and get_origin(note) is None


def without_failpoints() -> Iterator[Text]:
    """The messages. The names of failpoints have no space."""
    return (text for text in messages() if " " in text.text)


def keys_in(texts: Iterable[Text]) -> Iterator[tuple[str, str, str | None]]:
    for text in texts:
        for match in KEY.finditer(text.text):
            if not OTHERS.fullmatch(match["key"]):
                yield text.place, match["key"], match["value"]


def cases(found: Iterator[tuple[str, list[str]]]) -> list[Any]:
    return [pytest.param(arguments, id=f"{place} {' '.join(arguments)}") for place, arguments in found]


@pytest.mark.parametrize("arguments", cases(commands_of_messages()))
def test_a_command_in_a_message_is_one_that_the_command_line_takes(arguments: list[str]) -> None:
    assert refusal_of(arguments) == ""


@pytest.mark.parametrize("arguments", cases(commands_of_documents()))
def test_a_command_in_a_document_is_one_that_the_command_line_takes(arguments: list[str]) -> None:
    if arguments[1:]:  # else the command is only named
        assert refusal_of(arguments) == ""
    assert arguments[0] in COMMANDS | {"--version", "--help"}


@pytest.mark.parametrize("texts", [without_failpoints, code_of_documents])
def test_a_key_that_is_named_exists_and_takes_the_value_that_is_named(texts: Callable[[], Iterator[Text]]) -> None:
    found = list(keys_in(texts()))
    assert len(found) >= 100
    wrong = [(place, key) for place, key, _ in found if not fields_of(key)]
    for place, key, value in found:
        words = [words_of(field) for field in fields_of(key)]
        if value in LATER:
            continue
        if value is not None and all(words) and not any(value in known for known in words if known is not None):
            wrong.append((place, f"{key}: {value}"))
    assert wrong == []


def test_a_setting_of_a_table_in_a_message_is_quoted_as_yaml_needs_it() -> None:
    """By `setting_of`: no message has the mapping itself."""
    assert [message.place for message in messages() if WRITTEN.search(message.text)] == []


@pytest.mark.parametrize(
    "name",
    [TableName("shop", "orders"), TableName("shop", "orders.2024"), TableName("my shop", '`it\'s` $HOME; "x"')],
    ids=str,
)
def test_a_shell_takes_a_printed_table_for_what_it_is(tmp_path: Path, name: TableName) -> None:
    """In a shell, what is between backticks is a command."""
    table = TableId(name.database, name.name)
    job = load_text(tmp_path, SMALL)
    for text in (read_again(name), f"{resume_of(table)}.", way_back(job, Left(table, 1, paused=True))):
        *_, option, word = shlex.split(text)
        assert option == "--table"
        assert parse_table_name(word.removesuffix(".")) == name
    assert read_again(TableName("shop", "orders")).endswith(" --table shop.orders.")


@pytest.mark.parametrize(
    "name", ["orders", "a: b", "it's", "[x]", "{y}", "#1", "a.b", "null", "`tick`", "ä, ö", "x\ny"]
)
@pytest.mark.parametrize("value", [{"exclude": ["a", "b: c", "no", "{d}"]}, {"exclude": ["…"]}])
def test_the_job_file_reads_a_setting_of_a_table_as_it_is(
    tmp_path: Path, name: str, value: dict[str, list[str]]
) -> None:
    key, _, text = setting_of("source.columns", TableId("shop", name), value).partition(": ")
    columns = load_text(tmp_path, SMALL, f"{key}={text}").source.columns
    assert {table: list(settings.exclude) for table, settings in columns.items()} == {
        TableName("shop", name): value["exclude"]
    }
    assert setting_of("source.keys", TableId("shop", "orders"), ("a", "b")) == "source.keys: {shop.orders: [a, b]}"


EXIT_CODES = re.compile(r"^\| ([0-9]+) \|", re.MULTILINE)


def subclasses_of(kind: type[TidemarkError]) -> Iterator[type[TidemarkError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from subclasses_of(child)


def test_the_document_and_the_help_have_every_exit_code_and_command() -> None:
    known = {0, INTERRUPTED, USAGE_ERROR, *(kind.exit_code for kind in subclasses_of(TidemarkError))}
    document = (ROOT / "docs" / "operating.md").read_text()
    section = document.partition("## Exit codes")[2].partition("\n## ")[0]
    assert [int(code) for code in EXIT_CODES.findall(section)] == sorted(known) == [*range(11), 130]
    told = COMMAND.epilog.partition("Exit codes: ")[2].split(" · ")  # type: ignore[union-attr]
    assert [int(text.split()[0]) for text in told] == sorted(known)
    commands = document.partition("## Commands")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `tidemark ([a-z]+) ", commands, re.MULTILINE)) == COMMANDS


@pytest.mark.parametrize("name", ["orders", "a b", "it's", "v$orders", "R&D", "x;y", 'say "hi"', "odd.`name`"])
def test_a_shell_reads_the_name_of_a_table_as_it_is(name: str) -> None:
    table = TableName("shop", name)
    written = read_again(table).removesuffix(".").partition("--table ")[2]
    told = subprocess.run(["sh", "-c", f"printf %s {written}"], capture_output=True, text=True, check=True)
    assert parse_table_name(told.stdout) == table


def test_statements_have_names_as_postgresql_needs_them() -> None:
    assert 'ALTER TABLE "Shop"."say ""hi""" REPLICA' in log_whole_rows(TableId("Shop", 'say "hi"'))


@pytest.mark.parametrize(
    ("remedy", "rest"),
    [
        (START_OVER_NOW, ""),
        (LEAVE_OUT, ""),
        (f"Set a, then {START_OVER}.", "Set a."),
        (f"Set a, b or c. Then {START_OVER}.", "Set a, b or c."),
        (f"Set a. Otherwise {START_OVER}. Next time, set b.", "Set a. Next time, set b."),
        (f"Set a, then {START_OVER}; or leave it out: b: c.", "Set a; or leave it out: b: c."),
        (f"Set a. If b, name c, or {START_OVER}.", "Set a. If b, name c."),
        (f"Set a. If b, {START_OVER}.", "Set a."),
        (f"{START_OVER_NOW} Then let it keep more.", "Then let it keep more."),
        ("Set a, then start the job again.", "Set a, then start the job again."),
    ],
)
def test_what_a_remedy_says_besides_starting_over(remedy: str, rest: str) -> None:
    assert without_start_over(remedy) == rest
