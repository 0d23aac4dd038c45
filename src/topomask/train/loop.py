"""The training loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

from torch import nn

from topomask.support.config import to_dict
from topomask.support.imports import need
from topomask.train.config import TrainConfig
from topomask.train.processes import HeldSignals, check_precision, join_processes, seed_everything
from topomask.train.run_folder import RunFolder
from topomask.train.running import Result, Run
from topomask.train.step import NonFiniteError, Stepper, build_optimizer, learning_rate
from topomask.train.tasks import Epochs, Task, batches_of


def run(
    config: TrainConfig,
    build: Callable[[], nn.Module],
    data: Epochs | Sequence[Any],
    task: Task,
    folder: Path | str,
    *,
    valid: Epochs | Sequence[Any] | None = None,
    record: Any = None,
    resume: bool = False,
    fallback: bool = False,
) -> Result:
    """Train a model, in one process or in several that ``torchrun`` started.

    A run that is killed at any moment and resumed gives the same results as an uninterrupted one: bit-identical on the
    CPU with the same number of threads. Seeds the generators of torch, NumPy and Python.

    On SIGINT (Ctrl-C) or SIGTERM, the run finishes the current step, writes a checkpoint, and stops. A second signal
    ends the process at once.

    Args:
        config: Length of the run, optimiser, logging and seed.
        build: Builds the model; called after seeding, so every process builds the same one. To fine-tune, call
            :func:`load_weights` in it.
        data: Training batches: an :class:`Epochs` such as :class:`topomask.data.Batches`, or a list of batches that
            is repeated every epoch.
        task: The loss and its metrics.
        folder: Run folder, for ``config.json``, ``metrics.jsonl`` and ``checkpoints``.
        valid: Validation batches, which select the best checkpoint.
        record: A dataclass with the rest of the configuration; saved with the checkpoints, and compared on resuming.
        resume: Continue the run in the folder, if there is one.
        fallback: If the last checkpoint is damaged, use the one before it.

    Returns:
        The model and its metrics.

    Example:
        >>> import tempfile, torch, topomask as tm
        >>> data = [(x, (x[:, 0] > 0).long()) for x in torch.randn(8, 32, 2)]
        >>> config = tm.train.TrainConfig(tm.train.OptimConfig(lr=0.1), epochs=5, progress=False)
        >>> task = tm.train.Classification(label_smoothing=0.1)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = tm.train.run(config, lambda: nn.Linear(2, 2), data, task, folder, valid=data)
        >>> result.metrics["accuracy"] > 0.9
        True
    """
    # Fail now, not at the first checkpoint.
    need("safetensors", "Training")
    _check_arguments(config, build, data, task)
    full_record = ({} if record is None else to_dict(record)) | {"train": to_dict(config)}
    if not len(data):
        raise ValueError("`data` has no batches, so there is nothing to train on.")
    if config.patience is not None and valid is None:
        raise ValueError("`patience` counts evaluations, but there is nothing to evaluate on. Pass `valid`.")
    processes = join_processes(config.device)
    check_precision(config.precision, processes.device)
    # The same weights and walks in every process, then different random numbers in each.
    seed_everything(config.seed)
    model = build()
    if not isinstance(model, nn.Module):
        raise ValueError(f"`build` must return a torch.nn.Module, but returned a {type(model).__name__}.")
    model = model.to(processes.device)
    processes.check_equal(model)
    seed_everything(config.seed, processes.rank + 1)
    data, valid = processes.shard(data), processes.shard(valid)
    length = processes.agree(len(data))
    total = config.total_steps(length)
    optimizer = build_optimizer(model, config.optim)
    stepper = Stepper(model, optimizer, task, processes, config.precision, config.optim.clip)
    run_folder = RunFolder(Path(folder), full_record, config.keep)
    with (
        closing(run_folder),
        HeldSignals() as signals,
        Run(run_folder, stepper, config, total, length, resume=resume, fallback=fallback) as state,
    ):
        while not state.is_over:
            epoch, skip = divmod(state.step, length)
            batches = islice(batches_of(data, epoch, skip), min(length - skip, total - state.step))
            for batch in batches:
                lr = learning_rate(config.optim, state.step, total)
                try:
                    means, size = stepper.step(batch, lr)
                except NonFiniteError as error:
                    raise state.stopped(error, lr) from None
                state.count(means, size, lr)
                if valid is not None and state.is_due(config.eval_every):
                    state.evaluate(valid)
                if state.is_due(config.checkpoint_every) or state.is_over:
                    state.save()
                number = processes.largest(signals.number)
                if number:
                    state.save_before(number)
                    signals.deliver(number)
                if state.is_over:
                    break
            if not state.is_over and state.step < min((epoch + 1) * length, total):
                raise ValueError(f"`data` has {length} batches, but epoch {epoch} gave {state.step - epoch * length}.")
    return state.result()


def _check_arguments(config: Any, build: Any, data: Any, task: Any) -> None:
    """Raise a ValueError that names the first argument of the wrong type, such as a model for the config."""
    model = type(build).__name__ if isinstance(build, nn.Module) else "Model"
    builds = callable(build) and not isinstance(build, nn.Module)
    for name, given, fits, expected, fix in (
        ("config", config, isinstance(config, TrainConfig), "a TrainConfig", "train.TrainConfig(epochs=10)"),
        ("build", build, builds, "a function that builds the model after the seed is set", f"lambda: {model}(...)"),
        ("data", data, hasattr(data, "__len__"), "a list of batches or an Epochs", "data.Batches(...)"),
        ("task", task, isinstance(task, Task), "a Task", "train.Classification()"),
    ):
        if not fits:
            raise ValueError(
                f"`{name}` must be {expected}, but is a {type(given).__name__}. Pass, for example, {fix}; the order is "
                "train.run(config, build, data, task, folder)."
            )
