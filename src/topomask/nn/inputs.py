"""Checks of the inputs of layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from topomask.graph import Graph
from topomask.graph.input import not_a_graph


def check_tokens(x: Any, layer: nn.Module, num_tokens: int | None = None, name: str = "x") -> None:
    """Raise a ValueError unless x is [..., N, C] in the width and precision of a linear layer or a norm.

    Args:
        x: The tokens.
        layer: The first layer that they pass; a layer of another kind checks its input itself.
        num_tokens: The number of tokens N, if it is fixed.
        name: Name of the argument.
    """
    if not isinstance(x, Tensor):
        raise ValueError(f"`{name}` must be a tensor, but is a {type(x).__name__}. Of PyG's data, pass data.x.")
    width = getattr(layer, "in_features", None) or getattr(layer, "normalized_shape", (None,))[-1]
    if width is None:
        return
    expected = {"dim": width} if num_tokens is None else {"num_tokens": num_tokens, "dim": width}
    if x.shape[-len(expected) :] != tuple(expected.values()):
        sizes = ", ".join(f"{part}={size}" for part, size in expected.items())
        fix = f"Pass tokens of width {width}, or build the layer for another width."
        if x.shape[-1:] == (width,):
            fix = "Pass one token per node of the mask's graph, or the graph of these tokens: layer(x, graph)."
        raise ValueError(f"`{name}` must have shape [..., {sizes}], but has shape {tuple(x.shape)}. {fix}")
    # Not layer.weight, which a parametrisation would compute.
    weight = layer._parameters.get("weight")
    if weight is None or x.dtype == weight.dtype or not weight.is_floating_point() or x.is_meta:
        return
    # Autocast converts between float32 and half precision, and so does a norm with weights in float32.
    converts = torch.is_autocast_enabled(x.device.type) or (weight.ndim == 1 and weight.dtype == torch.float32)
    is_near = x.is_floating_point() and torch.promote_types(x.dtype, weight.dtype) == torch.float32
    if not (converts and is_near):
        fix = f"Convert it with x.to({weight.dtype})"
        fix += f", or the layer with layer.to({x.dtype})." if x.is_floating_point() else "."
        raise ValueError(f"`{name}` must have the dtype of the layer, {weight.dtype}, but has {x.dtype}. {fix}")


def check_features(x: Any, graph: Any, in_features: int) -> None:
    """Raise a ValueError unless there is a graph, and one row of features for each of its nodes."""
    if not isinstance(graph, Graph):
        raise not_a_graph(graph)
    if x.shape != (graph.num_nodes, in_features):
        raise ValueError(
            f"`x` must have shape [num_nodes={graph.num_nodes}, in_features={in_features}], but has shape "
            f"{tuple(x.shape)}. Pass one row per node of `graph`, which may be a batch of graphs."
        )
    if isinstance(x, Tensor) and not x.is_floating_point():
        raise ValueError(f"`x` must have a floating dtype, but has {x.dtype}. Pass x.float(), or one-hot categories.")
