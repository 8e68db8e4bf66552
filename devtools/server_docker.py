"""Servers in containers, run by testcontainers. It removes them even if this process ends without doing so."""

import functools
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import requests
from docker.errors import DockerException
from testcontainers.core.container import DockerContainer
from testcontainers.core.docker_client import DockerClient, get_docker_host

from devtools.server_commands import Option, arguments
from devtools.server_process import STOP_TIMEOUT_SECONDS, ReservedPort

IMAGES = {"mysql": "mysql", "mariadb": "mariadb", "postgres": "postgres"}
PORTS = {"mysql": 3306, "mariadb": 3306, "postgres": 5432}
ENVIRONMENTS = {
    "mysql": {"MYSQL_ALLOW_EMPTY_PASSWORD": "1"},
    "mariadb": {"MARIADB_ALLOW_EMPTY_ROOT_PASSWORD": "1"},
    "postgres": {"POSTGRES_HOST_AUTH_METHOD": "trust"},
}
DEFAULT_VERSIONS = {"mysql": "9", "mariadb": "10.11", "postgres": "15"}
DEFAULT_ADDRESS = "unix:///var/run/docker.sock"
LOCAL_HOSTS = {"localhost", "127.0.0.1"}


@functools.cache
def engine_answers() -> bool:
    """Returns True if a Docker engine can be reached. It is asked once per process."""
    address = get_docker_host() or DEFAULT_ADDRESS
    if address.startswith("unix://"):
        with socket.socket(socket.AF_UNIX) as probe:  # first, because the client leaves its socket open when it fails
            if probe.connect_ex(address.removeprefix("unix://")) != 0:
                return False
    try:
        client = DockerClient().client
    except DockerException:
        return False
    try:
        return bool(client.ping())
    except (DockerException, requests.RequestException):
        return False
    finally:
        client.close()


def image_of(kind: str, version: str | None) -> str:
    return f"{IMAGES[kind]}:{(version or DEFAULT_VERSIONS[kind]).removesuffix('-plugins')}"  # images have all plugins


def pull(kind: str, version: str | None) -> None:
    client = DockerClient().client
    try:
        client.images.pull(image_of(kind, version))
    finally:
        client.close()


class ContainerProcess:
    """One server in one container, which is created at the first start."""

    data_folder: Path | None = None  # inside the container

    def __init__(self, kind: str, version: str | None, options: Mapping[str, Option]) -> None:
        self.kind = kind
        program = ["postgres"] if kind == "postgres" else []
        self.container = DockerContainer(image_of(kind, version)).with_envs(**ENVIRONMENTS[kind])
        self.container.with_command([*program, *arguments(kind, options)])
        self.host = self.container.get_docker_client().host()
        self.reserved = ReservedPort()
        self.port = self.reserved.number
        # The port is fixed, so that a restart keeps it. It is on loopback unless the engine is on another machine.
        address: Any = ("127.0.0.1", self.port) if self.host in LOCAL_HOSTS else self.port
        self.container.ports[str(PORTS[kind])] = address
        self.created = False

    def start(self) -> None:
        if self.created:
            self.container.get_wrapped_container().start()
        else:
            self.container.start()
            self.created = True

    def exit_code(self) -> int | None:
        """Returns None while the server runs."""
        container = self.container.get_wrapped_container()
        container.reload()
        return int(container.attrs["State"]["ExitCode"]) if container.status in {"exited", "dead"} else None

    def stop(self) -> None:
        self.container.get_wrapped_container().stop(timeout=STOP_TIMEOUT_SECONDS)

    def kill(self) -> None:
        container = self.container.get_wrapped_container()
        container.kill()
        container.wait()

    def close(self) -> None:
        self.container.stop()
        self.reserved.close()

    def log(self) -> str:
        return b"".join(self.container.get_logs()).decode(errors="replace") if self.created else ""
