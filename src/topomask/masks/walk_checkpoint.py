"""How walks stand in a checkpoint: as what is needed to sample them again, or themselves."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import Any

import torch
from torch import Tensor

from topomask.graph import Graph
from topomask.masks.bound_walks import BoundWalks, Features, WalkRecipe
from topomask.walks import SAMPLER_VERSION, WalkFeatures

# What a checkpoint and a mask must agree in, whatever else the checkpoint sets.
_FIXED = ("symmetric", "weighting", "num_heads", "max_length")


def describe(recipe: WalkRecipe, graph: Graph, walks: BoundWalks) -> dict[str, Any]:
    """All that is needed to sample the same walks again, and to verify them."""
    return asdict(recipe) | {
        "sampler_version": SAMPLER_VERSION,
        "graph": graph.fingerprint,
        "walks": [walks.query.fingerprint, "" if walks.key is None else walks.key.fingerprint],
    }


def write(description: dict[str, Any], walks: BoundWalks | None) -> dict[str, Tensor]:
    """The entries of a state dict: the description as text, and the walks themselves where they are given."""
    text = json.dumps(description, sort_keys=True).encode()
    stored = {"walks": torch.tensor(list(text), dtype=torch.uint8)}
    if walks is not None:
        sides = {"query": walks.query}
        if walks.key is not None and walks.key is not walks.query:
            sides["key"] = walks.key
        for side, features in sides.items():
            stored |= {f"walks.{side}.{name}": tensor for name, tensor in features.state().items()}
    return stored


def read(stored: dict[str, Tensor], recipe: WalkRecipe, graph: Graph) -> tuple[WalkRecipe, Features | None, list[str]]:
    """The recipe, the walks if they are stored, and their fingerprints; a ValueError unless they fit."""
    described = _parse(bytes(stored["walks"].to("cpu", torch.uint8).flatten().tolist()))
    wanted_graph, fingerprints = described.pop("graph"), described.pop("walks")
    version = described.pop("sampler_version")
    settings = WalkRecipe(**described)
    for name in _FIXED:
        if getattr(settings, name) != getattr(recipe, name):
            raise ValueError(f"The checkpoint has {name}={getattr(settings, name)!r}. Build the mask with the same.")
    if wanted_graph != graph.fingerprint:
        raise ValueError(
            "The checkpoint was made on another graph. Build the mask on the same graph, load, and then call "
            "mask.on(new_graph); or delete the key 'walks' from the state dict and load with strict=False to keep "
            "this mask's own walks."
        )
    if len(stored) > 1:
        return settings, _walks(stored, settings), fingerprints
    if version != SAMPLER_VERSION:
        raise ValueError(
            f"The walks were sampled by version {version} of the sampler, and this is version {SAMPLER_VERSION}. "
            "Save the checkpoint with save_walks=True where it was made."
        )
    return settings, None, fingerprints


def _parse(text: bytes) -> dict[str, Any]:
    try:
        described = json.loads(text)
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"The description of the walks cannot be read ({error}). Load an intact checkpoint.") from None
    names = {field.name for field in fields(WalkRecipe)} | {"graph", "walks", "sampler_version"}
    # Checkpoints from before there was a choice do not name it.
    described = {"weighting": "importance"} | described if isinstance(described, dict) else {}
    if set(described) != names:
        raise ValueError("The description of the walks is not complete. Load an intact checkpoint.")
    return described


def _walks(stored: dict[str, Tensor], settings: WalkRecipe) -> Features:
    sides = []
    for side in ("query", "key") if settings.symmetric and not settings.shared_walks else ("query",):
        prefix = f"walks.{side}."
        tensors = {name[len(prefix) :]: tensor for name, tensor in stored.items() if name.startswith(prefix)}
        sides.append(WalkFeatures.from_state(tensors))
    return (sides[0], sides[1]) if len(sides) == 2 else sides[0]
