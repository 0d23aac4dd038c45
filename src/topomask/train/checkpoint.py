"""Checkpoints: one safetensors file each, with everything but tensors as JSON in its header. Loading runs no code."""

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
# Names that an error lists before "and n more".
_MAX_NAMES = 5


class CheckpointError(RuntimeError):
    """A checkpoint cannot be read, or does not fit the model or the run."""


@dataclass(frozen=True)
class Checkpoint:
    """The contents of a checkpoint file.

    Args:
        path: The file.
        info: Step, random states, metrics, config and versions.
        weights: State of the model, by name.
        moments: State of the optimiser, by ``"<parameter>.<name>"``.
    """

    path: Path
    info: dict[str, Any]
    weights: dict[str, Tensor]
    moments: dict[str, Tensor]


def save_checkpoint(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer | None = None, info: dict[str, Any] | None = None
) -> None:
    """Write a checkpoint atomically: a crash leaves either the old file or the complete new one.

    Args:
        path: The file.
        model: The model.
        optimizer: Its optimiser, needed to resume training.
        info: Any JSON-serialisable values.

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
            raise CheckpointError(f"`{name}` is a {type(value).__name__}, but only tensors can be saved.")
    tensors = _separate(tensors)
    text = json.dumps({"format": _FORMAT} | (info or {}), allow_nan=False)
    metadata = {"topomask": text, "digest": digest(tensors, text)}
    write_atomically(path, lambda temporary: _save(tensors, temporary, metadata))


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint; raise a :class:`CheckpointError` if it is incomplete or damaged."""
    if not path.is_file():
        raise FileNotFoundError(f"There is no checkpoint {path}.")
    safetensors = need("safetensors", "A checkpoint")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if "topomask" not in metadata:
            raise CheckpointError(f"{path} was not written by topomask: its header does not describe a run.")
        info = parse_json(metadata["topomask"])
        if digest(tensors, metadata["topomask"]) != metadata.get("digest"):
            raise CheckpointError(f"{path} is damaged: its content does not match the checksum in its header.")
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged or cut short ({error}).") from None
    if not isinstance(info, dict) or "format" not in info:
        raise CheckpointError(f"{path} is damaged: its header does not state its format.")
    if info["format"] != _FORMAT:
        raise CheckpointError(
            f"{path} has format {info['format']}, but this version of topomask reads format {_FORMAT}. "
            f"It was written by {info.get('versions')}."
        )
    return Checkpoint(path, info, _under("model.", tensors), _under("optimizer.", tensors))


def restore_checkpoint(checkpoint: Checkpoint, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Restore a model and its optimiser from a checkpoint."""
    _load(model, checkpoint.weights, checkpoint.path)
    moments: dict[str, dict[str, Tensor]] = {}
    for name, value in checkpoint.moments.items():
        owner, _, key = name.rpartition(".")
        # Copied so that torch aligns the memory as usual: alignment can change how products round.
        moments.setdefault(owner, {})[key] = value.clone()
    states = {}
    for place, (name, parameter) in enumerate(_optimized(model, optimizer)):
        if name in moments:
            states[place] = moments.pop(name)
            shapes = {"step": torch.Size(), "exp_avg": parameter.shape, "exp_avg_sq": parameter.shape}
            found = {key: x.shape if x.is_floating_point() else x.dtype for key, x in states[place].items()}
            if found != shapes:
                described = ", ".join(f"{key} {kind}" for key, kind in found.items())
                raise CheckpointError(
                    f"{checkpoint.path} is damaged: the optimiser state of `{name}` must be step, exp_avg and "
                    f"exp_avg_sq for shape {tuple(parameter.shape)}, but is {described}."
                )
    if moments:
        raise CheckpointError(
            f"{checkpoint.path} has optimiser state for `{next(iter(moments))}`, which this optimiser does not train. "
            "Build the same model and optimiser as in the saved run."
        )
    optimizer.load_state_dict({"state": states, "param_groups": optimizer.state_dict()["param_groups"]})


def load_weights(model: nn.Module, path: Path | str, except_prefix: str | Sequence[str] = ()) -> None:
    """Load the weights of a checkpoint, except for parts such as a new head.

    Args:
        model: The model; excepted weights stay as they are.
        path: The checkpoint.
        except_prefix: Skip names that start with this prefix, or one of these prefixes, such as ``"head."``.
    """
    path = Path(path)
    prefixes = (except_prefix,) if isinstance(except_prefix, str) else tuple(except_prefix)
    own = model.state_dict()
    for prefix in prefixes:
        if not any(name.startswith(prefix) for name in own):
            raise ValueError(f"`except_prefix` is {prefix!r}, but no weights of the model start with it: {some(own)}.")
    weights = read_checkpoint(path).weights
    _load(model, {name: value for name, value in weights.items() if not name.startswith(prefixes)}, path, prefixes)


def _save(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str]) -> None:
    safetensors = need("safetensors", "A checkpoint")
    try:
        need("safetensors.torch", "A checkpoint").save_file(tensors, path, metadata)
    except safetensors.SafetensorError as error:
        # The number of the system error is only in its text.
        found = re.search(r"os error (\d+)", str(error))
        number, text = (int(found[1]), os.strerror(int(found[1]))) if found else (errno.EIO, str(error))
        raise OSError(number, text, str(path)) from None


def _optimized(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[tuple[str, nn.Parameter]]:
    """The parameters of the optimiser with their names, in the optimiser's order."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return [(names[id(parameter)], parameter) for group in optimizer.param_groups for parameter in group["params"]]


def _load(model: nn.Module, weights: dict[str, Tensor], path: Path, prefixes: tuple[str, ...] = ()) -> None:
    """Load all weights, or raise one error that lists everything that does not fit and change nothing."""
    own = [name for name in model.state_dict() if not name.startswith(prefixes)]
    kinds = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))
    # Modules declare state that older checkpoints do not have.
    optional = {
        f"{prefix}.{name}".removeprefix(".")
        for prefix, module in model.named_modules()
        for name in getattr(module, "optional_state", ())
    }
    missing = [name for name in own if name not in weights and name not in optional]
    unexpected = [name for name in weights if name not in own]
    shapes = [
        f"{name} is {list(value.shape)} in the checkpoint and {list(kinds[name].shape)} in the model"
        for name, value in weights.items()
        if name in kinds and name in own and value.shape != kinds[name].shape
    ]
    problems = {"not in the checkpoint": missing, "not in the model": unexpected, "shapes differ": shapes}
    if any(problems.values()):
        found = "; ".join(f"{problem}: {some(names)}" for problem, names in problems.items() if names)
        raise CheckpointError(
            f"{path} does not fit the model: {found}. Build the model as it was, or skip a part with "
            "load_weights(..., except_prefix=...)."
        )
    try:
        # Not strict, since excepted weights are missing on purpose; everything else was checked above.
        model.load_state_dict(weights, strict=False)
    except (RuntimeError, ValueError) as error:
        raise CheckpointError(f"{path} does not fit the model: {error}") from None


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def some(names: Iterable[str]) -> str:
    """Join the first few names, and say how many more there are."""
    names = list(names)
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + more


def _separate(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copy to the CPU, contiguous and without shared memory, as the format requires."""
    seen: set[int] = set()
    out = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        place = tensor.untyped_storage().data_ptr()
        out[name] = tensor.clone() if place in seen else tensor
        seen.add(place)
    return out


def digest(tensors: dict[str, Tensor], text: str = "") -> str:
    """A hash of named CPU tensors and a text."""
    found = hashlib.blake2b(text.encode(), digest_size=16)
    for name in sorted(tensors):
        tensor = tensors[name]
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        found.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()
