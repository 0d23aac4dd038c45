"""Graph random features from loads and modulation, differentiable in the modulation.

The values are linear in the modulation, so each of the two ops below is the derivative of the other.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import torch
from torch import Tensor

from topomask.ops import segments
from topomask.ops.backend import implementation
from topomask.ops.registration import Op, check_shape


class Walks(NamedTuple):
    """The loads of walks."""

    head_ptr: Tensor | None  # [H + 1], where the entries of every head begin; None if all heads share them
    entry_ptr: Tensor  # [P + 1], where the entries of every (node, visited node) begin
    lengths: Tensor  # [T], walk length of every entry
    loads: Tensor  # [T]


def _check_places(walks: Walks, num_lengths: int) -> None:
    heads = () if walks.head_ptr is None else (walks.head_ptr,)
    segments.check_once(_check_walks, (walks.entry_ptr, walks.lengths, *heads), num_lengths)


def mark_places(head_ptr: Tensor, entry_ptr: Tensor, lengths: Tensor, num_lengths: int) -> None:
    """Mark these as checked, for walks per head and for shared walks: they were checked before, or just computed."""
    segments.mark_checked(_check_walks, (entry_ptr, lengths, head_ptr), num_lengths)
    segments.mark_checked(_check_walks, (entry_ptr, lengths), num_lengths)


def _check_walks(entry_ptr: Tensor, lengths: Tensor, *rest: Any) -> None:
    *heads, num_lengths = rest
    segments.check_indices("lengths", lengths, num_lengths, small=True)
    segments.check_pointers("entry_ptr", entry_ptr, len(lengths))
    for head_ptr in heads:
        segments.check_pointers("head_ptr", head_ptr, len(lengths))
        # The pairs of a head are found by where its entries begin.
        found = entry_ptr[torch.searchsorted(entry_ptr, head_ptr.to(entry_ptr.dtype))]
        if not bool((entry_ptr[1:] > entry_ptr[:-1]).all()) or not torch.equal(found.long(), head_ptr.long()):
            raise ValueError(
                "`entry_ptr` must increase, with an entry for every (node, visited node), and contain every number of "
                "`head_ptr`. Make walks with sample_features."
            )


def _check_precision(name: str, values: Tensor, loads: Tensor) -> None:
    if values.dtype != loads.dtype or not loads.is_floating_point():
        raise ValueError(
            f"`{name}` and `loads` must have the same floating dtype, but have {values.dtype} and {loads.dtype}."
        )


class _Modulation(NamedTuple):
    f: Tensor  # [H, L + 1]
    walks: Walks

    def check(self) -> None:
        """Raise a ValueError unless indices are in range and shapes match."""
        head_ptr, _, lengths, loads = self.walks
        check_shape("f", self.f, None if head_ptr is None else len(head_ptr) - 1, None)
        check_shape("loads", loads, *lengths.shape)
        _check_precision("f", self.f, loads)
        _check_places(self.walks, self.f.shape[1])


class _Adjoint(NamedTuple):
    values: Tensor  # [P], or [H, P] for walks that heads share
    num_lengths: int
    walks: Walks

    def check(self) -> None:
        """Raise a ValueError unless indices are in range and shapes match."""
        head_ptr, entry_ptr, lengths, loads = self.walks
        check_shape("values", self.values, *((None,) if head_ptr is None else ()), len(entry_ptr) - 1)
        check_shape("loads", loads, len(lengths))
        _check_precision("values", self.values, loads)
        _check_places(self.walks, self.num_lengths)


def _modulate(arguments: _Modulation) -> Tensor:
    return implementation(__name__, arguments.f).feature_values(arguments.f, arguments.walks)


def _modulate_fake(arguments: _Modulation) -> Tensor:
    f, walks = arguments
    heads = f.shape[:1] if walks.head_ptr is None else ()
    return walks.loads.new_empty(*heads, walks.entry_ptr.shape[0] - 1)


def _modulate_backward(
    arguments: _Modulation, _: tuple[Tensor, ...], grad: Tensor, wanted: Collection[str]
) -> dict[str, Tensor]:
    return {"f": _adjoint_op(_Adjoint(grad, arguments.f.shape[1], arguments.walks))}


def _apply_adjoint(arguments: _Adjoint) -> Tensor:
    return implementation(__name__, arguments.values).feature_values_backward(*arguments)


def _adjoint_fake(arguments: _Adjoint) -> Tensor:
    values, num_lengths, walks = arguments
    num_heads = values.shape[0] if walks.head_ptr is None else walks.head_ptr.shape[0] - 1
    return values.new_empty(num_heads, num_lengths)


def _adjoint_backward(
    arguments: _Adjoint, _: tuple[Tensor, ...], grad: Tensor, wanted: Collection[str]
) -> dict[str, Tensor]:
    return {"values": _modulate_op(_Modulation(grad, arguments.walks))}


_modulate_op = Op(
    "feature_values",
    _Modulation,
    _modulate,
    _modulate_fake,
    gradients=("f",),
    backward=_modulate_backward,
    shapes_only=("f",),
)
_adjoint_op = Op(
    "feature_values_backward",
    _Adjoint,
    _apply_adjoint,
    _adjoint_fake,
    gradients=("values",),
    backward=_adjoint_backward,
    shapes_only=("values",),
)


def feature_values(f: Tensor, head_ptr: Tensor | None, entry_ptr: Tensor, lengths: Tensor, loads: Tensor) -> Tensor:
    """Return the values of graph random features, differentiable in the modulation as often as needed.

    Args:
        f: Modulation, [H, L + 1], in the dtype of ``loads``.
        head_ptr: Where the entries of every head begin, [H + 1]; None if all heads share the same walks.
        entry_ptr: Where the entries of every (node, visited node) begin, [P + 1].
        lengths: Walk length of every entry, [T].
        loads: Load of every entry, [T].

    Returns:
        The values of one head after the other, [P]; or [H, P] for walks that heads share.
    """
    return _modulate_op(_Modulation(f, Walks(head_ptr, entry_ptr, lengths, loads)))
