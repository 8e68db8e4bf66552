"""An S3 server of this process: moto's, which handles one request at a time, so that its conditional puts are atomic."""

import io
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import fsspec
import pytest
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

Application = Callable[[dict[str, Any], Any], Iterable[bytes]]


@contextmanager
def s3_server(wrap: Callable[[Application], Application] = lambda application: application) -> Iterator[str]:
    """The `s3a://` URL of an empty bucket. `wrap` may put something between client and server."""
    server = make_server(
        "127.0.0.1", 0, wrap(_one_at_a_time(DomainDispatcherApplication(create_backend_app))), threaded=True
    )
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in account(url).items():
                patch.setenv(name, value)
            bucket = f"bucket-{uuid.uuid4()}"  # all of moto's servers in a process share their content
            fsspec.filesystem("s3").mkdir(bucket)
            yield f"s3a://{bucket}"
    finally:
        fsspec.filesystem("s3").clear_instance_cache()
        server.shutdown()
        server.server_close()
        thread.join(10)


def _one_at_a_time(application: Application) -> Application:
    """A client that is frozen in the middle of a request does not hold up the others."""
    lock = threading.Lock()

    def handle(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        body = environ["wsgi.input"]
        size = None if environ.get("wsgi.input_terminated") else int(environ.get("CONTENT_LENGTH") or 0)
        environ["wsgi.input"] = io.BytesIO(body.read() if size is None else body.read(size))
        with lock:
            return list(application(environ, start_response))

    return handle


def account(url: str) -> dict[str, str]:
    """The environment of a process that uses the server."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
