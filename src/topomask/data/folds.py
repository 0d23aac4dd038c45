"""Folds for cross validation: those of the fair comparison, and stratified ones for your own sets."""

from __future__ import annotations

import json
import reprlib
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from topomask.data.limits import read_text
from topomask.data.root import data_root, missing
from topomask.data.splits import check_label_vector, seeded_generator
from topomask.data.tu import TU_SETS

_LAYOUT = '[{"train": [...], "validation": [...], "test": [...]}, ...], with indices of graphs from 0'


class Fold(NamedTuple):
    """A fold of a cross validation: indices of graphs."""

    train: Tensor
    val: Tensor
    test: Tensor


def fair_splits(name: str, num_graphs: int | None = None, root: str | Path | None = None) -> list[Fold]:
    """Read the ten folds of the fair comparison, each with its inner hold-out, from ``splits/<name>.json``.

    The file is a list of ``{"train", "validation", "test"}``, or, as published, of ``{"test", "model_selection":
    [{"train", "validation"}]}``.

    Args:
        name: Name of the set.
        num_graphs: Number of graphs of the set, to verify the folds. Default: that of :data:`TU_SETS`.
        root: The data root, see :func:`topomask.data.data_root`.

    References:
        Errica et al. (2020), A fair comparison of graph neural networks for graph classification.
    """
    file = data_root(root) / "splits" / f"{name}.json"
    if not file.is_file():
        how = (
            f"The folds of the fair comparison are in the repository diningphil/gnn-comparison, as {name}_splits.json. "
            f"Your own folds must be a list: {_LAYOUT}. To draw folds at random, use stratified_folds."
        )
        raise missing(f"splits of {name}", file.parent, [file.name], how)
    num_graphs = TU_SETS[name].num_graphs if num_graphs is None and name in TU_SETS else num_graphs
    try:
        found = json.loads(read_text(file))
    # Deeply nested lists exhaust the parser.
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is not JSON ({error}). It is truncated or another file. Get it again.") from None
    if not isinstance(found, list) or not found:
        raise ValueError(f"{file} must be a list of folds, {_LAYOUT}, but has none.")
    folds = [_fold(fold, num_graphs, f"Fold {number} of {file}") for number, fold in enumerate(found)]
    if name in TU_SETS and TU_SETS[name].in_fair_comparison:
        number, times = Counter(torch.cat([fold.test for fold in folds]).tolist()).most_common(1)[0]
        if times > 1:
            raise ValueError(
                f"The folds of {file} must test on each graph once, but {times} folds test on graph {number}. Get it "
                "again."
            )
    return folds


def _fold(found: Any, num_graphs: int | None, what: str) -> Fold:
    """Parse a fold of a file; a ValueError says what is wrong with it."""
    chosen = found.get("model_selection") if isinstance(found, dict) else None
    if isinstance(chosen, list) and chosen and isinstance(chosen[0], dict):
        found = {**chosen[0], "test": found.get("test")}
    parts = []
    for name in ("train", "validation", "test"):
        numbers = found.get(name) if isinstance(found, dict) else None
        if not isinstance(numbers, list) or not numbers or any(type(number) is not int for number in numbers):
            # `reprlib` shortens nested lists as well.
            given = "null" if numbers is None else reprlib.repr(numbers)
            given = given if len(given) <= 40 else f"{given[:37]}..."
            raise ValueError(f"{what} must list graphs for {name}, but has {given}. The layout is {_LAYOUT}.")
        parts.append(numbers)
    counts = Counter(number for part in parts for number in part)
    last = min(max(counts), (1 << 63) - 1) if num_graphs is None else num_graphs - 1
    wrong = next((number for number in counts if not 0 <= number <= last), None)
    if wrong is not None:
        raise ValueError(f"{what} must have indices of graphs from 0 to {last}, but has {wrong}.")
    twice = next((number for number, times in counts.items() if times > 1), None)
    if twice is not None:
        raise ValueError(f"{what} must have each graph once, but has graph {twice} {counts[twice]} times.")
    if num_graphs is not None and len(counts) < num_graphs:
        lacking = next(number for number in range(num_graphs) if number not in counts)
        raise ValueError(f"{what} must have each of the {num_graphs} graphs once, but lacks graph {lacking}.")
    return Fold(*map(torch.tensor, parts))


def stratified_folds(labels: Tensor, num_folds: int = 10, seed: int = 0) -> list[Fold]:
    """Draw stratified folds, each with an inner hold-out of a tenth of the graphs that are not in its test part.

    The test parts differ in size by at most one, and so do their numbers of graphs per class.

    Args:
        labels: Class of each graph, [G].
        num_folds: Number of folds; each graph is in one test part.
        seed: Seed of the folds.

    Example:
        >>> folds = stratified_folds(torch.arange(40) % 2)
        >>> len(folds), [len(part) for part in folds[0]]
        (10, [32, 4, 4])
    """
    check_label_vector(labels, "G")
    if not 2 <= num_folds <= len(labels):
        raise ValueError(f"`num_folds` must lie between 2 and the {len(labels)} graphs, but is {num_folds}.")
    dealt = _by_class(labels, torch.arange(len(labels)), seeded_generator("folds", seed))
    folds = []
    for number in range(num_folds):
        test = dealt[number::num_folds]
        others = torch.ones(len(labels), dtype=torch.bool)
        others[test] = False
        rest = _by_class(labels, others.nonzero().flatten(), seeded_generator("hold-out", seed, number))
        held_out = torch.arange(len(rest)) % 10 == 0
        folds.append(Fold(*(part.sort().values for part in (rest[~held_out], rest[held_out], test))))
    if not len(folds[0].train):
        raise ValueError(
            f"{len(labels)} graphs are too few for {num_folds} folds with a hold-out each: a part is empty. Pass a "
            "smaller `num_folds`."
        )
    return folds


def _by_class(labels: Tensor, places: Tensor, generator: torch.Generator) -> Tensor:
    """Shuffle within classes, one class after the other, so that every k-th element is a stratified sample."""
    shuffled = places[torch.randperm(len(places), generator=generator)]
    return shuffled[labels[shuffled].argsort(stable=True)]
