"""Walks in a checkpoint: the settings to sample them again, and optionally the walks, as bytes in a tensor."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from topomask.graph import Graph, Normalization
from topomask.walks.features import CERTIFICATE_NAMES, STATE_NAMES, WalkFeatures
from topomask.walks.recipe import FeatureRecipe, WalkRecipe, Walks

# Settings in which a checkpoint and a mask must agree; the mask adopts the others from the checkpoint.
_FIXED = ("symmetric", "weighting", "num_heads", "shared_heads", "max_length")
# Allowed dtypes of stored tensors.
_DTYPES = {name: np.dtype(name) for name in ("uint8", "int16", "int32", "int64", "float32", "float64")}
# Limit on the loads of a checkpoint that has more walks than the mask.
_MAX_ENTRIES = 1 << 22
# Entries of the header besides the fields of the recipe.
_EXTRA = ("graph", "sampler_version", "walks", "tensors")
_DAMAGED = "The walks in the checkpoint are damaged ({}). Load an intact checkpoint."


def write(recipe: FeatureRecipe, graph: Graph | None, walks: Walks | None, save_walks: bool) -> Tensor:
    """Return the state of a mask as bytes: how to sample and verify its walks, and with ``save_walks`` the walks."""
    sides = () if walks is None else walks if isinstance(walks, tuple) else (walks,)
    tensors = [tensor.cpu().contiguous() for side in sides for tensor in side.state().values()] if save_walks else []
    header = asdict(recipe) | {
        "sampler_version": recipe.version,
        "graph": None if graph is None else graph.fingerprint,
        "walks": [side.fingerprint for side in sides],
        "tensors": [[str(tensor.dtype).removeprefix("torch."), len(tensor)] for tensor in tensors],
    }
    text = json.dumps(header, sort_keys=True).encode()
    parts = [len(text).to_bytes(8, "little"), text, *(tensor.numpy().tobytes() for tensor in tensors)]
    return torch.frombuffer(bytearray(b"".join(parts)), dtype=torch.uint8).clone()


def read(state: Any, recipe: FeatureRecipe, graph: Graph | None) -> tuple[FeatureRecipe, Walks | None, list[str]]:
    """Return the recipe, the stored walks if any, and their fingerprints; raise a ValueError if they do not fit."""
    kind, header, data = _split(state)
    fits = {name: isinstance(header[name], bool) for name in ("symmetric", "shared_walks", "shared_heads")}
    fits["normalization"] = header["normalization"] in (None, *get_args(Normalization))
    fits["walks"] = isinstance(header["walks"], list)
    for name, value_fits in fits.items():
        if not value_fits:
            raise ValueError(_DAMAGED.format(f"{name} is {header[name]!r}"))
    wanted_graph, version, fingerprints, layout = (header.pop(name) for name in _EXTRA)
    found = kind(**header)
    if not isinstance(recipe, kind):
        raise ValueError(f"The features of the checkpoint are of another kind. Build the mask with {found.made_by}.")
    for name in _FIXED:
        if getattr(found, name) != getattr(recipe, name):
            raise ValueError(f"The checkpoint has {name}={getattr(found, name)!r}. Build the mask with the same value.")
    if wanted_graph is not None and graph is not None and wanted_graph != graph.fingerprint:
        raise ValueError(
            "The checkpoint was saved on another graph. Build the mask on that graph, load the checkpoint, and call "
            "mask.on(new_graph). To keep the walks of this mask instead, delete its '_extra_state' from the state dict "
            "and load with strict=False."
        )
    if layout:
        return found, _read_walks(layout, data, found), fingerprints
    if found.size > recipe.size and graph is not None:
        count = found.num_heads * graph.num_nodes * min(found.size * found.max_length + 1, graph.num_nodes)
        if count > _MAX_ENTRIES:
            raise ValueError(
                f"The checkpoint has {found.size_name}={found.size:,}, which may leave {count:,} loads on "
                f"{graph.num_nodes:,} nodes, more than {_MAX_ENTRIES:,}. If you trust it, build the mask with the same "
                f"{found.size_name}."
            )
    if version != found.version and fingerprints:
        raise ValueError(
            f"The walks were sampled by version {version} of the sampler, but this is version {found.version}. Save "
            "the checkpoint with save_walks=True, using the version that made it."
        )
    return found, None, fingerprints


def _split(state: Any) -> tuple[type[FeatureRecipe], dict[str, Any], bytes]:
    """Split the state into the kind of its recipe, its header and the bytes of the walks."""
    if not isinstance(state, Tensor) or state.dtype != torch.uint8 or state.ndim != 1 or len(state) < 8:
        raise ValueError(_DAMAGED.format("not a tensor of bytes"))
    data = state.cpu().numpy().tobytes()
    end = 8 + int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8:end])
    except (ValueError, RecursionError) as error:
        raise ValueError(_DAMAGED.format(error)) from None
    kind: type[FeatureRecipe] = WalkRecipe
    if isinstance(header, dict) and "prune" in header:
        from topomask.walks.frontier_recipe import FrontierRecipe

        kind = FrontierRecipe
    if not isinstance(header, dict) or set(header) != {*_EXTRA, *(field.name for field in fields(kind))}:
        raise ValueError(_DAMAGED.format("the header is not complete"))
    return kind, header, data[end:]


def _read_walks(layout: Any, data: bytes, recipe: FeatureRecipe) -> Walks:
    count = 2 if recipe.has_key_walks else 1
    try:
        kinds = [_DTYPES[kind] for kind, _ in layout]
        ends = np.cumsum([0, *(int(length) * kind.itemsize for (_, length), kind in zip(layout, kinds, strict=True))])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(_DAMAGED.format(error)) from None
    # Walks that are certified have more tensors.
    names = STATE_NAMES if len(layout) == count * len(STATE_NAMES) else (*STATE_NAMES, *CERTIFICATE_NAMES)
    if len(layout) != count * len(names) or ends[-1] != len(data) or (np.diff(ends) < 0).any():
        raise ValueError(_DAMAGED.format(f"{len(data)} bytes of walks where the header lists {ends[-1]}"))
    tensors = (
        torch.from_numpy(np.frombuffer(data[start:end], kind).copy())
        for start, end, kind in zip(ends[:-1], ends[1:], kinds, strict=True)
    )
    # Each side takes the next tensors.
    sides = [WalkFeatures.from_state(dict(zip(names, tensors, strict=False))) for _ in range(count)]
    return (sides[0], sides[1]) if count == 2 else sides[0]
