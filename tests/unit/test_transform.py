"""The rule for a transform: one SELECT whose every column is a function of one row."""

import subprocess
import sys

import pytest

from tidemark.conf.transform import MAX_TRANSFORM_LENGTH, Output, parse_transform

COLUMNS = ("id", "Name", "amount", "body")


def test_what_is_passed_on_and_what_is_computed() -> None:
    transform = parse_transform(
        "SELECT * EXCLUDE (body) REPLACE (upper(name) AS name), i.BODY AS text, Body, amount * 1.2 AS gross FROM input i;"
    )
    assert transform.outputs(COLUMNS) == (
        Output("id", "id"),
        Output("Name", None, frozenset({"Name"})),
        Output("amount", "amount"),
        Output("text", "body"),
        Output("body", "body"),
        Output("gross", None, frozenset({"amount"})),
    )
    assert transform.reads == {"name", "amount"}


@pytest.mark.parametrize(
    "expression",
    [
        "coalesce(amount, 0)::BIGINT",
        "nullif(name, 'x')",
        "split_part(name, '@', 2)",
        "CASE WHEN name LIKE 'a%' THEN amount ELSE -amount END",
        "regexp_replace(name, '[0-9]', '#', 'g')",
        "extract(year FROM DATE '2024-02-29')",
        "strftime(TIMESTAMP '2024-02-29', '%Y')",
        "TRY_CAST(name AS DATE)",
        "amount BETWEEN 1 AND 2 AND name IN ('a', 'b')",
        "age(TIMESTAMP '2024-01-01', TIMESTAMP '2023-01-01')",
        "substring(name FROM 2 FOR 3) || chr(0)",
    ],
)
def test_functions_of_a_row(expression: str) -> None:
    transform = parse_transform(f"SELECT id, {expression} AS x FROM input")
    assert [output.column for output in transform.outputs(COLUMNS)] == ["id", None]


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("", "must be one SELECT"),
        ("selec id", "is not SQL that DuckDB understands"),
        ("DROP TABLE x", "must be one SELECT"),
        ("SELECT id FROM input; SELECT id FROM input", "nothing after it"),
        ("SELECT id FROM input UNION ALL SELECT id FROM input", "without UNION"),
        ("WITH i AS (SELECT 1 AS id) SELECT id FROM input", "must not have WITH"),
        ("SELECT id FROM input WHERE amount > 1", "snapshot.where"),
        ("SELECT DISTINCT id FROM input", "DISTINCT"),
        ("SELECT id FROM input LIMIT 1", "LIMIT"),
        ("SELECT id FROM input ORDER BY id", "ORDER BY"),
        ("SELECT id FROM input GROUP BY id", "GROUP BY"),
        ("SELECT id FROM input GROUP BY ALL", "must not have"),
        ("SELECT id FROM input HAVING true", "HAVING"),
        ("SELECT id FROM input QUALIFY true", "QUALIFY"),
        ("SELECT id FROM input USING SAMPLE 10%", "sample"),
        ("SELECT id FROM input TABLESAMPLE 10%", "FROM input and nothing else"),
        ("SELECT 1 AS id", "FROM input and nothing else"),
        ("SELECT id FROM other", "FROM input and nothing else"),
        ("SELECT id FROM main.input", "FROM input and nothing else"),
        ("SELECT a.id FROM input a, input b", "FROM input and nothing else"),
        ("SELECT id FROM input JOIN other USING (id)", "FROM input and nothing else"),
        ("SELECT id FROM read_csv('x')", "FROM input and nothing else"),
        ("SELECT id FROM 'x.parquet'", "FROM input and nothing else"),
        ("SELECT id FROM (SELECT 1 AS id) AS input", "FROM input and nothing else"),
        ("SELECT id FROM input AS i(x)", "FROM input and nothing else"),
        ("SELECT (SELECT 1) AS x FROM input", "a subquery"),
        ("SELECT exists(FROM other) AS x FROM input", "a subquery"),
        ("SELECT row_number() OVER () AS x FROM input", "a window function"),
        ("SELECT sum(amount) AS x FROM input", "sum, which is not a function of one row"),
        ("SELECT count(*) AS x FROM input", "not a function of one row"),
        ("SELECT unnest([1]) AS x FROM input", "not a function of one row"),
        ("SELECT read_text('/etc/passwd') AS x FROM input", "not a function of one row"),
        ("SELECT nothing_such(1) AS x FROM input", "not a function of one row"),
        ("SELECT other.f(1) AS x FROM input", "functions of other"),
        ("SELECT now() AS x FROM input", "may differ"),
        ("SELECT random() AS x FROM input", "may differ"),
        ("SELECT uuid() AS x FROM input", "may differ"),
        ("SELECT nextval('s') AS x FROM input", "may differ"),
        ("SELECT today() AS x FROM input", "may differ"),
        ("SELECT ago(INTERVAL 1 DAY) AS x FROM input", "may differ"),
        ("SELECT age(TIMESTAMP '2024-01-01') AS x FROM input", "may differ"),
        ("SELECT current_localtimestamp() AS x FROM input", "may differ"),
        ("SELECT list_sum([1]) AS x FROM input", "may differ"),
        ("SELECT list_transform([1], x -> x) AS x FROM input", "a lambda"),
        ("SELECT #1 FROM input", "by position"),
        ("SELECT ? AS x FROM input", "a parameter"),
        ("SELECT COLUMNS('a.*') FROM input", "name the columns"),
        ("SELECT * RENAME (id AS x) FROM input", "name the columns"),
        ("SELECT id, amount + 1 FROM input", "AS name"),
        ("SELECT o.id FROM input", "names o"),
        ("SELECT a.b.id FROM input", "not a column of input"),
        ("SELECT 1e400 AS x FROM input", "can't be checked"),
        (f"SELECT '{'x' * MAX_TRANSFORM_LENGTH}' AS x FROM input", "longer than"),
    ],
)
def test_what_is_refused(sql: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_transform(sql)


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("SELECT id, current_date AS x FROM input", "names current_date, but the columns are id, Name"),
        ("SELECT * EXCLUDE (nothing) FROM input", "names nothing"),
        ("SELECT id, upper(nothing) AS x FROM input", "names nothing"),
        ("SELECT id, amount * 2 AS x, x + 1 AS y FROM input", "names x"),
        ("SELECT *, upper(name) AS NAME FROM input", "two columns the name"),
        ("SELECT id, id FROM input", "two columns the name"),
    ],
)
def test_what_does_not_fit_the_table(sql: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_transform(sql).outputs(COLUMNS)


def test_a_job_without_masks_and_transforms_needs_no_duckdb() -> None:
    modules = "tidemark.jobs.run, tidemark.jobs.cli, tidemark.jobs.spark.stream_source, tidemark.jobs.spark.source"
    program = f"import sys, {modules}; sys.exit('duckdb' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
