"""The cases of ``against.py``, and the process that times them for one version of topomask.

The cases are those of docs/internal/speed.md, and use only what older versions have too. The process reads requests
from its input, one line of JSON each, and answers each with one line of JSON: ``["prepare", name]`` builds a case, runs
it once and returns the sums of its results; ``["time", calls]`` returns the mean seconds of that many calls.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

import topomask as tm
from benchmarks import graphs, measure, points

# The tensors that a case returns, on whose sums two versions must agree.
Answer = Tensor | Sequence[Tensor]
Run = Callable[[], Answer]

SIDES = (128, 256)
NUM_TOKENS = 32_768
NUM_PARTICLES = 8192


def tokens(num_tokens: int, width: int, batch: int = 1, num_heads: int = 1) -> list[Tensor]:
    """Queries, keys and values, the same in every process."""
    generator = torch.Generator().manual_seed(0)
    return list(torch.randn(3, batch, num_heads, num_tokens, width, generator=generator).unbind())


def forward(mask: tm.Mask, inputs: Sequence[Tensor], attention: Any = tm.masked_attention, **options: Any) -> Run:
    """Attention without gradients, parameters fixed."""
    return torch.no_grad()(lambda: attention(*inputs, mask, **options))


def train(mask: tm.Mask, inputs: Sequence[Tensor], attention: Any = tm.masked_attention) -> Run:
    """Attention and its gradients with respect to the inputs and the parameters of the mask."""
    learnt = [parameter for parameter in mask.parameters() if parameter.requires_grad]
    return measure.forward_and_backward(partial(attention, mask=mask), inputs, learnt)


def setting_a(**options: Any) -> tm.Mask:
    return tm.WalkMask(tm.grid_graph(*SIDES), seed=0, **options)


def asymmetric() -> tm.Mask:
    """A mask of about the same error as that of setting A."""
    return setting_a(num_walks=47, max_length=20, symmetric=False)


def path() -> Run:
    graph = tm.path_graph(2**18)
    mask = tm.WalkMask(graph, num_walks=4, max_length=10, halt_prob=0.5, coupling="iid", seed=0)
    return forward(mask, tokens(graph.num_nodes, 8))


def sample_features(graph: tm.Graph) -> Run:
    def run() -> Sequence[Tensor]:
        features = tm.sample_features(graph, 20, 10, seed=0)
        return features.loads, features.columns

    return run


def random_walks(graph: tm.Graph) -> Run:
    return lambda: tm.random_walks(graph, 20, 10, seed=0)


def sample_and_attend() -> Run:
    """Use another seed for every call, since the graph caches its walks."""
    lists = points.find_neighbours(np.random.default_rng(0).random((NUM_TOKENS, 3)), workers=1)
    graph, seeds = points.make_graph(lists), itertools.count()
    q, k, v = tokens(NUM_TOKENS, 64)

    @torch.no_grad()
    def run() -> Tensor:
        mask = tm.WalkMask(graph, num_walks=27, max_length=3, symmetric=False, seed=next(seeds))
        return tm.masked_attention(q, k, v, mask)

    return run


def by_products(mask: tm.Mask, num_tokens: int) -> Run:
    """Attention by products with the mask; older versions call this strategy "features"."""
    inputs = tokens(num_tokens, 32)
    product: Any = "product"
    try:
        tm.plan_attention(mask, 32, 32, strategy=product)
    except ValueError:
        product = "features"
    return forward(mask, inputs, strategy=product)


def toeplitz(side: int) -> Run:
    torch.manual_seed(0)
    return by_products(tm.ToeplitzMask((side, side)), side * side)


def forest() -> Run:
    return by_products(tm.ForestMask(graphs.random_tree(2**16)), 2**16)


def walk_mask(graph: tm.Graph) -> tm.Mask:
    return tm.WalkMask(graph, seed=0)


# Masks on 32 x 32 tokens.
MASKS: dict[str, Callable[[tm.Graph], tm.Mask]] = {
    "power series": lambda graph: tm.PowerSeriesMask(graph, tm.series.heat(8)),
    "diffusion": lambda graph: tm.DiffusionMask(graph),
    "neighbor": lambda graph: tm.NeighborMask(graph),
    "degree": lambda graph: tm.DegreeMask(graph),
    "shortest path": lambda graph: tm.ShortestPathMask(graph),
    "prefix": lambda graph: tm.PrefixMask(walk_mask(graph)),
    "sum": lambda graph: tm.SumMask([walk_mask(graph), tm.ToeplitzMask((32, 32))]),
    "kronecker": lambda _: tm.KroneckerMask(tm.ToeplitzMask(32, causal=True), walk_mask(tm.path_graph(32))),
}


def on_small_grid(name: str, way: Callable[..., Run], attention: Any = tm.masked_attention) -> Run:
    torch.manual_seed(0)
    mask = MASKS[name](tm.grid_graph(32, 32))
    num_tokens = mask.to_dense().shape[-1]
    return way(mask, tokens(num_tokens, 32), attention)


def training_step(model: torch.nn.Module, loss: Callable[[], Tensor]) -> Run:
    """A step of AdamW; returns the loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> Tensor:
        optimizer.zero_grad()
        found = loss()
        found.backward()
        optimizer.step()
        return found.detach()

    return step


def vision_transformer() -> Run:
    torch.manual_seed(0)
    images, labels = torch.randn(32, 3, 224, 224), torch.randint(100, (32,))
    config = tm.models.VisionTransformerConfig.preset(
        "tiny", image_size=224, patch_size=16, num_classes=100, depth=4, attention="grf", pooling="mean"
    )
    model = config.build()
    return training_step(model, lambda: F.cross_entropy(model(images), labels))


def interlacer() -> Run:
    torch.manual_seed(0)
    positions = NUM_PARTICLES ** (1 / 3) * torch.rand(1, NUM_PARTICLES, 3)
    features = torch.randn(1, NUM_PARTICLES, 16)
    model = tm.models.Interlacer(dim=128)
    return torch.no_grad()(lambda: model(positions, features))


def small(way: Callable[..., Run]) -> Run:
    """64 tokens, where overhead dominates."""
    mask = tm.WalkMask(tm.grid_graph(8, 8), num_heads=4, seed=0)
    return way(mask, tokens(64, 16, num_heads=4))


def small_layer() -> Run:
    torch.manual_seed(0)
    x = torch.randn(128, 64, 64)
    layer = tm.nn.MaskedAttention(64, 4, tm.WalkMask(tm.grid_graph(8, 8), num_heads=4, seed=0))
    return training_step(layer, lambda: layer(x).square().mean())


CASES: dict[str, Callable[[], Run]] = {
    "setting A: forward": lambda: forward(setting_a(), tokens(NUM_TOKENS, 64)),
    "setting A: forward + backward, batch 1": lambda: train(setting_a(), tokens(NUM_TOKENS, 64)),
    "setting A: forward + backward, batch 8": lambda: train(setting_a(), tokens(NUM_TOKENS, 64, batch=8)),
    "asymmetric: forward": lambda: forward(asymmetric(), tokens(NUM_TOKENS, 64)),
    "asymmetric: forward + backward": lambda: train(asymmetric(), tokens(NUM_TOKENS, 64)),
    "softmax: forward": lambda: forward(
        setting_a(symmetric=False), tokens(NUM_TOKENS, 64), tm.masked_softmax_attention
    ),
    "softmax: forward + backward": lambda: train(
        setting_a(symmetric=False), tokens(NUM_TOKENS, 64), tm.masked_softmax_attention
    ),
    "path of 2^18 tokens: forward": path,
    "sampling: features, grid": lambda: sample_features(tm.grid_graph(*SIDES)),
    "sampling: features, Barabasi-Albert": lambda: sample_features(graphs.barabasi_albert(NUM_TOKENS)),
    "sampling: bare walks, grid": lambda: random_walks(tm.grid_graph(*SIDES)),
    "points: sample and attend": sample_and_attend,
    **{f"toeplitz {side} x {side}: forward": partial(toeplitz, side) for side in (32, 64, 128)},
    "forest of 2^16 nodes: forward": forest,
    **{f"mask {name}: forward": partial(on_small_grid, name, forward) for name in MASKS},
    **{f"mask {name}: forward + backward": partial(on_small_grid, name, train) for name in MASKS},
    "mask neighbor, softmax: forward": partial(on_small_grid, "neighbor", forward, tm.masked_softmax_attention),
    "mask neighbor, softmax: forward + backward": partial(
        on_small_grid, "neighbor", train, tm.masked_softmax_attention
    ),
    "model ViT, 14 x 14 tokens: training step": vision_transformer,
    "model Interlacer, 8,192 particles: forward": interlacer,
    "small call: frozen": lambda: small(forward),
    "small call: forward + backward": lambda: small(train),
    "small layer, batch 128: training step": small_layer,
}


def sums(answer: Answer) -> list[tuple[float, float]]:
    """The sum and the sum of absolute values of every tensor."""
    tensors = [answer] if isinstance(answer, Tensor) else answer
    return [(float(x.double().sum()), float(x.double().abs().sum())) for x in map(torch.Tensor.detach, tensors)]


def answer_requests(requests: Iterable[str], reply: Callable[[Any], None]) -> None:
    """Answer requests of the parent process until there are no more."""
    reply({"topomask": tm.__file__, "threads": torch.get_num_threads()})
    run: Run | None = None
    for line in requests:
        kind, argument = json.loads(line)
        try:
            if kind == "prepare":
                # Free the previous case before building the next one.
                run = None
                run = CASES[argument]()
                reply({"sums": sums(run())})
            else:
                assert run is not None
                start = time.perf_counter()
                for _ in range(argument):
                    run()
                reply({"seconds": (time.perf_counter() - start) / argument})
        except Exception as error:
            reply({"error": f"{type(error).__name__}: {error}"})


def main() -> None:
    if len(sys.argv) > 1:
        torch.set_num_threads(int(sys.argv[1]))
    # Other output goes to stderr.
    with os.fdopen(os.dup(1), "w") as replies:
        os.dup2(2, 1)

        def reply(message: Any) -> None:
            print(json.dumps(message), file=replies, flush=True)

        answer_requests(sys.stdin, reply)


if __name__ == "__main__":
    main()
