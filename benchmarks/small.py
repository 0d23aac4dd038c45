"""Few tokens, where overhead dominates: 64 tokens against the formula, digits with and without the mask.

Also the Python overhead of one call: how often it switches between files of topomask.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from itertools import pairwise
from types import FrameType
from typing import Any

import torch
from torch import Tensor

import topomask as tm
from benchmarks import measure, report
from topomask.recipes.images import digits


def main(quick: bool = False) -> None:
    # As for the tables: small models gain little from more threads.
    torch.set_num_threads(1)
    torch.manual_seed(0)
    frozen = measure_call(20 if quick else 400)
    steps = measure_digits(3 if quick else 60)
    call, step = (
        measure.ratio(frozen["masked_attention"], frozen["formula"]),
        measure.ratio(steps["grf"], steps["linear"]),
    )
    found = report.bars(
        [
            report.Bar("64 tokens, frozen: masked_attention / dense formula", call.value, "<=", 3.0, str(call)),
            report.Bar("digits: training step with the mask / without", step.value, "<=", 1.3, str(step)),
            report.Bar("file switches of a forward call with gradients, second call", count_switches(), "<=", 45.0),
        ],
        quick=quick,
    )
    report.save("small", {"call": frozen, "digits": steps, "bars": found, "quick": quick})


def measure_call(repeats: int) -> dict[str, list[float]]:
    """Seconds of attention on 64 tokens, with 4 heads of width 16, one input, no gradients."""
    mask = tm.WalkMask(tm.grid_graph(8, 8), num_heads=4, seed=0)
    q, k, v = torch.randn(3, 1, 4, 64, 16)
    with torch.no_grad():
        weights = mask.to_dense()

        def formula() -> Tensor:
            scores = (q.relu() @ k.relu().mT) * weights
            return (scores @ v) / scores.sum(dim=-1, keepdim=True)

        def ours() -> Tensor:
            return tm.masked_attention(q, k, v, mask)

        measure.check_same("masked_attention", ours(), formula())
        return measure.interleave({"masked_attention": ours, "formula": formula}, repeats, warm_ups=5)


def measure_digits(repeats: int) -> dict[str, list[float]]:
    """Seconds of training steps of the recipe digits with and without the mask."""
    whole = digits().fitted()
    images, labels = next(iter(whole.batches("train", training=True).epoch(0)))

    def step_of(attention: str) -> measure.Run:
        torch.manual_seed(0)
        model = replace(whole, model=replace(whole.model, attention=attention)).build().train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

        def step() -> None:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()

        return step

    return measure.interleave({name: step_of(name) for name in ("linear", "grf")}, repeats, warm_ups=3)


def count_switches() -> int:
    """How often a second call on the default graph switches between files of topomask."""
    mask = tm.WalkMask(tm.grid_graph(8, 8), num_heads=4, seed=0)
    q, k, v = torch.randn(3, 1, 4, 64, 16)
    tm.masked_attention(q, k, v, mask)
    files: list[str] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and f"{os.sep}topomask{os.sep}" in frame.f_code.co_filename:
            files.append(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        tm.masked_attention(q, k, v, mask)
    finally:
        sys.setprofile(None)
    return sum(one != other for one, other in pairwise(files))


if __name__ == "__main__":
    main()
