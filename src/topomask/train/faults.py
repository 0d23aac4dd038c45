"""Where numbers stop being finite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from topomask.train.epochs import tensors_in


class NonFiniteError(ArithmeticError):
    """A loss, a gradient or a weight that is not a finite number."""


def faulty_weights(model: nn.Module) -> str | None:
    """The first parameter whose values are not finite, in words; None where all are."""
    for name, parameter in model.named_parameters():
        if not _is_finite(parameter):
            return f"the first weights that are not finite are those of `{name}`"
    return None


def explain_fault(model: nn.Module, batch: Any, forward: Callable[[], object]) -> str:
    """Where the first numbers that are not finite come from, in words.

    Args:
        model: The model, with the gradients of the step that failed.
        batch: The batch of that step.
        forward: Computes the loss of that batch once more, to watch the layers.
    """
    return (
        faulty_weights(model)
        or _faulty_input(batch)
        or _faulty_layer(model, forward)
        or _faulty_gradient(model)
        or "weights, batch and outputs of all layers are finite here, so the loss itself is at fault"
    )


def _faulty_input(batch: Any) -> str | None:
    for place, tensor in enumerate(tensors_in(batch)):
        if not _is_finite(tensor):
            rows = tensor.reshape(len(tensor), -1) if tensor.ndim else tensor.reshape(1, 1)
            example = int((~rows.isfinite()).any(dim=1).nonzero()[0])
            return f"tensor {place} of the batch holds numbers that are not finite, first in its example {example}"
    return None


def _faulty_layer(model: nn.Module, forward: Callable[[], object]) -> str | None:
    """The first layer with an output that is not finite. Dropout draws anew, so that it may not show again."""
    found: list[str] = []

    def watch(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(_layer: nn.Module, _inputs: Any, output: Any) -> None:
            if not found and not all(_is_finite(tensor) for tensor in tensors_in(output)):
                found.append(name)

        return hook

    handles = [layer.register_forward_hook(watch(name)) for name, layer in model.named_modules()]
    try:
        with torch.no_grad():
            forward()
    finally:
        for handle in handles:
            handle.remove()
    return f"the first output that is not finite is that of the layer `{found[0] or 'model'}`" if found else None


def _faulty_gradient(model: nn.Module) -> str | None:
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and not _is_finite(parameter.grad):
            return f"the first gradient that is not finite is that of `{name}`"
    return None


def _is_finite(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex()) or bool(tensor.isfinite().all())
