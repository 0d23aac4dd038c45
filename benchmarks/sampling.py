"""Sampling of walks against alternatives on 32,768 nodes: ratios of medians, measured in one run.

20 walks of length 10 from every node of a grid (128 x 256) and of a Barabasi-Albert graph (3 edges per new node). The
alternatives are a vectorised torch sampler, whose visits are merged into (row, column, length) in all ways that torch
offers, and `torch_cluster.random_walk` if installed. Those that differ from ours by more than chance are rejected.
"""

from __future__ import annotations

import importlib
import importlib.util
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import networkx as nx
import numpy as np
import torch
from torch import Tensor

import topomask as tm
from benchmarks import report

NUM_WALKS, LENGTH = 20, 10
NUM_NODES = 32_768
NUM_TURNS = 5
MERGES = ("coalesce", "sort all keys", "sort rows", "sort lengths")


def barabasi_albert() -> tm.Graph:
    edges = np.array(nx.barabasi_albert_graph(NUM_NODES, 3, seed=0).edges).T
    return tm.Graph.from_edges(edges, NUM_NODES)


def torch_walks(row_ptr: Tensor, columns: Tensor) -> Tensor:
    """Sample independent walkers all at once, [L + 1, N * W]; every node needs a neighbour."""
    degrees = row_ptr.diff()
    node = torch.arange(len(degrees)).repeat_interleave(NUM_WALKS)
    visits = [node]
    for _ in range(LENGTH):
        node = columns[row_ptr[node] + (torch.rand(len(node)) * degrees[node]).to(torch.int64)]
        visits.append(node)
    return torch.stack(visits)


def merge(visits: Tensor, num_nodes: int, how: str) -> Any:
    """Count the walkers of a row at a column after a length, as a sparse tensor or sorted keys with counts."""
    lengths = torch.arange(LENGTH + 1)[:, None]
    rows = torch.arange(num_nodes).repeat_interleave(NUM_WALKS)
    if how == "coalesce":
        index = torch.stack([rows.expand_as(visits), visits, lengths.expand_as(visits)]).flatten(1)
        size = (num_nodes, num_nodes, LENGTH + 1)
        return torch.sparse_coo_tensor(index, torch.ones(index.shape[1]), size, check_invariants=False).coalesce()
    if how == "sort all keys":
        keys = ((rows * num_nodes + visits) * (LENGTH + 1) + lengths).flatten()
        return torch.unique_consecutive(keys.sort().values, return_counts=True)
    if how == "sort rows":
        local = (visits * (LENGTH + 1) + lengths).to(torch.int32).view(LENGTH + 1, num_nodes, NUM_WALKS)
        local = local.transpose(0, 1).reshape(num_nodes, -1).sort(dim=1).values
        first = torch.arange(num_nodes)[:, None] * (num_nodes * (LENGTH + 1))
        return torch.unique_consecutive((local + first).flatten(), return_counts=True)
    # Separate for every length, which is less work than the other ways do.
    keys = (rows * num_nodes + visits).sort(dim=1).values
    return [torch.unique_consecutive(part, return_counts=True) for part in keys]


def squares(visits: Tensor, num_nodes: int) -> float:
    """Mean square fraction of a row's walkers at a column after the last step, by sorted keys."""
    keys = torch.arange(num_nodes).repeat_interleave(NUM_WALKS) * num_nodes + visits
    counts = torch.unique(keys, return_counts=True)[1]
    return float((counts / NUM_WALKS).square().sum() / num_nodes)


def check(graph: tm.Graph, name: str, visits: Tensor) -> None:
    """Check that walks [L + 1, N * W] follow edges and meet as often as ours."""
    row_ptr, columns = graph._tensors.row_ptr, graph._tensors.columns
    edges = torch.repeat_interleave(torch.arange(graph.num_nodes), row_ptr.diff()) * graph.num_nodes + columns
    if not torch.isin(visits[:-1] * graph.num_nodes + visits[1:], edges).all():
        raise AssertionError(f"{name} takes a step where there is no edge")
    ours = tm.random_walks(graph, NUM_WALKS, LENGTH).flatten(0, 1).T
    found, expected = squares(visits[-1], graph.num_nodes), squares(ours[-1], graph.num_nodes)
    if abs(found / expected - 1) > 0.02:
        raise AssertionError(f"walkers of {name} meet with a probability of {found:.4f}, ours with {expected:.4f}")


def check_merged(graph: tm.Graph) -> None:
    """Check that all ways to merge agree with ours on the same walks."""
    features = tm.sample_features(graph, NUM_WALKS, LENGTH, coupling="iid", normalization="row")
    visits = tm.random_walks(graph, NUM_WALKS, LENGTH).flatten(0, 1).T.contiguous()
    for how in MERGES:
        merged = merge(visits, graph.num_nodes, how)
        if how == "coalesce":
            counts = merged.values()
        elif how == "sort lengths":
            counts = torch.cat([part[1] for part in merged])
        else:
            counts = merged[1]
        loads = features.loads * NUM_WALKS
        if how == "sort lengths":
            counts, loads = counts.sort().values, loads.sort().values
        if len(counts) != len(loads) or not torch.allclose(counts.float(), loads):
            raise AssertionError(f"merging by {how!r} gives a different result")


def milliseconds(runs: dict[str, Callable[[], Any]]) -> dict[str, list[float]]:
    """Times of every run, measured in turns so that outside noise affects all.

    Every measurement follows an untimed run: idle threads of another pool spin before they sleep.
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(NUM_TURNS):
        for name, run in runs.items():
            run()
            start = time.perf_counter()
            run()
            times[name].append(1e3 * (time.perf_counter() - start))
    return times


def our_runs(graph: tm.Graph, coupling: Literal["iid", "repelling"]) -> dict[str, Callable[[], Any]]:
    return {
        f"bare walks, {coupling}": lambda: tm.random_walks(graph, NUM_WALKS, LENGTH, coupling=coupling),
        f"features, {coupling}": lambda: tm.sample_features(graph, NUM_WALKS, LENGTH, coupling=coupling),
    }


def peer_runs(graph: tm.Graph) -> dict[str, Callable[[], Any]]:
    """Alternatives whose results have been checked."""
    # int64, as usual in torch.
    row_ptr, columns = graph._tensors.row_ptr, graph._tensors.columns.to(torch.int64)
    check(graph, "the torch sampler", torch_walks(row_ptr, columns))
    check_merged(graph)
    runs: dict[str, Callable[[], Any]] = {"torch, bare walks": lambda: torch_walks(row_ptr, columns)}
    for how in MERGES:
        runs[f"torch, merged by {how}"] = partial(_walk_and_merge, row_ptr, columns, how)
    if importlib.util.find_spec("torch_cluster") is None:
        print("torch_cluster is not installed, so it is left out.\n")
        return runs
    nodes = torch.arange(graph.num_nodes)
    rows, starts = torch.repeat_interleave(nodes, row_ptr.diff()), nodes.repeat_interleave(NUM_WALKS)
    random_walk = importlib.import_module("torch_cluster").random_walk
    cluster = partial(random_walk, rows, columns, starts, LENGTH, coalesced=False)
    check(graph, "torch_cluster", cluster().T)
    return runs | {"torch_cluster, bare walks": cluster}


def _walk_and_merge(row_ptr: Tensor, columns: Tensor, how: str) -> Any:
    return merge(torch_walks(row_ptr, columns), len(row_ptr) - 1, how)


def main() -> None:
    torch.manual_seed(0)
    results: dict[str, Any] = {}
    for name, graph in (("grid", tm.grid_graph(128, 256)), ("Barabasi-Albert", barabasi_albert())):
        times = milliseconds(our_runs(graph, "iid") | our_runs(graph, "repelling") | peer_runs(graph))
        medians = {what: statistics.median(values) for what, values in times.items()}
        print(f"{name}\n")
        report.table(
            ["what", "median ms", "least", "most"],
            [[n, f"{medians[n]:.1f}", f"{min(t):.1f}", f"{max(t):.1f}"] for n, t in times.items()],
        )
        merged = {how: medians[f"torch, merged by {how}"] for how in MERGES}
        ratios = {}
        for coupling in ("iid", "repelling"):
            walks, features = medians[f"bare walks, {coupling}"], medians[f"features, {coupling}"]
            ratios[f"torch / bare walks, {coupling} (bar for iid: at least 3)"] = medians["torch, bare walks"] / walks
            if "torch_cluster, bare walks" in medians:
                cluster = medians["torch_cluster, bare walks"]
                ratios[f"torch_cluster / bare walks, {coupling} (bar for iid: at least 4)"] = cluster / walks
            ratios[f"torch and coalesce / features, {coupling} (bar: at least 10)"] = merged["coalesce"] / features
            ratios[f"torch and sorted keys / features, {coupling}"] = merged["sort all keys"] / features
            ratios[f"torch, fastest of all merges / features, {coupling}"] = min(merged.values()) / features
        report.table(["ratio", "measured"], [[what, f"{value:.1f}"] for what, value in ratios.items()])
        results[name] = {"milliseconds": times, "ratios": ratios}
    report.save("sampling", results)


if __name__ == "__main__":
    main()
