"""Interlacers on 32,768 particles: where the time of a forward pass goes, and neighbour layers side by side.

Random particles in a cube with 16 features, width 128, 4 pairs of layers. Neighbours are found and walks are sampled
once per forward pass, for all layers. So neighbour layers are timed alone, with given neighbours and walks, and with
everything that a forward pass needs for its four: neighbours, walks, and attention or messages. The paper does not say
how many anchors there are, or how many neighbours each has: here, a quarter of the particles, and 16 or 3 neighbours.
"""

from __future__ import annotations

import dataclasses
import statistics
from typing import get_args

import torch

from benchmarks import measure, report
from topomask.models import Interlacer
from topomask.models.interlacer import Neighbors
from topomask.models.neighbors import AnchorNeighbors, NeighborLayer, WalkNeighbors

DIM = 128


def main(quick: bool = False) -> None:
    torch.manual_seed(0)
    num_particles = 2048 if quick else 32_768
    # One particle per unit of volume, so a step of 0.25 is a quarter of the distance between neighbours.
    positions = num_particles ** (1 / 3) * torch.rand(1, num_particles, 3)
    features = torch.randn(1, num_particles, 16)
    parts = measure_parts(positions, features, 2 if quick else 9)
    models = measure_models(positions, features, 2 if quick else 5)
    layers, bars = measure_layers(positions, 2 if quick else 9)
    found = report.bars(bars, quick=quick)
    seconds = {"parts": parts, "models": models, "layers": layers}
    report.save("interlacer", {"seconds": seconds, "bars": found, "quick": quick})


def measure_parts(positions: torch.Tensor, features: torch.Tensor, repeats: int) -> dict[str, list[float]]:
    """Seconds of the parts of a forward pass of the model with masked attention, and of the rest."""
    model = Interlacer(dim=DIM)
    layer = model.neighbors[0]
    assert isinstance(layer, WalkNeighbors)
    found = layer.find(positions, None)
    around = layer.prepare(found)
    x = torch.randn(*positions.shape[:2], DIM)

    def attend() -> None:
        for each in model.neighbors:
            each(x, positions, around)

    runs: dict[str, measure.Run] = {
        "forward": lambda: model(positions, features),
        "neighbours": lambda: layer.find(positions, None),
        "walks": lambda: layer.prepare(found),
        "attention": attend,
    }
    with torch.no_grad():
        times = measure.interleave(runs, repeats)
    whole, *named = (times[name] for name in runs)
    times["rest"] = [total - sum(part) for total, *part in zip(whole, *named, strict=True)]
    print(f"Forward pass of {positions.shape[1]} particles, {len(model.neighbors)} pairs of layers\n")
    median = statistics.median(whole)
    rows = [[*row, f"{statistics.median(times[row[0]]) / median:.0%}"] for row in measure.time_rows(times)]
    report.table([*measure.TIME_HEADER, "share"], rows)
    return times


def measure_models(positions: torch.Tensor, features: torch.Tensor, repeats: int) -> dict[str, list[float]]:
    """Seconds of a forward and backward step."""
    runs = {
        name: training_pass(Interlacer(dim=DIM, neighbors=name), positions, features) for name in get_args(Neighbors)
    }
    times = measure.interleave(runs, repeats)
    print("Forward and backward\n")
    report.table(measure.TIME_HEADER, measure.time_rows(times))
    return times


def measure_layers(positions: torch.Tensor, repeats: int) -> tuple[dict[str, list[float]], list[report.Bar]]:
    """Seconds of one neighbour layer, and of everything that four layers need."""
    layers: dict[str, NeighborLayer] = {
        "grf, 3 neighbours": WalkNeighbors(DIM),
        "messages, 16 neighbours": AnchorNeighbors(DIM, num_neighbors=16),
        "messages, 3 neighbours": AnchorNeighbors(DIM, num_neighbors=3),
    }
    x = torch.randn(*positions.shape[:2], DIM)
    times: dict[str, list[float]] = {}
    bars = []
    for way, make in WAYS.items():
        runs = {name: make(layer, x, positions) for name, layer in layers.items()}
        found = measure.interleave(runs, repeats)
        own, *others = found
        for other in others:
            ratio = measure.ratio(found[own], found[other])
            bar = report.Bar(f"{way}: {own} / {other}", ratio.value, "<=", 1.0, str(ratio))
            bars.append(bar if other == others[0] else dataclasses.replace(bar, relation=""))
        times |= {f"{way}: {name}": seconds for name, seconds in found.items()}
    print("Neighbour layers\n")
    report.table(measure.TIME_HEADER, measure.time_rows(times))
    return times, bars


def training_pass(model: Interlacer, positions: torch.Tensor, features: torch.Tensor) -> measure.Run:
    parameters = list(model.parameters())

    def run() -> None:
        moved, changed = model(positions, features)
        torch.autograd.grad(moved.square().mean() + changed.square().mean(), parameters)

    return run


def one_layer(layer: NeighborLayer, x: torch.Tensor, positions: torch.Tensor) -> measure.Run:
    around = layer.prepare(layer.find(positions, None))
    return torch.no_grad()(lambda: layer(x, positions, around))


def one_layer_and_back(layer: NeighborLayer, x: torch.Tensor, positions: torch.Tensor) -> measure.Run:
    around, leaf = layer.prepare(layer.find(positions, None)), x.clone().requires_grad_()
    inputs = [leaf, *layer.parameters()]
    return lambda: torch.autograd.grad(layer(leaf, positions, around).sum(), inputs)


def four_layers(layer: NeighborLayer, x: torch.Tensor, positions: torch.Tensor) -> measure.Run:
    @torch.no_grad()
    def run() -> None:
        around = layer.prepare(layer.find(positions, None))
        for _ in range(4):
            layer(x, positions, around)

    return run


WAYS = {
    "one layer": one_layer,
    "one layer, forward and backward": one_layer_and_back,
    "four layers, neighbours, walks": four_layers,
}


if __name__ == "__main__":
    main()
