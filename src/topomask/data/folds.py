"""Folds of cross validation: those of the fair comparison, and some for sets of one's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from topomask.data.root import data_root, missing
from topomask.data.splits import stratified_split
from topomask.data.tu import TU_SETS


class Fold(NamedTuple):
    """A fold of a cross validation: numbers of graphs."""

    train: Tensor
    val: Tensor
    test: Tensor


def fair_splits(name: str, num_graphs: int | None = None, root: str | Path | None = None) -> list[Fold]:
    """The ten folds of the fair comparison, each with its inner hold-out, from ``splits/<name>.json``.

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
            "They come from the repository diningphil/gnn-comparison, as a list of {test, train, validation}. For "
            "other sets, see stratified_folds."
        )
        raise missing(f"splits of {name}", file.parent, [file.name], how)
    num_graphs = TU_SETS[name].num_graphs if num_graphs is None and name in TU_SETS else num_graphs
    try:
        found = json.loads(file.read_text())
        folds = [Fold(*(torch.tensor(fold[part]) for part in ("train", "validation", "test"))) for fold in found]
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"{file} is no list of folds with train, validation and test ({error}). Get it again."
        ) from None
    for number, fold in enumerate(folds):
        together = torch.cat(fold).sort().values
        if num_graphs is not None and not torch.equal(together, torch.arange(num_graphs)):
            raise ValueError(
                f"Fold {number} of {file} does not have each of the {num_graphs} graphs once. Get it again."
            )
    return folds


def stratified_folds(labels: Tensor, num_folds: int = 10, seed: int = 0) -> list[Fold]:
    """Folds with the classes in equal shares, each with an inner hold-out of a tenth of what is not tested on.

    Args:
        labels: Class of every graph, [G].
        num_folds: How many; every graph is tested on once.
        seed: Seed of the draws.

    Example:
        >>> folds = stratified_folds(torch.arange(40) % 2)
        >>> len(folds), [len(part) for part in folds[0]]
        (10, [32, 4, 4])
    """
    if not 2 <= num_folds <= len(labels):
        raise ValueError(f"`num_folds` must lie between 2 and the {len(labels)} graphs, but is {num_folds}.")
    tested = stratified_split(labels, (1 / num_folds,) * num_folds, seed)
    folds = []
    for test in tested:
        others = torch.ones(len(labels), dtype=torch.bool)
        others[test] = False
        rest = others.nonzero().flatten()
        val, train = stratified_split(labels[rest], (0.1, 0.9), seed)
        folds.append(Fold(rest[train], rest[val], test))
    if any(not len(part) for fold in folds for part in fold):
        raise ValueError(
            f"{len(labels)} graphs are too few for {num_folds} folds, each with a hold-out: a part is empty. Take "
            "fewer folds, or write them yourself."
        )
    return folds
