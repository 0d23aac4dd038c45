"""Checks of the inputs of layers, and steps before and after every kind of attention: features, shapes, precision."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from topomask.attention import feature_maps
from topomask.graph import Graph
from topomask.graph.input import not_a_graph
from topomask.ops.registration import has_values, is_transformed
from topomask.ops.row_extremes import any_extreme

FeatureMap = str | Callable[[Tensor], Tensor]

# Used where autocast is off: entering torch.autocast(enabled=False) takes as long as a small product.
_NOTHING = nullcontext()

# Features between 1 / _NEAR_ONE and _NEAR_ONE can be multiplied and added up in float32 without rescaling.
_NEAR_ONE = 2.0**24
# Normalisers in this range are far from the limits of float32.
SAFE_LOW, SAFE_HIGH = 2.0**-40, 2.0**80
# Products of features below this may be too small for float32.
_SMALL = 2.0**-40


class Tokens(NamedTuple):
    """Checked inputs in at least float32, with one batch axis and as many key heads as query heads: [B, H, N, D]."""

    q: Tensor
    k: Tensor
    v: Tensor
    is_key: Tensor | None  # [B, 1, N_k, 1], False for padding

    def double(self) -> Tokens:
        """Return the same tokens in float64."""
        return self._replace(q=self.q.double(), k=self.k.double(), v=self.v.double())


def prepare(
    q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Tensor | None, at_least: torch.dtype = torch.float32
) -> Tokens:
    """Check inputs and convert them to the shape and precision in which attention is computed."""
    _check_shapes(q, k, v)
    dtype = torch.promote_types(q.dtype, at_least)
    groups = q.shape[-3] // k.shape[-3]
    batch = math.prod(q.shape[:-3])
    q, k, v = _in_order(q, dtype, batch), _in_order(k, dtype, batch), _in_order(v, dtype, batch)
    if groups > 1:
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    if key_padding_mask is None:
        return Tokens(q, k, v, None)
    padded = padding_rows(key_padding_mask, batch, k.shape[-2], k.device)[:, None, :, None]
    # The contents of padding, even NaN, must affect neither results nor gradients.
    return Tokens(q, k.masked_fill(padded, 0.0), v.masked_fill(padded, 0.0), ~padded)


def _in_order(x: Tensor, dtype: torch.dtype, batch: int) -> Tensor:
    """[B, H, N, D] in contiguous memory: heads usually come as a view of tokens, and are copied once."""
    if x.ndim == 4 and x.dtype == dtype and x.is_contiguous():
        return x
    return x.to(dtype).reshape(batch, *x.shape[-3:]).contiguous()


def without_autocast(x: Tensor) -> Any:
    """Return a context without autocast: sums of many terms need at least float32."""
    if not torch.compiler.is_compiling() and (x.is_meta or not torch.is_autocast_enabled(x.device.type)):
        return _NOTHING
    return torch.autocast(x.device.type, enabled=False)


def padding_rows(key_padding_mask: Tensor, batch: int, num_keys: int, device: torch.device) -> Tensor:
    """Check a padding mask and return it as [B, N_k], or [1, N_k] if all inputs share it."""
    padded = torch.as_tensor(key_padding_mask, device=device)
    if padded.dtype != torch.bool or padded.shape[-1:] != (num_keys,):
        raise ValueError(
            f"`key_padding_mask` must be boolean with shape [..., N_k={num_keys}], True for padding, but has shape "
            f"{tuple(padded.shape)} and dtype {padded.dtype}."
        )
    rows = math.prod(padded.shape[:-1])
    if rows not in (1, batch):
        raise ValueError(f"`key_padding_mask` must have one row per input, {batch}, but has {rows}.")
    return padded.reshape(rows, num_keys)


def _check_shapes(q: Tensor, k: Tensor, v: Tensor) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.ndim < 3 or not x.is_floating_point():
            raise ValueError(
                f"`{name}` must have shape [..., H, N, D] and a floating dtype, but has shape {tuple(x.shape)} "
                f"and dtype {x.dtype}."
            )
    if q.shape[:-3] != k.shape[:-3] or q.shape[-1] != k.shape[-1]:
        raise ValueError(
            f"`q` and `k` must match in batch and width, but have shapes {tuple(q.shape)} and {tuple(k.shape)}."
        )
    if k.shape[:-1] != v.shape[:-1]:
        raise ValueError(f"`k` and `v` must match except in width, but have shapes {tuple(k.shape)}, {tuple(v.shape)}.")
    if q.shape[-3] % k.shape[-3]:
        raise ValueError(
            f"`q` has {q.shape[-3]} heads, which is not a multiple of the {k.shape[-3]} heads of `k` and `v`."
        )


def widened(phi: Callable[[Tensor], Tensor], inputs: Tokens) -> Tokens:
    """Convert the inputs to float64 if their features would underflow in float32."""
    if inputs.q.dtype != torch.float32 or not can_look(inputs.q):
        return inputs
    lost = feature_maps.underflows(phi, inputs.q) or feature_maps.underflows(phi, inputs.k)
    return inputs.double() if lost else inputs


class KeyGroups(NamedTuple):
    """The graph that each key belongs to in a batch of graphs."""

    graphs: Tensor | None = None  # [N_k]; None for a single graph
    num_graphs: int = 1


def features(
    phi: Callable[[Tensor], Tensor], inputs: Tokens, groups: KeyGroups, dtype: torch.dtype, shift: bool
) -> tuple[Tensor, Tensor]:
    """Compute the features of queries and keys, [B, H, N, M]; a user-defined feature map is called in ``dtype``.

    With ``shift``, exponents are shifted per query, and per graph and head for keys, to prevent overflow: a factor that
    cancels if attention is normalised.
    """
    if isinstance(phi, feature_maps.ExponentialMap):
        exponents_q, exponents_k = phi.exponents(inputs.q), phi.exponents(inputs.k)
        if inputs.is_key is not None:
            exponents_k = exponents_k.masked_fill(~inputs.is_key, -torch.inf)
        if shift:
            # Where there is no finite maximum, exponents are not shifted.
            exponents_q = exponents_q - row_max(exponents_q.detach()).nan_to_num(0.0, 0.0, 0.0)
            exponents_k = exponents_k - _max_per_graph(exponents_k.detach(), groups).nan_to_num(0.0, 0.0, 0.0)
        return exponents_q.exp(), exponents_k.exp()
    phi_q, phi_k = _apply(phi, inputs.q, dtype), _apply(phi, inputs.k, dtype)
    return phi_q, phi_k if inputs.is_key is None else phi_k.masked_fill(~inputs.is_key, 0.0)


def rescaled(phi_q: Tensor, phi_k: Tensor, groups: KeyGroups) -> tuple[Tensor, Tensor]:
    """Scale features so that no product of two can overflow or underflow.

    A factor per query, or per graph and head for keys, cancels when attention is normalised.
    """
    if not can_look(phi_q) or any_extreme(phi_q, _NEAR_ONE) or any_extreme(phi_k, _NEAR_ONE):
        phi_q = phi_q * _inverse_power_of_two(row_max(phi_q.detach().abs()))
        phi_k = phi_k * _inverse_power_of_two(_max_per_graph(phi_k.detach().abs(), groups))
    return phi_q, phi_k


def _apply(phi: Callable[[Tensor], Tensor], x: Tensor, dtype: torch.dtype) -> Tensor:
    """Features in the precision of x; a user-defined function is called in the precision of the user's input."""
    out = phi(x if feature_maps.is_named(phi) else x.to(dtype))
    if out.shape[:-1] != x.shape[:-1]:
        raise ValueError(
            f"`feature_map` must map [..., D] to [..., M], but mapped {tuple(x.shape)} to {tuple(out.shape)}."
        )
    return out.to(x.dtype)


def row_max(x: Tensor) -> Tensor:
    """Return the maxima of rows, [..., 1]; 0 for empty rows."""
    return x.amax(dim=-1, keepdim=True) if x.shape[-1] else x.new_zeros(*x.shape[:-1], 1)


def _max_per_graph(x: Tensor, groups: KeyGroups) -> Tensor:
    """Maxima per graph and head, [B, H, N, 1], or [B, H, 1, 1] for a single graph."""
    largest = row_max(x)
    if not x.shape[-2]:
        return largest
    if groups.graphs is None:
        return largest.amax(dim=-2, keepdim=True)
    places = groups.graphs.to(x.device)[:, None].expand_as(largest)
    lowest = largest.new_full((*largest.shape[:-2], groups.num_graphs, 1), -torch.inf)
    return lowest.scatter_reduce(-2, places, largest, "amax").gather(-2, places)


def _inverse_power_of_two(largest: Tensor) -> Tensor:
    """A power of two that brings ``largest`` close to 1; scaling by it is exact."""
    exponent = torch.frexp(largest).exponent.clamp(-126, 126)
    return torch.ldexp(torch.ones_like(largest), -exponent)


def can_look(x: Tensor) -> bool:
    """Whether values can be read here: not in the compiler or a transform, nor where that would wait for a device."""
    return x.device.type == "cpu" and has_values(x) and not is_transformed()


def is_lost(total: Tensor, vanishes: Callable[[], bool], safe_low: float = SAFE_LOW) -> bool:
    """Whether normalisers overflowed or underflowed in float32, so that attention must be computed in float64.

    Where values cannot be read, queries whose normaliser does not fit in float32 attend to nothing. Normalisers of at
    least ``safe_low`` are accurate; ``vanishes`` says whether 0 may be a sum of numbers that underflowed.
    """
    if total.dtype != torch.float32 or not total.numel() or not can_look(total):
        return False
    sizes = total.abs()
    low, high = (bound.item() for bound in sizes.aminmax())
    if low >= safe_low and high <= SAFE_HIGH:
        return False
    if low > 0 or not high <= SAFE_HIGH:
        return True
    return bool(((sizes > 0) & (sizes < safe_low)).any()) or vanishes()


def may_vanish(
    phi: Callable[[Tensor], Tensor],
    scaled: tuple[Tensor, Tensor],
    unscaled: tuple[Tensor, Tensor],
    is_key: Tensor | None,
) -> bool:
    """Whether products of features of queries and keys, before and after :func:`rescaled`, may have underflowed."""
    for now, before, is_token in zip(scaled, unscaled, (None, is_key), strict=True):
        small = now.detach().abs() < _SMALL
        if not feature_maps.is_positive(phi):
            small &= before.detach() != 0
        if bool((small if is_token is None else small & is_token).any()):
            return True
    return False


def restore(out: Tensor, q: Tensor) -> Tensor:
    """Return a result in the batch shape and the precision of q."""
    if out.dtype == q.dtype and out.shape[:-1] == q.shape[:-1]:
        return out
    return out.reshape(*q.shape[:-1], out.shape[-1]).to(q.dtype)


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
        fix = "Pass one row per node of `graph`, which may be a batch of graphs."
        if len(x.shape) == 2 and x.shape[0] == graph.num_nodes:
            fix = f"Pass the features that it was built for, or build the model or layer with in_features={x.shape[1]}."
        raise ValueError(
            f"`x` must have shape [num_nodes={graph.num_nodes}, in_features={in_features}], but has shape "
            f"{tuple(x.shape)}. {fix}"
        )
    if isinstance(x, Tensor) and not x.is_floating_point():
        raise ValueError(f"`x` must have a floating dtype, but has {x.dtype}. Pass x.float(), or one-hot categories.")
