"""Compiled kernels: when they may be used, with how many threads, and where they are cached."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import threading
import types
import warnings
from collections.abc import Callable
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

# Sums may be reordered, but numbers that are not finite stay so.
FAST_MATH = frozenset({"reassoc", "contract", "arcp", "nsz"})
# Options of ``numba.njit`` for what kernels call, without and with reordered sums.
EXACT: dict[str, Any] = {"error_model": "numpy"}
FAST: dict[str, Any] = {"error_model": "numpy", "fastmath": set(FAST_MATH)}

# Only one parallel kernel may run at a time: Numba's default thread pool is shared and not re-entrant.
_pool = threading.Lock()
_forked = False


def _mark_forked() -> None:
    global _forked
    _forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_mark_forked)


@cache
def _has_numba() -> bool:
    if importlib.util.find_spec("numba") is None:
        warnings.warn(
            "Numba is not installed, so topomask uses its pure-torch reference, which is slower. Install numba.",
            stacklevel=3,
        )
        return False
    return True


def compiled(*tensors: Tensor, dtype: torch.dtype | None = None) -> bool:
    """Whether compiled kernels can take these tensors: all on the CPU, Numba installed and not switched off.

    Args:
        tensors: The tensors.
        dtype: What they all must be. Default: anything.
    """
    backend = os.environ.get("TOPOMASK_BACKEND", "auto")
    if backend not in ("auto", "reference"):
        raise ValueError(f"TOPOMASK_BACKEND must be 'auto' or 'reference', but is {backend!r}.")
    if backend == "reference":
        return False
    fit = all(tensor.device.type == "cpu" and dtype in (None, tensor.dtype) for tensor in tensors)
    return fit and _has_numba()


def implementation(op: str, *tensors: Tensor, dtype: torch.dtype | None = None) -> types.ModuleType:
    """The compiled kernels of an op where they can take these tensors, else its reference; imported now.

    Args:
        op: The package of the op, which passes its ``__name__``. It has the modules ``numba`` and ``reference``.
        tensors: What the kernels are to take.
        dtype: What the kernels take, where that is not everything.
    """
    return importlib.import_module(f"{op}.{'numba' if compiled(*tensors, dtype=dtype) else 'reference'}")


def arrays(*tensors: Tensor) -> list[np.ndarray]:
    """The memory of CPU tensors as contiguous NumPy arrays."""
    return [tensor.detach().contiguous().numpy() for tensor in tensors]


def by_head(values: Tensor) -> np.ndarray:
    """Values [V, P] as an array; those of a single head, [P], with one row."""
    (array,) = arrays(values)
    return array if array.ndim == 2 else array[None]


def in_float32(op: Any) -> None:
    """Let an op take its floating inputs in float32 under autocast: sums of many terms need it."""
    for device in ("cpu", "cuda"):
        op.register_autocast(device, torch.float32)


# Blocks whose results are kept apart until they are added up; each takes memory.
MAX_PARTS = 8


def row_blocks(row_ptr: Tensor | np.ndarray, max_blocks: int | None = None) -> np.ndarray:
    """Rows where blocks of about equally many entries begin: one per thread, ``max_blocks`` at most, [blocks + 1]."""
    ptr = row_ptr.numpy() if isinstance(row_ptr, Tensor) else row_ptr
    count = max(1, min(torch.get_num_threads(), max_blocks or len(ptr), len(ptr) - 1))
    blocks = np.full(count + 1, len(ptr) - 1)
    blocks[0] = 0
    if count > 1:
        shares = np.arange(1, count) * (ptr[-1] / count)
        np.minimum(np.searchsorted(ptr, shares), len(ptr) - 1, out=blocks[1:-1])
    return blocks


@cache
def _source_digest() -> str:
    """A hash of the sources of all kernels: the folders of ops, and files beside them that mention Numba."""
    digest, root = hashlib.blake2b(digest_size=6), Path(__file__).parent
    for path in sorted(root.rglob("*.py")):
        source = path.read_bytes()
        if path.parent != root or b"numba" in source:
            digest.update(source)
    return digest.hexdigest()


class Kernel:
    """A function compiled by Numba on first use, once with threads and once without.

    The version without threads serves forked processes, whose thread pool did not survive, and callers that find the
    pool busy. Compiled code is cached on disk: beside the source, in the user's cache folder where that is read-only,
    and nowhere if that is too.

    Arrays may come in NamedTuples. Numba has two limits to this in loops that get threads: what is written through a
    field of a tuple is lost, and tuples inside tuples do not get in. So where records are written to, or hold records,
    such a loop does nothing but call a function for every block.

    Args:
        function: A function in the subset of Python that Numba compiles; ``numba.prange`` loops get threads.
        fastmath: Whether sums may be reordered; numbers that are not finite stay so. Never where results must be the
            same to the last bit.
        threads: Whether the function has loops that threads can share.
    """

    def __init__(self, function: Callable[..., Any], fastmath: bool = False, threads: bool = True) -> None:
        self.function = function
        self.fastmath = fastmath
        self.threads = threads
        self.__doc__ = function.__doc__

    def _compile(self, parallel: bool) -> Callable[..., Any]:
        import numba

        options: dict[str, Any] = {
            "parallel": parallel,
            "fastmath": set(FAST_MATH) if self.fastmath else False,
            "nogil": True,
            "error_model": "numpy",
        }
        # Numba's cache knows functions by name and file, not by options or by what other files they are built of: two
        # versions need two names.
        function = types.FunctionType(self.function.__code__, self.function.__globals__)
        function.__qualname__ = f"{self.function.__name__}_{'parallel' if parallel else 'serial'}_{_source_digest()}"
        function.__module__ = self.function.__module__
        try:
            compiled: Callable[..., Any] = numba.njit(function, cache=True, **options)
        except RuntimeError:
            # There is no folder that the cache could be written to.
            compiled = numba.njit(function, **options)
        return compiled

    @cached_property
    def parallel(self) -> Callable[..., Any]:
        """The version with threads."""
        return self._compile(parallel=True)

    @cached_property
    def serial(self) -> Callable[..., Any]:
        """The version without threads."""
        return self._compile(parallel=False)

    def __call__(self, *args: Any) -> Any:
        """Run with as many threads as torch would use."""
        threads = torch.get_num_threads()
        if not self.threads or threads == 1 or _forked or not _pool.acquire(blocking=False):
            return self.serial(*args)
        try:
            import numba

            numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]
            return self.parallel(*args)
        finally:
            _pool.release()
