"""`${NAME}`, defaults, secret files, and the values that are never shown."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.job_file import SMALL, load_text, problems_of
from tidemark.conf.model import JobFile
from tidemark.conf.redaction import forget_secrets


@pytest.fixture(autouse=True)
def _secrets_of_one_test_only() -> Iterator[None]:
    yield
    forget_secrets()


def with_url(url: str) -> str:
    return SMALL.replace("mysql://cdc:pa55word@db/", url)


def password_of(job: JobFile) -> str:
    return job.source.url.password.get_secret_value()


@given(
    user=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1),
    password=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
)
def test_logins_from_the_environment_are_taken_literally(
    tmp_path_factory: pytest.TempPathFactory, user: str, password: str
) -> None:
    folder = tmp_path_factory.mktemp("login")
    job = load_text(folder, with_url("mysql://${U}:${P}@db/"), environ={"U": user, "P": password})
    assert (job.source.url.user, password_of(job), job.source.url.host) == (user, password, "db")


def test_one_variable_for_user_and_password_is_parted_at_its_first_colon(tmp_path: Path) -> None:
    job = load_text(tmp_path, with_url("mysql://${LOGIN}@db/"), environ={"LOGIN": "cdc:a:b@c/d%"})
    assert (job.source.url.user, password_of(job)) == ("cdc", "a:b@c/d%")


def test_a_whole_url_is_decoded_as_if_it_stood_in_the_file(tmp_path: Path) -> None:
    job = load_text(tmp_path, with_url("${URL}"), environ={"URL": "mysql://cdc:a%40b@db/"})
    assert password_of(job) == "a@b"


def test_host_and_port_may_come_from_the_environment(tmp_path: Path) -> None:
    job = load_text(tmp_path, with_url("mysql://u:p@${HOST:-h}:${PORT:-3307}/"), environ={"HOST": "db2"})
    assert (job.source.url.host, job.source.url.port) == ("db2", 3307)


@pytest.mark.parametrize(
    ("written", "environ", "parallelism"),
    [
        ("${N}", {"N": "7"}, 7),
        ("${N:-5}", {}, 5),
        ("${N:-5}", {"N": ""}, 5),
        ("1${N}", {"N": "2"}, 12),
    ],
)
def test_unquoted_values_are_typed_after_filling_in(
    tmp_path: Path, written: str, environ: dict[str, str], parallelism: int
) -> None:
    job = load_text(tmp_path, SMALL + f"snapshot:\n  parallelism: {written}\n", environ=environ)
    assert job.snapshot.parallelism == parallelism


def test_quoted_values_stay_text(tmp_path: Path) -> None:
    assert load_text(tmp_path, SMALL.replace("job: shop", 'job: "${J}"'), environ={"J": "2024"}).job == "2024"
    assert problems_of(tmp_path, SMALL.replace("job: shop", "job: ${J}"), environ={"J": "2024"}) == [
        "job.yaml:1: job: must be a name of a-z, 0-9 and '-'; found: the value of ${J}. "
        "Text that looks like a number or truth value must be in quotes"
    ]


def test_dollars_that_are_no_placeholder_stay(tmp_path: Path) -> None:
    job = load_text(tmp_path, SMALL, "snapshot.where.shop.a=a = '$x $$ $${y}'")
    assert job.snapshot.condition("shop", "a") == "a = '$x $$ ${y}'"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("${NOPE}", "the environment variable NOPE is not set. Set it, or write ${NOPE:-default}"),
        (
            "${1X}",
            "has a '${…}' that is not ${NAME}, ${NAME:-default} or ${file:/run/secrets/x}; a plain '${' is "
            "written '$${'",
        ),
        ("${}", "has a '${…}' that is not"),
        ("${NAME-x}", "has a '${…}' that is not"),
        ("x${NAME", "has '${' without a '}' after it; a plain '${' is written '$${'"),
        ("file:", "'file:' names no file; write file:/run/secrets/x"),
        ("file://host/x", "'file://host/x' names a host; write file:/path or file:///path"),
        ("file:/no/such", "can't read the file /no/such: No such file or directory"),
        ("file:/", "can't read the file /: Is a directory"),
        ("file:empty", "empty is empty"),
        ("file:binary", "binary is not UTF-8 text"),
        ("file:large", "large is larger than 65536 bytes: is it the right one?"),
        ("${file:/no/such}", "can't read the file /no/such: No such file or directory"),
    ],
)
def test_what_cannot_be_filled_in_is_refused_with_its_line(tmp_path: Path, value: str, reason: str) -> None:
    (tmp_path / "empty").write_bytes(b"\n")
    (tmp_path / "binary").write_bytes(b"\xff")
    (tmp_path / "large").write_bytes(b"x" * 65_537)
    problems = problems_of(tmp_path, SMALL.replace("job: shop", f'job: "{value}"'))
    assert len(problems) == 1, problems
    assert problems[0].startswith("job.yaml:1: job: ")
    assert reason in problems[0]


@pytest.mark.parametrize("written", ["file:secret", "file:./secret", "file:{folder}/secret", "file://{folder}/secret"])
def test_a_file_is_read_as_a_whole_value(tmp_path: Path, written: str) -> None:
    (tmp_path / "secret").write_bytes(b"mysql://cdc:a%40b@db/\r\n")
    assert password_of(load_text(tmp_path, with_url(written.format(folder=tmp_path)))) == "a@b"


def test_a_file_is_read_inside_a_url_and_taken_literally(tmp_path: Path) -> None:
    (tmp_path / "pw").write_text("p@ss/w%rd \n", encoding="utf-8")
    assert password_of(load_text(tmp_path, with_url("mysql://cdc:${file:pw}@db/"))) == "p@ss/w%rd "


def test_a_variable_may_name_the_file_but_not_smuggle_one_in(tmp_path: Path) -> None:
    (tmp_path / "name").write_text("from-file", encoding="utf-8")
    text = SMALL.replace("job: shop", "job: file:${WHICH}")
    assert load_text(tmp_path, text, environ={"WHICH": "name"}).job == "from-file"
    assert problems_of(tmp_path, SMALL.replace("job: shop", "job: ${J}"), environ={"J": "file:name"}) == [
        "job.yaml:1: job: must be a name of a-z, 0-9 and '-', at most 50 characters; found: the value of ${J}"
    ]


def test_spark_settings_read_files_only_where_they_are_secrets(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("topsecret\n", encoding="utf-8")
    job = load_text(
        tmp_path,
        SMALL,
        "spark.conf.spark.hadoop.fs.s3a.secret.key=file:key",
        "spark.conf.spark.eventLog.dir=file:///tmp/events",
        "spark.conf.spark.ssl.trustStore=file:key",
        "spark.conf.spark.driver.extraJavaOptions=-Djavax.net.ssl.keyStorePassword=changeit",
        substitute_overrides=True,
    )
    assert job.spark.conf_with_secrets() == {
        "spark.hadoop.fs.s3a.secret.key": "topsecret",
        "spark.eventLog.dir": "file:///tmp/events",
        "spark.ssl.trustStore": "file:key",
        "spark.driver.extraJavaOptions": "-Djavax.net.ssl.keyStorePassword=changeit",
    }
    assert job.redacted()["spark"]["conf"] == {
        "spark.hadoop.fs.s3a.secret.key": "***",
        "spark.eventLog.dir": "file:///tmp/events",
        "spark.ssl.trustStore": "file:key",
        "spark.driver.extraJavaOptions": "***",
    }
    assert "topsecret" not in repr(job) + job.model_dump_json()


def test_refusals_do_not_quote_what_came_from_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hunter22", encoding="utf-8")
    problems = problems_of(
        tmp_path,
        SMALL.replace("job: shop", "job: ${J}").replace("type: files", "type: ${T}"),
        "mode=file:secret",
        "source.url=mysql://u:s3/cret@db",
        environ={"J": "Hunter22", "T": "hunter22"},
        substitute_overrides=True,
    )
    assert len(problems) == 4
    for problem in problems:
        assert "unter22" not in problem
        assert "s3/" not in problem
    assert "--set mode: must be full | incremental | full+incremental; found: the value of file:secret" in problems
