"""A run on its way: where it is, what it writes."""

from __future__ import annotations

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

from topomask.train.checkpoint import Checkpoint, CheckpointError, read_checkpoint, restore_checkpoint, some
from topomask.train.config import TrainConfig
from topomask.train.processes import random_state, restore_random_state
from topomask.train.reports import Journal, Progress
from topomask.train.run_folder import RunFolder, versions
from topomask.train.step import NonFiniteError, Stepper, faulty_weights
from topomask.train.tasks import Epochs, evaluate


@dataclass(frozen=True)
class Result:
    """What a run gave.

    Args:
        model: The model after the last step.
        step: Steps taken.
        seconds: Time taken, over all resumptions.
        metrics: Metrics of the last evaluation.
        best: Metrics of the best evaluation, and its ``step``.
        folder: Folder of the run; :func:`find_checkpoint` finds its best weights.
    """

    model: nn.Module
    step: int
    seconds: float
    metrics: dict[str, float]
    best: dict[str, float]
    folder: Path


@dataclass
class State:
    """Where a run is, apart from weights and random states; a checkpoint holds it as JSON.

    Args:
        step: Steps taken.
        seconds: Time taken.
        sums: Sums of training metrics over the examples since the last line of metrics.
        examples: Their number.
        busy: Seconds spent on them.
        metrics: Metrics of the last evaluation.
        best: Metrics of the best evaluation, and its step; of several with the same metric, the least loss is best.
        stale: Evaluations since the metric last got better.
    """

    step: int = 0
    seconds: float = 0.0
    sums: dict[str, float] = field(default_factory=dict)
    examples: int = 0
    busy: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    best: dict[str, float] = field(default_factory=dict)
    stale: int = 0

    def to_json(self) -> dict[str, Any]:
        """As JSON, which has no NaN: numbers that are not finite become text."""
        return {name: _texts(value) if isinstance(value, dict) else value for name, value in vars(self).items()}

    @classmethod
    def from_json(cls, data: Any) -> State:
        """The state that :meth:`to_json` gave; a ValueError where it did not."""
        default = vars(cls())
        if not isinstance(data, dict) or data.keys() != default.keys():
            raise ValueError(f"its state must have the fields {', '.join(default)}")
        found: dict[str, Any] = {name: _numbers(x) if isinstance(x, dict) else x for name, x in data.items()}
        for name, value in found.items():
            kinds = (int, float) if isinstance(default[name], float) else (type(default[name]),)
            if type(value) not in kinds or (not isinstance(value, dict) and not 0 <= value < 2**63):
                raise ValueError(f"`{name}` of its state is {value!r}")
        return cls(**found)


class Run:
    """A run on its way, in one of its processes; the first one writes.

    Args:
        folder: Where it is kept.
        stepper: What takes its steps.
        config: Its config.
        total: Steps in all.
        length: Steps per epoch.
        resume: Go on where the folder left off.
        fallback: Take an older checkpoint where the last is damaged.
    """

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
        self.state, note = State(), ""
        self.saved: Path | None = None
        start = self.processes.first(lambda: folder.open(resume, fallback))
        if start is not None:
            note = self._restore(start)
        first = self.processes.is_first
        board = folder.path / "tensorboard" if config.tensorboard else None
        self.journal = Journal(folder.metrics if first else None, self.step, board)
        self.progress = Progress(total, self.step, config.progress and first)
        self.mark = time.perf_counter()
        if note:
            self.progress.note(" ".join([note, *self._check_journal()]))

    @property
    def step(self) -> int:
        """Steps taken."""
        return self.state.step

    @property
    def epoch(self) -> float:
        """Epochs done, with their fraction."""
        return round(self.step / self.length, 4)

    def _restore(self, path: Path) -> str:
        """Go back to a checkpoint; returns what the user should know."""
        checkpoint = read_checkpoint(path)
        self._check_length(checkpoint)
        restore_checkpoint(checkpoint, self.stepper.model, self.stepper.optimizer)
        found, states = (checkpoint.info.get(name) for name in ("versions", "random"))
        try:
            self.state, self.saved = State.from_json(checkpoint.info.get("state")), path
            if self.step != checkpoint.info.get("step"):
                raise ValueError(f"its state is of step {self.step}")
            if not isinstance(states, list) or not isinstance(found, dict):
                raise ValueError("it does not have the versions and random states of the run")
            if self.processes.rank < len(states):
                restore_random_state(states[self.processes.rank])
        except ValueError as error:
            raise CheckpointError(f"{path} is damaged: {error}.") from None
        before = found | {"processes": str(len(states))}
        now = versions() | {"processes": str(self.processes.world_size)}
        changed = _changes(before, now)
        notes = [f"Going on from step {self.step}."]
        notes += [f"Numbers may differ from those of an unbroken run: {', '.join(changed)}."] * bool(changed)
        return " ".join(notes)

    def _check_journal(self) -> list[str]:
        """What was cut from the metrics, in words; warns where lines are missing that were there at this step."""
        journal, steps = self.journal, range(1, self.step + 1)
        if not self.processes.is_first:
            return []
        due = [("train", step) for step in steps if self._is_due(step, self.config.log_every)]
        if self.state.metrics:
            due += [("eval", step) for step in steps if self._is_due(step, self.config.eval_every)]
        there = {(line["event"], line["step"]) for line in journal.kept}
        missing = [f"{event} at step {step}" for event, step in due if (event, step) not in there]
        if missing:
            warnings.warn(
                f"{journal.path} is damaged: {len(missing)} lines from before step {self.step + 1} are missing: "
                f"{some(missing)}. The run goes on without them; what is missing is only for pictures and to read.",
                stacklevel=2,
            )
        cut = [f"{journal.beyond} beyond that step, which are written again"] * bool(journal.beyond)
        cut += [f"{journal.damaged} that are not whole"] * bool(journal.damaged)
        return [f"Lines cut from {journal.path.name}: {'; '.join(cut)}."] if cut and journal.path else []

    def _check_length(self, checkpoint: Checkpoint) -> None:
        """A CheckpointError where epochs have another length, so that the run would go on with other batches."""
        info, changed = checkpoint.info, []
        for name, what, now in (("length", "steps per epoch", self.length), ("total", "steps in all", self.total)):
            # Checkpoints of earlier versions do not say how long their epochs are.
            if info.get(name, now) != now:
                changed.append(f"{info[name]} {what}, where there are {now} now")
        if changed:
            raise CheckpointError(
                f"{checkpoint.path} is of a run with {', and '.join(changed)}: the data, the batch size or the number "
                "of processes changed. Resume with those it was started with, or start in another folder, from its "
                "weights if you like (load_weights)."
            )

    @property
    def is_over(self) -> bool:
        """Whether there is nothing more to do: all steps are taken, or evaluations get no better."""
        patience = self.config.patience
        return self.step >= self.total or (patience is not None and self.state.stale >= patience)

    def is_due(self, every: int | None) -> bool:
        """Whether something that is done every so many steps, or every epoch, is to be done now."""
        return self._is_due(self.step, every)

    def _is_due(self, step: int, every: int | None) -> bool:
        return step % (every or self.length) == 0 or step == self.total

    def count(self, means: dict[str, float], size: int, lr: float) -> None:
        """Note a step; write a line where one is due."""
        state = self.state
        state.step += 1
        state.examples += size
        state.busy += self._elapse()
        for name, mean in means.items():
            state.sums[name] = state.sums.get(name, 0.0) + mean * size
        self.progress.advance(state.step)
        if self.is_due(self.config.log_every):
            values = {name: total / state.examples for name, total in state.sums.items()} | {"lr": lr}
            speed = state.examples / state.busy
            self._report("train", values, {"seconds": state.seconds, "examples_per_second": speed})
            state.sums, state.examples, state.busy = {}, 0, 0.0

    def evaluate(self, data: Epochs | Iterable[Any]) -> None:
        """Evaluate; keep a checkpoint of the best."""
        stepper, state = self.stepper, self.state
        precision = self.config.precision
        state.metrics = evaluate(stepper.model, data, stepper.task, precision=precision, processes=self.processes)
        took = self._elapse()
        self._report("eval", state.metrics, {"seconds": state.seconds, "took": took})
        name = stepper.task.monitor
        if name not in state.metrics:
            raise ValueError(f"`monitor` is {name!r}, but the task gives {', '.join(state.metrics)}.")
        now, best = state.metrics[name], state.best.get(name)
        # Small sets have many ties, up to rounding. Patience is for the metric itself: they do not make a run longer.
        tied = name != "loss" and best is not None and math.isclose(now, best, rel_tol=1e-6)
        better = best is None or (not tied and (now > best if stepper.task.higher_is_better else now < best))
        # A model that gives NaN has a largest class, too, and so an accuracy.
        better = better and math.isfinite(now) and math.isfinite(state.metrics["loss"])
        state.stale = 0 if better else state.stale + 1
        if better or (tied and state.metrics["loss"] < state.best.get("loss", -math.inf)):
            state.best = state.metrics | {"step": self.step}
            self._write(self.folder.best)

    def save(self) -> None:
        """Write a checkpoint to go on from."""
        path = self.folder.last(self.step)
        self._write(path)
        self.saved = path
        if self.processes.is_first:
            self.folder.prune()
        self._elapse()

    def save_before(self, number: int) -> None:
        """Save what there is before a signal takes effect, and say so."""
        path = self.folder.last(self.step)
        if self.saved != path:
            self.save()
        if self.processes.is_first:
            name = signal.Signals(number).name
            text = f"{name} at step {self.step} of {self.total}: {path} is written. Pass resume=True to go on from it."
            print(text, file=sys.stderr, flush=True)
        # A process that ends before the checkpoint is written would take the others with it.
        self.processes.gather(None)

    def _write(self, path: Path) -> None:
        fault = faulty_weights(self.stepper.model)
        if fault is not None:
            raise self.stopped(fault)
        states = self.processes.gather(random_state())
        if self.processes.is_first:
            self.journal.sync()
            place = {"step": self.step, "epoch": self.epoch, "length": self.length, "total": self.total}
            info = {**place, "state": self.state.to_json(), "random": states}
            self.folder.write(path, self.stepper.model, self.stepper.optimizer, info)

    def stopped(self, fault: object, lr: float | None = None) -> NonFiniteError:
        """An error that says where the run stopped, why, and what is left of it."""
        epoch, batch = divmod(self.step, self.length)
        rate = "" if lr is None else f", learning rate {lr:g}"
        kept = "There is no checkpoint yet" if self.saved is None else f"The last checkpoint, {self.saved}, is whole"
        return NonFiniteError(
            f"Training stopped at step {self.step} (epoch {epoch}, batch {batch}{rate}): {fault}. {kept}. "
            "Lower optim.lr, lengthen optim.warmup, set optim.clip, or look at that batch."
        )

    def result(self) -> Result:
        """What the run gave."""
        state = self.state
        return Result(self.stepper.model, state.step, state.seconds, state.metrics, state.best, self.folder.path)

    def _report(self, event: str, values: dict[str, float], times: dict[str, float]) -> None:
        self.journal.write(event, self.step, self.epoch, values, times)
        self.progress.line(event, self.step, values)

    def _elapse(self) -> float:
        """Seconds since this was last asked."""
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
    """What differs between the versions of two runs, in words."""
    names = {**now, **before}
    if "costs" not in before:
        # Written by a version that did not look at all of these.
        names = before
    was, found = ({name: part.get(name, "missing") for name in names} for part in (before, now))
    return [f"{name} {was[name]} is now {found[name]}" for name in names if was[name] != found[name]]


def _texts(values: dict[str, float]) -> dict[str, float | str]:
    return {name: value if math.isfinite(value) else str(value) for name, value in values.items()}


def _numbers(values: dict[str, Any]) -> dict[str, float]:
    odd = [name for name, value in values.items() if type(value) not in (int, float, str)]
    if odd:
        raise ValueError(f"`{odd[0]}` is {values[odd[0]]!r}, which is not a number")
    return {name: float(value) if isinstance(value, str) else value for name, value in values.items()}
