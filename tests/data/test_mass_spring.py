import dataclasses

import numpy as np
import pytest

from topomask.data import Material
from topomask.data.mass_spring import MassSpring

FREE = Material(num_neighbors=6, spring_damping=0.0, drag=0.0, gravity=0.0)


def blob(count=60, height=1.0, seed=0):
    rng = np.random.default_rng(seed)
    return rng.uniform(-0.5, 0.5, size=(count, 3)) + np.array([0, 0, height])


def oracle(body, positions, velocities):
    """The formula, spring by spring."""
    total = np.zeros_like(positions)
    for (i, j), rest in zip(body.springs, body.rest, strict=True):
        apart = positions[j] - positions[i]
        direction = apart / np.linalg.norm(apart)
        closing = (velocities[j] - velocities[i]) @ direction
        pull = (body.stiffness * (np.linalg.norm(apart) - rest) + body.damping * closing) * direction
        total[i] += pull
        total[j] -= pull
    return total - body.material.drag * velocities - [0, 0, body.material.gravity]


def test_springs_join_every_particle_to_its_nearest():
    positions = blob()
    body = MassSpring(positions, FREE)
    distances = np.linalg.norm(positions[:, None] - positions, axis=-1)
    expected = {(min(i, j), max(i, j)) for i in range(60) for j in np.argsort(distances[i])[1:7]}
    assert {tuple(pair) for pair in body.springs.tolist()} == expected
    np.testing.assert_allclose(body.rest, [distances[i, j] for i, j in body.springs])


def test_accelerations_match_the_formula():
    rng = np.random.default_rng(1)
    positions = blob()
    body = MassSpring(positions, Material(num_neighbors=6))
    moved, velocities = positions + 0.1 * rng.standard_normal((60, 3)), rng.standard_normal((60, 3))
    np.testing.assert_allclose(body.accelerations(moved, velocities), oracle(body, moved, velocities), rtol=1e-10)


def energy(body, positions, velocities):
    """Kinetic, elastic and potential, per unit of mass."""
    first, second = body.springs.T
    stretch = np.linalg.norm(positions[first] - positions[second], axis=1) - body.rest
    potential = body.material.gravity * positions[:, 2].sum() + 0.5 * body.stiffness * (stretch**2).sum()
    return potential + 0.5 * (velocities**2).sum()


def test_momentum_is_kept_and_energy_nearly():
    rng = np.random.default_rng(2)
    positions, velocities = blob(height=50.0), rng.standard_normal((60, 3))
    body = MassSpring(positions, FREE)
    later, speeds = body.advance(positions, velocities, 0.2)
    np.testing.assert_allclose(speeds.sum(axis=0), velocities.sum(axis=0), atol=1e-10)
    assert energy(body, later, speeds) == pytest.approx(energy(body, positions, velocities), rel=0.1)
    assert np.abs(later - positions - 0.2 * velocities).max() > 0.05


def test_shorter_steps_give_the_same_motion():
    positions = blob(height=50.0)
    velocities = np.cross([0.0, 0.0, 2.0], positions)
    coarse, fine = (MassSpring(positions, FREE) for _ in range(2))
    fine.max_step /= 16
    one, two = (body.advance(positions, velocities, 0.05)[0] for body in (coarse, fine))
    assert np.abs(one - two).max() < 0.02 * np.abs(two - positions).max()


@pytest.mark.parametrize(
    "material",
    [
        Material(),
        Material(sound_speed=200.0),
        Material(spring_damping=2.0),
        Material(num_neighbors=30),
        Material(spring_damping=0.0, drag=0.0, restitution=1.0),
    ],
)
def test_a_rough_fall_never_blows_up(material):
    positions = blob(height=0.6)
    velocities = np.random.default_rng(3).standard_normal((60, 3)) - [0, 0, 5.0]
    body = MassSpring(positions, material)
    start = energy(body, positions, velocities)
    for _ in range(10):
        positions, velocities = body.advance(positions, velocities, 1 / 30)
        assert np.isfinite(positions).all()
        assert positions[:, 2].min() >= 0
        assert energy(body, positions, velocities) < 1.5 * start


def test_free_fall_is_free_fall():
    positions = blob(height=50.0)
    body = MassSpring(positions, dataclasses.replace(FREE, gravity=9.81))
    later, velocities = body.advance(positions, np.zeros((60, 3)), 0.5)
    np.testing.assert_allclose(velocities, np.tile([0, 0, -4.905], (60, 1)), atol=1e-9)
    assert (later - positions)[:, 2] == pytest.approx(-0.5 * 9.81 * 0.25, rel=0.02)


def test_the_floor_stops_and_brakes():
    positions = blob(height=0.5)
    velocities = np.tile([3.0, 0.0, -1.0], (60, 1))
    body = MassSpring(positions, Material(num_neighbors=6, restitution=0.0))
    for _ in range(60):
        positions, velocities = body.advance(positions, velocities, 1 / 30)
    assert positions[:, 2].min() == pytest.approx(0, abs=0.01)
    assert np.abs(velocities).mean() < 0.3


@pytest.mark.parametrize("num_neighbors", [0, 60])
def test_numbers_of_springs_must_fit(num_neighbors):
    with pytest.raises(ValueError, match="`num_neighbors` must lie between 1 and 59, the number of particles minus 1"):
        MassSpring(blob(), Material(num_neighbors=num_neighbors))
