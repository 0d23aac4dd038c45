"""Generated trajectories of soft bodies of particles, for learning to predict motion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from scipy.spatial.transform import Rotation
from torch import Tensor
from torch.utils.data import Dataset

from topomask.data.mass_spring import Array, MassSpring, Material
from topomask.data.splits import SPLITS, check_index, check_split, derived_seed

_DEFAULT_TRAJECTORIES = {"train": 32, "val": 4, "test": 8}


@final
@dataclass(frozen=True)
class Trajectory:
    """The motion of one body.

    Args:
        positions: Metres, z upwards from the floor, float32, [T, N, 3].
        velocities: Metres per second, float32, [T, N, 3].
        springs: Pairs of particles that are connected, each pair once, int64, [2, E].
    """

    positions: Tensor
    velocities: Tensor
    springs: Tensor


@final
class ParticleSet(Dataset[tuple[Tensor, Tensor, Tensor, Tensor]]):
    """Windows of trajectories: the state of a body, and its states in the next frames.

    A box or an ellipsoid of particles, connected by springs to their initial neighbours, is thrown with some spin and
    falls on a floor, where it is squeezed, bounces and slides. Everything is drawn from (seed, split, index of the
    trajectory). A trajectory is simulated on first access, which takes one or two seconds, and cached. Do not use
    worker processes: each would simulate its own.

    An item is (positions [N, 3], features [N, 6], next positions [horizon, N, 3], next features [horizon, N, 6]),
    float32. Positions are in metres. The features of a particle are its velocity, in metres per second, and its
    position in the body at rest, in metres from the centre, without which the stretch of springs would be unknown.

    Args:
        split: ``"train"``, ``"val"`` or ``"test"``.
        num_trajectories: Default: 32 for training, 4 for validation, 8 for testing.
        num_particles: Particles per body.
        num_frames: Frames per trajectory.
        horizon: Number of frames to predict.
        frame_time: Seconds between frames.
        material: Properties of the body and the floor.
        seed: Seed of all random numbers.

    Example:
        >>> motion = ParticleSet("train", num_trajectories=2, num_particles=64, num_frames=10, horizon=6)
        >>> len(motion), [tuple(part.shape) for part in motion[0]]
        (8, [(64, 3), (64, 6), (6, 64, 3), (6, 64, 6)])
    """

    # Number of features per particle.
    feature_dim = 6

    def __init__(
        self,
        split: str = "train",
        *,
        num_trajectories: int | None = None,
        num_particles: int = 4096,
        num_frames: int = 30,
        horizon: int = 1,
        frame_time: float = 1 / 30,
        material: Material | None = None,
        seed: int = 0,
    ) -> None:
        check_split(split, SPLITS, "particles")
        num_trajectories = _DEFAULT_TRAJECTORIES[split] if num_trajectories is None else num_trajectories
        if num_trajectories < 1 or not frame_time > 0:
            raise ValueError(
                "`num_trajectories` must be at least 1 and `frame_time` positive, but they are "
                f"{num_trajectories} and {frame_time}."
            )
        if not 1 <= horizon < num_frames:
            raise ValueError(f"`horizon` must lie between 1 and num_frames - 1 = {num_frames - 1}, but is {horizon}.")
        self.num_trajectories, self.num_particles, self.num_frames = num_trajectories, num_particles, num_frames
        self.horizon, self.frame_time, self.seed = horizon, frame_time, seed
        self.material = Material() if material is None else material
        if not self.material.num_neighbors < num_particles:
            raise ValueError(
                f"`num_particles` must exceed `num_neighbors`={self.material.num_neighbors} of the material, but is "
                f"{num_particles}."
            )
        self._split = SPLITS.index(split)
        self._kept: dict[int, Trajectory] = {}

    def __len__(self) -> int:
        return self.num_trajectories * (self.num_frames - self.horizon)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        number, frame = divmod(check_index(index, len(self)), self.num_frames - self.horizon)
        motion = self.trajectory(number)
        window = slice(frame, frame + 1 + self.horizon)
        positions, velocities = motion.positions[window], motion.velocities[window]  # [horizon + 1, N, 3]
        at_rest = motion.positions[0] - motion.positions[0].mean(dim=0)
        features = torch.cat([velocities, at_rest.expand_as(velocities)], dim=-1)
        return positions[0], features[0], positions[1:], features[1:]

    def trajectory(self, number: int) -> Trajectory:
        """Return all frames of one trajectory."""
        if not 0 <= number < self.num_trajectories:
            raise IndexError(f"`number` must lie in [0, {self.num_trajectories}), but is {number}.")
        if number not in self._kept:
            self._kept[number] = self._simulate(number)
        return self._kept[number]

    def _simulate(self, number: int) -> Trajectory:
        draw = np.random.Generator(np.random.PCG64(derived_seed("particles", self.seed, self._split, number)))
        positions = _body(self.num_particles, draw)
        # A rigid motion, metres per second.
        drift, spin = draw.uniform((-1.5, -1.5, -2.0), (1.5, 1.5, 1.0)), draw.uniform(-2.0, 2.0, size=3)
        velocities = drift + np.cross(spin, positions - positions.mean(axis=0))
        body = MassSpring(positions, self.material)
        seen = [(positions, velocities)]
        for _ in range(self.num_frames - 1):
            seen.append(body.advance(*seen[-1], self.frame_time))
        places, speeds = (torch.from_numpy(np.stack(each)).float() for each in zip(*seen, strict=True))
        return Trajectory(places, speeds, springs=torch.from_numpy(body.springs.T.copy()))


def _body(count: int, draw: np.random.Generator) -> Array:
    """Particles of a tilted box or ellipsoid above the floor, [N, 3]."""
    is_box = draw.random() < 0.5
    scrambled = torch.quasirandom.SobolEngine(3, scramble=True, seed=int(draw.integers(1 << 31)))
    # Quasirandom points are never very close to each other; a ball fills 0.52 of its cube.
    cube = 2.0 * scrambled.draw(2 * count + 64, dtype=torch.float64).numpy() - 1.0
    shape = cube[:count] if is_box else cube[(cube**2).sum(axis=1) <= 1.0][:count]
    size, (w, x, y, z) = draw.uniform(0.25, 0.5, size=3), draw.standard_normal(4)
    # A normal quaternion gives a uniformly distributed rotation.
    positions = Rotation.from_quat((x, y, z, w)).apply(shape * size)
    positions[:, 2] += draw.uniform(0.05, 0.4) - positions[:, 2].min()
    return positions
