"""Training: the loop, checkpoints, metrics and pictures.

Names are imported when they are first used, so that configs can be read without waiting for torch.
"""

from typing import TYPE_CHECKING

from topomask.support.imports import lazy_names

if TYPE_CHECKING:
    from topomask.train.checkpoint import Checkpoint as Checkpoint
    from topomask.train.checkpoint import CheckpointError as CheckpointError
    from topomask.train.checkpoint import load_weights as load_weights
    from topomask.train.checkpoint import read_checkpoint as read_checkpoint
    from topomask.train.checkpoint import save_checkpoint as save_checkpoint
    from topomask.train.config import OptimConfig as OptimConfig
    from topomask.train.config import TrainConfig as TrainConfig
    from topomask.train.graph_tasks import GraphClassification as GraphClassification
    from topomask.train.graph_tasks import NodeClassification as NodeClassification
    from topomask.train.graph_tasks import roc_auc as roc_auc
    from topomask.train.loop import run as run
    from topomask.train.plots import plot_metric as plot_metric
    from topomask.train.plots import plot_modulations as plot_modulations
    from topomask.train.plots import plot_run as plot_run
    from topomask.train.processes import join_processes as join_processes
    from topomask.train.processes import seed_everything as seed_everything
    from topomask.train.reports import read_metrics as read_metrics
    from topomask.train.run_folder import FolderInUse as FolderInUse
    from topomask.train.run_folder import find_checkpoint as find_checkpoint
    from topomask.train.running import Result as Result
    from topomask.train.step import NonFiniteError as NonFiniteError
    from topomask.train.step import build_optimizer as build_optimizer
    from topomask.train.step import learning_rate as learning_rate
    from topomask.train.tasks import Classification as Classification
    from topomask.train.tasks import Epochs as Epochs
    from topomask.train.tasks import ParticleMotion as ParticleMotion
    from topomask.train.tasks import Regression as Regression
    from topomask.train.tasks import Task as Task
    from topomask.train.tasks import evaluate as evaluate

__getattr__, __dir__, __all__ = lazy_names(__name__)
