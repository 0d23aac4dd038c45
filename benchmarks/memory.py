"""Memory of tensors: the peak during a run, and what an object keeps alive."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile


def peak_extra_bytes(run: Callable[[], object]) -> int:
    """Peak number of bytes that torch holds during a run, beyond what it held before.

    Read from the record of the allocator, so memory inside operators counts too, but scratch arrays of compiled kernels
    that torch did not allocate do not. Run it once before, to fill caches.
    """
    with _silent(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    assert profiler.profiler is not None
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


@contextmanager
def _silent() -> Iterator[None]:
    """Keep the profiler from writing to the terminal, which it does from native code."""
    kept = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def held_bytes(thing: object) -> int:
    """Bytes of all distinct tensors and arrays that an object of this library refers to."""
    found: dict[int, int] = {}
    seen: set[int] = set()
    waiting: list[object] = [thing]
    while waiting:
        item = waiting.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, Tensor):
            storage = item.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
        elif isinstance(item, np.ndarray):
            owner: Any = item
            while isinstance(owner.base, np.ndarray):
                owner = owner.base
            found[owner.ctypes.data] = owner.nbytes
        else:
            waiting.extend(_inside(item))
    found.pop(0, None)
    return sum(found.values())


def _inside(item: object) -> Iterable[object]:
    if isinstance(item, dict):
        return list(item.values())
    if isinstance(item, (list, tuple, set, frozenset)):
        return list(item)
    if isinstance(item, torch.nn.Module) or type(item).__module__.startswith("topomask"):
        return list(getattr(item, "__dict__", {}).values())
    return []
