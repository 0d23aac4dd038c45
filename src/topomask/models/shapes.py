"""Sizes of images and patches."""

from __future__ import annotations

from numbers import Integral
from typing import Any

from torch import Tensor


def pair(name: str, size: int | tuple[int, int]) -> tuple[int, int]:
    """Height and width, of one number or two; a ValueError names the argument."""
    sizes = (size, size) if isinstance(size, Integral) else size
    height, width = whole_numbers(name, sizes, "one number or (height, width)", 2)
    return height, width


def whole_numbers(name: str, sizes: Any, expected: str, count: int) -> tuple[int, ...]:
    """So many whole numbers; a ValueError names the argument and says what was expected."""
    given = tuple(sizes) if isinstance(sizes, tuple | list) else ()
    if len(given) != count or not all(isinstance(size, Integral) for size in given):
        raise ValueError(f"`{name}` must be {expected}, but is {sizes!r}.")
    return given


def grid_shape(whole: tuple[str, tuple[int, ...]], part: tuple[str, tuple[int, ...]]) -> tuple[int, ...]:
    """How many parts there are along every axis of the whole; both are given as (name, sizes)."""
    (whole_name, sizes), (part_name, parts) = whole, part
    if any(size < 1 for size in (*sizes, *parts)):
        raise ValueError(f"`{whole_name}` and `{part_name}` must be positive, but are {sizes} and {parts}.")
    if any(size % step for size, step in zip(sizes, parts, strict=True)):
        raise ValueError(f"`{whole_name}` must be a multiple of `{part_name}`, but they are {sizes} and {parts}.")
    return tuple(size // step for size, step in zip(sizes, parts, strict=True))


def check_shape(name: str, x: Tensor, expected: tuple[int, ...], fix: str) -> None:
    """A ValueError that ends in the fix, unless x has shape [B, *expected]."""
    if x.shape[1:] != expected:
        text = ", ".join(str(size) for size in expected)
        raise ValueError(f"`{name}` must have shape [B, {text}], but has shape {tuple(x.shape)}. {fix}")
