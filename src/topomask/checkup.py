"""Checks of the installation, and a self-test of two seconds."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator

import torch

import topomask as tm
from topomask.data import data_root
from topomask.ops.backend import compiled
from topomask.support.imports import EXTRAS, version_of

_PACKAGES = ("torch", "numpy", "scipy", "numba", "tyro", "cattrs")
Finding = tuple[str, str, bool]


def examine(warm_up: bool = False) -> Iterator[Finding]:
    """Check what is installed and whether it works; yield names, findings, and whether they are good.

    Args:
        warm_up: Also compile the kernels that usual calls need.
    """
    yield "topomask", tm.__version__, True
    yield "Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}", True
    for name in _PACKAGES:
        found = version_of(name)
        yield name, found or "not installed", found is not None or name == "numba"
    for _, name, extra in EXTRAS.values():
        yield name, version_of(name) or f"not installed (pip install 'topomask[{extra}]')", True
    yield "cores, threads", f"{os.cpu_count()} cores, {torch.get_num_threads()} threads of torch", True
    yield "devices", f"cpu, {torch.cuda.get_device_name()}" if torch.cuda.is_available() else "cpu", True
    yield "kernels on the CPU", _kernels(), True
    yield "data root", _root(), True
    if warm_up:
        yield from _warm_up()
    # Kernels compile on first use, and are cached on disk.
    for name, test in (("walks", _test_walks), ("attention", _test_attention), ("gradients", _test_gradients)):
        yield _tried(f"self-test: {name}", test)


def _kernels() -> str:
    return "Numba" if compiled(torch.empty(0)) else "pure torch (Numba is missing or TOPOMASK_BACKEND=reference)"


def _warm_up() -> Iterator[Finding]:
    if not compiled(torch.empty(0)):
        yield "warm-up", f"nothing to compile: the kernels are {_kernels()}", True
        return
    from topomask.warm_up import warm_up

    try:
        found = warm_up()
    # Report any failure, and run the self-tests.
    except Exception as problem:
        yield "warm-up", f"FAILED: {type(problem).__name__}: {problem}", False
        return
    counts = f"{found.num_compiled} kernels compiled, {found.num_cached} from the cache"
    yield "warm-up", f"{counts}, {found.seconds:.1f} s", True
    yield "kernel cache", found.cache or "none: no folder is writable, so every process compiles again", True


def _root() -> str:
    root = data_root()
    return str(root) if root.is_dir() else f"{root} (does not exist yet; set TOPOMASK_DATA to use another)"


def _tried(name: str, test: Callable[[], float]) -> Finding:
    start = time.perf_counter()
    try:
        error = test()
    # Report any failure.
    except Exception as problem:
        return name, f"FAILED: {type(problem).__name__}: {problem}", False
    took = time.perf_counter() - start
    return name, f"{'ok' if error < 1e-4 else 'FAILED'}, error {error:.1e}, {took:.2f} s", error < 1e-4


def _inputs() -> tuple[tm.WalkMask, torch.Tensor]:
    mask = tm.WalkMask(tm.grid_graph(6, 6), num_walks=10, max_length=4, num_heads=2, seed=0)
    return mask, torch.randn(3, 1, 2, 36, 8, generator=torch.Generator().manual_seed(0))


def _test_walks() -> float:
    """On directed 3-neighbour lists, 27 repelling walkers of 3 hops take every walk, so the estimate is exact."""
    points = torch.rand(60, 3, generator=torch.Generator().manual_seed(0)).numpy()
    graph = tm.knn_graph(points, k=3, directed=True)
    f = torch.tensor([1.0, 0.7, 0.5, 0.3])
    estimate = tm.WalkMask(
        graph, num_walks=27, max_length=3, symmetric=False, normalization="row", f=f, seed=0
    ).to_dense()
    exact = tm.PowerSeriesMask(graph, f, normalization="row").to_dense()
    return float((estimate - exact).detach().abs().max())


def _test_attention() -> float:
    mask, (q, k, v) = _inputs()
    ways = [tm.masked_attention(q, k, v, mask, strategy=way) for way in ("pairs", "product", "dense")]
    return max(float((way - ways[2]).detach().abs().max()) for way in ways)


def _test_gradients() -> float:
    mask, inputs = _inputs()
    found = []
    for way in ("pairs", "dense"):
        q, k, v = (x.requires_grad_() for x in inputs.clone().unbind())
        out = tm.masked_attention(q, k, v, mask, strategy=way).square().sum()
        found.append(torch.autograd.grad(out, [q, k, v, *mask.parameters()]))
    return max(float((a - b).abs().max()) for a, b in zip(*found, strict=True))
