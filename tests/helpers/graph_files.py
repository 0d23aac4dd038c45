"""Small data sets of graphs and nodes on disk, in the layouts of the loaders."""

import json
from pathlib import Path

import numpy as np


def write_graphs(root: Path, name: str = "RINGS", count: int = 24) -> None:
    """Cycles (class 1) and paths (class 0) of 5 to 9 nodes with one label, in two folds."""
    folder = root / "tudataset" / name
    folder.mkdir(parents=True)
    edges, owner, start = [], [], 1
    for number in range(count):
        size = 5 + number % 5
        ring = [(start + i, start + i + 1) for i in range(size - 1)] + [(start + size - 1, start)] * (number % 2)
        edges += ring + [(j, i) for i, j in ring]
        owner += [number + 1] * size
        start += size
    files = {
        "A": "\n".join(f"{i}, {j}" for i, j in edges),
        "graph_indicator": "\n".join(map(str, owner)),
        "graph_labels": "\n".join(str(number % 2) for number in range(count)),
        "node_labels": "\n".join("0" for _ in owner),
    }
    for kind, text in files.items():
        (folder / f"{name}_{kind}.txt").write_text(text + "\n")
    (root / "splits").mkdir(exist_ok=True)
    everything = list(range(count))
    folds = [
        {"train": everything[:12], "validation": everything[12:18], "test": everything[18:]},
        {"train": everything[12:], "validation": everything[6:12], "test": everything[:6]},
    ]
    (root / "splits" / f"{name}.json").write_text(json.dumps(folds))


def write_nodes(root: Path, name: str = "rings", count: int = 30, splits: int = 2) -> None:
    """A cycle whose nodes have two classes, which their features tell."""
    labels = np.arange(count) % 2
    parts = [(np.arange(count) + shift) % 3 for shift in range(splits)]
    (root / "node").mkdir(parents=True, exist_ok=True)
    np.savez(
        root / "node" / f"{name}.npz",
        x_data=np.ones(count, dtype=np.float32),
        x_indices=labels,
        x_indptr=np.arange(count + 1),
        x_shape=np.array([count, 2]),
        y=labels,
        edges=np.stack([np.arange(count), (np.arange(count) + 1) % count], axis=1),
        train_mask=np.stack([part == 0 for part in parts]),
        val_mask=np.stack([part == 1 for part in parts]),
        test_mask=np.stack([part == 2 for part in parts]),
    )
