"""Masked attention against its peers on a grid of 32,768 tokens: ratios of medians measured in one run.

Setting A: grid 128 x 256, 20 repelling walks of length 10, symmetric, one head, 64 features, 64 values, float32, frozen
walks. A route whose answer differs from ours is not reported.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import topomask as tm
from benchmarks import report

WIDTH = 64


def milliseconds(run: Callable[[], Any], repeats: int = 9) -> list[float]:
    """Times of repeats after one run that does not count."""
    run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(1e3 * (time.perf_counter() - start))
    return times


def linear_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Unmasked linear attention in plain torch."""
    phi_q, phi_k = F.relu(q), F.relu(k)
    return phi_q @ (phi_k.mT @ v) / (phi_q @ phi_k.sum(dim=-2, keepdim=True).mT)


def torch_sparse(mask: tm.WalkMask, q: Tensor, k: Tensor, v: Tensor, dtype: torch.dtype, chunk: int) -> Tensor:
    """Algorithm 1 of the paper with torch.sparse: products of sparse features with phi(k) x [v, 1], chunk by chunk."""
    features = mask.features
    assert isinstance(features, tuple)
    query, key = features
    f, size = mask.f().detach(), (q.shape[-2], q.shape[-2])
    phi = torch.sparse_csr_tensor(query.row_ptr.to(dtype), query.columns.to(dtype), query.values(f), size)
    transposed = key.transposed_pattern
    psi = torch.sparse_csr_tensor(
        transposed.row_ptr.to(dtype), transposed.columns.to(dtype), key.values(f)[key.pattern.order], size
    )
    phi_q, phi_k = F.relu(q[0, 0]), F.relu(k[0, 0])
    values = torch.cat([v[0, 0], torch.ones(len(phi_q), 1)], dim=1)
    out = torch.zeros_like(values)
    for start in range(0, phi_q.shape[1], chunk):
        part = slice(start, start + chunk)
        spread = (phi_k[:, part, None] * values[:, None]).flatten(1)
        mixed = (phi @ (psi @ spread)).view(len(phi_q), -1, values.shape[1])
        out += torch.einsum("ia,iad->id", phi_q[:, part], mixed)
    return (out[:, :-1] / out[:, -1:]).nan_to_num(0.0)[None, None]


def forward_and_backward(attend: Callable[..., Tensor], inputs: list[Tensor]) -> Callable[[], None]:
    leaves = [x.clone().requires_grad_() for x in inputs]
    return lambda: attend(*leaves).sum().backward()


def main() -> None:
    torch.manual_seed(0)
    graph = tm.grid_graph(128, 256)
    mask = tm.WalkMask(graph, positive=True, seed=0)
    asymmetric = tm.WalkMask(
        graph, num_walks=64, max_length=20, f=tm.convolve(mask.f()[0].detach()), symmetric=False, seed=0
    )
    q, k, v = torch.randn(3, 1, 1, graph.num_nodes, WIDTH).unbind()
    times: dict[str, list[float]] = {}

    def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return tm.masked_attention(q, k, v, mask, strategy="pairs")

    with torch.no_grad():
        answer = ours(q, k, v)
        times["unmasked linear, forward"] = milliseconds(lambda: linear_attention(q, k, v))
        times["ours, forward, f fixed"] = milliseconds(lambda: ours(q, k, v))
        times["ours, refresh of the entries"] = milliseconds(mask._entries)
        times["scaled_dot_product_attention"] = milliseconds(lambda: F.scaled_dot_product_attention(q, k, v), 3)
        for dtype in (torch.int32, torch.int64):
            for chunk in (4, 16, 64):
                found = torch_sparse(mask, q, k, v, dtype, chunk)
                if not torch.allclose(found, answer, rtol=1e-3, atol=1e-3):
                    raise AssertionError(f"torch.sparse with {dtype} and chunks of {chunk} gives another answer")
                name = f"Alg. 1 by torch.sparse, {dtype}, chunks of {chunk}"
                times[name] = milliseconds(lambda d=dtype, c=chunk: torch_sparse(mask, q, k, v, d, c), 2)  # type: ignore[misc]
    for batch in (1, 8):
        inputs = [x.expand(batch, -1, -1, -1).contiguous() for x in (q, k, v)]
        repeats = 5 if batch == 1 else 3
        times[f"unmasked linear, forward + backward, batch {batch}"] = milliseconds(
            forward_and_backward(linear_attention, inputs), repeats
        )
        times[f"ours, forward + backward, f learnt, batch {batch}"] = milliseconds(
            forward_and_backward(ours, inputs), repeats
        )
    times["asymmetric, forward + backward, f learnt, batch 1"] = milliseconds(
        forward_and_backward(lambda q, k, v: tm.masked_attention(q, k, v, asymmetric, strategy="pairs"), [q, k, v]), 5
    )
    _report(times)


def _report(times: dict[str, list[float]]) -> None:
    medians = {name: statistics.median(values) for name, values in times.items()}
    report.table(
        ["what", "median ms", "least", "most"],
        [[n, f"{medians[n]:.1f}", f"{min(t):.1f}", f"{max(t):.1f}"] for n, t in times.items()],
    )
    ours, plain = medians["ours, forward, f fixed"], medians["unmasked linear, forward"]
    sparse = min(value for name, value in medians.items() if name.startswith("Alg. 1"))
    both, one = "unmasked linear, forward + backward, batch 8", "unmasked linear, forward + backward, batch 1"
    ratios = {
        "Alg. 1 by torch.sparse / ours (bar: at least 30)": sparse / ours,
        "ours / unmasked linear, forward (bar: at most 4)": ours / plain,
        "scaled_dot_product_attention / ours (bar: at least 50)": medians["scaled_dot_product_attention"] / ours,
        "ours / unmasked, forward + backward, batch 8 (bar: at most 5)": medians[
            "ours, forward + backward, f learnt, batch 8"
        ]
        / medians[both],
        "ours / unmasked, forward + backward, batch 1 (bar: at most 8)": medians[
            "ours, forward + backward, f learnt, batch 1"
        ]
        / medians[one],
        "asymmetric, error not matched / unmasked, forward + backward, batch 1 (bar: at most 5)": medians[
            "asymmetric, forward + backward, f learnt, batch 1"
        ]
        / medians[one],
    }
    report.table(["ratio", "measured"], [[name, f"{value:.1f}"] for name, value in ratios.items()])
    report.save("attention", {"milliseconds": times, "ratios": ratios})


if __name__ == "__main__":
    main()
