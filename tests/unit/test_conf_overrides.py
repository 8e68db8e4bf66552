"""`--set`: paths, quoting, YAML values."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.job_file import SMALL, load_text, problems_of
from tidemark.conf.overrides import apply_overrides
from tidemark.conf.problems import dotted
from tidemark.conf.yaml_tree import Mapping, Place, Plain, read_tree, to_plain


def tree(text: str = "{}") -> Mapping:
    root = read_tree(text, lambda line: Place("job.yaml", line))
    assert isinstance(root, Mapping)
    return root


def after(text: str, *overrides: str) -> Plain:
    root, problems = apply_overrides(tree(text), overrides)
    assert not problems
    return to_plain(root, text_at=lambda _path: False)


keys = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters='"'), min_size=1, max_size=6)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(st.characters(exclude_categories=["Cs", "Cc"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=4,
)


@given(st.lists(keys, min_size=1, max_size=4), values)
def test_any_quoted_path_takes_any_value(path: list[str], value: Plain) -> None:
    expected = value
    for key in reversed(path):
        expected = {key: expected}
    written = ".".join(f'"{key}"' for key in path) + "=" + json.dumps(value, ensure_ascii=False)
    assert after("{}", written) == expected


@given(st.lists(keys, min_size=1, max_size=4))
def test_a_dotted_path_is_read_back_as_it_is_printed(path: list[str]) -> None:
    expected: Plain = 1
    for key in reversed(path):
        expected = {key: expected}
    assert after("{}", f"{dotted(tuple(path))}=1") == expected


@given(st.text(max_size=30))
def test_any_text_is_applied_or_a_problem(override: str) -> None:
    root, problems = apply_overrides(tree(), [override])
    assert bool(problems) != bool(root.entries)


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("a.b=c", {"a": {"b": "c", "x": 1}}),
        ("a.b=5", {"a": {"b": 5, "x": 1}}),
        ("a.b='5'", {"a": {"b": "5", "x": 1}}),
        ("a.b=", {"a": {"b": None, "x": 1}}),
        ("a.b==", {"a": {"b": "=", "x": 1}}),
        ("a.b=x=y", {"a": {"b": "x=y", "x": 1}}),
        ("a.b=[1, c.*]", {"a": {"b": [1, "c.*"], "x": 1}}),
        ("a.b={c: d}", {"a": {"b": {"c": "d"}, "x": 1}}),
        ("a={b: 2}", {"a": {"b": 2}}),
        ("a.x.y=2", None),
        ("n.m=2", {"a": {"x": 1}, "n": {"m": 2}}),
    ],
)
def test_values_are_yaml_and_replace_what_was_there(override: str, value: Plain) -> None:
    if value is None:
        _, problems = apply_overrides(tree("{a: {x: 1}}"), [override])
        assert [str(problem) for problem in problems] == [
            "--set a.x.y: a.x: is a value, not a section with keys: --set can't set a key below it"
        ]
    else:
        assert after("{a: {x: 1}}", override) == value


def test_later_ones_win_and_empty_sections_can_be_filled() -> None:
    assert after("a:\n", "a.b=1", "a.b=2") == {"a": {"b": 2}}


@pytest.mark.parametrize(
    "override",
    [
        'source.columns."shop.orders".exclude=[a]',
        "source.columns.'shop.orders'.exclude=[a]",
        "source.columns.shop.orders.exclude=[a]",
    ],
)
def test_a_tables_name_is_understood_without_its_quotes(tmp_path: Path, override: str) -> None:
    assert load_text(tmp_path, SMALL, override).source.excluded_columns("shop", "orders") == {"a"}


def test_tables_and_settings_are_single_keys(tmp_path: Path) -> None:
    job = load_text(
        tmp_path,
        SMALL,
        "source.keys.shop.events=[id]",
        'source.keys."shop.`a.b`"=[x]',
        "snapshot.where.shop.orders=id > 5",
        "spark.conf.spark.executor.memory=8g",
        'spark.conf."spark.executor.cores"=2',
        "spark.master=local[2]",
    )
    assert job.source.key_columns("shop", "events") == ("id",)
    assert job.source.key_columns("shop", "a.b") == ("x",)
    assert job.snapshot.condition("shop", "orders") == "id > 5"
    assert job.spark.conf == {"spark.executor.memory": "8g", "spark.executor.cores": "2"}
    assert job.spark.master == "local[2]"


def test_variables_are_filled_in_after_setting_where_that_is_asked_for(tmp_path: Path) -> None:
    overrides = ("source.url=mysql://u:${P}@h/", "checkpoint=/c/${N:-x}")
    job = load_text(tmp_path, SMALL, *overrides, environ={"P": "@"}, substitute_overrides=True)
    assert job.source.url.password.get_secret_value() == "@"
    assert job.checkpoint == "/c/x"


@pytest.mark.pitfall(122)
@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("source.tables=['${SECRET}']", "--set source.tables: source.tables[0]"),
        ("source.tables=['a${SECRET:-x}.b']", "--set source.tables: source.tables[0]"),
        ("job=${file:secret}", "--set job"),
        ("job=file:secret", "--set job"),
        ("source.url=mysql://u:${SECRET}@h/", "--set source.url"),
        ("spark.conf.spark.my.password=file:secret", '--set spark.conf."spark.my.password"'),
        ("sink={type: files, path: 'x${SECRET}'}", "--set sink: sink.path"),
    ],
)
def test_values_of_others_take_nothing_from_the_environment_or_files(tmp_path: Path, override: str, key: str) -> None:
    (tmp_path / "secret").write_text("hunter22", encoding="utf-8")
    assert problems_of(tmp_path, SMALL, override, environ={"SECRET": "hunter22"}) == [
        f"{key}: has a '${{…}}' or 'file:…', which --set does not fill in. "
        "Add --substitute if you wrote the value yourself; a plain '${' is written '$${'"
    ]


@pytest.mark.pitfall(122)
def test_what_is_no_placeholder_means_the_same_in_every_value_that_is_set(tmp_path: Path) -> None:
    for substitute in (False, True):
        overrides = ("snapshot.where.shop.a=a = '$x $$ $${y}'", "spark.conf.spark.eventLog.dir=file:///tmp/events")
        job = load_text(tmp_path, SMALL, *overrides, "checkpoint=file:///c", substitute_overrides=substitute)
        assert job.snapshot.condition("shop", "a") == "a = '$x $$ ${y}'"
        assert job.spark.conf == {"spark.eventLog.dir": "file:///tmp/events"}
        assert job.checkpoint == "file:///c"


@pytest.mark.pitfall(122)
@pytest.mark.parametrize(
    "override",
    [
        "source.tables=['${SECRET}']",
        "source.exclude_tables=['a.${SECRET}', 'b.c.${SECRET}']",
        "source.keys.shop.orders=['${SECRET}', '${SECRET}']",
        "source.server_ids=${SECRET}",
        "source.url=${SECRET}://u:p@h/",
        "source.url=${SECRET}",
        "source.tls.ca=${SECRET}",
        "trigger=5${SECRET}",
        "trigger=${PIN}",
        "log.max_batch_bytes=5 ${SECRET}",
        "log.start={timestamp: '${SECRET}'}",
        "log.start=${SECRET}",
        "sink.type=${SECRET}",
        "sink.format=${SECRET}",
        "transforms.shop.orders=SELECT hunterzz FROM ${SECRET}",
        "transforms.shop.orders=SELECT ${SECRET}.x FROM input",
        "transforms.shop.orders=${SECRET}",
        "snapshot.where.shop.orders='${SECRET}'' ;'",
        "snapshot.parallelism=${SECRET}",
        "checkpoint=~${SECRET}",
        "job=${SECRET} x",
        "mode=${SECRET}",
    ],
)
def test_no_refusal_prints_what_was_filled_in(tmp_path: Path, override: str) -> None:
    environ = {"SECRET": "Hunter2247", "PIN": "73501973"}
    found = problems_of(tmp_path, SMALL, override, environ=environ, substitute_overrides=True)
    assert found
    for problem in found:
        assert "unter2247" not in problem
        assert "73501973" not in problem


@pytest.mark.pitfall(122)
def test_no_refusal_prints_what_a_variable_of_the_file_held(tmp_path: Path) -> None:
    mirrored = SMALL.replace(
        "  type: files\n  path: /out\n", '  type: mirror\n  url: mysql://u:p@h/d\n  table: "${S}"\n'
    )
    (problem,) = problems_of(tmp_path, mirrored, environ={"S": "x.{Hunter2247}"})
    assert "unter2247" not in problem


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("mode", "--set mode: must be a path, '=' and a value: write --set key.key=value"),
        ("", "--set: must be a path, '=' and a value: write --set key.key=value"),
        ("=5", "--set: must be a path, '=' and a value: write --set key.key=value"),
        ("a b=5", "--set a: must be a path, '=' and a value: write --set key.key=value"),
        ("job.x=5", "--set job.x: job: is a value, not a section with keys: --set can't set a key below it"),
        (
            "sink.table={schema}_{table}",
            "--set sink.table: the value is not readable as YAML: expected '<document start>', but found '<scalar>'. "
            "Put text with braces, brackets or a leading '*' in quotes that the shell keeps: 'sink.table=\"…\"'",
        ),
        (
            "source.tables=*.orders",
            "--set source.tables: the value is not readable as YAML: while scanning an alias, expected alphabetic "
            "or numeric "
            "character, but found '.'. Put text with braces, brackets or a leading '*' in quotes that the shell keeps: "
            "'source.tables=\"…\"'",
        ),
        ("job={a: 1, a: 2}", "--set job: the value has the key 'a' twice. The first one is at --set job"),
    ],
)
def test_what_cannot_be_set_is_refused(tmp_path: Path, override: str, problem: str) -> None:
    problems = problems_of(tmp_path, SMALL, override)
    assert len(problems) == 1
    assert problems[0].startswith(problem)


def test_a_secret_on_the_command_line_is_not_repeated(tmp_path: Path) -> None:
    problems = problems_of(
        tmp_path, SMALL, "source.url=mysql://u:hunter22@h:x/", "spark.conf.spark.my.password=[hunter22]"
    )
    assert len(problems) == 2
    assert not [problem for problem in problems if "hunter22" in problem]
