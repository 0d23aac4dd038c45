r"""A soft body of particles and springs that falls on a floor.

.. math:: \ddot x_i = g + \sum_{j \in N(i)} \big(\kappa\,(|d_{ij}| - \ell_{ij}) + \gamma\,\dot d_{ij}^\top u_{ij}\big)
          \,u_{ij} - \delta\,\dot x_i, \qquad d_{ij} = x_j - x_i,\; u_{ij} = d_{ij} / |d_{ij}|

All particles have the same mass; :math:`\ell_{ij}` are the initial distances. The floor is z = 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from topomask.graph import knn_graph

Array = np.ndarray[Any, np.dtype[np.float64]]

# Fraction of the largest stable time step to use.
_SAFETY = 0.8


@dataclass(frozen=True)
class Material:
    """Properties of the body and the floor, in metres and seconds.

    Args:
        num_neighbors: Springs from each particle to its nearest initial neighbours; a spring acts on both ends.
        sound_speed: Scale of the speed of sound: the spring constant is its square over the square of the mean spring
            length, so that stiffness does not depend on the number of particles.
        spring_damping: Damping of a spring, as a fraction of critical damping.
        drag: Decay rate of velocities in the air.
        gravity: Acceleration downwards.
        restitution: Fraction of its speed that a particle keeps when it bounces.
        friction: Decay rate of velocities along the floor, in contact.
    """

    num_neighbors: int = 12
    sound_speed: float = 20.0
    spring_damping: float = 0.03
    drag: float = 0.1
    gravity: float = 9.81
    restitution: float = 0.3
    friction: float = 20.0


class MassSpring:
    """Simulation of particles, connected by springs to their neighbours at the initial `positions`, [N, 3]."""

    def __init__(self, positions: Array, material: Material) -> None:
        count = len(positions)
        if not 1 <= material.num_neighbors < count:
            raise ValueError(
                f"`num_neighbors` must lie between 1 and {count - 1}, the number of particles minus 1, but is "
                f"{material.num_neighbors}."
            )
        self.material = material
        ends = knn_graph(positions, material.num_neighbors).to_edge_index()[0].T.numpy()
        self.springs = ends[ends[:, 0] < ends[:, 1]]  # each pair once, [E, 2]
        num_springs = len(self.springs)
        # One row per spring: the difference of its ends.
        signs = np.tile([-1.0, 1.0], num_springs)
        rows = np.arange(0, 2 * num_springs + 1, 2)
        self._difference = csr_matrix((signs, self.springs.ravel(), rows), shape=(num_springs, count))
        self._pull_ends = csr_matrix(-self._difference.T)
        self.rest = np.linalg.norm(self._difference @ positions, axis=1)
        degrees = np.bincount(self.springs.ravel(), minlength=count)
        self.stiffness = (material.sound_speed / self.rest.mean()) ** 2
        self.damping = 2.0 * material.spring_damping * math.sqrt(self.stiffness)
        # The eigenvalues of the spring matrix are at most the largest sum of the degrees of a spring's ends. A
        # vibration of frequency omega, damped at rate c, is stable if step^2 omega^2 + 2 step c < 4.
        highest = float(degrees[self.springs].sum(axis=1).max())
        squared, decay = self.stiffness * highest, self.damping * highest
        self.max_step = _SAFETY * (math.sqrt(decay**2 + 4.0 * squared) - decay) / squared

    def accelerations(self, positions: Array, velocities: Array) -> Array:
        """Accelerations of all particles, [N, 3]."""
        apart = self._difference @ positions  # [E, 3]
        length = np.sqrt(np.einsum("ec,ec->e", apart, apart))
        direction = apart / np.maximum(length, 1e-9)[:, None]
        closing = np.einsum("ec,ec->e", self._difference @ velocities, direction)
        pull = self.stiffness * (length - self.rest) + self.damping * closing
        total = self._pull_ends @ (pull[:, None] * direction)
        total -= self.material.drag * velocities
        total[:, 2] -= self.material.gravity
        return total

    def advance(self, positions: Array, velocities: Array, duration: float) -> tuple[Array, Array]:
        """Return the state after `duration`, by semi-implicit Euler steps that are short enough to be stable."""
        substeps = math.ceil(duration / self.max_step)
        step = duration / substeps
        for _ in range(substeps):
            velocities = velocities + step * self.accelerations(positions, velocities)
            positions = positions + step * velocities
            # Particles below the floor bounce off it.
            below = np.flatnonzero(positions[:, 2] < 0)
            positions[below, 2] = 0.0
            velocities[below, :2] *= math.exp(-self.material.friction * step)
            velocities[below, 2] = np.maximum(velocities[below, 2], -self.material.restitution * velocities[below, 2])
        return positions, velocities
