"""The folder of a run: its config, metrics and checkpoints, and a lock, since one run at a time is in it."""

from __future__ import annotations

import hashlib
import json
import platform
import warnings
from importlib import metadata
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import nn

import topomask
from topomask.attention import costs
from topomask.support.files import write_atomically
from topomask.train.checkpoint import Checkpoint, CheckpointError, read_checkpoint, save_checkpoint
from topomask.train.config import FREE_FIELDS

try:
    import fcntl
except ModuleNotFoundError:  # pragma: no cover
    # Not on Windows, where runs go on without a lock.
    fcntl = None  # type: ignore[assignment]

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
        self._lock = FolderLock(path)

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
        self._lock.acquire()
        if not resume and (self.metrics.exists() or self.checkpoints()):
            raise FileExistsError(
                f"{self.path} holds a run already. Pass resume=True to go on with it, or choose another folder. "
                "On the command line, that is --resume or --output."
            )
        # With the lock, nobody is writing these any more: ours, and those of safetensors.
        for pattern in (".*.tmp", ".tmp*"):
            for leftover in (self.path / "checkpoints").glob(pattern):
                leftover.unlink()
        checkpoint = self._last_good(fallback)
        if checkpoint is not None:
            self._check_config(checkpoint)
        text = json.dumps(self.record, indent=2) + "\n"
        write_atomically(self.path / "config.json", lambda path: path.write_text(text))
        return None if checkpoint is None else checkpoint.path

    def close(self) -> None:
        """Let others use the folder."""
        self._lock.release()

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
        before, now = _flat(checkpoint.info["config"]), _flat(self.record)
        # Nor does it matter where data lives.
        free = {"data.root", "data.download", *(f"train.{name}" for name in FREE_FIELDS)}
        patience, more = before.get("train.patience"), now.get("train.patience")
        if more is None or (patience is not None and more >= patience):
            # With more patience it would have come here, too.
            free.add("train.patience")
        changed = [name for name in {**before, **now} if name not in free and before.get(name) != now.get(name)]
        if changed:
            listed = ", ".join(f"{name}={before.get(name)} is now {now.get(name)}" for name in changed)
            raise CheckpointError(
                f"{self.path} holds a run with another config: {listed}. Resume with the config it was started with, "
                "or start in another folder (--output, or --runs of topomask reproduce), from its weights if you like "
                "(load_weights)."
            )


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


def _flat(record: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(record, dict):
        return {prefix[:-1]: record}
    return {name: value for key, part in record.items() for name, value in _flat(part, f"{prefix}{key}.").items()}


class FolderInUse(RuntimeError):  # noqa: N818
    """A folder in which another run is at work."""


class FolderLock:
    """A lock on the file ``lock`` of a folder, which the system takes back when the process ends, however it ends.

    The file itself stays: were it removed, a third process could lock a new one while a second holds the old.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file: IO[bytes] | None = None

    def acquire(self) -> None:
        """Take the lock; a :class:`FolderInUse` where another run has it."""
        if fcntl is None or self._file is not None:
            return
        file = (self.folder / "lock").open("ab")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise FolderInUse(
                f"Another process is training in {self.folder}. Wait until it is done, stop it, or choose another "
                "folder."
            ) from None
        except OSError:
            # A file system without locks; runs go on as they do where there is no fcntl.
            file.close()
            return
        self._file = file

    def release(self) -> None:
        """Give the lock back, if it was taken."""
        if self._file is not None:
            # Said aloud, since a fork of this process may have the file open still.
            fcntl.flock(self._file, fcntl.LOCK_UN)
            self._file.close()
            self._file = None
