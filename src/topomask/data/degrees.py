"""Node degrees as input features, for graphs without node features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from topomask.graph import Graph
from topomask.support.checks import check_choice, check_sizes

DegreeInput = Literal["none", "one-hot", "log"]
MAX_DEGREE = 128


def degree_features(graphs: Sequence[Graph], kind: DegreeInput, max_degree: int | None = None) -> Tensor:
    """Features from the degrees of the nodes of all graphs, [N, columns]: one-hot, log(1 + degree), or no columns.

    One-hot degrees from `max_degree` on, by default 128, share a column.

    Example:
        >>> import topomask as tm
        >>> degree_features([tm.path_graph(3)], "one-hot", max_degree=1).tolist()
        [[0.0, 1.0], [0.0, 1.0], [0.0, 1.0]]
    """
    check_choice("degree", kind, get_args(DegreeInput))
    if max_degree is not None and kind != "one-hot":
        raise ValueError(f"`max_degree` is {max_degree}, but only degree='one-hot' has it, not {kind!r}. Leave it out.")
    max_degree = MAX_DEGREE if max_degree is None else max_degree
    check_sizes(max_degree=max_degree)
    degrees = np.concatenate([np.diff(graph.indptr) for graph in graphs]).astype(np.int64)
    if kind == "none":
        return torch.empty(len(degrees), 0)
    if kind == "log":
        return torch.from_numpy(np.log1p(degrees)[:, None]).float()
    capped = torch.from_numpy(degrees).clamp(max=max_degree)
    return F.one_hot(capped, int(capped.max()) + 1).float()
