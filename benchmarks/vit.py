"""Training throughput of vision transformers: all kinds of attention, on small and large grids of patches.

Width 192, 3 heads, 4 blocks, patches of 16 x 16, mean pooling. A step is forward, loss, backward and AdamW. All kinds
of attention are trained on 14 x 14 tokens, and the main ones on 64 x 64 tokens.
"""

from __future__ import annotations

import statistics

import torch
from torch.nn import functional as F

import topomask as tm
from benchmarks import measure, report
from topomask.models.attention_variants import VARIANTS

PATCH = 16
DEPTH = 4
NUM_CLASSES = 100
# Full softmax attention, and what is compared with it on large grids.
LONG = ("softmax", "linear", "grf", "grf-paper")


def main(quick: bool = False) -> None:
    sizes = (4, 8) if quick else (14, 64)
    small = measure_grid(sizes[0], 4 if quick else 32, tuple(VARIANTS), 2 if quick else 9)
    large = measure_grid(sizes[1], 1 if quick else 8, LONG, 2 if quick else 5)
    few, many = (f"{size} x {size}" for size in sizes)
    against_linear = measure.ratio(small["linear"], small["grf"])
    against_softmax = measure.ratio(large["softmax"], large["grf"])
    paper = measure.ratio(small["linear"], small["grf-paper"])
    found = report.bars(
        [
            report.Bar(f"{few}: images/s, grf / linear", against_linear.value, ">=", 0.8, str(against_linear)),
            report.Bar(f"{few}: images/s, grf-paper / linear", paper.value, shown=str(paper)),
            report.Bar(f"{many}: images/s, grf / softmax", against_softmax.value, ">=", 3.0, str(against_softmax)),
        ],
        quick=quick,
    )
    report.save("vit", {"seconds": {few: small, many: large}, "bars": found, "quick": quick})


def measure_grid(size: int, batch: int, names: tuple[str, ...], repeats: int) -> dict[str, list[float]]:
    """Seconds of training steps on size x size tokens."""
    torch.manual_seed(0)
    images = torch.randn(batch, 3, size * PATCH, size * PATCH)
    labels = torch.randint(NUM_CLASSES, (batch,))
    times = measure.interleave({name: training_step(name, images, labels) for name in names}, repeats)
    print(f"{size} x {size} tokens, {batch} images a step, {DEPTH} blocks\n")
    medians = {name: statistics.median(found) for name, found in times.items()}
    rows = [
        [*row, f"{batch / medians[row[0]]:.3g}", f"{medians['linear'] / medians[row[0]]:.2f}"]
        for row in measure.time_rows(times)
    ]
    report.table([*measure.TIME_HEADER, "images/s", "/ linear"], rows)
    return times


def training_step(attention: str, images: torch.Tensor, labels: torch.Tensor) -> measure.Run:
    """A training step of a new model."""
    torch.manual_seed(0)
    config = tm.models.VisionTransformerConfig.preset(
        "tiny",
        image_size=images.shape[-1],
        patch_size=PATCH,
        num_classes=NUM_CLASSES,
        depth=DEPTH,
        attention=attention,
        pooling="mean",
    )
    model = config.build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return step


if __name__ == "__main__":
    main()
