import contextlib
import pickle
import re
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.conf.endpoint import Endpoint, parse_endpoint
from tidemark.conf.redaction import Secret, forget_secrets


@pytest.fixture(autouse=True)
def _secrets_of_one_test_only() -> Iterator[None]:
    yield
    forget_secrets()


words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=8)


def test_ports_and_the_rest_have_defaults() -> None:
    assert parse_endpoint("mysql://cdc@db") == Endpoint("mysql", "db", 3306, "cdc", Secret(""), None)
    assert parse_endpoint("mariadb://cdc:pw@db:3307/") == Endpoint("mariadb", "db", 3307, "cdc", Secret("pw"), None)
    endpoint = parse_endpoint("postgresql://cdc:pw@db.example.org/shop")
    assert endpoint == Endpoint("postgresql", "db.example.org", 5432, "cdc", Secret("pw"), "shop")


def test_parts_are_percent_decoded() -> None:
    endpoint = parse_endpoint("mysql://a%40b:p%3A%2F%25%C3%A9:x@[::1]:3306/my%2Fdb")
    assert (endpoint.user, endpoint.password.get_secret_value()) == ("a@b", "p:/%é:x")
    assert (endpoint.host, endpoint.database) == ("::1", "my/db")
    assert str(endpoint) == "mysql://a%40b:***@[::1]:3306/my%2Fdb"


@given(words, words, words)
def test_the_url_with_password_reads_back(user: str, password: str, database: str) -> None:
    endpoint = Endpoint("mysql", "db", 1, user, Secret(password), database)
    assert parse_endpoint(endpoint.url_with_password()) == endpoint


def test_no_printed_form_shows_the_password() -> None:
    endpoint = parse_endpoint("mysql://cdc:hunter2@db/")
    for text in (str(endpoint), repr(endpoint), f"{endpoint}", f"{endpoint.password:>9}", repr([endpoint])):
        assert "hunter2" not in text
        assert "***" in text
    assert pickle.loads(pickle.dumps(endpoint)) == endpoint


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("db:3306", "must be a database URL like mysql://user:password@host:3306/database"),
        (
            "postgres://u@h/d",
            "unknown scheme. Did you mean 'postgresql://'? Allowed: mysql://, mariadb://",
        ),
        ("mysql+pymysql://u@h/d", "Did you mean 'mysql://'?"),
        ("oracle://u@h/d", "unknown scheme. Allowed: mysql://, mariadb://, postgresql://"),
        ("MYSQL://u@h", "Did you mean 'mysql://'?"),
        ("mysql://db:3306/", "names no user: write mysql://user:password@host:3306/"),
        ("mysql://:pw@db/", "names no user"),
        ("mysql://u:s3/cret@db/", "percent-encoded (%2F, %3F, %23), or take the password from ${NAME}"),
        (
            "mysql://u:50%@db/",
            "'%' in its password that does not start a percent-encoded character; a plain '%' is written %25",
        ),
        ("mysql://u:%ff@db/", "percent-encoded bytes are not UTF-8"),
        ("mysql://u:%00@db/", "NUL character in its password"),
        ("mysql://u:pw@", "names no host"),
        ("mysql://u:pw@a b/", "must have host or host:port after the '@'"),
        ("mysql://u:pw@::1/", "must have host or host:port after the '@'"),
        ("mysql://u:pw@db:0/", "port that is not a number from 1 to 65535"),
        ("mysql://u:pw@db1:3306,db2:3306/", "names several hosts: write one"),
        ("mariadb://u:pw@db1,db2/", "names several hosts: write one"),
        ("postgresql://u:pw@db1:5432,db2:5432/shop", "names several hosts: write one"),
        ("mysql://u:pw@db:65536/", "port that is not a number from 1 to 65535"),
        ("mysql://u:pw@db/a/b", "more than a database's name after the host"),
        ("mysql://u:pw@db/a?ssl=1", "options after a '?', which are not supported. For TLS use the key 'tls'"),
        ("mysql://u:pw@db/a#b", "write it as %23 in a database's name"),
    ],
)
def test_wrong_urls_are_refused_without_being_quoted(url: str, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)) as caught:
        parse_endpoint(url)
    assert "s3/cret" not in str(caught.value)


@given(st.text(max_size=20))
def test_any_text_after_the_scheme_is_an_endpoint_or_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert str(parse_endpoint("mysql://" + text)).startswith("mysql://")
