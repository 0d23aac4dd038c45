"""Attention with and without a mask. Names are imported on first use."""

from typing import TYPE_CHECKING

from topomask.support.imports import lazy_names

if TYPE_CHECKING:
    from topomask.attention.linear import linear_attention, masked_attention
    from topomask.attention.plan import Plan, plan_attention
    from topomask.attention.softmax import masked_softmax_attention

__all__ = ["Plan", "linear_attention", "masked_attention", "masked_softmax_attention", "plan_attention"]

__getattr__, __dir__, _ = lazy_names(__name__)
