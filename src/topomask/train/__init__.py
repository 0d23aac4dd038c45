"""Training: the loop, checkpoints, metrics and pictures.

Names are imported when they are first used, so that configs can be read without waiting for torch.
"""

from typing import TYPE_CHECKING

from topomask.support.imports import lazy_names

if TYPE_CHECKING:
    from topomask.train.checkpoint import Checkpoint, CheckpointError, load_weights, read_checkpoint, save_checkpoint
    from topomask.train.config import OptimConfig, TrainConfig
    from topomask.train.graph_tasks import GraphClassification, NodeClassification, roc_auc
    from topomask.train.loop import run
    from topomask.train.plots import plot_metric, plot_modulations, plot_run
    from topomask.train.processes import join_processes, seed_everything
    from topomask.train.reports import read_metrics
    from topomask.train.run_folder import FolderInUse, find_checkpoint
    from topomask.train.running import Result
    from topomask.train.step import NonFiniteError, build_optimizer, learning_rate
    from topomask.train.tasks import Classification, Epochs, ParticleMotion, Regression, Task, evaluate

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

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "checkpoint": ("Checkpoint", "CheckpointError", "load_weights", "read_checkpoint", "save_checkpoint"),
        "config": ("OptimConfig", "TrainConfig"),
        "graph_tasks": ("GraphClassification", "NodeClassification", "roc_auc"),
        "loop": ("run",),
        "plots": ("plot_metric", "plot_modulations", "plot_run"),
        "processes": ("join_processes", "seed_everything"),
        "reports": ("read_metrics",),
        "run_folder": ("FolderInUse", "find_checkpoint"),
        "running": ("Result",),
        "step": ("NonFiniteError", "build_optimizer", "learning_rate"),
        "tasks": ("Classification", "Epochs", "ParticleMotion", "Regression", "Task", "evaluate"),
    },
)
