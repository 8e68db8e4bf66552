"""Compiles loops (kernels) with numba, and caches their machine code between processes.

numba caches a function by the content of its own file. It does not notice when a function in another file changes, so an
upgrade could run old code. Therefore the name of the cache folder contains a fingerprint of every module of the package
that has kernels, or enums whose values kernels use as constants. The location of the modules is not part of it: each Spark
application has its own zip on every executor, and compiling takes a minute.
"""

import contextlib
import functools
import hashlib
import os
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numba
import numpy as np
import numpy.typing as npt
from numba.core.caching import _CacheLocator

if TYPE_CHECKING:
    from importlib.abc import Traversable  # elsewhere from Python 3.11 on

Bytes: TypeAlias = npt.NDArray[np.uint8]
Int64s: TypeAlias = npt.NDArray[np.int64]
Int32s: TypeAlias = npt.NDArray[np.int32]
Int: TypeAlias = Any
"""An int in Python, an int64 in a kernel."""

Function = TypeVar("Function", bound=Callable[..., Any])

_config: Any = numba.config  # its attributes are created at run time


def kernel(function: Function, *, makes_arrays: bool = False) -> Function:
    """Makes `function` a kernel: compiled at its first call, run without the GIL. Array arguments must be writable and
    C-contiguous: other layouts compile it again.

    References to arrays are not counted, since all arrays outlive the call: each count is an atomic operation, and they
    took three quarters of the time of a loop over the log. numba can't compile a function that creates arrays this way:
    it needs `makes_arrays`.
    """
    before = _config.CACHE_LOCATOR_CLASSES
    _config.CACHE_LOCATOR_CLASSES = f"{__name__}.{KernelLocator.__name__}"
    try:
        return _compiled(function, nogil=True, cache=True, _nrt=makes_arrays)
    except RuntimeError:  # this user can write to no folder: compile in every process
        return _compiled(function, nogil=True, _nrt=makes_arrays)
    finally:
        _config.CACHE_LOCATOR_CLASSES = before


def inner_kernel(function: Function, *, makes_arrays: bool = False) -> Function:
    """Makes `function` callable from kernels. LLVM inlines it: otherwise calls took a third of a decoder's time."""
    return _compiled(function, nogil=True, forceinline=True, _nrt=makes_arrays)


def _compiled(function: Function, **options: bool) -> Function:
    compile_it: Any = numba.njit
    compiled: Function = compile_it(**options)(function)
    return compiled


class KernelLocator(_CacheLocator):
    """Tells numba where a kernel's machine code is cached. numba creates one for each kernel that it decorates."""

    def __init__(self, function: Callable[..., Any], folder: str) -> None:
        self._function = function
        self._folder = folder

    @classmethod
    def from_function(cls, function: Callable[..., Any], path: str) -> "KernelLocator | None":
        """Returns None if this user can write to no folder."""
        folder = _cache_folder()
        if not folder:
            return None
        locator = cls(function, folder)
        try:
            locator.ensure_cache_path()  # type: ignore[no-untyped-call]
        except OSError:
            return None
        return locator

    def get_cache_path(self) -> str:
        return self._folder

    def get_source_stamp(self) -> bytes:
        module = self._function.__globals__
        return hashlib.sha256(module["__loader__"].get_data(module["__file__"])).digest()

    def get_disambiguator(self) -> str:
        return str(self._function.__code__.co_firstlineno)


@functools.cache
def _cache_folder() -> str:
    base = _BASE
    if not base:
        with contextlib.suppress(RuntimeError):  # a user without a home
            base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return str(Path(base, "tidemark", "kernels", _fingerprint(resources.files("tidemark")))) if base else ""


def _fingerprint(package: "Traversable") -> str:
    digest = hashlib.sha256()
    for name, source in sorted(_modules(package, "")):
        if name == "state/kernel.py" or b"from tidemark.state.kernel import" in source or b"IntEnum" in source:
            digest.update(name.encode() + source)
    return digest.hexdigest()[:16]


def _modules(folder: "Traversable", prefix: str) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.name.endswith(".py"):
            yield prefix + entry.name, entry.read_bytes()
        elif entry.is_dir() and entry.name != "__pycache__":
            yield from _modules(entry, f"{prefix}{entry.name}/")


_BASE = str(_config.CACHE_DIR)
