"""Attention with and without a mask."""

from topomask.attention.linear import masked_attention
from topomask.attention.plan import Plan, plan_attention
from topomask.attention.softmax import masked_softmax_attention
from topomask.attention.unmasked import linear_attention

__all__ = ["Plan", "linear_attention", "masked_attention", "masked_softmax_attention", "plan_attention"]
