"""Runs of a second by the recipes, for tests of the command line."""

from pathlib import Path

import numpy as np
from PIL import Image

# A model with next to no weights; tests set the length of a run in steps.
MODEL = [
    "--model.depth",
    "1",
    "--model.dim",
    "8",
    "--model.num_heads",
    "2",
    "--train.progress",
    "False",
    "--train.epochs",
    "None",
]
# Fields that make a recipe small, for recipes whose data ships or is generated.
SMALL = {
    "digits": ["--data.limit=64", "--data.batch_size=32", *MODEL],
    "moving-digits": [
        "--data.num_videos",
        "8",
        "--data.size",
        "16",
        "--data.num_frames",
        "4",
        "--data.batch_size",
        "4",
        "--model.temporal_depth",
        "1",
        *MODEL,
    ],
    "particles": [
        "--data.num_particles",
        "64",
        "--data.num_trajectories",
        "1",
        "--data.num_frames",
        "8",
        "--data.batch_size",
        "7",
        *MODEL,
    ],
}


def write_picture(path: Path, size: tuple[int, int] = (8, 8)) -> Path:
    """A grey picture with a gradient; the size is width, height."""
    width, height = size
    Image.fromarray(np.linspace(0, 255, width * height, dtype=np.uint8).reshape(height, width)).save(path)
    return path


def write_particles(path: Path, count: int = 20, **changes: np.ndarray) -> Path:
    """Particles at random places."""
    draw = np.random.default_rng(0)
    np.savez(path, **{"positions": draw.random((count, 3)), "features": draw.random((count, 6))} | changes)
    return path
