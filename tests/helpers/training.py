"""A small run to test training with: data, and a model with a mask."""

import os
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import topomask as tm
from topomask import train
from topomask.data import Batches
from topomask.train import Classification, OptimConfig, Result, Task, TrainConfig, read_checkpoint, read_metrics

TOKENS, WIDTH, CLASSES = 9, 8, 3


class Tiny(nn.Module):
    """One layer of masked attention, dropout, mean, head."""

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        # Without a seed: the walks come from torch's generator.
        mask = tm.WalkMask(tm.grid_graph(3, 3), num_walks=4, max_length=3, num_heads=2)
        self.attention = tm.nn.MaskedAttention(WIDTH, 2, mask)
        self.norm = nn.LayerNorm(WIDTH)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.dropout(self.norm(x + self.attention(x))).mean(dim=-2))


def make_data(num_examples: int = 51, batch_size: int = 8, shuffle: bool = True, seed: int = 0) -> Batches:
    """Tokens whose label is the direction of their mean; the last batch is ragged."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (num_examples,), generator=generator)
    x = torch.randn(num_examples, TOKENS, WIDTH, generator=generator)
    x[:, :, :CLASSES] += nn.functional.one_hot(labels, CLASSES)[:, None]
    return Batches(TensorDataset(x, labels), batch_size, shuffle=shuffle)


# 4 epochs of 7 steps; lines, evaluations and checkpoints fall on different steps.
OPTIM = OptimConfig(lr=0.02, final_lr=1e-3, weight_decay=0.1, clip=0.5)
CONFIG = TrainConfig(OPTIM, epochs=4, log_every=3, eval_every=5, checkpoint_every=4, progress=False)


def run(folder: Path | str, config: TrainConfig = CONFIG, **options) -> Result:
    """Train the small model."""
    options = {"build": Tiny, "data": make_data(), "valid": make_data(20, shuffle=False, seed=1)} | options
    build, data = options.pop("build"), options.pop("data")
    return train.run(config, build, data, options.pop("task", Classification()), folder, **options)


class StoppedError(Exception):
    """A run that was broken off by a test."""


class StopsAt(Task):
    """Another task, that breaks off in the loss of a step."""

    def __init__(self, step: int, task: Task | None = None) -> None:
        self.left = step
        self.task = Classification() if task is None else task
        self.monitor, self.higher_is_better = self.task.monitor, self.task.higher_is_better

    def loss(self, model, batch):
        self.left -= model.training
        if self.left < 0:
            raise StoppedError
        return self.task.loss(model, batch)

    def size(self, batch):
        return self.task.size(batch)


class SignalledAt(StopsAt):
    """Another task, whose process gets a signal, perhaps several times, in the loss of a step."""

    def __init__(self, step: int, signal: int, times: int = 1) -> None:
        super().__init__(step)
        self.signal, self.times = signal, times

    def loss(self, model, batch):
        self.left -= model.training
        if self.left == -1 and model.training:
            for _ in range(self.times):
                os.kill(os.getpid(), self.signal)
        return self.task.loss(model, batch)


def assert_same_run(first: Path, second: Path) -> None:
    """All that two runs have left is equal to the last bit, apart from times."""
    lines = [[line | {"time": None} for line in read_metrics(folder / "metrics.jsonl")] for folder in (first, second)]
    assert lines[0] == lines[1]
    names = sorted(path.name for path in (first / "checkpoints").iterdir())
    assert names == sorted(path.name for path in (second / "checkpoints").iterdir())
    assert "best.safetensors" in names
    for name in names:
        ours, theirs = (read_checkpoint(folder / "checkpoints" / name) for folder in (first, second))
        for values, others in ((ours.weights, theirs.weights), (ours.moments, theirs.moments)):
            assert values.keys() == others.keys()
            assert values
            assert all(torch.equal(value, others[key]) for key, value in values.items())
        for info in (ours.info, theirs.info):
            info["state"] |= {"seconds": None, "busy": None}
        assert ours.info == theirs.info
