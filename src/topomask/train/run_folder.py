"""Run folders: config, metrics and checkpoints of one run, locked while it trains."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import platform
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout

import topomask
from topomask.attention import costs
from topomask.support.config import flat
from topomask.support.files import write_content
from topomask.support.imports import version_of
from topomask.train.checkpoint import Checkpoint, CheckpointError, read_checkpoint
from topomask.train.config import FREE_FIELDS

# Errors of file systems that do not support locks.
_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)


class FolderInUse(RuntimeError):  # noqa: N818
    """Another process is training in the folder."""


class RunFolder:
    """A folder with ``config.json``, ``metrics.jsonl``, and in ``checkpoints`` ``best.safetensors`` and the latest.

    ``record`` is the config of the run as JSON; ``keep`` is how many of the latest checkpoints to keep.
    """

    def __init__(self, path: Path, record: dict[str, Any], keep: int = 2) -> None:
        self.path, self.record, self.keep = path, record, keep
        self.metrics, self.best = path / "metrics.jsonl", path / "checkpoints" / "best.safetensors"
        # The system releases this lock however the process ends, which a soft lock cannot guarantee.
        self._lock = FileLock(path / "lock", blocking=False, thread_local=False, fallback_to_soft=False)

    def checkpoints(self) -> list[Path]:
        """The latest checkpoints, oldest first."""
        return sorted((self.path / "checkpoints").glob("step-*.safetensors"))

    def open(self, resume: bool, fallback: bool) -> Path | None:
        """Prepare and lock the folder; return the checkpoint to resume from, or None to start from scratch.

        Without ``resume``, the folder must not contain a run; with ``fallback``, damaged checkpoints are skipped.
        """
        (self.path / "checkpoints").mkdir(parents=True, exist_ok=True)
        self._take_lock()
        # Without a line of metrics, a run failed in its first steps.
        if not resume and (self.checkpoints() or (self.metrics.exists() and self.metrics.stat().st_size)):
            raise FileExistsError(
                f"{self.path} already contains a run. Pass resume=True to continue it, or choose another folder. "
                "On the command line, use --resume or --output."
            )
        # With the lock held, nobody is writing these temporary files (ours and those of safetensors) any more.
        for pattern in ("checkpoints/.*.tmp", "checkpoints/.tmp*", ".config.json.*.tmp", ".metrics.jsonl.*.tmp"):
            for leftover in [*self.path.glob(pattern)]:
                leftover.unlink(missing_ok=True)
        checkpoint = self._last_good(fallback)
        if checkpoint is not None:
            self._check_config(checkpoint)
        write_content(self.path / "config.json", (json.dumps(self.record, indent=2) + "\n").encode())
        return None if checkpoint is None else checkpoint.path

    def close(self) -> None:
        """Release the lock."""
        self._lock.release(force=True)

    def last(self, step: int) -> Path:
        """The checkpoint file of a step."""
        return self.path / "checkpoints" / f"step-{step:09d}.safetensors"

    def prune(self) -> None:
        """Delete all checkpoints but the latest and the best."""
        for old in self.checkpoints()[: -self.keep]:
            old.unlink()

    def _take_lock(self) -> None:
        """Lock the folder if its file system supports locks; raise a FolderInUse if another run has the lock."""
        try:
            self._lock.acquire()
        except Timeout:
            raise FolderInUse(
                f"Another process is training in {self.path}. Wait for it to finish, stop it, or choose another folder."
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
                before = f"the one before it is {found[-1].name}" if found else "there is none before it"
                if not fallback:
                    raise CheckpointError(
                        f"{error} Pass fallback=True (--fallback on the command line) to continue from an older "
                        f"checkpoint; {before}."
                    ) from None
                warnings.warn(f"{error} It was renamed to .damaged; {before}.", stacklevel=2)
                last.rename(last.with_suffix(".damaged"))
        return None

    def _check_config(self, checkpoint: Checkpoint) -> None:
        """Raise a CheckpointError if the config has changed in a way that affects the results."""
        changed = changes(config_of(checkpoint), self.record)
        if changed:
            raise CheckpointError(
                f"{self.path} contains a run with another config: {', '.join(changed)}. Resume with the original "
                "config, or start in another folder (--output, or --runs for topomask reproduce), from these weights "
                "if you like (load_weights)."
            )


def config_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """The config of the run that wrote a checkpoint."""
    config = checkpoint.info.get("config")
    if not isinstance(config, dict):
        raise CheckpointError(f"{checkpoint.path} is damaged: its header does not contain the config of the run.")
    return config


def changes(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Describe the fields that differ between two configs and affect the results."""
    was, found, free = flat(before), flat(now), set(FREE_FIELDS)
    patience, more = was.get("train.patience"), found.get("train.patience")
    if more is None or (isinstance(patience, int) and more >= patience):
        # With more patience, the run would have got this far too.
        free.add("train.patience")
    changed = [name for name in {**was, **found} if name not in free and was.get(name) != found.get(name)]
    return [f"{name}={was.get(name)} is now {found.get(name)}" for name in changed]


def find_checkpoint(folder: Path | str, best: bool = True) -> Path:
    """Find the best checkpoint of a run, or its latest if it was never evaluated.

    Args:
        folder: The run folder.
        best: Prefer the best checkpoint. Pass False if the run was evaluated on a test set.
    """
    run = RunFolder(Path(folder), {})
    found = [path for path in (*run.checkpoints(), *([run.best] if best else [])) if path.is_file()]
    if not found:
        raise FileNotFoundError(f"There is no checkpoint in {run.path}. Is it the folder that a run was trained in?")
    return found[-1]


def has_checkpoint(folder: Path | str) -> bool:
    """Whether the folder has an intact checkpoint to resume from."""
    for path in reversed(RunFolder(Path(folder), {}).checkpoints()):
        with contextlib.suppress(CheckpointError, OSError):
            read_checkpoint(path)
            return True
    return False


def versions() -> dict[str, str]:
    """Versions of everything that affects the results, and a hash of the cost model's constants."""
    found = {
        "topomask": topomask.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "threads": str(torch.get_num_threads()),
    }
    others = {name: version_of(name) for name in ("numba", "scipy", "scikit-learn", "torch-geometric")}
    found |= {name: version for name, version in others.items() if version is not None}
    constants = json.dumps(dict(costs.constants), sort_keys=True)
    return found | {"costs": hashlib.blake2b(constants.encode(), digest_size=4).hexdigest()}
