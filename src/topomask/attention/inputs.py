"""What every kind of attention does to queries, keys and values before and after it attends."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from topomask.attention import feature_maps
from topomask.ops.registration import has_values, is_transformed
from topomask.ops.row_extremes import any_extreme

FeatureMap = str | Callable[[Tensor], Tensor]

# Entering a context that is off already takes as long as a small product.
_NOTHING = nullcontext()

# Features between its inverse and this can be multiplied and added up in float32 without a scale.
_NEAR_ONE = 2.0**24
# Normalisers between these are far from what float32 cannot hold.
SAFE_LOW, SAFE_HIGH = 2.0**-40, 2.0**80
# Features whose products may be too small for float32.
_SMALL = 2.0**-40


class Tokens(NamedTuple):
    """Checked inputs in at least float32, with one batch axis and as many heads of keys as of queries: [B, H, N, D]."""

    q: Tensor
    k: Tensor
    v: Tensor
    is_key: Tensor | None  # [B, 1, N_k, 1], False where padded

    def double(self) -> Tokens:
        """The same in float64."""
        return self._replace(q=self.q.double(), k=self.k.double(), v=self.v.double())


def prepare(
    q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Tensor | None, at_least: torch.dtype = torch.float32
) -> Tokens:
    """Check inputs and bring them to the shape and precision that attention is computed in."""
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
    # Whatever stands in padding, NaN included, must touch neither results nor gradients.
    return Tokens(q, k.masked_fill(padded, 0.0), v.masked_fill(padded, 0.0), ~padded)


def _in_order(x: Tensor, dtype: torch.dtype, batch: int) -> Tensor:
    """[B, H, N, D] in contiguous memory: heads usually come as a view of tokens, and are put in order once."""
    if x.ndim == 4 and x.dtype == dtype and x.is_contiguous():
        return x
    return x.to(dtype).reshape(batch, *x.shape[-3:]).contiguous()


def without_autocast(x: Tensor) -> Any:
    """A context in which nothing is computed in half precision: sums of many terms need at least float32."""
    if not torch.compiler.is_compiling() and (x.is_meta or not torch.is_autocast_enabled(x.device.type)):
        return _NOTHING
    return torch.autocast(x.device.type, enabled=False)


def padding_rows(key_padding_mask: Tensor, batch: int, num_keys: int, device: torch.device) -> Tensor:
    """Which keys are padding, [B, N_k], or [1, N_k] for all inputs; a ValueError unless that is what was given."""
    padded = torch.as_tensor(key_padding_mask, device=device)
    if padded.dtype != torch.bool or padded.shape[-1:] != (num_keys,):
        raise ValueError(
            f"`key_padding_mask` must be boolean with shape [..., N_k={num_keys}], True where a key is padding, but "
            f"has shape {tuple(padded.shape)} and dtype {padded.dtype}."
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
            f"`q` and `k` must agree in batch and width, but have shapes {tuple(q.shape)} and {tuple(k.shape)}."
        )
    if k.shape[:-1] != v.shape[:-1]:
        raise ValueError(f"`k` and `v` must agree but in width, but have shapes {tuple(k.shape)} and {tuple(v.shape)}.")
    if q.shape[-3] % k.shape[-3]:
        raise ValueError(
            f"`q` has {q.shape[-3]} heads, which is no multiple of the {k.shape[-3]} heads of `k` and `v`."
        )


def widened(phi: Callable[[Tensor], Tensor], inputs: Tokens) -> Tokens:
    """The inputs, in float64 where float32 would lose their features."""
    if inputs.q.dtype != torch.float32 or not can_look(inputs.q):
        return inputs
    lost = feature_maps.underflows(phi, inputs.q) or feature_maps.underflows(phi, inputs.k)
    return inputs.double() if lost else inputs


class KeyGroups(NamedTuple):
    """Which graph of a batch every key belongs to, [N_k], None for one graph; and how many graphs there are."""

    graphs: Tensor | None = None
    num_graphs: int = 1


def features(
    phi: Callable[[Tensor], Tensor], inputs: Tokens, groups: KeyGroups, dtype: torch.dtype, shift: bool
) -> tuple[Tensor, Tensor]:
    """Features of queries and keys, [B, H, N, M].

    Args:
        phi: The feature map.
        inputs: Queries and keys.
        groups: The graphs of keys.
        dtype: The precision that a user's own feature map is given.
        shift: Whether there will be a quotient: exponents are then shifted, per query, or per graph and head for keys,
            so that nothing overflows. The factor cancels.
    """
    if isinstance(phi, feature_maps.ExponentialMap):
        exponents_q, exponents_k = phi.exponents(inputs.q), phi.exponents(inputs.k)
        if inputs.is_key is not None:
            exponents_k = exponents_k.masked_fill(~inputs.is_key, -torch.inf)
        if shift:
            exponents_q = exponents_q - finite(_amax(exponents_q.detach()))
            exponents_k = exponents_k - finite(_amax_per_graph(exponents_k.detach(), groups))
        return exponents_q.exp(), exponents_k.exp()
    phi_q, phi_k = _apply(phi, inputs.q, dtype), _apply(phi, inputs.k, dtype)
    return phi_q, phi_k if inputs.is_key is None else phi_k.masked_fill(~inputs.is_key, 0.0)


def rescaled(phi_q: Tensor, phi_k: Tensor, groups: KeyGroups) -> tuple[Tensor, Tensor]:
    """The features, scaled so that no product of two can overflow or vanish.

    A factor per query, or per graph and head for keys, cancels in the quotient of attention.
    """
    if not can_look(phi_q) or any_extreme(phi_q, _NEAR_ONE) or any_extreme(phi_k, _NEAR_ONE):
        phi_q = phi_q * _inverse_power_of_two(_amax(phi_q.detach().abs()))
        phi_k = phi_k * _inverse_power_of_two(_amax_per_graph(phi_k.detach().abs(), groups))
    return phi_q, phi_k


def _apply(phi: Callable[[Tensor], Tensor], x: Tensor, dtype: torch.dtype) -> Tensor:
    """Features in the precision of x. A user's own function is given the precision that the user gave."""
    out = phi(x if feature_maps.is_named(phi) else x.to(dtype))
    if out.shape[:-1] != x.shape[:-1]:
        raise ValueError(
            f"`feature_map` must map [..., D] to [..., M], but mapped {tuple(x.shape)} to {tuple(out.shape)}."
        )
    return out.to(x.dtype)


def _amax(x: Tensor) -> Tensor:
    """The largest number of every row, [..., 1]; 0 where there is none."""
    return x.amax(dim=-1, keepdim=True) if x.shape[-1] else x.new_zeros(*x.shape[:-1], 1)


def _amax_per_graph(x: Tensor, groups: KeyGroups) -> Tensor:
    """The largest number per graph and head, [B, H, N, 1] (or [B, H, 1, 1] for one graph)."""
    largest = _amax(x)
    if not x.shape[-2]:
        return largest
    if groups.graphs is None:
        return largest.amax(dim=-2, keepdim=True)
    places = groups.graphs.to(x.device)[:, None].expand_as(largest)
    lowest = largest.new_full((*largest.shape[:-2], groups.num_graphs, 1), -torch.inf)
    return lowest.scatter_reduce(-2, places, largest, "amax").gather(-2, places)


def can_look(x: Tensor) -> bool:
    """Whether numbers can be looked at: not inside the compiler or a transform, and not where it waits for a device."""
    return x.device.type == "cpu" and has_values(x) and not is_transformed()


def is_lost(total: Tensor, vanishes: Callable[[], bool], safe_low: float = SAFE_LOW) -> bool:
    """Whether float32 has lost what a normaliser was added up from, so that attention needs float64.

    Where numbers cannot be looked at, queries whose normaliser float32 cannot hold attend to nothing.

    Args:
        total: The normaliser of every query.
        vanishes: Whether a normaliser of 0 may be the sum of numbers too small for float32.
        safe_low: Normalisers from this size on are right.
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


def any_small(features: Tensor, unscaled: Tensor, is_token: Tensor | None, positive: bool) -> bool:
    """Whether products of such features may be too small for float32.

    Args:
        features: [B, H, N, M].
        unscaled: The same before they were scaled, where some that are 0 now were not.
        is_token: Which tokens count, [B, 1, N, 1]. Default: all.
        positive: Whether features that were 0 before are positive numbers that float32 does not hold.
    """
    small = features.detach().abs() < _SMALL
    if not positive:
        small &= unscaled.detach() != 0
    return bool((small if is_token is None else small & is_token).any())


def finite(shift: Tensor) -> Tensor:
    """The shift of an exponent, or 0 where there is none."""
    return torch.where(shift.isfinite(), shift, 0.0)


def _inverse_power_of_two(largest: Tensor) -> Tensor:
    """A power of two that brings ``largest`` near 1, so that scaling rounds nothing."""
    exponent = torch.frexp(largest).exponent.clamp(-126, 126)
    return torch.ldexp(torch.ones_like(largest), -exponent)


def restore(out: Tensor, q: Tensor) -> Tensor:
    """A result in the batch axes and the precision of q."""
    if out.dtype == q.dtype and out.shape[:-1] == q.shape[:-1]:
        return out
    return out.reshape(*q.shape[:-1], out.shape[-1]).to(q.dtype)
