"""Memory of tensors: the most that a run holds at a time, and what an object holds on to."""

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
    """The most bytes that torch holds at a time during a run, above what it held before.

    Read from the allocator's own record, so memory inside operators counts too. Scratch arrays of compiled kernels that
    do not come from torch do not. Whatever the first run keeps should be there already.
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
    """Keep the profiler from writing to the terminal, which it does below Python."""
    kept = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def held_bytes(thing: object) -> int:
    """Bytes of all distinct tensors and arrays that can be reached from an object of this library."""
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
