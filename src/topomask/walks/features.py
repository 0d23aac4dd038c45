"""Graph random features: sparse loads of random walks, frozen, with a modulation that can be learnt."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple, Self, get_args

import numpy as np
import torch
from torch import Tensor

from topomask.graph import Normalization
from topomask.graph.input import Array, check_nodes
from topomask.ops import segments
from topomask.ops.derived import plainly
from topomask.ops.feature_values import feature_values, mark_places
from topomask.ops.sparse_heads import densify
from topomask.ops.sparse_product import Pattern, make_pattern

Weighting = Literal["importance", "visits"]

# What loads may be, in the order that checkpoints know them by.
_KINDS = tuple(itertools.product(get_args(Weighting), get_args(Normalization)))


class WalkTensors(NamedTuple):
    """The tensors of walks; :class:`WalkFeatures` says what they are. Kernels read them by address."""

    row_ptr: Tensor
    columns: Tensor
    entry_ptr: Tensor
    lengths: Tensor
    loads: Tensor


class _Copied:
    """A tensor of walks as users see it: a copy, so that nobody writes to what kernels read."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._place = WalkTensors._fields.index(name)

    def __get__(self, walks: WalkFeatures | None, owner: type) -> Tensor:
        if walks is None:
            # A dataclass asks for the default of the field. There is none.
            raise AttributeError
        return walks._tensors[self._place].clone()


@dataclass(frozen=True, eq=False, repr=False, init=False, kw_only=True)
class WalkFeatures:
    r"""Loads of random walks: what is frozen in :math:`\Phi_{ic} = \sum_l f_l\,\mathrm{load}_{icl}`.

    Rows are start nodes, columns are visited nodes. Compressed sparse rows over (row, column), with the walk lengths
    and loads of a pair inside; heads lie one after the other. Make them with :func:`~topomask.walks.sample_features`.

    Walks do not change: their tensors are handed out as copies. ``WalkFeatures(...)`` and ``dataclasses.replace`` copy
    the tensors they are given, and check them: a column that is repeated in its row, or a length in its column, is
    refused.

    Attributes:
        row_ptr: Where the columns of every row begin, [H * R + 1].
        columns: Visited nodes, ascending in every row, [P], int32 where that fits.
        entry_ptr: Where the entries of every (row, column) begin, [P + 1], int32 where that fits.
        lengths: Walk length of every entry, ascending in every (row, column), [T], uint8 where that fits, or int16.
        loads: Load of every entry, [T], averaged over walkers.
        num_heads: Number of independent sets of walks H.
        num_columns: Number of nodes N of the graph.
        max_length: Longest walk L.
        normalization: The matrix W whose powers the walks estimate: ``"sym"``, ``"row"`` or ``"none"``.
        weighting: Whether loads are those of an estimate, ``"importance"``, or shares of walkers, ``"visits"``.
    """

    row_ptr: _Copied = _Copied()
    columns: _Copied = _Copied()
    entry_ptr: _Copied = _Copied()
    lengths: _Copied = _Copied()
    loads: _Copied = _Copied()
    num_heads: int
    num_columns: int
    max_length: int
    normalization: Normalization
    weighting: Weighting
    _tensors: WalkTensors = field(init=False)

    def __init__(
        self,
        row_ptr: Tensor,
        columns: Tensor,
        entry_ptr: Tensor,
        lengths: Tensor,
        loads: Tensor,
        num_heads: int,
        num_columns: int,
        max_length: int,
        normalization: Normalization,
        weighting: Weighting = "importance",
    ) -> None:
        from topomask.walks.validation import checked_tensors

        tensors = WalkTensors(row_ptr, columns, entry_ptr, lengths, loads)
        settings: dict[str, Any] = {
            "num_heads": num_heads,
            "num_columns": num_columns,
            "max_length": max_length,
            "normalization": normalization,
            "weighting": weighting,
        }
        self.__dict__.update(settings, _tensors=checked_tensors(tensors, **settings))

    @classmethod
    def _trusted(cls, tensors: WalkTensors, **settings: Any) -> Self:
        """Walks of tensors that were just computed: neither checked nor copied."""
        walks = object.__new__(cls)
        walks.__dict__.update(settings, _tensors=tensors)
        return walks

    def _with(self, tensors: WalkTensors, **changes: Any) -> Self:
        """The same but for tensors that were just computed."""
        return self._trusted(**self.__getstate__() | {"tensors": tensors} | changes)

    def __getstate__(self) -> dict[str, Any]:
        """Without what is computed of the walks."""
        names = ("num_heads", "num_columns", "max_length", "normalization", "weighting")
        return {name: getattr(self, name) for name in names} | {"tensors": self._tensors}

    def __setstate__(self, state: dict[str, Any]) -> None:
        tensors = state.pop("tensors")
        self.__dict__.update(state, _tensors=tensors)

    @property
    def device(self) -> torch.device:
        """Device of the tensors."""
        return self._tensors.loads.device

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the loads."""
        return self._tensors.loads.dtype

    @property
    def num_rows(self) -> int:
        """Number of start nodes R."""
        return (len(self._tensors.row_ptr) - 1) // self.num_heads

    @property
    def num_nonzeros(self) -> int:
        """Number of (row, column) pairs over all heads."""
        return len(self._tensors.columns)

    @property
    def num_bytes(self) -> int:
        """Bytes of the stored arrays."""
        return sum(tensor.nbytes for tensor in self._tensors)

    @cached_property
    def signed(self) -> bool:
        """Whether any load is negative."""
        return bool((self._tensors.loads < 0).any())

    @cached_property
    def _pattern(self) -> Pattern:
        """Where Phi has entries: block-diagonal over heads, [H * R, H * N]."""
        row_ptr, columns, *_ = self._tensors
        with plainly():
            if self.num_heads > 1:
                columns = columns + segments.index(row_ptr[self._head_rows]) * self.num_columns
            return make_pattern(row_ptr, columns, self.num_heads * self.num_columns)

    @cached_property
    def _head_ptr(self) -> Tensor:
        """Where the entries of every head begin, [H + 1]."""
        row_ptr, _, entry_ptr, lengths, _ = self._tensors
        with plainly():
            head_ptr = entry_ptr[row_ptr[self._head_rows]]
        mark_places(head_ptr, entry_ptr, lengths, self.max_length + 1)
        return head_ptr

    @property
    def _head_rows(self) -> Tensor:
        return torch.arange(self.num_heads + 1, device=self.device) * self.num_rows

    def prepare(self) -> None:
        """Compute now what is otherwise computed at first use."""
        _ = self._pattern, self._head_ptr, self.signed

    def values(self, f: Tensor, *, absolute: bool = False) -> Tensor:
        """The entries of Phi, differentiable in the modulation ``f``, [L + 1] or [H, L + 1].

        Computed in the dtype of the loads or of ``f``, whichever is finer; with ``absolute``, from absolute loads.

        Returns:
            [P]; [H, P] where one set of walks serves H heads.
        """
        size = self.max_length + 1
        if f.shape != (size,) and (f.ndim != 2 or f.shape[1] != size or self.num_heads not in (1, len(f))):
            raise ValueError(
                f"`f` must have shape [max_length + 1={size}] or [num_heads={self.num_heads}, {size}], but has shape "
                f"{tuple(f.shape)}. Pass one number per walk length from 0 on."
            )
        dtype = torch.promote_types(f.dtype, self.dtype)
        f = f.expand(self.num_heads, -1).to(dtype) if f.ndim == 1 or len(f) == 1 else f.to(dtype)
        _, _, entry_ptr, lengths, loads = self._tensors
        loads = loads.abs() if absolute and self.signed else loads
        head_ptr = self._head_ptr if len(f) == self.num_heads else None
        return feature_values(f, head_ptr, entry_ptr, lengths, loads.to(dtype))

    def to_dense(self, f: Tensor) -> Tensor:
        """Phi as a dense tensor, [H, R, N], for small graphs and tests."""
        values = torch.atleast_2d(self.values(f))
        return densify(self._pattern, values, max(len(values), self.num_heads), self.num_rows, self.num_columns)

    def dense_loads(self) -> Tensor:
        """The loads as dense matrices, one per set of walks and length, [S, L + 1, R * N]; for small graphs."""
        row_ptr, columns, entry_ptr, lengths, loads = self._tensors
        pair = segments.index(entry_ptr)
        row = segments.index(row_ptr)[pair]
        head, row = row // self.num_rows, row % self.num_rows
        dense = loads.new_zeros(self.num_heads, self.max_length + 1, self.num_rows * self.num_columns)
        return dense.index_put((head, lengths.long(), row * self.num_columns + columns[pair]), loads)

    def rows(self, nodes: Any) -> Self:
        """Some of the rows, in the given order."""
        nodes = check_nodes(nodes, self.num_rows, "nodes").to(self.device)
        heads = torch.arange(self.num_heads, device=nodes.device) * self.num_rows
        return self._take((heads[:, None] + nodes).flatten())

    def _take(self, rows: Tensor) -> Self:
        row_ptr, columns, entry_ptr, lengths, loads = self._tensors
        counts = row_ptr.diff()[rows]
        pairs = segments.ranges(row_ptr[rows], counts)
        entry_counts = entry_ptr.diff()[pairs]
        entries = segments.ranges(entry_ptr[pairs], entry_counts)
        return self._with(
            WalkTensors(
                segments.pointers(counts),
                columns[pairs],
                narrow(segments.pointers(entry_counts)),
                lengths[entries],
                loads[entries],
            )
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
                [arrays[kind][cuts[kind][head]] for head in range(features[0].num_heads) for arrays, cuts in parts]
            )
            for kind in range(5)
        )
        sizes = [part._head_cuts[1][head] for head in range(features[0].num_heads) for part in features]
        shifts = np.repeat(np.tile(starts[:-1], features[0].num_heads), [cut.stop - cut.start for cut in sizes])
        device = features[0].device
        with plainly():
            tensors = WalkTensors(
                segments.pointers(torch.from_numpy(counts)).to(device),
                torch.from_numpy(columns + shifts).to(device, segments.index_type(num_columns)),
                narrow(segments.pointers(torch.from_numpy(entry_counts))).to(device),
                torch.from_numpy(lengths).to(device),
                torch.from_numpy(loads).to(device),
            )
        return cls._trusted(**features[0].__getstate__() | {"tensors": tensors, "num_columns": num_columns})

    def split(self, sizes: Sequence[int]) -> list[Self]:
        """The features of every graph of a batch, given how many nodes each has: undoes :meth:`batch`."""
        ends = np.cumsum([0, *sizes])
        if not self.num_rows == self.num_columns == ends[-1]:
            raise ValueError(
                f"`sizes` must add up to the {self.num_columns} nodes of the batch, each with a row, but add up to "
                f"{ends[-1]}, and there are {self.num_rows} rows."
            )
        row_ptr, columns, entry_ptr, lengths, loads = (tensor.cpu().numpy() for tensor in self._tensors)
        heads = np.arange(self.num_heads)[:, None] * self.num_rows
        pair_ends = row_ptr[heads + ends]  # [H, graphs + 1]
        entry_ends = entry_ptr[pair_ends]
        counts, entry_counts = np.diff(row_ptr), np.diff(entry_ptr)
        row_ends = heads + ends
        device = self.device

        def piece(values: Array, cuts: Array, number: int) -> Tensor:
            return torch.from_numpy(np.concatenate([values[a:b] for a, b in cuts[:, number : number + 2]])).to(device)

        with plainly():
            return [
                self._with(
                    WalkTensors(
                        segments.pointers(piece(counts, row_ends, k)),
                        (piece(columns, pair_ends, k) - int(ends[k])).to(segments.index_type(size)),
                        narrow(segments.pointers(piece(entry_counts, pair_ends, k))),
                        piece(lengths, entry_ends, k),
                        piece(loads, entry_ends, k),
                    ),
                    num_columns=int(size),
                )
                for k, size in enumerate(sizes)
            ]

    def _arrays(self) -> tuple[list[Array], list[list[slice]]]:
        """Columns per row, columns, entries per column, lengths and loads; and where every head is in each."""
        row_ptr, columns, entry_ptr, lengths, loads = (tensor.cpu().numpy() for tensor in self._tensors)
        rows, pairs, entries = self._head_cuts
        return [np.diff(row_ptr), columns, np.diff(entry_ptr), lengths, loads], [rows, pairs, pairs, entries, entries]

    @cached_property
    def _head_cuts(self) -> tuple[list[slice], list[slice], list[slice]]:
        """The rows, pairs and entries of every head."""
        rows = self._head_rows.tolist()
        pairs, entries = self._tensors.row_ptr[self._head_rows].tolist(), self._head_ptr.tolist()
        cuts = [[slice(a, b) for a, b in itertools.pairwise(ends)] for ends in (rows, pairs, entries)]
        return cuts[0], cuts[1], cuts[2]

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        """Features on another device or in another precision of the loads; float32 at least."""
        dtype = self.dtype if dtype is None else torch.promote_types(dtype, torch.float32)
        device = self.device if device is None else torch.device(device)
        if device == self.device and dtype == self.dtype:
            return self
        moved = WalkTensors(*(tensor.to(device) for tensor in self._tensors))
        return self._with(moved._replace(loads=moved.loads.to(dtype)))

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the walks in fixed types, to verify that sampling again gave the same."""
        digest = hashlib.blake2b(digest_size=16)
        kinds = {"lengths": torch.int16, "loads": torch.float32}
        for name, tensor in self._tensors._asdict().items():
            digest.update(tensor.cpu().to(kinds.get(name, torch.int64)).numpy().data)
        return digest.hexdigest()

    def state(self) -> dict[str, Tensor]:
        """Everything as tensors, for checkpoints."""
        kind = _KINDS.index((self.weighting, self.normalization))
        sizes = torch.tensor([self.num_heads, self.num_columns, self.max_length, kind])
        copies = {name: getattr(self, name) for name in WalkTensors._fields}
        return copies | {"sizes": sizes}

    @staticmethod
    def state_names() -> tuple[str, ...]:
        """The names of the tensors of :meth:`state`, in their order."""
        return *WalkTensors._fields, "sizes"

    @classmethod
    def from_state(cls, state: dict[str, Tensor]) -> Self:
        """Features from what :meth:`state` gave; a ValueError if it is inconsistent."""
        names = set(cls.state_names())
        sizes = state.get("sizes")
        if set(state) != names or sizes is None or sizes.shape != (4,) or sizes.is_floating_point():
            raise ValueError(f"Stored walks must have the tensors {sorted(names)}, but have {sorted(state)}.")
        num_heads, num_columns, max_length, kind = sizes.tolist()
        weighting, normalization = _KINDS[kind % len(_KINDS)]
        try:
            return cls(
                **{name: tensor for name, tensor in state.items() if name != "sizes"},
                num_heads=num_heads,
                num_columns=num_columns,
                max_length=max_length,
                normalization=normalization,
                weighting=weighting,
            )
        except ValueError as error:
            raise ValueError(
                f"The stored walks contradict themselves. Load a checkpoint that is intact. {error}"
            ) from error

    def __repr__(self) -> str:
        return (
            f"WalkFeatures(num_heads={self.num_heads}, num_rows={self.num_rows}, num_columns={self.num_columns}, "
            f"max_length={self.max_length}, num_nonzeros={self.num_nonzeros})"
        )


def narrow(ptr: Tensor) -> Tensor:
    """Pointers in the smallest type that holds them."""
    return ptr.to(segments.index_type(int(ptr[-1]) + 1))
