"""Training: the loop, checkpoints, metrics and pictures.

Names are imported when they are first used, so that configs can be read without waiting for torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

from topomask.train.config import OptimConfig, TrainConfig

if TYPE_CHECKING:
    from topomask.train.checkpoint import Checkpoint, CheckpointError, load_weights, read_checkpoint, save_checkpoint
    from topomask.train.epochs import Epochs
    from topomask.train.evaluation import evaluate
    from topomask.train.faults import NonFiniteError
    from topomask.train.folder_lock import FolderInUse
    from topomask.train.graph_tasks import GraphClassification, NodeClassification, roc_auc
    from topomask.train.journal import read_metrics
    from topomask.train.loop import run
    from topomask.train.optim import build_optimizer, learning_rate
    from topomask.train.plots import plot_metric, plot_modulations, plot_run
    from topomask.train.processes import join_processes
    from topomask.train.random_state import seed_everything
    from topomask.train.run_folder import find_checkpoint
    from topomask.train.running import Result
    from topomask.train.tasks import Classification, ParticleMotion, Regression, Task

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "Classification",
    "Epochs",
    "FolderInUse",
    "GraphClassification",
    "NodeClassification",
    "NonFiniteError",
    "OptimConfig",
    "ParticleMotion",
    "Regression",
    "Result",
    "Task",
    "TrainConfig",
    "build_optimizer",
    "evaluate",
    "find_checkpoint",
    "join_processes",
    "learning_rate",
    "load_weights",
    "plot_metric",
    "plot_modulations",
    "plot_run",
    "read_checkpoint",
    "read_metrics",
    "roc_auc",
    "run",
    "save_checkpoint",
    "seed_everything",
]

_HOMES = {
    "checkpoint": ("Checkpoint", "CheckpointError", "load_weights", "read_checkpoint", "save_checkpoint"),
    "epochs": ("Epochs",),
    "evaluation": ("evaluate",),
    "faults": ("NonFiniteError",),
    "folder_lock": ("FolderInUse",),
    "graph_tasks": ("GraphClassification", "NodeClassification", "roc_auc"),
    "journal": ("read_metrics",),
    "loop": ("run",),
    "optim": ("build_optimizer", "learning_rate"),
    "plots": ("plot_metric", "plot_modulations", "plot_run"),
    "processes": ("join_processes",),
    "random_state": ("seed_everything",),
    "run_folder": ("find_checkpoint",),
    "running": ("Result",),
    "tasks": ("Classification", "ParticleMotion", "Regression", "Task"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'topomask.train' has no attribute {name!r}")
    return getattr(importlib.import_module(f"topomask.train.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
