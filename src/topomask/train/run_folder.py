"""The folder of a run: its config, metrics and checkpoints, and a lock, since one run at a time is in it."""

from __future__ import annotations

import errno
import hashlib
import json
import platform
import warnings
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout
from torch import nn

import topomask
from topomask.attention import costs
from topomask.support.config import flat
from topomask.support.files import write_atomically
from topomask.train.checkpoint import Checkpoint, CheckpointError, read_checkpoint, save_checkpoint
from topomask.train.config import FREE_FIELDS

# What systems answer where a file system has no locks.
_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)
# Packages besides torch and NumPy that compute what a model is given or does; not all of them need be there.
_PACKAGES = ("numba", "scipy", "scikit-learn", "torch-geometric")


class RunFolder:
    """``config.json``, ``metrics.jsonl``, and in ``checkpoints`` the last ones and ``best.safetensors``.

    Args:
        path: The folder.
        record: The config of the run, as JSON.
        keep: How many of the last checkpoints to keep.
    """

    def __init__(self, path: Path, record: dict[str, Any], keep: int = 2) -> None:
        self.path, self.record, self.keep = path, record, keep
        # The system takes it back when the process ends, however it ends, which it could not do with a soft lock.
        self._lock = FileLock(path / "lock", blocking=False, thread_local=False, fallback_to_soft=False)

    @property
    def metrics(self) -> Path:
        """The file of metrics."""
        return self.path / "metrics.jsonl"

    @property
    def best(self) -> Path:
        """The checkpoint of the best evaluation."""
        return self.path / "checkpoints" / "best.safetensors"

    def checkpoints(self) -> list[Path]:
        """The last checkpoints, oldest first."""
        return sorted((self.path / "checkpoints").glob("step-*.safetensors"))

    def open(self, resume: bool, fallback: bool) -> Path | None:
        """Make the folder ready, and lock it until it is closed.

        Args:
            resume: Whether to go on where a run stopped; otherwise the folder must hold none.
            fallback: Whether to take an older checkpoint where the last is damaged.

        Returns:
            The checkpoint to go on from, or None to start.
        """
        (self.path / "checkpoints").mkdir(parents=True, exist_ok=True)
        self._take_lock()
        if not resume and (self.metrics.exists() or self.checkpoints()):
            raise FileExistsError(
                f"{self.path} holds a run already. Pass resume=True to go on with it, or choose another folder. "
                "On the command line, that is --resume or --output."
            )
        # With the lock, nobody is writing these any more: ours, and those of safetensors.
        own = ("checkpoints/.*.tmp", "checkpoints/.tmp*", ".config.json.*.tmp", ".metrics.jsonl.*.tmp")
        for leftover in [path for pattern in own for path in self.path.glob(pattern)]:
            leftover.unlink()
        checkpoint = self._last_good(fallback)
        if checkpoint is not None:
            self._check_config(checkpoint)
        text = json.dumps(self.record, indent=2) + "\n"
        write_atomically(self.path / "config.json", lambda path: path.write_text(text))
        return None if checkpoint is None else checkpoint.path

    def close(self) -> None:
        """Let others use the folder."""
        self._lock.release(force=True)

    def last(self, step: int) -> Path:
        """The checkpoint of a step."""
        return self.path / "checkpoints" / f"step-{step:09d}.safetensors"

    def write(self, path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, info: dict[str, Any]) -> None:
        """Write a checkpoint of this run."""
        save_checkpoint(path, model, optimizer, {"config": self.record, "versions": versions(), **info})

    def prune(self) -> None:
        """Remove all but the last checkpoints and the best."""
        for old in self.checkpoints()[: -self.keep]:
            old.unlink()

    def _take_lock(self) -> None:
        """A :class:`FolderInUse` where another run has the lock; nothing where the file system has no locks."""
        try:
            self._lock.acquire()
        except Timeout:
            raise FolderInUse(
                f"Another process is training in {self.path}. Wait until it is done, stop it, or choose another folder."
            ) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise

    def _last_good(self, fallback: bool) -> Checkpoint | None:
        found = self.checkpoints()
        while found:
            last = found.pop()
            try:
                return read_checkpoint(last)
            except CheckpointError as error:
                before = f"{found[-1].name} is the one before it" if found else "there is none before it"
                if not fallback:
                    raise CheckpointError(
                        f"{error} Pass fallback=True to go on from an older one; {before}. On the command line, "
                        "that is --fallback."
                    ) from None
                warnings.warn(f"{error} It is set aside; {before}.", stacklevel=2)
                last.rename(last.with_suffix(".damaged"))
        return None

    def _check_config(self, checkpoint: Checkpoint) -> None:
        """A CheckpointError where the config has changed in a way that changes the numbers."""
        changed = changes(config_of(checkpoint), self.record)
        if changed:
            raise CheckpointError(
                f"{self.path} holds a run with another config: {', '.join(changed)}. Resume with the config it was "
                "started with, or start in another folder (--output, or --runs of topomask reproduce), from its "
                "weights if you like (load_weights)."
            )


def config_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """The config of the run that wrote a checkpoint."""
    config = checkpoint.info.get("config")
    if not isinstance(config, dict):
        raise CheckpointError(f"{checkpoint.path} is damaged: its header does not have the config of the run.")
    return config


def changes(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """In words, the fields that differ between two configs in a way that changes the numbers."""
    was, found, free = flat(before), flat(now), set(FREE_FIELDS)
    patience, more = was.get("train.patience"), found.get("train.patience")
    if more is None or (isinstance(patience, int) and more >= patience):
        # With more patience it would have come here, too.
        free.add("train.patience")
    changed = [name for name in {**was, **found} if name not in free and was.get(name) != found.get(name)]
    return [f"{name}={was.get(name)} is now {found.get(name)}" for name in changed]


def find_checkpoint(folder: Path | str, best: bool = True) -> Path:
    """The checkpoint of a run to use: that of its best evaluation, or where it had none, the last.

    Args:
        folder: Folder of the run.
        best: Prefer that of the best evaluation. Pass false where a run was evaluated on a test set.
    """
    run = RunFolder(Path(folder), {})
    found = [path for path in (*run.checkpoints(), *([run.best] if best else [])) if path.is_file()]
    if not found:
        raise FileNotFoundError(f"There is no checkpoint of a run in {run.path}. Is it the folder that was trained in?")
    return found[-1]


def has_checkpoint(folder: Path | str) -> bool:
    """Whether a run in this folder can be gone on with: one of its last checkpoints is whole."""
    return any(_is_whole(path) for path in reversed(RunFolder(Path(folder), {}).checkpoints()))


def _is_whole(path: Path) -> bool:
    try:
        read_checkpoint(path)
    except (CheckpointError, OSError):
        return False
    return True


def versions() -> dict[str, str]:
    """Versions of all that decides the numbers; of the constants that plans are made with, a hash."""
    installed = {name: _installed(name) for name in _PACKAGES}
    return {
        "topomask": topomask.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "threads": str(torch.get_num_threads()),
        **{name: version for name, version in installed.items() if version is not None},
        "costs": _hash(dict(costs.constants)),
    }


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _hash(values: dict[str, float]) -> str:
    return hashlib.blake2b(json.dumps(values, sort_keys=True).encode(), digest_size=4).hexdigest()


class FolderInUse(RuntimeError):  # noqa: N818
    """A folder in which another run is at work."""
