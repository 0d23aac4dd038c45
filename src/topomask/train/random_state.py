"""The state of the random generators, as JSON."""

from __future__ import annotations

import base64
import random
from typing import Any

import numpy as np
import torch


def seed_everything(*seed: int) -> None:
    """Seed torch, NumPy and Python from one or several integers."""
    words = np.random.SeedSequence(seed).generate_state(4)
    torch.manual_seed(int(words[0]) << 32 | int(words[1]))
    np.random.seed(int(words[2]))  # noqa: NPY002
    random.seed(int(words[3]))


def random_state() -> dict[str, Any]:
    """The state of all generators, to be kept as JSON."""
    _, keys, position, has_gauss, gauss = np.random.get_state()  # noqa: NPY002
    version, words, next_gauss = random.getstate()
    return {
        "torch": _encode(torch.get_rng_state()),
        "cuda": _encode(torch.cuda.get_rng_state()) if torch.cuda.is_initialized() else None,
        "numpy": [np.asarray(keys).tolist(), int(position), int(has_gauss), float(gauss)],
        "python": [version, list(words), next_gauss],
    }


def restore_random_state(state: dict[str, Any]) -> None:
    """Put all generators back to where :func:`random_state` found them."""
    torch.set_rng_state(_decode(state["torch"]))
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(_decode(state["cuda"]))
    keys, position, has_gauss, gauss = state["numpy"]
    np.random.set_state(("MT19937", np.array(keys, dtype=np.uint32), position, has_gauss, gauss))  # noqa: NPY002
    version, words, next_gauss = state["python"]
    random.setstate((version, tuple(words), next_gauss))


def _encode(state: torch.Tensor) -> str:
    return base64.b64encode(state.numpy().tobytes()).decode()


def _decode(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
