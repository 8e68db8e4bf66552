"""The class archive that a JVM is told to write or to map."""

import subprocess
from pathlib import Path

import pyspark
import pytest

from tidemark.jobs.spark.class_data_sharing import archive_options


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    java = tmp_path / "java-home/bin/java"
    java.parent.mkdir(parents=True)
    java.write_text("")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java-home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "tidemark/jvm"


def named_in(options: str) -> tuple[str, Path]:
    option, _, path = options.split()[0].removeprefix("-XX:").partition("=")
    return option, Path(path)


def test_the_first_jvm_writes_the_archive_and_the_next_maps_it(folder: Path) -> None:
    option, archive = named_in(archive_options())
    assert (option, archive.parent) == ("ArchiveClassesAtExit", folder)
    archive.write_bytes(b"\xf0\x0b\xab\xa8 classes")
    assert named_in(archive_options()) == ("SharedArchiveFile", archive)


@pytest.mark.parametrize("begun", [b"", b"\0\0\0\0 classes"])
def test_an_archive_that_was_broken_off_is_written_anew(folder: Path, begun: bytes) -> None:
    _, archive = named_in(archive_options())
    archive.write_bytes(begun)
    assert named_in(archive_options()) == ("ArchiveClassesAtExit", archive)


def test_another_jvm_has_another_archive(folder: Path, tmp_path: Path) -> None:
    _, archive = named_in(archive_options())
    java = tmp_path / "java-home/bin/java"
    java.unlink()
    (tmp_path / "other-java").write_text("")
    (tmp_path / "other-java").chmod(0o755)
    java.symlink_to(tmp_path / "other-java")
    assert named_in(archive_options())[1] != archive


def test_without_a_place_to_keep_it_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert archive_options() == ""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a space"))
    assert archive_options() == ""


def test_a_jvm_that_writes_an_archive_is_silent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    signed = "org.codehaus.janino.Java"  # whose jar no archive takes; it is no program
    command = ["java", *archive_options().split(), "-cp", f"{Path(pyspark.__file__).parent}/jars/*", signed]
    words = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False).stdout
    assert words.startswith("Error: Main method not found")
    assert "[cds]" not in words
    assert list(tmp_path.glob("tidemark/jvm/*.jsa"))
