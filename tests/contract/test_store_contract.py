"""The contract of every checkpoint store: a file is created once, whole, by the first who asks."""

import errno
import os
import pickle
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.s3 import Application, s3_server
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.checkpoint.object_store import S3Store
from tidemark.state.checkpoint.store import CheckpointStore, open_store, require_create_if_absent
from tidemark.state.errors import CheckpointError, JobFileError

RACERS = 12


@pytest.fixture(params=["local", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CheckpointStore]:
    if request.param == "local":
        yield open_store(str(tmp_path / "checkpoint"))
        return
    with s3_server() as bucket:
        yield open_store(f"{bucket}/jobs/shop")


def test_the_first_creates_and_the_content_stays(store: CheckpointStore) -> None:
    assert store.read("plans/e1") is None
    assert store.create("plans/e1", b"first")
    assert not store.create("plans/e1", b"second")
    assert store.read("plans/e1") == b"first"


def test_the_end_is_read_without_the_rest(store: CheckpointStore) -> None:
    assert store.read_end("plans/e1", 3) is None
    assert not store.exists("plans/e1")
    store.create("plans/e1", b"content")
    assert store.exists("plans/e1")
    assert not store.exists("plans/e")
    assert not store.exists("plans/e11")
    for byte_count, end in ((3, b"ent"), (7, b"content"), (100, b"content")):
        assert store.read_end("plans/e1", byte_count) == end


def test_one_of_many_that_race_wins(store: CheckpointStore) -> None:
    start = threading.Barrier(RACERS)

    def race(number: int) -> bool:
        start.wait()
        return store.create("plans/e1", str(number).encode())

    for _ in range(3):
        with ThreadPoolExecutor(RACERS) as pool:
            won = list(pool.map(race, range(RACERS)))
        assert won.count(True) == 1
        assert store.read("plans/e1") == str(won.index(True)).encode()
        store.delete("plans/e1")


def test_a_list_holds_what_is_directly_inside(store: CheckpointStore) -> None:
    assert store.list("plans") == []
    for name in ("plans/e2", "plans/e1", "plans/deeper/e9", "plans/.hidden", "plans2/e3", "job"):
        store.create(name, b"x")
    assert store.list("plans") == ["plans/deeper", "plans/e1", "plans/e2"]


@pytest.mark.pitfall(128)
def test_each_question_of_a_bucket_is_one_request() -> None:
    """Its owner pays for each, and a job asks for days. A list has a thousand names at most."""
    asked = []

    def counts(server: Application) -> Application:
        def answer(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
            asked.append(environ["REQUEST_METHOD"])
            yield from server(environ, start_response)

        return answer

    with s3_server(counts) as bucket:
        store = open_store(f"{bucket}/jobs/shop")
        store.create("plans/e1", b"x")
        for question, expected in (
            (lambda: store.list("plans"), ["plans/e1"]),
            (lambda: store.list("signals"), []),
            (lambda: store.read("plans/e1"), b"x"),
            (lambda: store.read("plans/e2"), None),
            (lambda: store.exists("plans/e1"), True),
            (lambda: store.exists("plans/e2"), False),
        ):
            asked.clear()
            assert question() == expected
            assert len(asked) == 1
        for number in range(1100):
            store.create(f"many/{number:04}", b"")
        assert store.list("many") == [f"many/{number:04}" for number in range(1100)]


def test_an_answer_that_was_cut_is_asked_for_again() -> None:
    """If each is cut, the error is about the checkpoint."""
    left = 0

    def cuts(server: Application) -> Application:
        def answer(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
            nonlocal left
            body = b"".join(server(environ, start_response))
            is_cut = left > 0 and environ["REQUEST_METHOD"] == "GET"
            left -= is_cut
            yield body[: len(body) // 2] if is_cut else body

        return answer

    with s3_server(cuts) as bucket:
        store = open_store(f"{bucket}/jobs/shop")
        content = b"rows" * (1 << 18)
        store.create("published/e1-s1", content)
        left = 1
        assert store.read("published/e1-s1") == content
        left = 100
        with pytest.raises(CheckpointError, match="can't be used"):
            store.read("published/e1-s1")


def test_content_is_copied_to_a_new_file(store: CheckpointStore, tmp_path: Path) -> None:
    store.create("published/a", b"rows")
    assert store.copy_to("published/a", tmp_path / "a")
    store.delete("published/a")
    assert (tmp_path / "a").read_bytes() == b"rows"
    assert not store.copy_to("published/a", tmp_path / "b")
    assert not (tmp_path / "b").exists()
    store.create("published/b", b"others")
    with pytest.raises(FileExistsError):
        store.copy_to("published/b", tmp_path / "a")
    with pytest.raises(FileNotFoundError):
        store.copy_to("published/b", tmp_path / "nowhere" / "b")


@pytest.mark.parametrize("reason", ["filesystem", "group"])
def test_content_is_copied_where_a_link_would_not_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    store = open_store(str(tmp_path / "checkpoint"))
    store.create("published/a", b"rows")
    folder = tmp_path / "out"
    folder.mkdir()

    def another_filesystem(source: Path, target: Path) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    if reason == "filesystem":
        monkeypatch.setattr(os, "link", another_filesystem)
    elif os.getuid() == 0:
        os.chown(folder, -1, 12345)
        folder.chmod(0o2775)
    assert store.copy_to("published/a", folder / "a")
    assert (folder / "a").read_bytes() == b"rows"
    if reason == "filesystem" or os.getuid() == 0:
        assert (folder / "a").stat().st_nlink == 1
    if reason == "group" and os.getuid() == 0:
        assert (folder / "a").stat().st_gid == 12345


def test_what_is_deleted_is_gone_and_can_be_created_again(store: CheckpointStore) -> None:
    store.create("published/a", b"x")
    store.delete("published/a")
    store.delete("published/a")
    assert store.read("published/a") is None
    assert store.list("published") == []
    assert store.create("published/a", b"y")


def test_a_large_file_comes_back_whole_in_another_process(store: CheckpointStore) -> None:
    """The file is above the size from which s3fs would upload in parts."""
    data = b"0123456789abcdef" * (7 << 20)
    copy: CheckpointStore = pickle.loads(pickle.dumps(store))
    assert copy.create("published/large", data)
    assert not store.create("published/large", b"")
    assert store.read("published/large") == data


def test_the_probe_leaves_nothing(store: CheckpointStore) -> None:
    require_create_if_absent(store)
    store.create("folder/x", b"x")
    assert store.list("folder") == ["folder/x"]
    assert Checkpoint("", store).job_state() is None


def test_a_put_whose_answer_is_lost_is_known_as_its_own() -> None:
    lost = []

    def loses_answers(server: Application) -> Application:
        def answer(environ: dict[str, Any], start_response: Any) -> Any:
            if environ["REQUEST_METHOD"] != "PUT" or environ["PATH_INFO"].count("/") < 2 or lost:
                return server(environ, start_response)
            lost.append(environ["PATH_INFO"])
            b"".join(server(environ, lambda *_: None))
            start_response("503 Slow Down", [])
            return [b""]

        return answer

    with s3_server(loses_answers) as bucket:
        store = open_store(f"{bucket}/job")
        assert store.create("plans/e1", b"mine")
        assert not store.create("plans/e1", b"mine")
    assert len(lost) == 1


def test_a_server_that_overwrites_is_refused() -> None:
    def overwrites(server: Application) -> Application:
        def answer(environ: dict[str, Any], start_response: Any) -> Any:
            environ.pop("HTTP_IF_NONE_MATCH", None)
            return server(environ, start_response)

        return answer

    with s3_server(overwrites) as bucket, pytest.raises(CheckpointError, match="overwrote a file"):
        require_create_if_absent(open_store(f"{bucket}/job"))


def test_a_missing_bucket_is_no_empty_checkpoint() -> None:
    with s3_server():
        store = open_store("s3://elsewhere/job")
        for use in (lambda: store.create("job", b"x"), lambda: store.read("job"), lambda: store.list("plans")):
            with pytest.raises(CheckpointError, match="The bucket of the checkpoint s3://elsewhere/job does not exist"):
                use()


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ("403 Forbidden", "AccessDenied"),
        ("403 Forbidden", "SignatureDoesNotMatch"),
        ("400 Bad Request", "ExpiredToken"),
    ],
)
def test_an_account_that_is_refused_is_told(answer: str, code: str) -> None:
    refuses = False

    def refusing(server: Application) -> Application:
        def answered(environ: dict[str, Any], start_response: Any) -> Any:
            if not refuses:
                return server(environ, start_response)
            body = f"<Error><Code>{code}</Code><Message>Not you</Message></Error>".encode()
            start_response(answer, [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
            return [body]

        return answered

    with s3_server(refusing) as bucket:
        store = open_store(f"{bucket}/job")
        store.create("job", b"x")
        refuses = True
        for use in (lambda: store.create("plans/e1", b"x"), lambda: store.read("job"), lambda: store.list("plans")):
            with pytest.raises(CheckpointError, match=f"The account may not use the checkpoint {bucket}/job: Not you"):
                use()


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("AWS_ENDPOINT_URL", "http://127.0.0.1:9", "can't be reached: Could not connect to the endpoint"),
        ("AWS_ACCESS_KEY_ID", None, "There is no account for the checkpoint"),
    ],
)
def test_a_server_or_an_account_that_is_not_there_is_told(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str | None, expected: str
) -> None:
    with s3_server() as bucket, monkeypatch.context() as patch:
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
        if value is None:
            patch.delenv("AWS_SECRET_ACCESS_KEY")
            patch.delenv(name)
        else:
            patch.setenv(name, value)
        fsspec.filesystem("s3").clear_instance_cache()
        with pytest.raises(CheckpointError, match=expected):
            open_store(f"{bucket}/job").read("job")


def test_an_error_of_the_reader_is_none_of_the_bucket() -> None:
    """Such as of Arrow, about a damaged file. But one of the store is, while the file is being read."""
    is_gone = False

    def refusing(server: Application) -> Application:
        def answered(environ: dict[str, Any], start_response: Any) -> Any:
            if not is_gone:
                return server(environ, start_response)
            start_response("403 Forbidden", [("Content-Length", "0")])
            return [b""]

        return answered

    whole, table = pa.BufferOutputStream(), pa.table({"v": ["rows"] * 1000})
    pq.write_table(table, whole, use_dictionary=False, compression="none")
    content = whole.getvalue().to_pybytes()
    with s3_server(refusing) as bucket:
        store = S3Store(f"{bucket}/job")
        store.create("whole", content)
        store.create("damaged", b"PAR1" + bytes(1000) + content[1004:])
        with store.opened("whole") as file:
            assert pq.read_table(file) == table
        with pytest.raises(OSError, match="page header"), store.opened("damaged") as file:
            pq.read_table(file)
        with store.opened("whole") as file:
            is_gone = True
            with pytest.raises(CheckpointError, match="The account may not use the checkpoint"):
                pq.read_table(file)


def test_a_file_that_is_deleted_while_it_is_read_is_no_missing_bucket() -> None:
    with s3_server() as bucket:
        store = S3Store(f"{bucket}/job")
        store.create("file", bytes(1000))
        with store.opened("file") as file:
            store.delete("file")
            with pytest.raises(CheckpointError, match="A file of the checkpoint"):
                file.read(10)


@pytest.mark.parametrize(
    "url", ["s3a://s3a://bucket/job", "s3a:///job", "s3://", "s3a://bucket//job", "s3://user@bucket/job"]
)
def test_a_url_that_names_no_bucket_is_refused(url: str) -> None:
    """Files would be written, and then not be listed: a start would take a number for its driver again and again."""
    with pytest.raises(JobFileError, match="is not a folder of a bucket"):
        open_store(url)


@pytest.mark.parametrize("scheme", ["gs", "abfss", "hdfs", "memory", "dbfs"])
def test_storage_without_an_atomic_create_is_refused(scheme: str) -> None:
    with pytest.raises(JobFileError, match=f"{scheme}://.*atomically and only if it does not exist yet"):
        open_store(f"{scheme}://bucket/job")
