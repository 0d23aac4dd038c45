"""Compile kernels ahead of time, so that the first real call need not wait for them."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

import topomask as tm
from topomask.masks.registry import ON_GRAPHS
from topomask.ops.backend import Kernel
from topomask.pictures.named_graphs import load_graph
from topomask.pictures.named_masks import build_mask
from topomask.train.reports import Progress

# 256 nodes each: few enough to be quick, and enough for the dense route to use its kernels.
_GRAPHS = {"grid": "grid:16x16", "path": "path:256", "tree": "tree:256", "hypercube": "hypercube:8"}
_ROUTES = {
    "masked_attention": ("auto", "pairs", "product", "dense"),
    "masked_softmax_attention": ("auto", "pairs", "dense"),
}
# Settings besides the defaults that have kernels of their own.
_VARIANTS: dict[str, tuple[dict[str, Any], ...]] = {
    "walk": ({"symmetric": False}, {"shared_heads": True}, {"normalization": "none", "symmetric": False}),
    "visit": ({"normalize": True},),
    "forest": ({"growing": True}, {"table": [1.0, 0.5, 0.25]}),
}


class WarmUp(NamedTuple):
    """What a warm-up did.

    Attributes:
        seconds: Time taken.
        num_compiled: Specialisations of kernels that were compiled.
        num_cached: Specialisations that were in the cache already.
        cache: Folder of the cache; None if there is none, so that every process compiles again.
    """

    seconds: float
    num_compiled: int
    num_cached: int
    cache: str | None


def warm_up(calls: Sequence[tuple[str, Callable[[], object]]] | None = None, progress: bool = True) -> WarmUp:
    """Compile the kernels that usual calls need, and leave them in the cache for other processes.

    Args:
        calls: Names and functions to call. Default: every mask with linear and softmax attention, forward and backward.
        progress: Show a progress bar, or a line per call if rich is not installed or the output is not a terminal.

    Example:
        >>> warm_up([("walks", lambda: tm.WalkMask(tm.path_graph(8)).to_dense())], progress=False).seconds > 0
        True
    """
    calls = usual_calls() if calls is None else calls
    start = time.perf_counter()
    with Progress(len(calls), enabled=progress) as shown:
        for step, (name, call) in enumerate(calls, 1):
            shown.announce(step - 1, name)
            call()
            shown.advance(step)
    stats = [kernel.compiled.stats for kernel in _used_kernels()]  # type: ignore[attr-defined]
    folders = {each.cache_path for each in stats if each.cache_path is not None}
    return WarmUp(
        time.perf_counter() - start,
        sum(sum(each.cache_misses.values()) for each in stats),
        sum(sum(each.cache_hits.values()) for each in stats),
        os.path.commonpath(folders) if folders else None,
    )


def usual_calls() -> list[tuple[str, Callable[[], object]]]:
    """Small real calls, with names, that together need the usual kernels."""
    calls: list[tuple[str, Callable[[], object]]] = [("random walks", lambda: tm.random_walks(tm.grid_graph(16, 16)))]
    for name in ON_GRAPHS:
        for settings in ({}, *_VARIANTS.get(name, ())):
            label = f"{name} mask" + "".join(f", {option}={value}" for option, value in settings.items())
            calls.append((label, functools.partial(_attend, name, settings)))
    return calls


def _attend(name: str, settings: dict[str, Any]) -> None:
    """Linear and softmax attention with one mask for all heads and one per head, on every route that the mask has."""
    entry = ON_GRAPHS[name]
    source = load_graph(_GRAPHS[entry.example])
    inputs = torch.randn(3, 1, 4, source.graph.num_nodes, 16, generator=torch.Generator().manual_seed(0))
    padding = torch.zeros(1, source.graph.num_nodes, dtype=torch.bool)
    for num_heads in (1, 4) if "num_heads" in entry.options() else (1,):
        mask = build_mask(name, source, settings | ({"num_heads": num_heads} if num_heads > 1 else {}))
        for function, strategies in _ROUTES.items():
            attend: Callable[..., torch.Tensor] = getattr(tm, function)
            for strategy in strategies:
                # Not every mask has every route, and not every route has dropout.
                with contextlib.suppress(ValueError):
                    q, k, v = (x.requires_grad_() for x in inputs.clone().unbind())
                    attend(q, k, v, mask, strategy=strategy).sum().backward()
                    with torch.no_grad():
                        attend(q, k, v, mask, strategy=strategy, key_padding_mask=padding)
                    attend(q, k, v, mask, strategy=strategy, dropout_p=0.1).sum().backward()


def _used_kernels() -> list[Kernel]:
    """The kernels that this process has compiled or taken from the cache."""
    return [x for x in gc.get_objects() if issubclass(type(x), Kernel) and "compiled" in vars(x)]
