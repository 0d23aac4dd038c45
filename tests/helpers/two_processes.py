"""What each of two processes does in the tests: torchrun --nproc-per-node 2 -m helpers.two_processes <folder>."""

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from helpers import training
from topomask.train import Classification, NonFiniteError, TrainConfig, join_processes


class FaultyInOneProcess(Classification):
    """A loss that is not finite in the second process, at the third step."""

    steps = 0

    def loss(self, model, batch):
        loss, metrics = super().loss(model, batch)
        self.steps += model.training
        return (loss * float("nan") if self.steps == 3 and os.environ["RANK"] == "1" else loss), metrics


ONE_STEP = replace(training.CONFIG, epochs=None, steps=1, optim=replace(training.OPTIM, clip=None))


def run_plainly(folder: Path, config: TrainConfig = training.CONFIG, num_examples: int = 51, **options) -> None:
    """Without dropout, which differs between processes, and in float64, where the order of sums hardly matters."""
    data, valid = training.make_data(num_examples), training.make_data(20, shuffle=False, seed=1)
    for batches in (data, valid):
        inputs, labels = batches.dataset.tensors
        batches.dataset.tensors = inputs.double(), labels
    build = lambda: training.Tiny(dropout=0.0).double()  # noqa: E731
    training.run(folder, config, build=build, data=data, valid=valid, **options)


def build_by_rank() -> nn.Module:
    torch.manual_seed(int(os.environ["RANK"]))
    return training.Tiny()


def refused(folder: Path, error: type[Exception], **options) -> str:
    try:
        training.run(folder, **options)
    except error as found:
        return str(found)
    raise SystemExit(f"{error.__name__} was expected.")


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    rank = os.environ["RANK"]
    run_plainly(folder / "one step", ONE_STEP)
    run_plainly(folder / "one ragged step", ONE_STEP, num_examples=3)
    run_plainly(folder / "plain")

    result = training.run(folder / "whole", replace(training.CONFIG, keep=100))
    (folder / f"walks {rank}").write_bytes(result.model.state_dict()["attention.mask._extra_state"].numpy().tobytes())
    join_processes().first(lambda: copy_until(folder / "whole", folder / "resumed", step=12))
    training.run(folder / "resumed", resume=True)

    messages = [
        refused(folder / "different", RuntimeError, build=build_by_rank),
        refused(folder / "faulty", NonFiniteError, task=FaultyInOneProcess()),
        refused(folder / "list", ValueError, data=[*training.make_data().epoch(0)]),
        refused(folder / "uneven", ValueError, data=training.make_data(49)),
        refused(folder / "whole", FileExistsError),
    ]
    (folder / f"messages {rank}").write_text("\n".join(messages))


def copy_until(source: Path, target: Path, step: int) -> None:
    """A run as it would be after a step."""
    shutil.copytree(source, target)
    for path in (target / "checkpoints").glob("step-*"):
        if int(path.stem.removeprefix("step-")) > step:
            path.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
