"""How the readers' loops are compiled, and where the machine code is kept between processes.

numba caches a function under the content of the file it stands in, and does not see that a function which it calls
from another file has changed: an upgrade could go on running old code. So the cache's folder bears a fingerprint of all
modules that hold kernels, of `readers` and of the function's own package: packages below do not call each other's.
Where the modules stand plays no part: each Spark application has a zip of its own on every executor, and compiling
takes a minute.
"""

import contextlib
import functools
import hashlib
import os
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numba
import numpy as np
import numpy.typing as npt
from numba.core.caching import _CacheLocator

Bytes: TypeAlias = npt.NDArray[np.uint8]
Int64s: TypeAlias = npt.NDArray[np.int64]
Int32s: TypeAlias = npt.NDArray[np.int32]
Int: TypeAlias = Any
"""An int in Python, an int64 inside a kernel."""

Function = TypeVar("Function", bound=Callable[..., Any])

_config: Any = numba.config  # its attributes are made at run time


def kernel(function: Function, *, makes_arrays: bool = False) -> Function:
    """`function` compiled at its first call, without the GIL. Array arguments are writable and C-contiguous: other
    layouts would compile it again.

    Unless it `makes_arrays` itself (else numba refuses to compile it), references to arrays, which all outlive the call,
    are not counted: each count is an atomic operation, and they took three quarters of the time of a loop over the log.
    """
    before = _config.CACHE_LOCATOR_CLASSES
    _config.CACHE_LOCATOR_CLASSES = f"{__name__}.{KernelLocator.__name__}"
    try:
        return _compiled(function, nogil=True, cache=True, _nrt=makes_arrays)
    except RuntimeError:  # no folder of this user can be written to: compile in every process
        return _compiled(function, nogil=True, _nrt=makes_arrays)
    finally:
        _config.CACHE_LOCATOR_CLASSES = before


def inner_kernel(function: Function, *, makes_arrays: bool = False) -> Function:
    """`function` for use inside kernels, into which LLVM copies it: a third of a decoder's time would be spent on calls."""
    return _compiled(function, nogil=True, forceinline=True, _nrt=makes_arrays)


def _compiled(function: Function, **options: bool) -> Function:
    compile_it: Any = numba.njit
    compiled: Function = compile_it(**options)(function)
    return compiled


class KernelLocator(_CacheLocator):
    """Tells numba where a kernel's machine code is kept; numba makes it, once a kernel, while it decorates."""

    def __init__(self, function: Callable[..., Any], folder: str) -> None:
        self._function = function
        self._folder = folder

    @classmethod
    def from_function(cls, function: Callable[..., Any], path: str) -> "KernelLocator | None":
        """None where this user has no folder that can be written to."""
        folder = _cache_folder(function.__module__.rpartition(".")[0])
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
def _cache_folder(package: str) -> str:
    digest = hashlib.sha256()
    for folder in sorted({__package__, package}):
        for module in sorted(resources.files(folder).iterdir(), key=lambda file: file.name):
            source = module.read_bytes() if module.name.endswith(".py") else b""
            # IntEnum: codes, which kernels have as constants.
            if module.name == "kernel.py" or b"kernel\ndef " in source or b"IntEnum" in source:
                digest.update(module.name.encode() + source)
    base = _BASE
    if not base:
        with contextlib.suppress(RuntimeError):  # a user without a home
            base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return str(Path(base, "tidemark", "kernels", digest.hexdigest()[:16])) if base else ""


_BASE = str(_config.CACHE_DIR)
