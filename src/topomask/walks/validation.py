"""Checks of the tensors that somebody hands to WalkFeatures(...); sampled walks need none."""

from __future__ import annotations

from typing import get_args

import torch
from torch import Tensor

from topomask.graph import Normalization
from topomask.graph.input import check_integer, check_node_count
from topomask.ops import segments
from topomask.ops.sample_walks import length_dtype
from topomask.walks.features import WalkTensors, Weighting, narrow
from topomask.walks.sample import check_sizes


def checked_tensors(
    tensors: WalkTensors, num_heads: int, num_columns: int, max_length: int, normalization: str, weighting: str
) -> WalkTensors:
    """Copies of the tensors of walks in the types they have there; a ValueError names what is wrong."""
    given = tensors._asdict()
    for name, tensor in given.items():
        if not isinstance(tensor, Tensor) or tensor.layout != torch.strided:
            raise ValueError(f"`{name}` must be a dense tensor, but is {type(tensor).__name__}. Use torch.as_tensor.")
    if len({tensor.device for tensor in given.values()}) > 1:
        raise ValueError(f"The tensors of walks must be on one device, but are on {_devices(given)}. Move them.")
    check_sizes(1, max_length, num_heads)
    check_integer("num_columns", num_columns, 0)
    check_node_count("num_columns", int(num_columns))
    for name, value, known in (("normalization", normalization, Normalization), ("weighting", weighting, Weighting)):
        if value not in get_args(known):
            raise ValueError(f"`{name}` must be one of {get_args(known)}, but is {value!r}.")
    # Copies that nobody else writes to.
    with torch.inference_mode(False):
        found = {name: tensor.detach().clone(memory_format=torch.contiguous_format) for name, tensor in given.items()}
        for name, tensor in found.items():
            if name != "loads" and not (
                tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool
            ):
                found[name] = tensor.to(torch.int64)
    if tensors.loads.is_meta:
        # There are no values to check.
        return WalkTensors(**found)
    row_ptr, columns, _, lengths, loads = tensors
    segments.check_indices("columns", found["columns"], num_columns)
    segments.check_pointers("row_ptr", found["row_ptr"], len(columns))
    if (len(row_ptr) - 1) % num_heads:
        raise ValueError(
            f"`row_ptr` must have shape [num_heads * rows + 1], but has shape {tuple(row_ptr.shape)} for "
            f"num_heads={num_heads}."
        )
    segments.check_indices("lengths", found["lengths"], max_length + 1)
    segments.check_pointers("entry_ptr", found["entry_ptr"], len(lengths), len(columns))
    _check_loads(found["loads"], len(lengths))
    _check_order(found)
    with torch.inference_mode(False):
        return WalkTensors(
            row_ptr=found["row_ptr"].to(torch.int64),
            columns=found["columns"].to(segments.index_type(num_columns)),
            entry_ptr=narrow(found["entry_ptr"]),
            lengths=found["lengths"].to(length_dtype(max_length)),
            loads=found["loads"].to(torch.promote_types(loads.dtype, torch.float32)),
        )


def _devices(tensors: dict[str, Tensor]) -> str:
    return ", ".join(sorted({str(tensor.device) for tensor in tensors.values()}))


def _check_loads(loads: Tensor, count: int) -> None:
    if loads.shape != (count,) or not loads.is_floating_point():
        raise ValueError(
            f"`loads` must be {count} floating-point numbers, one per entry of `lengths`, but has shape "
            f"{tuple(loads.shape)} and dtype {loads.dtype}."
        )
    wrong = (~loads.isfinite()).nonzero()
    if len(wrong):
        raise ValueError(f"`loads` must be finite, but loads[{int(wrong[0])}] is {float(loads[wrong[0]])}.")


def _check_order(found: dict[str, Tensor]) -> None:
    """Columns ascend in every row, and lengths in every column; there is something in every column."""
    empty = (found["entry_ptr"].diff() == 0).nonzero()
    if len(empty):
        raise ValueError(
            f"`entry_ptr` must ascend, but columns[{int(empty[0])}] has no entry. Leave out columns without loads."
        )
    place = segments.first_repeat(found["columns"], found["row_ptr"])
    if place is not None:
        before, here = (int(found["columns"][k]) for k in (place - 1, place))
        row = int(torch.searchsorted(found["row_ptr"].long(), place, right=True)) - 1
        raise ValueError(
            f"`columns` must ascend in every row, each once, but row {row} has {before} before {here}. Sort the "
            "columns of a row, and add up the loads of those that are repeated."
        )
    place = segments.first_repeat(found["lengths"], found["entry_ptr"])
    if place is not None:
        before, here = (int(found["lengths"][k]) for k in (place - 1, place))
        raise ValueError(
            f"`lengths` must ascend in every (row, column), each once, but lengths[{place}] is {here} after {before}. "
            "Sort them, and add up the loads of those that are repeated."
        )
