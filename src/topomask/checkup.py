"""A look at the installation, and a self-test of two seconds."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import time
from collections.abc import Callable, Iterator

import torch

import topomask as tm
from topomask.data import data_root
from topomask.ops.backend import compiled
from topomask.support.imports import EXTRAS

_PACKAGES = ("torch", "numpy", "scipy", "numba", "tyro", "cattrs")
Finding = tuple[str, str, bool]


def examine() -> Iterator[Finding]:
    """What is installed and whether it works: names, findings, and whether they are good."""
    yield "topomask", tm.__version__, True
    yield "Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}", True
    for name in _PACKAGES:
        found = _version(name)
        yield name, found or "not installed", found is not None or name == "numba"
    for _, name, extra in EXTRAS.values():
        yield name, _version(name) or f"not installed (pip install 'topomask[{extra}]')", True
    yield "cores, threads", f"{os.cpu_count()} cores, {torch.get_num_threads()} threads of torch", True
    yield "devices", f"cpu, {torch.cuda.get_device_name()}" if torch.cuda.is_available() else "cpu", True
    yield "kernels on the CPU", _kernels(), True
    yield "data root", _root(), True
    # Kernels are compiled when they are first used, and kept for the next time.
    for name, test in (("walks", _test_walks), ("attention", _test_attention), ("gradients", _test_gradients)):
        yield _tried(f"self-test: {name}", test)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _kernels() -> str:
    return "Numba" if compiled(torch.empty(0)) else "pure torch (Numba is missing or TOPOMASK_BACKEND=reference)"


def _root() -> str:
    root = data_root()
    return str(root) if root.is_dir() else f"{root} (not there yet; set TOPOMASK_DATA to use another)"


def _tried(name: str, test: Callable[[], float]) -> Finding:
    start = time.perf_counter()
    try:
        error = test()
    # Whatever goes wrong is what the doctor is for.
    except Exception as problem:
        return name, f"FAILED: {type(problem).__name__}: {problem}", False
    took = time.perf_counter() - start
    return name, f"{'ok' if error < 1e-4 else 'FAILED'}, error {error:.1e}, {took:.2f} s", error < 1e-4


def _inputs() -> tuple[tm.WalkMask, torch.Tensor]:
    mask = tm.WalkMask(tm.grid_graph(6, 6), num_walks=10, max_length=4, num_heads=2, seed=0)
    return mask, torch.randn(3, 1, 2, 36, 8, generator=torch.Generator().manual_seed(0))


def _test_walks() -> float:
    """On directed lists of 3 neighbours, 27 repelling walkers of 3 hops take every walk: the estimate is exact."""
    points = torch.rand(60, 3, generator=torch.Generator().manual_seed(0)).numpy()
    graph = tm.knn_graph(points, k=3, directed=True)
    f = torch.tensor([1.0, 0.7, 0.5, 0.3])
    estimate = tm.WalkMask(graph, 27, 3, symmetric=False, normalization="row", f=f, seed=0).to_dense()
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
