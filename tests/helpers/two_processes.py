"""What each of two processes does in the tests: torchrun --nproc-per-node 2 -m helpers.two_processes <folder>."""

import copy
import json
import os
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import topomask as tm
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


class Unseeded(nn.Module):
    """All that draws a seed of its own, from a generator that differs between processes."""

    def __init__(self) -> None:
        super().__init__()
        self.tiny = training.Tiny(dropout=0.0)
        self.anywhere, self.graph = tm.VisitMask(num_walks=2, max_length=3), tm.path_graph(training.TOKENS)
        self.position = tm.StochasticPositionMask(training.TOKENS, num_realizations=4)
        self.encoding = tm.nn.StochasticPositionEncoding(4, num_realizations=4)
        self.given = tm.WalkMask(tm.path_graph(3), seed=0)
        walks = self.given.walks
        self.given = tm.WalkMask(tm.path_graph(3), walks=walks)

    def forward(self, x: Tensor) -> Tensor:
        out = self.tiny(x) + self.position(x).mean() + self.anywhere.on(self.graph)(x).mean()
        q, k = self.encoding(x[:, None, :, :4], x[:, None, :, 4:])
        return out + q.mean() + k.mean() + self.given(x[:, :3]).mean()

    def seeds(self) -> list[int]:
        return [
            part.seed for part in (self.tiny.attention.mask, self.anywhere, self.position, self.encoding, self.given)
        ]


def build_unseeded(rank: int) -> Unseeded:
    """A model with seeds of this process."""
    torch.manual_seed(rank)
    if rank:
        # One that the other process does not build: nobody waits for it.
        tm.WalkMask(tm.path_graph(5))
    return Unseeded()


def wrap_unseeded(model: Unseeded, how: str) -> dict:
    """What processes with generators of their own have before and after a user wraps their models."""
    before, is_compiled = model.seeds(), how == "compiled"
    wrapped = DistributedDataParallel(torch.compile(model, backend="eager", fullgraph=True) if is_compiled else model)
    if how == "copied once wrapped":
        # Before anything asks for the seeds, as a moving average of the weights does.
        model = copy.deepcopy(model)
        wrapped = torch.optim.swa_utils.AveragedModel(model, use_buffers=True)
        wrapped.update_parameters(model)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, training.TOKENS, training.WIDTH, generator=generator)
    wrapped.eval()
    out = wrapped(x)
    out.sum().backward()
    if how == "wrapped twice":
        out = DistributedDataParallel(model)(x)
    dense = model.tiny.attention.mask.to_dense().flatten().tolist()
    names = sorted(name for name in model.state_dict() if "seed" in name)
    return {"before": before, "after": model.seeds(), "out": out.tolist(), "mask": dense, "names": names}


def refused(folder: Path, error: type[Exception], **options) -> str:
    try:
        training.run(folder, **options)
    except error as found:
        return str(found)
    raise SystemExit(f"{error.__name__} was expected.")


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    rank = os.environ["RANK"]
    # Built before processes have met.
    early = build_unseeded(int(rank))
    run_plainly(folder / "one step", ONE_STEP)
    run_plainly(folder / "one ragged step", ONE_STEP, num_examples=3)
    run_plainly(folder / "plain")

    result = training.run(folder / "whole", replace(training.CONFIG, keep=100))
    (folder / f"walks {rank}").write_bytes(result.model.state_dict()["attention.mask._extra_state"].numpy().tobytes())
    join_processes().first(lambda: copy_until(folder / "whole", folder / "resumed", step=12))
    training.run(folder / "resumed", resume=True)

    models = {"early": early, "late": build_unseeded(int(rank)), "compiled": build_unseeded(int(rank))}
    models["copied"] = copy.deepcopy(models["late"])
    models["copied once wrapped"] = build_unseeded(int(rank))
    models["wrapped twice"] = build_unseeded(int(rank))
    found = {name: wrap_unseeded(model, name) for name, model in models.items()}
    (folder / f"unseeded {rank}").write_text(json.dumps(found))

    # One of them is told to stop, and both do.
    task = training.SignalledAt(9, signal.SIGTERM) if rank == "1" else Classification()
    try:
        training.run(folder / "signalled", task=task)
    except SystemExit as stop:
        (folder / f"stopped {rank}").write_text(str(stop.code))
    training.run(folder / "signalled", resume=True)

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
