"""Folds of cross validation: those of the fair comparison, and some for sets of one's own."""

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
from topomask.data.splits import seeded_generator
from topomask.data.tu import TU_SETS

_LAYOUT = '[{"train": [...], "validation": [...], "test": [...]}, ...], with numbers of graphs from 0'


class Fold(NamedTuple):
    """A fold of a cross validation: numbers of graphs."""

    train: Tensor
    val: Tensor
    test: Tensor


def fair_splits(name: str, num_graphs: int | None = None, root: str | Path | None = None) -> list[Fold]:
    """The ten folds of the fair comparison, each with its inner hold-out, from ``splits/<name>.json``.

    The file is a list of ``{"train", "validation", "test"}``, or as its authors have it, of ``{"test",
    "model_selection": [{"train", "validation"}]}``.

    Args:
        name: Name of the set.
        num_graphs: How many graphs it has, to verify the folds. Default: that of :data:`TU_SETS`.
        root: The data root, see :func:`topomask.data.data_root`.

    References:
        Errica et al. (2020), A fair comparison of graph neural networks for graph classification.
    """
    file = data_root(root) / "splits" / f"{name}.json"
    if not file.is_file():
        how = (
            f"Those of the fair comparison are in the repository diningphil/gnn-comparison, as {name}_splits.json. "
            f"Your own are a list: {_LAYOUT}. For folds that are drawn, see stratified_folds."
        )
        raise missing(f"splits of {name}", file.parent, [file.name], how)
    num_graphs = TU_SETS[name].num_graphs if num_graphs is None and name in TU_SETS else num_graphs
    try:
        found = json.loads(read_text(file))
    # Lists within lists without end are too deep for the parser.
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is not JSON ({error}). It is cut off or another file. Get it again.") from None
    if not isinstance(found, list) or not found:
        raise ValueError(f"{file} must be a list of folds, {_LAYOUT}, but has none.")
    folds = [_fold(fold, num_graphs, f"Fold {number} of {file}") for number, fold in enumerate(found)]
    if name in TU_SETS and TU_SETS[name].in_fair_comparison:
        _check_tests(folds, file)
    return folds


def _fold(found: Any, num_graphs: int | None, what: str) -> Fold:
    """A fold as a file has it, or a ValueError that names what is wrong."""
    chosen = found.get("model_selection") if isinstance(found, dict) else None
    if isinstance(chosen, list) and chosen and isinstance(chosen[0], dict):
        found = {**chosen[0], "test": found.get("test")}
    parts = []
    for name in ("train", "validation", "test"):
        numbers = found.get(name) if isinstance(found, dict) else None
        whole = isinstance(numbers, list) and all(type(number) is int for number in numbers)
        if not numbers or not whole:
            raise ValueError(f"{what} must have graphs for {name}, but has {_shortened(numbers)}. Folds are {_LAYOUT}.")
        parts.append(numbers)
    counts = Counter(number for part in parts for number in part)
    last = min(max(counts), (1 << 63) - 1) if num_graphs is None else num_graphs - 1
    wrong = next((number for number in counts if not 0 <= number <= last), None)
    if wrong is not None:
        raise ValueError(f"{what} must have numbers of graphs from 0 to {last}, but has {wrong}.")
    twice = next((number for number, times in counts.items() if times > 1), None)
    if twice is not None:
        raise ValueError(f"{what} must have every graph once, but has {twice} {counts[twice]} times.")
    if num_graphs is not None and len(counts) < num_graphs:
        lacking = next(number for number in range(num_graphs) if number not in counts)
        raise ValueError(f"{what} must have each of the {num_graphs} graphs once, but lacks {lacking}.")
    return Fold(*map(torch.tensor, parts))


def _check_tests(folds: list[Fold], file: Path) -> None:
    """A ValueError where a graph is tested on in two folds."""
    number, times = Counter(torch.cat([fold.test for fold in folds]).tolist()).most_common(1)[0]
    if times > 1:
        raise ValueError(
            f"The folds of {file} must test on every graph once, but {times} test on {number}. Get it again."
        )


def _shortened(value: Any) -> str:
    # Lists within lists are cut as well.
    text = "null" if value is None else reprlib.repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def stratified_folds(labels: Tensor, num_folds: int = 10, seed: int = 0) -> list[Fold]:
    """Folds with the classes in equal shares, each with an inner hold-out of a tenth of what is not tested on.

    Sizes of the parts that are tested on differ by one at most, and so do the members of a class in them.

    Args:
        labels: Class of every graph, [G].
        num_folds: How many; every graph is tested on once.
        seed: Seed of the draws.

    Example:
        >>> folds = stratified_folds(torch.arange(40) % 2)
        >>> len(folds), [len(part) for part in folds[0]]
        (10, [32, 4, 4])
    """
    if labels.ndim != 1 or labels.is_floating_point():
        raise ValueError(
            f"`labels` must be integers of shape [G], but are {labels.dtype} of shape {tuple(labels.shape)}."
        )
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
            f"{len(labels)} graphs are too few for {num_folds} folds, each with a hold-out: a part is empty. Take "
            "fewer folds, or write them yourself."
        )
    return folds


def _by_class(labels: Tensor, places: Tensor, generator: torch.Generator) -> Tensor:
    """Places in random order within their class, one class after the other: every k-th has classes in equal shares."""
    shuffled = places[torch.randperm(len(places), generator=generator)]
    return shuffled[labels[shuffled].argsort(stable=True)]
