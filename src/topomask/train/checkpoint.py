"""Checkpoints: one safetensors file each, its header holding the rest as JSON. Loading one runs no code."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from topomask.support.files import parse_json, write_atomically
from topomask.support.imports import need

_FORMAT = 1
# Names listed in an error before it says how many more there are.
_MOST_NAMES = 5


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be read, or that does not fit."""


@dataclass(frozen=True)
class Checkpoint:
    """What a file holds.

    Args:
        path: The file.
        info: Step, random states, metrics, config and versions.
        weights: The state of the model, by name.
        moments: The state of the optimiser: ``"<parameter>.<name>"``.
    """

    path: Path
    info: dict[str, Any]
    weights: dict[str, Tensor]
    moments: dict[str, Tensor]


def save_checkpoint(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer | None = None, info: dict[str, Any] | None = None
) -> None:
    """Write a checkpoint; at any moment the path holds what it held before, or the whole of it.

    Args:
        path: The file.
        model: The model.
        optimizer: Its optimiser, where training is to go on.
        info: Anything that is JSON.

    Example:
        >>> import tempfile
        >>> model = nn.Linear(2, 1)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_checkpoint(Path(folder, "model.safetensors"), model, info={"step": 3})
        ...     read_checkpoint(Path(folder, "model.safetensors")).info["step"]
        3
    """
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    if optimizer is not None:
        for name, parameter in _optimized(model, optimizer):
            tensors |= {f"optimizer.{name}.{key}": value for key, value in optimizer.state.get(parameter, {}).items()}
    for name, value in tensors.items():
        if not isinstance(value, Tensor):
            raise CheckpointError(f"`{name}` is a {type(value).__name__}, and only tensors can be saved.")
    tensors = _separate(tensors)
    text = json.dumps({"format": _FORMAT} | (info or {}), allow_nan=False)
    metadata = {"topomask": text, "digest": _digest(tensors, text)}
    write_atomically(path, lambda temporary: _save(tensors, temporary, metadata))


def read_checkpoint(path: Path) -> Checkpoint:
    """The content of a checkpoint; a :class:`CheckpointError` where it is not whole."""
    if not path.is_file():
        raise FileNotFoundError(f"There is no checkpoint {path}.")
    safetensors = need("safetensors", "A checkpoint")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if "topomask" not in metadata:
            raise CheckpointError(f"{path} was not written by topomask: its header says nothing on the run.")
        info = parse_json(metadata["topomask"])
        if _digest(tensors, metadata["topomask"]) != metadata.get("digest"):
            raise CheckpointError(f"{path} is damaged: its content does not have the checksum of its header.")
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged or cut short ({error}).") from None
    if not isinstance(info, dict) or "format" not in info:
        raise CheckpointError(f"{path} is damaged: its header does not say what format it has.")
    if info["format"] != _FORMAT:
        raise CheckpointError(
            f"{path} has format {info['format']}, and this version of topomask reads format {_FORMAT}. "
            f"It was written by {info.get('versions')}."
        )
    return Checkpoint(path, info, _under("model.", tensors), _under("optimizer.", tensors))


def restore_checkpoint(checkpoint: Checkpoint, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Put a model and its optimiser where the checkpoint left them."""
    _load(model, checkpoint.weights, checkpoint.path)
    optimized = _optimized(model, optimizer)
    states: dict[int, dict[str, Tensor]] = {}
    places = {name: place for place, (name, _) in enumerate(optimized)}
    for name, value in checkpoint.moments.items():
        parameter, _, key = name.rpartition(".")
        if parameter not in places:
            raise CheckpointError(
                f"{checkpoint.path} has optimiser state for `{parameter}`, which the optimiser does not train. "
                "Build the model and the optimiser as they were."
            )
        # A copy lies in memory as torch allocates it; where numbers lie may decide how products round.
        states.setdefault(places[parameter], {})[key] = value.clone()
    for place, state in states.items():
        _check_moments(state, *optimized[place], checkpoint.path)
    optimizer.load_state_dict({"state": states, "param_groups": optimizer.state_dict()["param_groups"]})


def _check_moments(state: dict[str, Tensor], name: str, parameter: nn.Parameter, path: Path) -> None:
    """A CheckpointError unless this is what Adam keeps of a parameter."""
    shapes = {"step": torch.Size(), "exp_avg": parameter.shape, "exp_avg_sq": parameter.shape}
    found = {key: value.shape if value.is_floating_point() else value.dtype for key, value in state.items()}
    if found != shapes:
        described = ", ".join(f"{key} {kind}" for key, kind in found.items())
        raise CheckpointError(
            f"{path} is damaged: the optimiser state of `{name}` must be step, exp_avg and exp_avg_sq for shape "
            f"{tuple(parameter.shape)}, but is {described}."
        )


def load_weights(model: nn.Module, path: Path | str, except_prefix: str | Sequence[str] = ()) -> None:
    """Take the weights of a checkpoint, apart from those of a new head.

    Args:
        model: The model; what is excepted stays as it is.
        path: The checkpoint.
        except_prefix: Beginnings of names that are not taken, ``"head."`` for one.
    """
    path = Path(path)
    prefixes = (except_prefix,) if isinstance(except_prefix, str) else tuple(except_prefix)
    own = model.state_dict()
    for prefix in prefixes:
        if not any(name.startswith(prefix) for name in own):
            raise ValueError(f"`except_prefix` is {prefix!r}, but the model has no such weights: {some(own)}.")
    weights = read_checkpoint(path).weights
    _load(model, {name: value for name, value in weights.items() if not name.startswith(prefixes)}, path, prefixes)


def _save(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str]) -> None:
    safetensors = need("safetensors", "A checkpoint")
    try:
        need("safetensors.torch", "A checkpoint").save_file(tensors, path, metadata)
    except safetensors.SafetensorError as error:
        # It tells what the system said in words only.
        found = re.search(r"os error (\d+)", str(error))
        if found is None:
            raise OSError(errno.EIO, str(error), str(path)) from None
        raise OSError(int(found[1]), os.strerror(int(found[1])), str(path)) from None


def _optimized(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[tuple[str, nn.Parameter]]:
    """The parameters of the optimiser with their names, in its order."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return [(names[id(parameter)], parameter) for group in optimizer.param_groups for parameter in group["params"]]


def _load(model: nn.Module, weights: dict[str, Tensor], path: Path, prefixes: tuple[str, ...] = ()) -> None:
    """Load all, or say in one message what does not fit and change nothing."""
    own = [name for name in model.state_dict() if not name.startswith(prefixes)] if prefixes else [*model.state_dict()]
    kinds = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))
    optional = _optional_names(model)
    missing = [name for name in own if name not in weights and name not in optional]
    unexpected = [name for name in weights if name not in own]
    shapes = [
        f"{name} is {list(value.shape)} in the checkpoint and {list(kinds[name].shape)} in the model"
        for name, value in weights.items()
        if name in kinds and name in own and value.shape != kinds[name].shape
    ]
    problems = [f"not in the checkpoint: {some(missing)}"] * bool(missing)
    problems += [f"not in the model: {some(unexpected)}"] * bool(unexpected)
    problems += [f"shapes differ: {some(shapes)}"] * bool(shapes)
    if problems:
        raise CheckpointError(
            f"{path} does not fit the model: {'; '.join(problems)}. Build the model as it was, or leave out a part "
            "with load_weights(..., except_prefix=...)."
        )
    try:
        # What is excepted is missing by intention; all else was checked.
        model.load_state_dict(weights, strict=False)
    except (RuntimeError, ValueError) as error:
        raise CheckpointError(f"{path} does not fit the model: {error}") from None


def _optional_names(model: nn.Module) -> set[str]:
    """What parts of the model say that older checkpoints do not have."""
    parts = model.named_modules()
    return {f"{prefix}.{name}".removeprefix(".") for prefix, x in parts for name in getattr(x, "optional_state", ())}


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def some(names: Iterable[str]) -> str:
    """The first few names, and how many more there are."""
    names = list(names)
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more


def _separate(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """On the CPU, contiguous, and none sharing memory with another, as the format asks."""
    seen: set[int] = set()
    out = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        place = tensor.untyped_storage().data_ptr()
        out[name] = tensor.clone() if place in seen else tensor
        seen.add(place)
    return out


def _digest(tensors: dict[str, Tensor], text: str) -> str:
    digest = hashlib.blake2b(text.encode(), digest_size=16)
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
