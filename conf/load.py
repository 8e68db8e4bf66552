"""Loads a job file: YAML, environment, secret files and `--set` → a JobFile, or one error with all problems."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from tidemark.conf.explain import explain
from tidemark.conf.model import JobFile
from tidemark.conf.overrides import apply_overrides
from tidemark.conf.problems import Problem, RefusedJobFileError, in_file_order
from tidemark.conf.substitution import Substitution, is_path
from tidemark.conf.table_options import MovedOptions, move_options, text_of_place
from tidemark.conf.tables import parse_table_name
from tidemark.conf.yaml_tree import Mapping as TreeMapping
from tidemark.conf.yaml_tree import (
    Node,
    Place,
    Scalar,
    YamlRefusedError,
    map_scalars,
    node_at,
    place_of_path,
    read_tree,
    to_plain,
)
from tidemark.conf.yaml_tree import Path as KeyPath

MAX_FILE_BYTES = 1_048_576
_TLS_FILES: tuple[KeyPath, ...] = tuple(
    (end, "tls", key) for end in ("source", "sink") for key in ("ca", "cert", "key")
)


def load_job_file(
    path: Path,
    overrides: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    *,
    substitute_overrides: bool = False,
    connects: bool = True,
) -> JobFile:
    """Reads the job file at ``path``, changed by ``overrides`` (`a.b=c`, later ones win).

    ``environ`` replaces the process's environment. `${NAME}` and `file:…` are filled in in the overrides' values only with
    ``substitute_overrides``: other people may choose these values, and must not read the environment or files.
    Relative paths in the file (checkpoint, a files sink's path, TLS files, secret files) start at the file's folder.
    ``connects`` False: only the job's checkpoint is read, so passwords and TLS files may be missing (see
    ``Substitution``). Raises RefusedJobFileError, a JobFileError, with all problems at once.
    """
    folder = path.absolute().parent
    substitution = Substitution(_environ(environ), folder, substitute_overrides, connects=connects)
    return _load(path, _read(path), overrides, substitution)


def load_job_options(
    base: str, options: Sequence[str], folder: Path, environ: Mapping[str, str] | None = None
) -> JobFile:
    """Makes a job without a file: the YAML text ``base`` changed by ``options`` (`a.b=c`), in which `${NAME}` and `file:…`
    are filled in. Relative paths start at ``folder``.

    Raises RefusedJobFileError as ``load_job_file`` does.
    """
    substitution = Substitution(_environ(environ), folder, overrides=True)
    return _load(Path("options"), base, options, substitution, spelled="option")


def _environ(environ: Mapping[str, str] | None) -> Mapping[str, str]:
    return os.environ if environ is None else environ


def _load(
    path: Path, text: str, overrides: Sequence[str], substitution: Substitution, *, spelled: str = "--set"
) -> JobFile:
    try:
        root = read_tree(text, lambda line: Place(path.name, line))
    except YamlRefusedError as error:
        text = ". ".join(filter(None, [error.reason, error.advice]))
        raise refused(path, [Problem(error.place, (), text)]) from None
    if not isinstance(root, TreeMapping):
        place = Place(path.name, 1)
        raise refused(path, [Problem(place, (), "must be a mapping with keys like job, source, sink")])
    root, problems = apply_overrides(root, overrides, spelled=spelled)
    moved = move_options(root)
    problems += moved.problems
    tree = map_scalars(
        substitution.apply(moved.root), lambda key, scalar: _from_folder(substitution.folder, key, scalar)
    )
    problems += substitution.problems
    job, more = _validate(tree)
    unfilled = {problem.path for problem in problems}
    problems += [problem for problem in more if problem.path not in unfilled]
    problems += _unreadable_files(tree) if substitution.connects else []
    if job is None or problems:
        raise refused(path, [replace(problem, path=moved.as_written(problem.path)) for problem in problems])
    job.keep_places(_places(tree, moved))
    return job


def _places(tree: Node, moved: MovedOptions) -> dict[KeyPath, str]:
    """Returns where the file has the keys about a table, as `place: path`, by paths that write its name as str(TableName)
    does."""
    found: dict[KeyPath, str] = {}
    for section in (("transforms",), ("source", "columns"), ("source", "keys")):
        node = node_at(tree, section)
        for name, entry in node.entries.items() if isinstance(node, TreeMapping) else ():
            below = entry.value.entries if isinstance(entry.value, TreeMapping) else {}
            table = str(parse_table_name(name))
            places: dict[KeyPath, Place] = {
                (): entry.key_place,
                **{(key,): inner.key_place for key, inner in below.items()},
            }
            for rest, place in places.items():
                written = moved.as_written((*section, name, *rest))
                named = tuple(table if step == name else step for step in written)
                path = (*section, table, *rest)
                found[path] = text_of_place(place, named)
    return found


def refused(path: Path, problems: Iterable[Problem]) -> RefusedJobFileError:
    """Returns the error for ``problems``, which must not be empty."""
    return RefusedJobFileError.of(path.name, in_file_order(problems))


def _read(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        reason = f"can't be read: {error.strerror or type(error).__name__}"
        raise refused(path, [Problem(Place(str(path)), (), reason)]) from None
    if len(content) > MAX_FILE_BYTES:
        raise refused(path, [Problem(Place(path.name), (), "is larger than 1 MiB: is it a job file?")])
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise refused(path, [Problem(Place(path.name, line), (), "is not UTF-8 text")]) from None


def _validate(tree: Node) -> tuple[JobFile | None, list[Problem]]:
    """Validates the tree. Returns the problems instead of raising: pydantic's error contains the values."""
    try:
        return JobFile.model_validate(to_plain(tree, text_at=lambda key: key[:2] == ("spark", "conf"))), []
    except ValidationError as error:
        return None, explain(error, JobFile, tree)


def _from_folder(folder: Path, key: KeyPath, scalar: Scalar) -> Scalar:
    """Makes a relative path absolute, from the job file's folder. Leaves URIs and values that are not paths unchanged."""
    if not is_path(key) or not scalar.text.strip() or scalar.text.startswith("~") or _has_scheme(scalar.text):
        return scalar
    return Scalar(os.path.normpath(folder / scalar.text), plain=False, place=scalar.place, taken_from=scalar.taken_from)


def _has_scheme(text: str) -> bool:
    scheme, colon, _ = text.partition(":")
    return bool(colon) and "/" not in scheme


def _unreadable_files(tree: Node) -> list[Problem]:
    problems = []
    for key in _TLS_FILES:
        node = node_at(tree, key)
        if isinstance(node, Scalar) and node.text and not os.access(node.text, os.R_OK):
            name = node.text if node.taken_from is None else f"named by {node.taken_from}"
            problems.append(Problem(place_of_path(tree, key), key, f"the file {name} does not exist or can't be read"))
    return problems
