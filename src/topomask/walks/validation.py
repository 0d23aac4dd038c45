"""Checks of tensors that users pass to WalkFeatures(...)."""

from __future__ import annotations

from typing import get_args

import torch
from torch import Tensor

from topomask.graph import Normalization
from topomask.graph.input import check_integer, check_node_count
from topomask.ops import segments
from topomask.ops.sample_walks import length_dtype
from topomask.support.checks import check_choice
from topomask.walks.features import WalkTensors, Weighting, narrow
from topomask.walks.sample import check_sizes


def checked_tensors(
    tensors: WalkTensors, num_heads: int, num_columns: int, max_length: int, normalization: str, weighting: str
) -> WalkTensors:
    """Return the tensors of walks, copied and converted, or raise a ValueError."""
    given = tensors._asdict()
    for name, tensor in given.items():
        if not isinstance(tensor, Tensor) or tensor.layout != torch.strided:
            raise ValueError(f"`{name}` must be a dense tensor, but is {type(tensor).__name__}. Use torch.as_tensor.")
    devices = sorted({str(tensor.device) for tensor in given.values()})
    if len(devices) > 1:
        raise ValueError(f"All tensors must be on one device, but are on {', '.join(devices)}. Move them to one.")
    check_sizes(1, max_length, num_heads)
    check_integer("num_columns", num_columns, 0)
    check_node_count("num_columns", int(num_columns))
    check_choice("normalization", normalization, get_args(Normalization))
    check_choice("weighting", weighting, get_args(Weighting))
    # Private copies, which may be used in training.
    with torch.inference_mode(False):
        found = {name: tensor.detach().clone(memory_format=torch.contiguous_format) for name, tensor in given.items()}
        for name, tensor in found.items():
            is_integer = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
            if name != "loads" and is_integer:
                found[name] = tensor.to(torch.int64)
        # Meta tensors have no values to check.
        if not tensors.loads.is_meta:
            _check_values(WalkTensors(**found), num_heads, num_columns, max_length)
            found["columns"] = found["columns"].to(segments.index_type(num_columns))
            found["entry_ptr"] = narrow(found["entry_ptr"])
            found["lengths"] = found["lengths"].to(length_dtype(max_length))
            found["loads"] = found["loads"].to(torch.promote_types(found["loads"].dtype, torch.float32))
    return WalkTensors(**found)


def _check_values(tensors: WalkTensors, num_heads: int, num_columns: int, max_length: int) -> None:
    row_ptr, columns, entry_ptr, lengths, loads = tensors
    segments.check_indices("columns", columns, num_columns)
    segments.check_pointers("row_ptr", row_ptr, len(columns))
    if (len(row_ptr) - 1) % num_heads:
        raise ValueError(
            f"`row_ptr` must have shape [num_heads={num_heads} * rows + 1], but has shape {tuple(row_ptr.shape)}."
        )
    segments.check_indices("lengths", lengths, max_length + 1)
    segments.check_pointers("entry_ptr", entry_ptr, len(lengths), len(columns))
    if loads.shape != (len(lengths),) or not loads.is_floating_point():
        raise ValueError(
            f"`loads` must be {len(lengths)} floating-point numbers, one per entry of `lengths`, but has shape "
            f"{tuple(loads.shape)} and dtype {loads.dtype}."
        )
    wrong = (~loads.isfinite()).nonzero()
    if len(wrong):
        raise ValueError(f"`loads` must be finite, but loads[{int(wrong[0])}] is {float(loads[wrong[0]])}.")
    empty = (entry_ptr.diff() == 0).nonzero()
    if len(empty):
        raise ValueError(f"`entry_ptr` must ascend, but columns[{int(empty[0])}] has no entry. Drop such columns.")
    k = segments.first_repeat(columns, row_ptr)
    if k is not None:
        row = int(torch.searchsorted(row_ptr, k, right=True)) - 1
        raise ValueError(
            f"`columns` must be unique and ascending in every row, but row {row} has {int(columns[k - 1])} before "
            f"{int(columns[k])}. Sort the columns of a row, and add up the loads of repeated ones."
        )
    k = segments.first_repeat(lengths, entry_ptr)
    if k is not None:
        raise ValueError(
            f"`lengths` must be unique and ascending in every (row, column), but lengths[{k}] is {int(lengths[k])} "
            f"after {int(lengths[k - 1])}. Sort them, and add up the loads of repeated ones."
        )
