"""Recipes for moving point clouds: Interlacers on soft bodies of particles."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar, Self

from topomask.data import Batches, ParticleSet
from topomask.models import InterlacerConfig
from topomask.recipes.experiment import Experiment
from topomask.train import OptimConfig, ParticleMotion, Task, TrainConfig


@dataclass(frozen=True)
class ParticleData:
    """Soft bodies thrown on a floor.

    Args:
        num_particles: Particles per body.
        num_frames: Frames per trajectory.
        num_trajectories: Number of training trajectories.
        horizon: Frames to predict ahead in training.
        batch_size: Windows per step.
        seed: Seed of the bodies.
    """

    num_particles: int = 4096
    num_frames: int = 30
    num_trajectories: int = 32
    horizon: int = 1
    batch_size: int = 2
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class ParticleExperiment(Experiment):
    """An Interlacer and its bodies."""

    predicts_files: ClassVar[bool] = True
    held_out = "test"

    data: ParticleData = field(default_factory=ParticleData)
    model: InterlacerConfig = field(default_factory=InterlacerConfig)

    def fitted(self) -> Self:
        """Return the experiment itself: nothing depends on the data."""
        return self

    def batches(self, split: str, training: bool = False) -> Batches:
        """Windows of a split: ``data.horizon`` frames ahead in training, six in evaluation."""
        bodies = _bodies(self.data, split, self.data.horizon if training else 6)
        return Batches(bodies, self.data.batch_size, seed=self.train.seed, shuffle=training)

    def task(self) -> Task:
        """Mean square error of positions and velocities, and mean distances."""
        return ParticleMotion()


# Simulated once for all experiments on the same bodies.
@lru_cache(maxsize=4)
def _bodies(data: ParticleData, split: str, horizon: int) -> ParticleSet:
    return ParticleSet(
        split,
        num_trajectories=data.num_trajectories if split == "train" else None,
        num_particles=data.num_particles,
        num_frames=data.num_frames,
        horizon=horizon,
        seed=data.seed,
    )


def particles() -> ParticleExperiment:
    """Soft bodies of 4,096 particles that fall on a floor: an Interlacer with walks between neighbours."""
    return ParticleExperiment(
        recipe="particles",
        data=ParticleData(),
        model=InterlacerConfig(feature_dim=6, dim=64, depth=2, num_heads=4),
        train=TrainConfig(
            # Weight decay and clipping as in the paper.
            OptimConfig(lr=1e-3, warmup=0.05, decay=0.9, weight_decay=1e-3, clip=0.01),
            steps=1000,
            eval_every=500,
            checkpoint_every=100,
        ),
    )
