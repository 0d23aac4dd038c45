"""Alternatives: Alg. 1 with torch.sparse, unmasked attention, dense biases, FlexAttention, PyG layers.

A grid of 64 x 64 tokens, where a dense mask still fits, then a grid of 128 x 256 for methods that do not need one. One
head, width 64, forward, frozen walks. Methods that should give our result are checked before they are timed; the others
are different layers on the same edges.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from scipy.sparse import csr_array
from torch import Tensor
from torch.nn import functional as F

import topomask as tm
from benchmarks import measure, report

WIDTH = 64
CHUNKS = (4, 16, 64)
INTEGERS = (torch.int32, torch.int64)

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def linear_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Unmasked linear attention in plain torch."""
    phi_q, phi_k = F.relu(q), F.relu(k)
    return phi_q @ (phi_k.mT @ v) / (phi_q @ phi_k.sum(dim=-2, keepdim=True).mT)


def algorithm_1(mask: tm.WalkMask, integers: torch.dtype, chunk: int) -> Attend:
    """Alg. 1 of the paper with torch.sparse: products of sparse features with phi(k) x [v, 1], chunk by chunk.

    The sparse matrices are built once, since f is fixed. One head and one input.
    """
    phi_queries, phi_keys = _sparse_features(mask, integers)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        phi_q, phi_k = F.relu(q[0, 0]), F.relu(k[0, 0])
        values = torch.cat([v[0, 0], v.new_ones(len(phi_k), 1)], dim=1)
        out = torch.zeros_like(values)
        for start in range(0, phi_q.shape[1], chunk):
            part = slice(start, start + chunk)
            spread = (phi_k[:, part, None] * values[:, None]).flatten(1)
            mixed = (phi_queries @ (phi_keys @ spread)).view(len(phi_q), -1, values.shape[1])
            out += torch.einsum("ia,iad->id", phi_q[:, part], mixed)
        return (out[:, :-1] / out[:, -1:]).nan_to_num(0.0)[None, None]

    return attend


def variant(integers: torch.dtype, chunk: int) -> str:
    """Name a variant of Alg. 1; which one is fastest depends on the graph."""
    return f"Alg. 1 by torch.sparse, {str(integers).removeprefix('torch.')}, chunks of {chunk}"


def _sparse_features(mask: tm.WalkMask, integers: torch.dtype) -> tuple[Tensor, Tensor]:
    """Phi of the queries and the transposed Phi of the keys."""
    assert isinstance(mask.walks, tuple)
    matrices = []
    for side, features in enumerate(mask.walks):
        values = features.values(mask.f.detach())
        size = (features.num_rows, features.num_columns)
        matrix = csr_array((values.numpy(), features.columns.numpy(), features.row_ptr.numpy()), shape=size)
        matrices.append(matrix if side == 0 else csr_array(matrix.T))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse ")
        query, key = (
            torch.sparse_csr_tensor(
                torch.from_numpy(m.indptr).to(integers),
                torch.from_numpy(m.indices).to(integers),
                torch.from_numpy(m.data),
                m.shape,
            )
            for m in matrices
        )
    return query, key


def softmax_with_bias(bias: Tensor) -> Attend:
    """Torch's softmax attention with a dense bias; the logarithm of a positive mask gives masked softmax attention."""
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=bias)


def flex_attention(bias: Tensor, blocks: bool) -> Attend:
    """Compiled FlexAttention that looks up the bias in its score function; ``blocks`` skips blocks without pairs."""
    from torch.nn.attention import flex_attention as flex

    def add_bias(score: Tensor, _b: Tensor, _h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score + bias[i, j]

    near = bias > -torch.inf
    size = len(bias)
    skip = flex.create_block_mask(lambda _b, _h, i, j: near[i, j], 1, 1, size, size, device="cpu") if blocks else None
    compiled = torch.compile(flex.flex_attention)
    return lambda q, k, v: compiled(q, k, v, score_mod=add_bias, block_mask=skip)


def graph_layer(name: str, edges: Tensor) -> Attend:
    """A PyG attention layer on given edges with one head of the same width; it projects its input itself."""
    from torch_geometric import nn

    layer = getattr(nn, name)(WIDTH, WIDTH, heads=1).eval()
    return lambda q, _k, _v: layer(q[0, 0], edges)


@dataclass
class Contest:
    """Competitors on the same inputs; those that should give our result are checked first."""

    q: Tensor
    k: Tensor
    v: Tensor
    linear: Tensor
    softmax: Tensor
    ways: dict[str, Attend] = field(default_factory=dict)
    answers: dict[str, str] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def enter(self, name: str, make: Callable[[], Attend], answer: str) -> None:
        """Add a competitor; if it does not run here, record its error."""
        try:
            attend = make()
            found = attend(self.q, self.k, self.v)
        except Exception as error:  # any error is the result of this competitor
            self.failures[name] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            return
        if answer in ("linear", "softmax"):
            measure.check_same(name, found, getattr(self, answer))
        self.ways[name], self.answers[name] = attend, answer

    def report(self, title: str, repeats: int) -> dict[str, list[float]]:
        """Time all side by side, and print them in comparison with the first."""
        runs = {name: partial(way, self.q, self.k, self.v) for name, way in self.ways.items()}
        times = measure.interleave(runs, repeats)
        ours = times[next(iter(times))]
        answers = {"linear": "ours", "softmax": "ours, softmax"}
        rows = [
            [*row, str(measure.ratio(times[row[0]], ours)), answers.get(self.answers[row[0]], self.answers[row[0]])]
            for row in measure.time_rows(times)
        ]
        print(title)
        report.table([*measure.TIME_HEADER, "times ours", "answer"], rows)
        for name, error in self.failures.items():
            print(f"{name} does not run here: {error}")
        return times


def main(quick: bool = False) -> None:
    torch.manual_seed(0)
    with torch.no_grad():
        small, failures = _small((16, 16) if quick else (64, 64), repeats=3 if quick else 7)
        large = _large((32, 32) if quick else (128, 256), repeats=3 if quick else 7)
    report.save("peers", {"small": small, "large": large, "failures": failures, "quick": quick})


def _small(shape: tuple[int, int], repeats: int) -> tuple[dict[str, list[float]], dict[str, str]]:
    graph = tm.grid_graph(*shape)
    mask = tm.WalkMask(graph, seed=0)
    q, k, v = torch.randn(3, 1, 1, graph.num_nodes, WIDTH)
    dense = mask.to_dense()[0]
    linear = tm.masked_attention(q, k, v, mask, strategy="dense")
    softmax = tm.masked_softmax_attention(q, k, v, mask, strategy="dense")
    contest = Contest(q, k, v, linear, softmax)
    contest.enter("ours", lambda: lambda q, k, v: tm.masked_attention(q, k, v, mask), "linear")
    contest.enter("ours, softmax", lambda: lambda q, k, v: tm.masked_softmax_attention(q, k, v, mask), "softmax")
    for integers in INTEGERS:
        for chunk in CHUNKS:
            contest.enter(variant(integers, chunk), partial(algorithm_1, mask, integers, chunk), "linear")
    contest.enter("unmasked linear", lambda: linear_attention, "no mask")
    contest.enter("scaled_dot_product_attention", lambda: F.scaled_dot_product_attention, "no mask, softmax")
    contest.enter("the same with a dense bias", lambda: softmax_with_bias(dense.log()), "softmax")
    for name, blocks in (("FlexAttention", False), ("FlexAttention, empty blocks skipped", True)):
        begin = time.perf_counter()
        contest.enter(name, partial(flex_attention, dense.log(), blocks), "softmax")
        print(f"{name}: compiled in {time.perf_counter() - begin:.0f} s", flush=True)
    _enter_layers(contest, "grid's", graph.to_edge_index()[0])
    # PyG sends messages from the first row to the second: from keys to queries.
    _enter_layers(contest, "mask's", dense.mT.nonzero().mT.contiguous())
    title = f"{graph.num_nodes:,} tokens, {int((dense != 0).sum()) / len(dense):.0f} pairs per token"
    return contest.report(title, repeats), contest.failures


def _large(shape: tuple[int, int], repeats: int) -> dict[str, list[float]]:
    graph = tm.grid_graph(*shape)
    mask = tm.WalkMask(graph, seed=0)
    q, k, v = torch.randn(3, 1, 1, graph.num_nodes, WIDTH)
    linear = tm.masked_attention(q, k, v, mask)
    contest = Contest(q, k, v, linear, linear)
    contest.enter("ours", lambda: lambda q, k, v: tm.masked_attention(q, k, v, mask), "linear")
    contest.enter("unmasked linear", lambda: linear_attention, "no mask")
    _enter_layers(contest, "grid's", graph.to_edge_index()[0])
    return contest.report(f"{graph.num_nodes:,} tokens", repeats)


def _enter_layers(contest: Contest, whose: str, edges: Tensor) -> None:
    for name in ("GATConv", "TransformerConv"):
        contest.enter(f"PyG {name}, the {whose} edges", partial(graph_layer, name, edges), "another layer")


if __name__ == "__main__":
    main()
