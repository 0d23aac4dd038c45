"""Sizes of images and patches."""

from __future__ import annotations


def pair(size: int | tuple[int, ...]) -> tuple[int, int]:
    """Height and width, of one number or two."""
    sizes = (size, size) if isinstance(size, int) else tuple(size)
    if len(sizes) != 2:
        raise ValueError(f"A size must be one number or (height, width), but is {size!r}.")
    return sizes


def grid_shape(whole: tuple[str, tuple[int, ...]], part: tuple[str, tuple[int, ...]]) -> tuple[int, ...]:
    """How many parts there are along every axis of the whole; both are given as (name, sizes)."""
    (whole_name, sizes), (part_name, parts) = whole, part
    if any(size < 1 for size in (*sizes, *parts)):
        raise ValueError(f"`{whole_name}` and `{part_name}` must be positive, but are {sizes} and {parts}.")
    if any(size % step for size, step in zip(sizes, parts, strict=True)):
        raise ValueError(f"`{whole_name}` must be a multiple of `{part_name}`, but they are {sizes} and {parts}.")
    return tuple(size // step for size, step in zip(sizes, parts, strict=True))
