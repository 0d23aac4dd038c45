"""A run in progress: its state, and what it writes."""

from __future__ import annotations

import copy
import math
import signal
import sys
import time
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from topomask.support.config import from_dict, to_dict
from topomask.train.checkpoint import (
    Checkpoint,
    CheckpointError,
    load_weights,
    read_checkpoint,
    restore_checkpoint,
    save_checkpoint,
    some,
)
from topomask.train.config import Precision, TrainConfig
from topomask.train.processes import random_state, restore_random_state
from topomask.train.reports import Journal, Progress
from topomask.train.run_folder import RunFolder, find_checkpoint, versions
from topomask.train.step import NonFiniteError, Stepper, faulty_weights
from topomask.train.tasks import Epochs, Task, evaluate


@dataclass(frozen=True)
class Result:
    """The result of a run.

    Args:
        model: The model after the last step.
        step: Number of steps taken.
        seconds: Training time, including earlier sessions of a resumed run.
        metrics: Metrics of the last evaluation.
        best: Metrics of the best evaluation, and its ``step``.
        folder: The run folder; :func:`find_checkpoint` finds its best weights.
        task: The task.
        precision: Precision of products.
    """

    model: nn.Module
    step: int
    seconds: float
    metrics: dict[str, float]
    best: dict[str, float]
    folder: Path
    task: Task
    precision: Precision

    def evaluate(self, data: Epochs | Iterable[Any], best: bool = True) -> dict[str, float]:
        """Compute the loss and metrics on other batches, such as test examples; like ``topomask eval``.

        Args:
            data: The batches.
            best: Use the weights of the best evaluation, if there was one; False uses those after the last step.
        """
        model = self.model
        if best and self.best:
            model = copy.deepcopy(model)
            load_weights(model, find_checkpoint(self.folder))
        return evaluate(model, data, self.task, precision=self.precision)


@dataclass
class State:
    """The state of a run apart from weights and random states; stored as JSON in checkpoints.

    ``sums`` adds up the training metrics of all ``examples`` since the last line of metrics, which took ``busy``
    seconds. ``metrics`` and ``best`` are of the last and the best evaluation, and ``stale`` counts evaluations since
    the metric last improved.
    """

    step: int = 0
    seconds: float = 0.0
    sums: dict[str, int | float] = field(default_factory=dict)
    examples: int = 0
    busy: float = 0.0
    metrics: dict[str, int | float] = field(default_factory=dict)
    best: dict[str, int | float] = field(default_factory=dict)
    stale: int = 0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not isinstance(value, dict) and not 0 <= value < 2**63:
                raise ValueError(f"`{name}` must be in [0, 2**63), but is {value!r}")


class Run:
    """A run in progress, of ``total`` steps with ``length`` per epoch; the first process writes all files."""

    def __init__(
        self,
        folder: RunFolder,
        stepper: Stepper,
        config: TrainConfig,
        total: int,
        length: int,
        *,
        resume: bool = False,
        fallback: bool = False,
    ) -> None:
        self.folder, self.stepper, self.config, self.total, self.length = folder, stepper, config, total, length
        self.processes = stepper.processes
        self.state = State()
        self.saved = self.processes.first(lambda: folder.open(resume, fallback))
        notes = [] if self.saved is None else self._restore(self.saved)
        first = self.processes.is_first
        board = folder.path / "tensorboard" if config.tensorboard else None
        self.journal = Journal(folder.metrics if first else None, self.step, board)
        self.progress = Progress(total, self.step, config.progress and first)
        self.mark = time.perf_counter()
        if notes:
            self.progress.note(" ".join([*notes, *self._check_journal()]))

    @property
    def step(self) -> int:
        """Number of steps taken."""
        return self.state.step

    @property
    def epoch(self) -> float:
        """Number of epochs done, with a fraction."""
        return round(self.step / self.length, 4)

    def _restore(self, path: Path) -> list[str]:
        """Restore a checkpoint; return what the user should know."""
        checkpoint = read_checkpoint(path)
        self._check_length(checkpoint)
        restore_checkpoint(checkpoint, self.stepper.model, self.stepper.optimizer)
        found, states = (checkpoint.info.get(name) for name in ("versions", "random"))
        try:
            self.state = from_dict(State, checkpoint.info.get("state", {}))
            if self.step != checkpoint.info.get("step"):
                raise ValueError(f"its state is of step {self.step}")
            if not isinstance(states, list) or not isinstance(found, dict):
                raise ValueError("it does not contain the versions and random states of the run")
            if self.processes.rank < len(states):
                restore_random_state(states[self.processes.rank])
        except ValueError as error:
            raise CheckpointError(f"{path} is damaged: {str(error).removesuffix('.')}.") from None
        now = versions() | {"processes": str(self.processes.world_size)}
        changed = ", ".join(_changes(found | {"processes": str(len(states))}, now))
        notes = [f"Resuming from step {self.step}."]
        return notes + [f"Results may differ from those of an uninterrupted run: {changed}."] * bool(changed)

    def _check_journal(self) -> list[str]:
        """Describe the lines that were cut from the metrics; warn if lines up to this step are missing."""
        journal, steps = self.journal, range(1, self.step + 1)
        if journal.path is None:
            return []
        due = [("train", step) for step in steps if self.is_due(self.config.log_every, step)]
        if self.state.metrics:
            due += [("eval", step) for step in steps if self.is_due(self.config.eval_every, step)]
        there = {(line["event"], line["step"]) for line in journal.kept}
        missing = [f"{event} at step {step}" for event, step in due if (event, step) not in there]
        if missing:
            warnings.warn(
                f"{journal.path} is damaged: {len(missing)} lines from before step {self.step + 1} are missing: "
                f"{some(missing)}. The run continues without them; these lines are only used for plots.",
                stacklevel=2,
            )
        cut = [f"{journal.beyond} after that step, which will be written again"] * bool(journal.beyond)
        cut += [f"{journal.damaged} incomplete"] * bool(journal.damaged)
        return [f"Lines removed from {journal.path.name}: {'; '.join(cut)}."] if cut else []

    def _check_length(self, checkpoint: Checkpoint) -> None:
        """Raise a CheckpointError if the length of an epoch changed, since the run would see different batches."""
        info, changed = checkpoint.info, []
        for name, what, now in (("length", "steps per epoch", self.length), ("total", "steps in total", self.total)):
            # Checkpoints of earlier versions do not have these fields.
            if info.get(name, now) != now:
                changed.append(f"{info[name]} {what}, but there are {now} now")
        if changed:
            raise CheckpointError(
                f"{checkpoint.path} is from a run with {', and '.join(changed)}: the data, the batch size or the "
                "number of processes changed. Resume with the original ones, or start in another folder, from these "
                "weights if you like (load_weights)."
            )

    @property
    def is_over(self) -> bool:
        """Whether all steps are taken, or evaluations have stopped improving."""
        patience = self.config.patience
        return self.step >= self.total or (patience is not None and self.state.stale >= patience)

    def is_due(self, every: int | None, step: int | None = None) -> bool:
        """Whether something that happens every so many steps, or every epoch, is due now or at another step."""
        step = self.step if step is None else step
        return step % (every or self.length) == 0 or step == self.total

    def count(self, means: dict[str, float], size: int, lr: float) -> None:
        """Count a step, and write a line of metrics if one is due."""
        state = self.state
        state.step += 1
        state.examples += size
        state.busy += self._elapse()
        for name, mean in means.items():
            state.sums[name] = state.sums.get(name, 0.0) + mean * size
        self.progress.advance(state.step)
        if self.is_due(self.config.log_every):
            values = {name: total / state.examples for name, total in state.sums.items()} | {"lr": lr}
            self._report("train", values, {"examples_per_second": state.examples / state.busy})
            state.sums, state.examples, state.busy = {}, 0, 0.0

    def evaluate(self, data: Epochs | Iterable[Any]) -> None:
        """Evaluate, and save a checkpoint if this is the best evaluation so far."""
        stepper, state, task = self.stepper, self.state, self.stepper.task
        state.metrics = evaluate(stepper.model, data, task, precision=self.config.precision, processes=self.processes)
        self._report("eval", state.metrics, {"took": self._elapse()})
        name = task.monitor
        if name not in state.metrics:
            raise ValueError(
                f"`monitor` must be a metric of the task, one of {', '.join(state.metrics)}, but is {name!r}."
            )
        now, best = state.metrics[name], state.best.get(name)
        # Small data sets have many ties, up to rounding. They do not reset the patience, which is about the metric.
        tied = name != "loss" and best is not None and math.isclose(now, best, rel_tol=1e-6)
        better = best is None or (not tied and (now > best if task.higher_is_better else now < best))
        # Logits that are NaN still have an argmax, and so an accuracy.
        better = better and math.isfinite(now) and math.isfinite(state.metrics["loss"])
        state.stale = 0 if better else state.stale + 1
        if better or (tied and state.metrics["loss"] < state.best.get("loss", -math.inf)):
            state.best = state.metrics | {"step": self.step}
            self._write(self.folder.best)

    def save(self) -> None:
        """Write a checkpoint to resume from, unless this step has one."""
        path = self.folder.last(self.step)
        if path == self.saved:
            return
        self._write(path)
        self.saved = path
        if self.processes.is_first:
            self.folder.prune()
        self._elapse()

    def save_before(self, number: int) -> None:
        """Save before a signal takes effect, and say so."""
        self.save()
        if self.processes.is_first:
            name = signal.Signals(number).name
            text = f"{name} at step {self.step} of {self.total}: saved {self.saved}. Pass resume=True to continue."
            print(text, file=sys.stderr, flush=True)
        # A process that ends before the checkpoint is written would take down the others.
        self.processes.gather(None)

    def _write(self, path: Path) -> None:
        fault = faulty_weights(self.stepper.model)
        if fault is not None:
            raise self.stopped(fault)
        states = self.processes.gather(random_state())
        if self.processes.is_first:
            self.journal.sync()
            place = {"step": self.step, "epoch": self.epoch, "length": self.length, "total": self.total}
            info = {**place, "state": to_dict(self.state), "random": states}
            info |= {"config": self.folder.record, "versions": versions()}
            save_checkpoint(path, self.stepper.model, self.stepper.optimizer, info)

    def stopped(self, fault: object, lr: float | None = None) -> NonFiniteError:
        """An error that says where and why the run stopped, and which checkpoint is left."""
        epoch, batch = divmod(self.step, self.length)
        rate = "" if lr is None else f", learning rate {lr:g}"
        kept = "There is no checkpoint yet" if self.saved is None else f"The last checkpoint, {self.saved}, is intact"
        return NonFiniteError(
            f"Training stopped at step {self.step} (epoch {epoch}, batch {batch}{rate}): {fault}. {kept}. "
            "Lower optim.lr, increase optim.warmup, set optim.clip, or inspect that batch."
        )

    def result(self) -> Result:
        """The result of the run."""
        state = self.state
        found = (state.step, state.seconds, state.metrics, state.best, self.folder.path)
        return Result(self.stepper.model, *found, self.stepper.task, self.config.precision)

    def _report(self, event: str, values: dict[str, float], times: dict[str, float]) -> None:
        self.journal.write(event, self.step, self.epoch, values, {"seconds": self.state.seconds, **times})
        self.progress.line(event, self.step, values)

    def _elapse(self) -> float:
        """Seconds since the last call."""
        now = time.perf_counter()
        took, self.mark = now - self.mark, now
        self.state.seconds += took
        return took

    def __enter__(self) -> Run:
        self.progress.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.__exit__()
        self.journal.close()


def _changes(before: dict[str, str], now: dict[str, str]) -> list[str]:
    """Describe what differs between the versions of two runs."""
    # Checkpoints without "costs" are of an earlier version, which recorded fewer versions.
    names = {**now, **before} if "costs" in before else before
    was, found = ({name: part.get(name, "missing") for name in names} for part in (before, now))
    return [f"{name} {was[name]} is now {found[name]}" for name in names if was[name] != found[name]]
