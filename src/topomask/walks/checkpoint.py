"""How walks stand in a checkpoint: as what is needed to sample them again, or themselves; as bytes in a tensor."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from topomask.graph import Graph, Normalization
from topomask.walks.features import WalkFeatures
from topomask.walks.recipe import WalkRecipe, Walks
from topomask.walks.sample import SAMPLER_VERSION

# What a checkpoint and a mask must agree in, whatever else the checkpoint sets.
_FIXED = ("symmetric", "weighting", "num_heads", "shared_heads", "max_length")
# What the tensors of walks may be stored as.
_DTYPES = {name: np.dtype(name) for name in ("uint8", "int16", "int32", "int64", "float32", "float64")}
# Loads that a checkpoint may ask for where the mask was built with fewer walks.
_MAX_ENTRIES = 1 << 22
_DAMAGED = "The walks in the checkpoint are damaged ({}). Load an intact checkpoint."


def write(recipe: WalkRecipe, graph: Graph | None, walks: Walks | None, save_walks: bool) -> Tensor:
    """The state of a mask that walks, as a tensor of bytes.

    Args:
        recipe: How its walks are drawn.
        graph: Its own graph, if it has one.
        walks: Its walks on it.
        save_walks: Whether to store them, or only how to sample them again and to verify that they are the same.
    """
    sides = () if walks is None else walks if isinstance(walks, tuple) else (walks,)
    tensors = [tensor.cpu().contiguous() for side in sides for tensor in side.state().values()] if save_walks else []
    header = asdict(recipe) | {
        "sampler_version": SAMPLER_VERSION,
        "graph": None if graph is None else graph.fingerprint,
        "walks": [side.fingerprint for side in sides],
        "tensors": [[str(tensor.dtype).removeprefix("torch."), len(tensor)] for tensor in tensors],
    }
    text = json.dumps(header, sort_keys=True).encode()
    parts = [len(text).to_bytes(8, "little"), text, *(tensor.numpy().tobytes() for tensor in tensors)]
    return torch.frombuffer(bytearray(b"".join(parts)), dtype=torch.uint8).clone()


def read(state: Any, recipe: WalkRecipe, graph: Graph | None) -> tuple[WalkRecipe, Walks | None, list[str]]:
    """The recipe, the walks if they are stored, and their fingerprints; a ValueError unless they fit the mask."""
    header, data = _split(state)
    described, wanted_graph = dict(header), header["graph"]
    version, fingerprints, layout = (described.pop(name) for name in ("sampler_version", "walks", "tensors"))
    described.pop("graph")
    for name in ("symmetric", "shared_walks", "shared_heads"):
        if not isinstance(described[name], bool):
            raise ValueError(_DAMAGED.format(f"{name} is {described[name]!r}"))
    if described["normalization"] not in (None, *get_args(Normalization)):
        raise ValueError(_DAMAGED.format(f"normalization is {described['normalization']!r}"))
    if not isinstance(fingerprints, list):
        raise ValueError(_DAMAGED.format(f"walks is {fingerprints!r}"))
    found = WalkRecipe(**described)
    for name in _FIXED:
        if getattr(found, name) != getattr(recipe, name):
            raise ValueError(f"The checkpoint has {name}={getattr(found, name)!r}. Build the mask with the same.")
    if wanted_graph is not None and graph is not None and wanted_graph != graph.fingerprint:
        raise ValueError(
            "The checkpoint was made on another graph. Build the mask on the same graph, load, and then call "
            "mask.on(new_graph); or delete the mask's '_extra_state' from the state dict and load with strict=False to "
            "keep this mask's own walks."
        )
    if layout:
        return found, _read_walks(layout, data, found), fingerprints
    if found.num_walks > recipe.num_walks and graph is not None:
        _check_entries(found, graph.num_nodes)
    if version != SAMPLER_VERSION and fingerprints:
        raise ValueError(
            f"The walks were sampled by version {version} of the sampler, and this is version {SAMPLER_VERSION}. "
            "Save the checkpoint with save_walks=True where it was made."
        )
    return found, None, fingerprints


def _check_entries(recipe: WalkRecipe, num_nodes: int) -> None:
    """A ValueError where a checkpoint asks for more walks than the mask has, and than are expected of it."""
    count = recipe.num_heads * num_nodes * min(recipe.num_walks * recipe.max_length + 1, num_nodes)
    if count > _MAX_ENTRIES:
        raise ValueError(
            f"The checkpoint has num_walks={recipe.num_walks:,}, which may leave {count:,} loads on {num_nodes:,} "
            f"nodes, more than {_MAX_ENTRIES:,}. If you trust it, build the mask with the same num_walks."
        )


def _split(state: Any) -> tuple[dict[str, Any], bytes]:
    """The description of the walks, and the bytes behind it."""
    if not isinstance(state, Tensor) or state.dtype != torch.uint8 or state.ndim != 1 or len(state) < 8:
        raise ValueError(_DAMAGED.format("not a tensor of bytes"))
    data = state.cpu().numpy().tobytes()
    end = 8 + int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8:end])
    except (ValueError, RecursionError) as error:
        raise ValueError(_DAMAGED.format(error)) from None
    names = {field.name for field in fields(WalkRecipe)} | {"graph", "walks", "sampler_version", "tensors"}
    if not isinstance(header, dict) or set(header) != names:
        raise ValueError(_DAMAGED.format("their description is not complete"))
    return header, data[end:]


def _read_walks(layout: Any, data: bytes, recipe: WalkRecipe) -> Walks:
    names = [*WalkFeatures.state_names()]
    count = 2 if recipe.has_key_walks else 1
    try:
        kinds = [_DTYPES[kind] for kind, _ in layout]
        ends = np.cumsum([0, *(int(length) * kind.itemsize for (_, length), kind in zip(layout, kinds, strict=True))])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(_DAMAGED.format(error)) from None
    if len(layout) != count * len(names) or ends[-1] != len(data) or (np.diff(ends) < 0).any():
        raise ValueError(_DAMAGED.format(f"{len(data)} bytes of walks where {ends[-1]} are described"))
    tensors = [
        torch.from_numpy(np.frombuffer(data[start:end], kind).copy())
        for start, end, kind in zip(ends[:-1], ends[1:], kinds, strict=True)
    ]
    sides = [
        WalkFeatures.from_state(dict(zip(names, tensors[at : at + len(names)], strict=True)))
        for at in range(0, len(tensors), len(names))
    ]
    return (sides[0], sides[1]) if count == 2 else sides[0]
