"""Graph random features: frozen sparse loads of random walks, combined by a learnable modulation."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, get_args

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

if TYPE_CHECKING:
    from topomask.walks.certificate import Certificate

Weighting = Literal["importance", "visits"]
Prune = Literal["largest", "resample"]

# Kinds of loads; checkpoints store the index.
_KINDS = tuple(itertools.product(get_args(Weighting), get_args(Normalization)))


class WalkTensors(NamedTuple):
    """The tensors of walks, see :class:`WalkFeatures`. Kernels read them by address."""

    row_ptr: Tensor
    columns: Tensor
    entry_ptr: Tensor
    lengths: Tensor
    loads: Tensor


# The tensors of a state of walks, in order.
STATE_NAMES = (*WalkTensors._fields, "sizes")
# Those of certified features besides.
CERTIFICATE_NAMES = ("bounds", "unreached")


class _Copied:
    """A tensor attribute that returns a copy, so that users cannot write to memory that kernels read."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._place = WalkTensors._fields.index(name)

    def __get__(self, walks: WalkFeatures | None, owner: type) -> Tensor:
        if walks is None:
            # The dataclass looks for a default value here, and there is none.
            raise AttributeError
        return walks._tensors[self._place].clone()


@dataclass(frozen=True, eq=False, repr=False, init=False, kw_only=True)
class WalkFeatures:
    r"""Loads of random walks, the frozen part of :math:`\Phi_{ic} = \sum_l f_l\,\mathrm{load}_{icl}`.

    Rows are start nodes and columns are visited nodes, stored as compressed sparse rows. Every (row, column) pair holds
    walk lengths with their loads. Heads are stored one after the other. Create them with
    :func:`~topomask.walks.sample_features`, or without sampling with :func:`~topomask.walks.expand_features`.

    Walks never change: their tensor attributes are copies. ``WalkFeatures(...)`` and ``dataclasses.replace`` check and
    copy the tensors they are given. Columns must be unique in a row, and lengths in a (row, column) pair. Features made
    in this way have no :meth:`error_bound`, which holds only for the loads that it was computed with.

    Attributes:
        row_ptr: Start of every row in ``columns``, [H * R + 1].
        columns: Visited nodes, ascending in every row, [P], int32 if that fits.
        entry_ptr: Start of every (row, column) in ``lengths``, [P + 1], int32 if that fits.
        lengths: Walk lengths, ascending in every (row, column), [T], uint8 if that fits, else int16.
        loads: Loads, averaged over walkers, [T].
        num_heads: Number of independent sets of walks H.
        num_columns: Number of nodes N of the graph.
        max_length: Longest walk L.
        normalization: The matrix W whose powers the walks estimate: ``"sym"``, ``"row"`` or ``"none"``.
        weighting: ``"importance"`` if the loads estimate powers of W, ``"visits"`` if they are fractions of walkers.
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
    _certificate: Certificate | None = field(init=False, default=None)

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
        settings: dict[str, Any] = {"num_heads": num_heads, "num_columns": num_columns, "max_length": max_length}
        settings |= {"normalization": normalization, "weighting": weighting}
        self.__dict__.update(settings, _tensors=checked_tensors(tensors, **settings))

    @classmethod
    def _trusted(cls, **attributes: Any) -> Self:
        """Make walks from tensors that were just computed, without checks or copies."""
        walks = object.__new__(cls)
        walks.__dict__.update(attributes)
        return walks

    def _with(self, tensors: WalkTensors, **changes: Any) -> Self:
        """Copy the walks with other tensors that were just computed."""
        return self._trusted(**self.__getstate__() | {"_tensors": tensors} | changes)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out cached properties."""
        names = ("num_heads", "num_columns", "max_length", "normalization", "weighting", "_tensors", "_certificate")
        return {name: getattr(self, name) for name in names}

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
        """Size of the tensors in bytes."""
        return sum(tensor.nbytes for tensor in (*self._tensors, *(self._certificate or ())))

    @cached_property
    def signed(self) -> bool:
        """Whether any load is negative."""
        return bool((self._tensors.loads < 0).any())

    @cached_property
    def _pattern(self) -> Pattern:
        """Positions of the entries of Phi, block-diagonal over heads, [H * R, H * N]."""
        row_ptr, columns, *_ = self._tensors
        with plainly():
            if self.num_heads > 1:
                columns = columns + segments.index(row_ptr[self._head_rows]) * self.num_columns
            return make_pattern(row_ptr, columns, self.num_heads * self.num_columns)

    @cached_property
    def _head_ptr(self) -> Tensor:
        """Start of every head in ``lengths``, [H + 1]."""
        row_ptr, _, entry_ptr, lengths, _ = self._tensors
        with plainly():
            head_ptr = entry_ptr[row_ptr[self._head_rows]]
        mark_places(head_ptr, entry_ptr, lengths, self.max_length + 1)
        return head_ptr

    @property
    def _head_rows(self) -> Tensor:
        return torch.arange(self.num_heads + 1, device=self.device) * self.num_rows

    def prepare(self) -> None:
        """Compute the cached properties now instead of at first use."""
        _ = self._pattern, self._head_ptr, self.signed

    def values(self, f: Tensor, *, absolute: bool = False) -> Tensor:
        """Compute the entries of Phi, differentiable in the modulation ``f``, [L + 1] or [H, L + 1].

        Uses the more precise dtype of loads and ``f``; with ``absolute``, the absolute values of the loads.

        Returns:
            [P], or [H, P] if one set of walks serves H heads.
        """
        self._check_modulation(f)
        dtype = torch.promote_types(f.dtype, self.dtype)
        f = f.expand(self.num_heads, -1).to(dtype) if f.ndim == 1 or len(f) == 1 else f.to(dtype)
        _, _, entry_ptr, lengths, loads = self._tensors
        loads = loads.abs() if absolute and self.signed else loads
        head_ptr = self._head_ptr if len(f) == self.num_heads else None
        return feature_values(f, head_ptr, entry_ptr, lengths, loads.to(dtype))

    def _check_modulation(self, f: Tensor) -> None:
        size = self.max_length + 1
        if f.shape != (size,) and (f.ndim != 2 or f.shape[1] != size or self.num_heads not in (1, len(f))):
            raise ValueError(
                f"`f` must have shape [max_length + 1={size}] or [num_heads={self.num_heads}, {size}], but has shape "
                f"{tuple(f.shape)}. Pass one number per walk length from 0 on."
            )

    def error_bound(self, f: Tensor) -> Tensor:
        r"""Bound the distance of every row of Phi from that of :math:`\sum_l f_l W^l`, for features that are certified.

        .. math:: \sum_l |f_l| \big(c_l + 2^{-24} (L + 3)\, \lVert \mathrm{load}_{i \cdot l} \rVert\big)

        with :math:`c_l` the bound on the row of :math:`W^l` that :func:`~topomask.walks.expand_features` has computed,
        and the rounding of loads and values to float32, but for numbers below 1e-38, which float32 cannot hold.
        Distances are in the 2-norm under ``"sym"``, else in the 1-norm.

        Args:
            f: Modulation, [L + 1] or [H, L + 1].

        Returns:
            Bounds in float64, [R], or [H, R] if there is more than one set of walks or f has two axes.
        """
        if self._certificate is None:
            raise ValueError(
                "These features have no bound on their error: they were sampled or resampled, or made of other "
                "tensors. Use tm.expand_features(graph, prune='largest')."
            )
        self._check_modulation(f)
        bound = self._certificate.error(torch.atleast_2d(f), self)
        return bound[0] if f.ndim == 1 and self.num_heads == 1 else bound

    @property
    def unreached(self) -> Tensor:
        """Rows that missed the ``tolerance`` of :func:`~topomask.walks.expand_features`, ascending."""
        if self._certificate is None:
            return torch.empty(0, dtype=torch.int64, device=self.device)
        return self._certificate.unreached.any(dim=0).nonzero().flatten()

    def to_dense(self, f: Tensor) -> Tensor:
        """Return Phi as a dense tensor, [H, R, N], for small graphs and tests."""
        values = torch.atleast_2d(self.values(f))
        return densify(self._pattern, values, max(len(values), self.num_heads), self.num_rows, self.num_columns)

    def dense_loads(self) -> Tensor:
        """Return the loads as a dense matrix per set of walks and length, [S, L + 1, R * N], for small graphs."""
        row_ptr, columns, entry_ptr, lengths, loads = self._tensors
        pair = segments.index(entry_ptr)
        row = segments.index(row_ptr)[pair]
        head, row = row // self.num_rows, row % self.num_rows
        dense = loads.new_zeros(self.num_heads, self.max_length + 1, self.num_rows * self.num_columns)
        return dense.index_put((head, lengths.long(), row * self.num_columns + columns[pair]), loads)

    def rows(self, nodes: Any) -> Self:
        """Select rows, in the given order."""
        nodes = check_nodes(nodes, self.num_rows, "nodes").to(self.device)
        rows = (self._head_rows[:-1, None] + nodes).flatten()
        row_ptr, columns, entry_ptr, lengths, loads = self._tensors
        counts = row_ptr.diff()[rows]
        pairs = segments.ranges(row_ptr[rows], counts)
        entry_counts = entry_ptr.diff()[pairs]
        entries = segments.ranges(entry_ptr[pairs], entry_counts)
        ptrs = segments.pointers(counts), narrow(segments.pointers(entry_counts))
        tensors = WalkTensors(ptrs[0], columns[pairs], ptrs[1], lengths[entries], loads[entries])
        return self._with(tensors, _certificate=self._certificate and self._certificate.rows(nodes))

    @classmethod
    def batch(cls, features: Sequence[WalkFeatures]) -> Self:
        """Join the features of graphs into the features of their batch (:meth:`Graph.batch`), without new walks."""
        if not features:
            raise ValueError("`features` is empty. Pass at least one WalkFeatures.")
        for name in ("num_heads", "max_length", "normalization", "weighting"):
            found = {getattr(part, name) for part in features}
            if len(found) > 1:
                raise ValueError(f"`features` must have the same {name}, but have {sorted(found)}. Sample them alike.")
        certificate = _join_certificates([part._certificate for part in features])
        # In NumPy: a batch has many small parts, for which the overhead of torch would dominate.
        parts = [part._arrays() for part in features]
        heads = range(features[0].num_heads)
        counts, columns, entry_counts, lengths, loads = (
            np.concatenate([arrays[kind][cuts[kind][head]] for head in heads for arrays, cuts in parts])
            for kind in range(5)
        )
        *starts, num_columns = np.cumsum([0] + [part.num_columns for part in features]).tolist()
        pairs = [cuts[1][head] for head in heads for _, cuts in parts]
        shifts = np.repeat(np.tile(starts, len(heads)), [cut.stop - cut.start for cut in pairs])
        arrays = (counts, columns + shifts, entry_counts, lengths, loads)
        with plainly():
            tensors = _from_counts(arrays, num_columns, features[0].device)
        changes = {"_tensors": tensors, "num_columns": num_columns, "_certificate": certificate}
        return cls._trusted(**features[0].__getstate__() | changes)

    def split(self, sizes: Sequence[int]) -> list[Self]:
        """Split the features of a batch into those of its graphs, which have ``sizes`` nodes; undoes :meth:`batch`."""
        ends = np.cumsum([0, *sizes])
        if not self.num_rows == self.num_columns == ends[-1]:
            raise ValueError(
                f"`sizes` must add up to the {self.num_columns} nodes of the batch, each with a row, but the sum is "
                f"{ends[-1]} and there are {self.num_rows} rows."
            )
        arrays, _ = self._arrays()
        rows = np.arange(self.num_heads)[:, None] * self.num_rows + ends  # [H, graphs + 1]
        pairs = self._tensors.row_ptr.cpu().numpy()[rows]
        entries = self._tensors.entry_ptr.cpu().numpy()[pairs]
        with_counts = []
        for k in range(len(sizes)):
            counts, columns, *others = (
                np.concatenate([values[a:b] for a, b in cuts[:, k : k + 2]])
                for values, cuts in zip(arrays, (rows, pairs, pairs, entries, entries), strict=True)
            )
            with_counts.append((counts, columns - ends[k], *others))
        with plainly():
            tensors = [_from_counts(each, size, self.device) for each, size in zip(with_counts, sizes, strict=True)]
            certificate = self._certificate
            parts = [None] * len(sizes) if certificate is None else certificate.split(ends.tolist())
        return [
            self._with(each, num_columns=int(size), _certificate=part)
            for each, size, part in zip(tensors, sizes, parts, strict=True)
        ]

    def _arrays(self) -> tuple[list[Array], list[list[slice]]]:
        """Columns per row, columns, entries per column, lengths and loads; and the slice of every head in each."""
        row_ptr, columns, entry_ptr, lengths, loads = (tensor.cpu().numpy() for tensor in self._tensors)
        return [np.diff(row_ptr), columns, np.diff(entry_ptr), lengths, loads], self._head_cuts

    @cached_property
    def _head_cuts(self) -> list[list[slice]]:
        ends = self._head_rows, self._tensors.row_ptr[self._head_rows], self._head_ptr
        rows, pairs, entries = ([slice(a, b) for a, b in itertools.pairwise(each.tolist())] for each in ends)
        return [rows, pairs, pairs, entries, entries]

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        """Move the features to a device, or convert the loads to a dtype, at least float32."""
        dtype = self.dtype if dtype is None else torch.promote_types(dtype, torch.float32)
        device = self.device if device is None else torch.device(device)
        if device == self.device and dtype == self.dtype:
            return self
        moved = WalkTensors(*(tensor.to(device) for tensor in self._tensors))
        certificate = self._certificate and self._certificate.to(device)
        return self._with(moved._replace(loads=moved.loads.to(dtype)), _certificate=certificate)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the walks, independent of dtypes, to verify that they were sampled again exactly.

        Bounds on errors don't count: they follow from the walks and the graph, and backends may round them differently.
        """
        digest = hashlib.blake2b(digest_size=16)
        kinds = {"lengths": torch.int16, "loads": torch.float32}
        for name, tensor in self._tensors._asdict().items():
            digest.update(tensor.cpu().to(kinds.get(name, torch.int64)).numpy().data)
        return digest.hexdigest()

    def state(self) -> dict[str, Tensor]:
        """Return everything as tensors, for checkpoints."""
        kind = _KINDS.index((self.weighting, self.normalization))
        sizes = torch.tensor([self.num_heads, self.num_columns, self.max_length, kind])
        certified = {} if self._certificate is None else self._certificate.state()
        return {name: getattr(self, name) for name in WalkTensors._fields} | {"sizes": sizes} | certified

    @classmethod
    def from_state(cls, state: dict[str, Tensor]) -> Self:
        """Restore features from :meth:`state`, or raise a ValueError if it is inconsistent."""
        sizes, is_certified = state.get("sizes"), CERTIFICATE_NAMES[0] in state
        names = (*STATE_NAMES, *CERTIFICATE_NAMES) if is_certified else STATE_NAMES
        if {*state} != {*names} or sizes is None or sizes.shape != (4,) or sizes.is_floating_point():
            raise ValueError(f"The stored walks must have the tensors {names}, but have {tuple(state)}.")
        *numbers, kind = sizes.tolist()
        weighting, normalization = _KINDS[kind % len(_KINDS)]
        arguments: list[Any] = [*(state[name] for name in WalkTensors._fields), *numbers, normalization, weighting]
        try:
            found = cls(*arguments)
            if not is_certified:
                return found
            from topomask.walks.certificate import from_state

            certificate = from_state(state, found.num_heads, found.num_rows, found.max_length)
            return found._with(found._tensors, _certificate=certificate)
        except ValueError as error:
            raise ValueError(f"The stored walks are inconsistent. Load an intact checkpoint. {error}") from error

    def __repr__(self) -> str:
        names = ("num_heads", "num_rows", "num_columns", "max_length", "num_nonzeros")
        return f"WalkFeatures({', '.join(f'{name}={getattr(self, name)}' for name in names)})"


def _join_certificates(parts: Sequence[Certificate | None]) -> Certificate | None:
    """Join the certificates of graphs into that of their batch; None if no part has one."""
    found = [part for part in parts if part is not None]
    if not found:
        return None
    if len(found) < len(parts):
        raise ValueError("`features` mixes certified features with others. Make them alike.")
    return found[0].join(found)


def _from_counts(arrays: Sequence[Array], num_columns: int, device: torch.device) -> WalkTensors:
    """Make the tensors of walks from arrays with counts instead of pointers."""
    counts, columns, entry_counts, lengths, loads = map(torch.from_numpy, arrays)
    row_ptr, entry_ptr = segments.pointers(counts), narrow(segments.pointers(entry_counts))
    columns = columns.to(segments.index_type(num_columns))
    return WalkTensors(*(tensor.to(device) for tensor in (row_ptr, columns, entry_ptr, lengths, loads)))


def narrow(ptr: Tensor) -> Tensor:
    """Convert pointers to the smallest dtype that holds them."""
    return ptr.to(segments.index_type(int(ptr[-1]) + 1))
