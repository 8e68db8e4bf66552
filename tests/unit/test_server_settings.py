"""Server settings as words of a command line, and the words that the command refuses."""

from typing import Any

import pytest

from devtools.server_commands import arguments, merged_options
from devtools.servers import main, same_setting


def test_settings_become_the_words_of_the_server_s_command_line() -> None:
    options = {"log_bin": "b", "gtid_mode": True, "mysqlx": False, "skip_name_resolve": None, "server_id": 7}
    assert arguments("mysql", options) == [
        "--log-bin=b",
        "--gtid-mode=ON",
        "--mysqlx=OFF",
        "--skip-name-resolve",
        "--server-id=7",
    ]
    assert arguments("mariadb", {"log_bin": False}) == ["--skip-log-bin"]
    assert arguments("postgres", {"fsync": False, "port": 5}) == ["-c", "fsync=OFF", "-c", "port=5"]


def test_a_setting_overrules_the_default_however_it_is_spelled() -> None:
    merged = merged_options("mysql", {"gtid-mode": "OFF"})
    assert merged["gtid_mode"] == "OFF"
    assert "gtid-mode" not in merged
    assert merged["binlog_row_metadata"] == "FULL"


@pytest.mark.parametrize(
    ("name", "wanted", "actual", "same"),
    [
        ("gtid_mode", True, "ON", True),
        ("gtid_mode", "OFF", "ON", False),
        ("fsync", False, "off", True),
        ("local_infile", False, "0", True),
        ("log_bin", "binlog", "ON", True),
        ("log_bin", False, "ON", False),
        ("log_bin", "binlog", "OFF", False),
        ("innodb_buffer_pool_size", "256M", "268435456", True),
        ("shared_buffers", "256MB", "256MB", True),
        ("server_id", 1, "2", False),
        ("gtid_mode", "OFF", None, False),
    ],
)
def test_a_server_s_own_words_are_compared_by_meaning(name: str, wanted: Any, actual: str | None, same: bool) -> None:
    assert same_setting(name, wanted, actual) is same


def test_the_command_refuses_what_it_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fetch", "oracle"]) == 1
    assert "mysql, mariadb, postgres" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["start", "mysql", "--option", "no value"])
    assert "'no value' is not name=value" in capsys.readouterr().err
