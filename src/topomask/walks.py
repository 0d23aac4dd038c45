"""Graph random features: sparse loads of random walks, frozen, with a modulation that can be learnt."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, Self, get_args

import numpy as np
import torch
from torch import Tensor

from topomask.graph import Graph, Normalization
from topomask.graph_input import Array, check_integer, check_nodes
from topomask.ops import segments
from topomask.ops.feature_values import feature_values
from topomask.ops.sample_walks import WalkSettings, sample_walks
from topomask.ops.sample_walks import random_walks as sample_bare_walks
from topomask.ops.sparse_product import Pattern, make_pattern

Coupling = Literal["repelling", "antithetic", "iid"]
Ensemble = Literal["query", "key"]
Weighting = Literal["importance", "visits"]

# Goes up whenever the same seed gives other walks.
SAMPLER_VERSION = 1

# What loads may be, in the order that checkpoints know them by.
_KINDS = tuple(itertools.product(get_args(Weighting), get_args(Normalization)))


@dataclass(frozen=True, eq=False, repr=False)
class WalkFeatures:
    r"""Loads of random walks: what is frozen in :math:`\Phi_{ic} = \sum_l f_l\,\mathrm{load}_{icl}`.

    Rows are start nodes, columns are visited nodes. Compressed sparse rows over (row, column), with the walk lengths
    and loads of a pair inside; heads lie one after the other. Make them with :func:`sample_features`.

    Attributes:
        row_ptr: Where the columns of every row begin, [H * R + 1].
        columns: Visited nodes, ascending in every row, [P], int32 where that fits.
        entry_ptr: Where the entries of every (row, column) begin, [P + 1], int32 where that fits.
        lengths: Walk length of every entry, [T], uint8 where that fits, or int16.
        loads: Load of every entry, [T], averaged over walkers.
        num_heads: Number of independent sets of walks H.
        num_columns: Number of nodes N of the graph.
        max_length: Longest walk L.
        normalization: The matrix W whose powers the walks estimate: ``"sym"``, ``"row"`` or ``"none"``.
        weighting: Whether loads are those of an estimate, ``"importance"``, or shares of walkers, ``"visits"``.
    """

    row_ptr: Tensor
    columns: Tensor
    entry_ptr: Tensor
    lengths: Tensor
    loads: Tensor
    num_heads: int
    num_columns: int
    max_length: int
    normalization: Normalization
    weighting: Weighting = "importance"

    @property
    def num_rows(self) -> int:
        """Number of start nodes R."""
        return (len(self.row_ptr) - 1) // self.num_heads

    @property
    def num_nonzeros(self) -> int:
        """Number of (row, column) pairs over all heads."""
        return len(self.columns)

    @property
    def num_bytes(self) -> int:
        """Bytes of the stored arrays."""
        return sum(tensor.nbytes for tensor in self._tensors().values())

    @cached_property
    def signed(self) -> bool:
        """Whether any load is negative."""
        return bool((self.loads < 0).any())

    @cached_property
    def pattern(self) -> Pattern:
        """Where Phi has entries: block-diagonal over heads, [H * R, H * N]."""
        with torch.inference_mode(False):
            columns = self.columns
            if self.num_heads > 1:
                columns = columns + segments.index(self.row_ptr[self._head_rows]) * self.num_columns
            return make_pattern(self.row_ptr, columns, self.num_heads * self.num_columns)

    @cached_property
    def head_ptr(self) -> Tensor:
        """Where the entries of every head begin, [H + 1]."""
        with torch.inference_mode(False):
            return self.entry_ptr[self.row_ptr[self._head_rows]]

    @property
    def _head_rows(self) -> Tensor:
        return torch.arange(self.num_heads + 1, device=self.row_ptr.device) * self.num_rows

    def prepare(self) -> None:
        """Compute now what is otherwise computed at first use."""
        _ = self.pattern, self.head_ptr, self.signed

    def values(self, f: Tensor, *, absolute: bool = False) -> Tensor:
        """The entries of Phi, [P]; differentiable in the modulation ``f``, [L + 1] or [H, L + 1].

        Computed in the dtype of the loads or of ``f``, whichever is finer; with ``absolute``, from absolute loads.
        """
        if f.shape not in ((self.max_length + 1,), (self.num_heads, self.max_length + 1)):
            raise ValueError(
                f"`f` must have shape [max_length + 1={self.max_length + 1}] or [num_heads={self.num_heads}, "
                f"{self.max_length + 1}], but has shape {tuple(f.shape)}. Pass one number per walk length from 0 on."
            )
        dtype = torch.promote_types(f.dtype, self.loads.dtype)
        f = f.expand(self.num_heads, -1).to(dtype)
        loads = self.loads.abs() if absolute and self.signed else self.loads
        return feature_values(f, self.head_ptr, self.entry_ptr, self.lengths, loads.to(dtype))

    def to_dense(self, f: Tensor) -> Tensor:
        """Phi as a dense tensor, [H, R, N], for small graphs and tests."""
        return self.densify(self.values(f))

    def densify(self, values: Tensor) -> Tensor:
        """A dense tensor [H, R, N] with ``values`` [P] at the entries of Phi."""
        row = segments.index(self.row_ptr)
        dense = values.new_zeros(self.num_heads * self.num_rows, self.num_columns)
        return dense.index_put((row, self.columns), values).view(self.num_heads, self.num_rows, self.num_columns)

    def rows(self, nodes: Any) -> Self:
        """Some of the rows, in the given order."""
        nodes = check_nodes(nodes, self.num_rows, "nodes").to(self.columns.device)
        heads = torch.arange(self.num_heads, device=nodes.device) * self.num_rows
        return self._take((heads[:, None] + nodes).flatten())

    def _take(self, rows: Tensor) -> Self:
        counts = self.row_ptr.diff()[rows]
        pairs = segments.ranges(self.row_ptr[rows], counts)
        entry_counts = self.entry_ptr.diff()[pairs]
        entries = segments.ranges(self.entry_ptr[pairs], entry_counts)
        return replace(
            self,
            row_ptr=segments.pointers(counts),
            columns=self.columns[pairs],
            entry_ptr=_narrow(segments.pointers(entry_counts)),
            lengths=self.lengths[entries],
            loads=self.loads[entries],
        )

    @classmethod
    def batch(cls, features: Sequence[WalkFeatures]) -> Self:
        """Features of a batch of graphs (:meth:`Graph.batch`) from the features of each, without new walks."""
        if not features:
            raise ValueError("`features` is empty. Pass at least one WalkFeatures.")
        for name in ("num_heads", "max_length", "normalization", "weighting"):
            found = {getattr(part, name) for part in features}
            if len(found) > 1:
                raise ValueError(f"`features` must agree in {name}, but have {sorted(found)}. Sample them alike.")
        num_columns = sum(part.num_columns for part in features)
        # In NumPy: batches have many small parts, and what torch does around an operation takes longer than these do.
        parts = [part._arrays() for part in features]
        starts = np.cumsum([0] + [part.num_columns for part in features])
        counts, columns, entry_counts, lengths, loads = (
            np.concatenate(
                [arrays[field][cuts[field][head]] for head in range(features[0].num_heads) for arrays, cuts in parts]
            )
            for field in range(5)
        )
        sizes = [part._head_cuts[1][head] for head in range(features[0].num_heads) for part in features]
        shifts = np.repeat(np.tile(starts[:-1], features[0].num_heads), [cut.stop - cut.start for cut in sizes])
        kind = segments.index_type(num_columns)
        device = features[0].loads.device
        with torch.inference_mode(False):
            return cls(
                row_ptr=segments.pointers(torch.from_numpy(counts)).to(device),
                columns=torch.from_numpy(columns + shifts).to(device, kind),
                entry_ptr=_narrow(segments.pointers(torch.from_numpy(entry_counts))).to(device),
                lengths=torch.from_numpy(lengths).to(device),
                loads=torch.from_numpy(loads).to(device),
                num_heads=features[0].num_heads,
                num_columns=num_columns,
                max_length=features[0].max_length,
                normalization=features[0].normalization,
                weighting=features[0].weighting,
            )

    def split(self, sizes: Sequence[int]) -> list[Self]:
        """The features of every graph of a batch, given how many nodes each has: undoes :meth:`batch`."""
        ends = np.cumsum([0, *sizes])
        if not self.num_rows == self.num_columns == ends[-1]:
            raise ValueError(
                f"`sizes` must add up to the {self.num_columns} nodes of the batch, each with a row, but add up to "
                f"{ends[-1]}, and there are {self.num_rows} rows."
            )
        row_ptr, columns, entry_ptr, lengths, loads = (tensor.cpu().numpy() for tensor in self._tensors().values())
        heads = np.arange(self.num_heads)[:, None] * self.num_rows
        pair_ends = row_ptr[heads + ends]  # [H, graphs + 1]
        entry_ends = entry_ptr[pair_ends]
        counts, entry_counts = np.diff(row_ptr), np.diff(entry_ptr)
        row_ends = heads + ends
        device = self.loads.device

        def piece(values: Array, cuts: Array, number: int) -> Tensor:
            return torch.from_numpy(np.concatenate([values[a:b] for a, b in cuts[:, number : number + 2]])).to(device)

        with torch.inference_mode(False):
            return [
                replace(
                    self,
                    row_ptr=segments.pointers(piece(counts, row_ends, k)),
                    columns=(piece(columns, pair_ends, k) - int(ends[k])).to(segments.index_type(size)),
                    entry_ptr=_narrow(segments.pointers(piece(entry_counts, pair_ends, k))),
                    lengths=piece(lengths, entry_ends, k),
                    loads=piece(loads, entry_ends, k),
                    num_columns=int(size),
                )
                for k, size in enumerate(sizes)
            ]

    def _arrays(self) -> tuple[list[Array], list[list[slice]]]:
        """Columns per row, columns, entries per column, lengths and loads; and where every head is in each."""
        row_ptr, columns, entry_ptr, lengths, loads = (tensor.cpu().numpy() for tensor in self._tensors().values())
        rows, pairs, entries = self._head_cuts
        return [np.diff(row_ptr), columns, np.diff(entry_ptr), lengths, loads], [rows, pairs, pairs, entries, entries]

    @cached_property
    def _head_cuts(self) -> tuple[list[slice], list[slice], list[slice]]:
        """The rows, pairs and entries of every head."""
        rows = self._head_rows.tolist()
        pairs, entries = self.row_ptr[self._head_rows].tolist(), self.head_ptr.tolist()
        cuts = [[slice(a, b) for a, b in itertools.pairwise(ends)] for ends in (rows, pairs, entries)]
        return cuts[0], cuts[1], cuts[2]

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        """Features on another device or in another precision of the loads; float32 at least."""
        dtype = self.loads.dtype if dtype is None else torch.promote_types(dtype, torch.float32)
        device = self.loads.device if device is None else torch.device(device)
        if device == self.loads.device and dtype == self.loads.dtype:
            return self
        moved = {name: tensor.to(device) for name, tensor in self._tensors().items()}
        moved["loads"] = moved["loads"].to(dtype)
        return replace(self, **moved)  # type: ignore[arg-type]

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the walks in fixed types, to verify that sampling again gave the same."""
        digest = hashlib.blake2b(digest_size=16)
        kinds = {"lengths": torch.int16, "loads": torch.float32}
        for name, tensor in self._tensors().items():
            digest.update(tensor.cpu().to(kinds.get(name, torch.int64)).numpy().data)
        return digest.hexdigest()

    def state(self) -> dict[str, Tensor]:
        """Everything as tensors, for checkpoints."""
        kind = _KINDS.index((self.weighting, self.normalization))
        sizes = torch.tensor([self.num_heads, self.num_columns, self.max_length, kind])
        return self._tensors() | {"sizes": sizes}

    @classmethod
    def from_state(cls, state: dict[str, Tensor]) -> Self:
        """Features from what :meth:`state` gave; a ValueError if it is inconsistent."""
        names = {"row_ptr", "columns", "entry_ptr", "lengths", "loads", "sizes"}
        if set(state) != names or state["sizes"].shape != (4,):
            raise ValueError(f"Stored walks must have the tensors {sorted(names)}, but have {sorted(state)}.")
        num_heads, num_columns, max_length, kind = (int(size) for size in state["sizes"])
        weighting, normalization = _KINDS[kind % len(_KINDS)]
        features = cls(
            **{name: tensor for name, tensor in state.items() if name != "sizes"},
            num_heads=num_heads,
            num_columns=num_columns,
            max_length=max_length,
            normalization=normalization,
            weighting=weighting,
        )
        features._check()
        return features

    def _check(self) -> None:
        integers = (self.row_ptr, self.columns, self.entry_ptr, self.lengths)
        consistent = (
            self.num_heads >= 1
            and all(tensor.ndim == 1 and not tensor.is_floating_point() for tensor in integers)
            and self.loads.is_floating_point()
            and bool(self.loads.isfinite().all())
            and (len(self.row_ptr) - 1) % self.num_heads == 0
            and _are_pointers(self.row_ptr, len(self.columns))
            and _are_pointers(self.entry_ptr, len(self.lengths))
            and len(self.entry_ptr) == len(self.columns) + 1
            and len(self.loads) == len(self.lengths)
            and _within(self.columns, self.num_columns)
            and _within(self.lengths, self.max_length + 1)
        )
        if not consistent:
            raise ValueError("The stored walks contradict themselves. Load a checkpoint that is intact.")

    def _tensors(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in ("row_ptr", "columns", "entry_ptr", "lengths", "loads")}

    def __repr__(self) -> str:
        return (
            f"WalkFeatures(num_heads={self.num_heads}, num_rows={self.num_rows}, num_columns={self.num_columns}, "
            f"max_length={self.max_length}, num_nonzeros={self.num_nonzeros})"
        )


def sample_features(
    graph: Graph,
    num_walks: int = 20,
    max_length: int = 10,
    halt_prob: float = 0.0,
    coupling: Coupling = "repelling",
    num_heads: int = 1,
    seed: int = 0,
    *,
    normalization: Normalization | None = None,
    weighting: Weighting = "importance",
    ensemble: Ensemble = "query",
    start_nodes: Any = None,
    dtype: torch.dtype = torch.float32,
) -> WalkFeatures:
    r"""Sample random walks from every node and keep what they leave behind.

    .. math:: \mathbb{E}\,\Phi = \sum_{l=0}^{L} f_l W^l, \qquad
        \mathrm{load}_{icl} = \frac{1}{n} \sum_{w=1}^{n} \frac{\prod W/p}{S(l)}\,[\text{walker } w \text{ is at } c
        \text{ after } l \text{ steps}]

    A walker steps from c to j with probability :math:`p_{cj} = |a_{cj}|/s_c` and survives to length l with probability
    :math:`S(l) = (1 - \text{halt\_prob})^l`. It ends at a node without out-edges. The result depends on the seed and
    the graph alone: not on threads, on a batch the graph is part of, or on which start nodes are asked for.

    Args:
        graph: The graph.
        num_walks: Walkers per node and head.
        max_length: Steps of a walk at most.
        halt_prob: Probability to stop before each step.
        coupling: How walkers of one node depend on each other. ``"iid"``: not at all. ``"antithetic"``: halting draws
            of walkers 2k and 2k + 1 are half a turn apart. ``"repelling"``: walkers that stand on the same node at the
            same step share one systematic draw, so they spread over its neighbours. Each keeps the law of one walker.
        num_heads: Independent sets of walks.
        seed: Seed of all draws, from 0 to 2**63 - 1.
        normalization: ``"sym"``, ``"row"`` or ``"none"``, see :meth:`Graph.adjacency`.
        weighting: ``"importance"``, the loads above, or ``"visits"``: the share of walkers that are at c after l
            steps, whatever the weights they went along and the probability to get there. Visits estimate no series of
            W, so they take no ``normalization``.
        ensemble: Queries and keys draw independent walks from the same seed.
        start_nodes: Which rows to sample, [R]. Default: all nodes.
        dtype: Precision of the loads, float32 or float64.

    Example:
        >>> import torch, topomask as tm
        >>> features = tm.sample_features(tm.grid_graph(4, 4), num_walks=8, max_length=3)
        >>> features.to_dense(torch.tensor([1.0, 0.5, 0.25, 0.125])).shape
        torch.Size([1, 16, 16])

    References:
        Reid et al. (2025), Eq. 10; the telescoped loads are ours.
    """
    check_integer("num_walks", num_walks, 1)
    check_integer("max_length", max_length, 0, torch.iinfo(torch.int16).max)
    check_integer("num_heads", num_heads, 1)
    _check_draws(halt_prob, coupling, seed, ensemble)
    if weighting not in get_args(Weighting):
        raise ValueError(f"`weighting` must be one of {get_args(Weighting)}, but is {weighting!r}.")
    if weighting == "visits" and normalization is not None:
        raise ValueError(f"`normalization` is {normalization!r}, but visits are not weighted by W. Leave it out.")
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"`dtype` must be torch.float32 or torch.float64, but is {dtype}.")
    nodes = _start_nodes(graph, start_nodes)
    tensors = graph.tensors
    if weighting == "visits":
        # Shares of walkers are the loads for "row", but for signs and the probability to survive.
        normalization, tensors = "row", tensors._replace(signs=None)
    settings = WalkSettings(
        num_walks=int(num_walks),
        max_length=int(max_length),
        halt_prob=float(halt_prob),
        coupling=coupling,
        normalization=graph.check_normalization(normalization),
        seed=int(seed),
        ensemble=get_args(Ensemble).index(ensemble),
        weighting=weighting,
    )
    # Walks are drawn on the CPU whatever the default device is; move them with `to`. They may be trained on later, also
    # when they are drawn in inference mode.
    with torch.device("cpu"), torch.inference_mode(False):
        loads = sample_walks(tensors, nodes, settings, range(num_heads), dtype)
        return WalkFeatures(
            row_ptr=loads.row_ptr,
            columns=loads.columns,
            entry_ptr=_narrow(loads.entry_ptr),
            lengths=loads.lengths,
            loads=loads.loads,
            num_heads=num_heads,
            num_columns=graph.num_nodes,
            max_length=max_length,
            normalization=settings.normalization,
            weighting=weighting,
        )


def random_walks(
    graph: Graph,
    num_walks: int = 1,
    length: int = 10,
    *,
    halt_prob: float = 0.0,
    coupling: Coupling = "iid",
    seed: int = 0,
    head: int = 0,
    ensemble: Ensemble = "query",
    start_nodes: Any = None,
) -> Tensor:
    """Sample bare random walks: the ones that :func:`sample_features` sums up, for the same arguments.

    Args:
        graph: The graph.
        num_walks: Walkers per node.
        length: Steps of a walk at most.
        halt_prob: Probability to stop before each step.
        coupling: How walkers of one node depend on each other, see :func:`sample_features`.
        seed: Seed of all draws, from 0 to 2**63 - 1.
        head: Which of the independent sets of walks.
        ensemble: Queries and keys draw independent walks from the same seed.
        start_nodes: Where walks start, [R]. Default: all nodes.

    Returns:
        Visited nodes [R, num_walks, length + 1], the start first; -1 once a walk has halted or found no way on.

    Example:
        >>> import topomask as tm
        >>> tm.random_walks(tm.Graph.from_edges([(0, 1), (1, 2)], directed=True), length=3)[:, 0]
        tensor([[ 0,  1,  2, -1],
                [ 1,  2, -1, -1],
                [ 2, -1, -1, -1]])
    """
    check_integer("num_walks", num_walks, 1)
    check_integer("length", length, 0)
    check_integer("head", head, 0, 2**63 - 1)
    _check_draws(halt_prob, coupling, seed, ensemble)
    nodes = _start_nodes(graph, start_nodes)
    settings = WalkSettings(
        num_walks=int(num_walks),
        max_length=int(length),
        halt_prob=float(halt_prob),
        coupling=coupling,
        # Where walkers go does not depend on it.
        normalization="row",
        seed=int(seed),
        ensemble=get_args(Ensemble).index(ensemble),
    )
    with torch.device("cpu"), torch.inference_mode(False):
        return sample_bare_walks(graph.tensors, nodes, settings, int(head))


def _start_nodes(graph: Graph, start_nodes: Any) -> Tensor:
    if start_nodes is None:
        return torch.arange(graph.num_nodes, device="cpu")
    return check_nodes(start_nodes, graph.num_nodes, "start_nodes")


def _check_draws(halt_prob: float, coupling: str, seed: int, ensemble: str) -> None:
    check_integer("seed", seed, 0, 2**63 - 1)
    if not 0 <= halt_prob < 1 or math.isnan(halt_prob):
        raise ValueError(f"`halt_prob` must lie in [0, 1), but is {halt_prob!r}. Pass 0 for walks of fixed length.")
    if coupling not in get_args(Coupling):
        raise ValueError(f"`coupling` must be one of {get_args(Coupling)}, but is {coupling!r}.")
    if coupling == "antithetic" and halt_prob == 0:
        raise ValueError(
            "`coupling` is 'antithetic', which pairs the halting draws, but `halt_prob` is 0, so it would do nothing. "
            "Pass halt_prob > 0, or coupling='repelling'."
        )
    if ensemble not in get_args(Ensemble):
        raise ValueError(f"`ensemble` must be one of {get_args(Ensemble)}, but is {ensemble!r}.")


def _narrow(ptr: Tensor) -> Tensor:
    return ptr.to(segments.index_type(int(ptr[-1]) + 1))


def _are_pointers(ptr: Tensor, end: int) -> bool:
    return len(ptr) > 0 and int(ptr[0]) == 0 and int(ptr[-1]) == end and bool((ptr.diff() >= 0).all())


def _within(values: Tensor, end: int) -> bool:
    # In int64: a bound may not fit in the type of the values, and would wrap.
    values = values.to(torch.int64)
    return bool(((values >= 0) & (values < end)).all())
