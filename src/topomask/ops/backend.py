"""Compiled kernels: when they may be used, where they are cached, and the threads that run them.

Kernels release the GIL, so plain threads run them in parallel. A caller uses idle worker threads besides its own: calls
from several threads never wait for each other, and there are always fewer workers than torch's number of threads.
"""

from __future__ import annotations

import builtins
import gc
import hashlib
import importlib
import importlib.util
import math
import os
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

# Sums may be reordered, but infinities and NaN are preserved.
FAST_MATH = frozenset({"reassoc", "contract", "arcp", "nsz"})
# Options of ``numba.njit`` for functions that kernels call, without and with reordered sums. They are not called from
# Python: code that unpacks Python arguments would take most of the time to compile a small function. They do not count
# references to arrays, which is slow to compile and slow in inner loops: such a function cannot allocate arrays, and
# must not return any to a function that does.
EXACT: dict[str, Any] = {
    "error_model": "numpy",
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
    "_nrt": False,
}
FAST: dict[str, Any] = EXACT | {"fastmath": set(FAST_MATH)}
# For functions that allocate arrays, or return some to a function that does.
ALLOCATING: dict[str, Any] = EXACT | {"_nrt": True}


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
    """Whether compiled kernels can be used for these tensors: all on the CPU, Numba installed and not disabled.

    Args:
        tensors: The tensors.
        dtype: The dtype that they all must have. Default: any.
    """
    backend = os.environ.get("TOPOMASK_BACKEND", "auto")
    if backend not in ("auto", "reference"):
        raise ValueError(f"TOPOMASK_BACKEND must be 'auto' or 'reference', but is {backend!r}.")
    if backend == "reference":
        return False
    fit = all(tensor.device.type == "cpu" and dtype in (None, tensor.dtype) for tensor in tensors)
    return fit and _has_numba()


def implementation(op: str, *tensors: Tensor, dtype: torch.dtype | None = None) -> types.ModuleType:
    """Import and return the compiled kernels of an op if they can be used for these tensors, else its reference.

    Args:
        op: The ``__name__`` of the op's package, which has the modules ``numba`` and ``reference``.
        tensors: Inputs of the kernels.
        dtype: The dtype that the kernels require. Default: any.
    """
    return importlib.import_module(f"{op}.{'numba' if compiled(*tensors, dtype=dtype) else 'reference'}")


def arrays(*tensors: Tensor) -> list[np.ndarray]:
    """Return CPU tensors as contiguous NumPy arrays, which share the memory of contiguous tensors."""
    return [tensor.detach().contiguous().numpy() for tensor in tensors]


def by_head(values: Tensor) -> np.ndarray:
    """Return values [V, P] as an array; values of a single head, [P], become one row."""
    (array,) = arrays(values)
    return array if array.ndim == 2 else array[None]


def in_float32(op: Any) -> None:
    """Cast the floating-point inputs of an op to float32 under autocast: sums of many terms need it."""
    for device in ("cpu", "cuda"):
        op.register_autocast(device, torch.float32)


# The most blocks whose results are stored separately before they are added up; each needs memory.
MAX_PARTS = 8


def row_blocks(row_ptr: Tensor | np.ndarray, max_blocks: int | None = None) -> np.ndarray:
    """Return where blocks of about equally many entries begin: one per thread, at most ``max_blocks``, [blocks + 1]."""
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
    """Return a hash of the sources of all kernels: the folders of ops, and files next to them that mention Numba."""
    digest, root = hashlib.blake2b(digest_size=6), Path(__file__).parent
    for path in sorted(root.rglob("*.py")):
        source = path.read_bytes()
        if path.parent != root or b"numba" in source:
            digest.update(source)
    return digest.hexdigest()


class _Worker:
    """A thread that waits for work."""

    def __init__(self) -> None:
        # Both are locked while the thread is idle.
        self._has_work, self._is_done = threading.Lock(), threading.Lock()
        self._has_work.acquire()
        self._is_done.acquire()
        self._work: Callable[[], Any] | None = None
        self._error: BaseException | None = None
        threading.Thread(target=self._serve, name="topomask", daemon=True).start()

    def start(self, work: Callable[[], Any]) -> None:
        self._work = work
        self._has_work.release()

    def wait(self) -> BaseException | None:
        """Wait until the work is done; returns the error that it raised, if any."""
        self._is_done.acquire()
        error, self._error = self._error, None
        return error

    def _serve(self) -> None:
        while True:
            self._has_work.acquire()
            try:
                assert self._work is not None
                self._work()
            except BaseException as error:
                self._error = error
            self._work = None
            self._is_done.release()


_idle: list[_Worker] = []
_num_workers = 0
_lock = threading.Lock()


def _forget_workers() -> None:
    """Start without workers in a forked process, which only has the thread that forked."""
    global _num_workers, _lock
    _idle.clear()
    _num_workers, _lock = 0, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_workers)


def _take(count: int) -> list[_Worker]:
    """Return workers for a caller: ``count`` minus those that work for others."""
    global _num_workers
    with _lock:
        wanted = count - (_num_workers - len(_idle))
        found = [_idle.pop() for _ in range(min(wanted, len(_idle)))]
        while len(found) < wanted:
            found.append(_Worker())
            _num_workers += 1
    return found


def _give_back(workers: list[_Worker], lost: int) -> None:
    global _num_workers
    with _lock:
        _idle.extend(workers)
        _num_workers -= lost


def run_blocks(kernel: Callable[..., Any], num_blocks: int, arguments: tuple[Any, ...]) -> None:
    """Call ``kernel(start_block, stop_block, *arguments)`` for ranges that cover all blocks, in several threads.

    Args:
        kernel: The kernel, which releases the GIL.
        num_blocks: Number of blocks, which are independent of each other.
        arguments: Other arguments of the kernel.
    """
    threads = min(torch.get_num_threads(), num_blocks)
    workers = _take(threads - 1) if threads > 1 else []
    if not workers:
        kernel(0, num_blocks, *arguments)
        return
    parts = len(workers) + 1
    ranges = pairwise([part * num_blocks // parts for part in range(parts + 1)])
    start, stop = next(ranges)
    finished: list[_Worker] = []
    errors: list[BaseException] = []
    try:
        for worker, (first, last) in zip(workers, ranges, strict=True):
            worker.start(lambda first=first, last=last: kernel(first, last, *arguments))  # type: ignore[misc]
        kernel(start, stop, *arguments)
    finally:
        try:
            for worker in workers:
                error = worker.wait()
                finished.append(worker)
                if error is not None:
                    errors.append(error)
        finally:
            # A caller that is interrupted while waiting leaves workers behind that are still busy.
            _give_back(finished, len(workers) - len(finished))
    if errors:
        raise errors[0]


_POW, _MAX, _MIN = math.pow, max, min
_NOTHING = nullcontext()


def _unpatched() -> AbstractContextManager[None]:
    """A context with Python's own functions: ``torch.export`` replaces some with others that Numba does not support."""
    return _NOTHING if math.pow is _POW and builtins.max is _MAX else _with_own_functions()


@contextmanager
def _with_own_functions() -> Iterator[None]:
    others = math.pow, builtins.max, builtins.min
    math.pow, builtins.max, builtins.min = _POW, _MAX, _MIN
    try:
        yield
    finally:
        math.pow, builtins.max, builtins.min = others


def _without_collector(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that Python's garbage collector does not interrupt.

    A compiler keeps most of what it makes; looking through it again and again takes a tenth of the time.
    """

    def run(*arguments: Any) -> Any:
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            return function(*arguments)
        finally:
            if was_enabled:
                gc.enable()

    return run


class Kernel:
    """A function compiled by Numba on first use.

    Compiled code is cached on disk: next to the source, in the user's cache folder if that is read-only, and nowhere if
    both are. Arguments may be NamedTuples of arrays.

    Args:
        function: A function in the subset of Python that Numba compiles.
        fastmath: Whether sums may be reordered; infinities and NaN are preserved. Not for results that must be
            reproducible to the last bit.
        allocates: Whether the function allocates arrays; one that takes its memory as arguments compiles faster.
    """

    def __init__(self, function: Callable[..., Any], fastmath: bool = False, allocates: bool = False) -> None:
        self.function = function
        self.fastmath, self.allocates = fastmath, allocates
        self.__doc__ = function.__doc__

    @cached_property
    def compiled(self) -> Callable[..., Any]:
        """The function, compiled for the types of arguments that it is called with."""
        import numba

        options = (FAST if self.fastmath else EXACT) | {
            "_nrt": self.allocates,
            "nogil": True,
            "no_cpython_wrapper": False,
        }
        # Numba's cache identifies functions by name and file, and ignores changes in other files that they use.
        function = types.FunctionType(self.function.__code__, self.function.__globals__)
        function.__qualname__ = f"{self.function.__name__}_{_source_digest()}"
        function.__module__ = self.function.__module__
        try:
            compiled: Callable[..., Any] = numba.njit(function, cache=True, **options)
        except RuntimeError:
            # There is no writable folder for the cache.
            compiled = numba.njit(function, **options)
        compiled.compile = _without_collector(compiled.compile)  # type: ignore[attr-defined]
        return compiled

    def __call__(self, *arguments: Any) -> Any:
        """Run the kernel in this thread."""
        with _unpatched():
            return self.compiled(*arguments)


class BlockKernel(Kernel):
    """A kernel whose work is split into independent blocks, which threads share.

    The function takes the first block and the one after the last, followed by its other arguments.
    """

    def __call__(self, num_blocks: int, *arguments: Any) -> None:
        """Run the kernel with as many threads as torch would use, each with at least one block."""
        with _unpatched():
            run_blocks(self.compiled, num_blocks, arguments)
