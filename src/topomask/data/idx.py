"""The IDX format of MNIST: a header of big-endian integers, then bytes."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
import torch
from torch import Tensor

from topomask.data.limits import how_to_raise, read_up_to, unpacked_limit

# Unsigned bytes, the only type of the format in our data sets.
_UBYTE = 0x08
_REPAIR = "Delete it and get it again (download=True, or --data.download True on the command line)."


def read_idx(path: Path, num_dims: int, max_bytes: int | None = None) -> Tensor:
    """Read an IDX file of unsigned bytes, plain or compressed by gzip, as a uint8 tensor.

    Args:
        path: The file.
        num_dims: Expected number of dimensions: 1 for labels, 3 for images.
        max_bytes: Largest size, unpacked. Default: the environment variable ``TOPOMASK_MAX_BYTES``, else 50 times the
            size of the file, between 16 MiB and 512 MiB.
    """
    with path.open("rb") as file:
        is_compressed = file.read(2) == b"\x1f\x8b"
    try:
        with gzip.open(path, "rb") if is_compressed else path.open("rb") as data:
            return _parse(cast(BinaryIO, data), path, num_dims, unpacked_limit(path, max_bytes))
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is damaged or truncated: {error}. {_REPAIR}") from error


def _parse(data: BinaryIO, path: Path, num_dims: int, max_bytes: int) -> Tensor:
    expected = bytes((0, 0, _UBYTE, num_dims))
    magic = data.read(4)
    if magic != expected:
        raise ValueError(
            f"{path} must be an IDX file of unsigned bytes in {num_dims} dimensions, starting with {expected.hex()}, "
            f"but starts with {magic.hex()}. {_REPAIR}"
        )
    header = data.read(4 * num_dims)
    if len(header) < 4 * num_dims:
        raise ValueError(f"{path} is truncated: its header is incomplete. {_REPAIR}")
    shape = struct.unpack(f">{num_dims}I", header)
    size = math.prod(shape)
    if size > max_bytes:
        raise ValueError(
            f"The header of {path} says that it holds {shape} bytes, more than `max_bytes`={max_bytes:,}. "
            f"{how_to_raise('max_bytes')} {_REPAIR}"
        )
    content = read_up_to(data, size)
    if len(content) != size or data.read(1):
        came = "more" if len(content) == size else f"{len(content)}"
        raise ValueError(f"{path} must hold {size} bytes after its header {shape}, but holds {came}. {_REPAIR}")
    return torch.from_numpy(np.ndarray(shape, np.uint8, content))
