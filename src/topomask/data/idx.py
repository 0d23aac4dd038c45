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

# Unsigned bytes; the other types of the format do not occur in the data sets that we read.
_UBYTE = 0x08
_MAX_BYTES = 1 << 32


def read_idx(path: Path, num_dims: int) -> Tensor:
    """Read an IDX file of unsigned bytes, plain or compressed by gzip.

    Args:
        path: The file.
        num_dims: The number of dimensions that it must have: 1 for labels, 3 for pictures.

    Returns:
        uint8 tensor.
    """
    with path.open("rb") as file:
        is_compressed = file.read(2) == b"\x1f\x8b"
    try:
        with gzip.open(path, "rb") if is_compressed else path.open("rb") as data:
            return _parse(cast(BinaryIO, data), path, num_dims)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is damaged or cut short: {error}. {_REPAIR}") from error


_REPAIR = "Delete it and get it again (download=True, or data.download=true on the command line)."


def _parse(data: BinaryIO, path: Path, num_dims: int) -> Tensor:
    expected = bytes((0, 0, _UBYTE, num_dims))
    magic = data.read(4)
    if magic != expected:
        raise ValueError(
            f"{path} must be an IDX file of unsigned bytes in {num_dims} dimensions, so start with {expected.hex()}, "
            f"but starts with {magic.hex()}. {_REPAIR}"
        )
    header = data.read(4 * num_dims)
    if len(header) < 4 * num_dims:
        raise ValueError(f"{path} is cut short: its header breaks off. {_REPAIR}")
    shape = struct.unpack(f">{num_dims}I", header)
    size = math.prod(shape)
    if size > _MAX_BYTES:
        raise ValueError(f"{path} says that it holds {shape} bytes, more than {_MAX_BYTES}. {_REPAIR}")
    # One byte more than there should be, to notice what should not be there.
    content = data.read(size + 1)
    if len(content) != size:
        came = "more" if len(content) > size else f"{len(content)}"
        raise ValueError(f"{path} must hold {size} bytes after its header {shape}, but holds {came}. {_REPAIR}")
    return torch.from_numpy(np.frombuffer(bytearray(content), dtype=np.uint8).reshape(shape))
