import numpy as np
import pytest
import torch

from topomask.data import Batches, ParticleSet, load

SMALL = dict(num_trajectories=3, num_particles=200, num_frames=12)


@pytest.fixture(scope="module")
def small():
    return ParticleSet(**SMALL, horizon=6)


def test_shapes_and_windows(small):
    assert len(small) == 3 * 6
    positions, features, next_positions, next_features = small[7]
    motion = small.trajectory(1)
    assert (positions.shape, features.shape) == ((200, 3), (200, small.feature_dim))
    assert next_features.shape == (6, 200, small.feature_dim)
    assert motion.positions.dtype == motion.velocities.dtype == torch.float32
    assert torch.equal(positions, motion.positions[1])
    assert torch.equal(features[:, :3], motion.velocities[1])
    assert torch.equal(next_positions, motion.positions[2:8])
    assert torch.equal(next_features[..., :3], motion.velocities[2:8])
    assert motion.springs.shape[0] == 2
    assert int(motion.springs.max()) < 200
    assert torch.equal(small[17][2][-1], small.trajectory(2).positions[-1])


def test_features_tell_where_a_particle_is_at_rest(small):
    """The distances of the two ends of every spring at rest are those at the start of the trajectory."""
    motion = small.trajectory(1)
    _, features, _, next_features = small[9]
    source, target = motion.springs
    at_rest = features[:, 3:]
    lengths = (motion.positions[0, source] - motion.positions[0, target]).norm(dim=-1)
    torch.testing.assert_close((at_rest[source] - at_rest[target]).norm(dim=-1), lengths)
    torch.testing.assert_close(at_rest.mean(dim=0), torch.zeros(3), rtol=0, atol=1e-6)
    assert torch.equal(next_features[-1, :, 3:], at_rest)


def test_one_step_windows_use_every_frame():
    one = ParticleSet(**SMALL, horizon=1)
    assert len(one) == 3 * 11
    assert torch.equal(one[0][2][0], one[1][0])


def test_a_trajectory_depends_on_seed_split_and_number_only(small):
    state = torch.random.get_rng_state()
    again = ParticleSet(**(SMALL | dict(num_trajectories=2)), horizon=1).trajectory(1)
    assert torch.equal(again.positions, small.trajectory(1).positions)
    assert torch.equal(again.velocities, small.trajectory(1).velocities)
    for other in (ParticleSet("test", **SMALL), ParticleSet(**SMALL, seed=1)):
        assert not torch.equal(other.trajectory(1).positions, again.positions)
    assert not torch.equal(small.trajectory(0).positions, again.positions)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_bodies_fall_deform_and_stay_within_what_a_model_can_predict(small):
    strains = []
    for number in range(3):
        motion = small.trajectory(number)
        assert bool(motion.positions.isfinite().all())
        assert float(motion.positions[..., 2].min()) >= 0
        assert float(motion.positions[0, :, 2].min()) >= 0.05 - 1e-6
        # Models limit a step to 0.25.
        assert float(motion.positions.diff(dim=0).norm(dim=-1).max()) < 0.25
        source, target = motion.springs
        lengths = (motion.positions[:, source] - motion.positions[:, target]).norm(dim=-1)
        strains.append(float((lengths / lengths[0] - 1).abs().max()))
    # Some have reached the floor by now.
    assert 0.1 < max(strains) < 1.5


def test_velocities_are_per_second(small):
    """At the start, before the floor is reached, a frame moves by the velocity and half of gravity's share."""
    fall = 9.81 / 30**2
    for number in range(3):
        positions, features, next_positions, _ = small[6 * number]
        centre = (next_positions[0] - positions).mean(dim=0) - features[:, :3].mean(dim=0) / 30
        np.testing.assert_allclose(centre, [0, 0, -0.5 * fall], atol=0.1 * fall)


def test_bodies_differ_in_shape():
    many = ParticleSet(num_trajectories=10, num_particles=300, num_frames=2)
    sizes = torch.stack([many.trajectory(number).positions[0].std(dim=0).sort().values for number in range(10)])
    assert float(sizes.std(dim=0).min()) > 0.01


def test_particles_are_batched():
    dataset = load("particles", split="val", num_trajectories=1, num_particles=50, num_frames=5, horizon=2)
    shapes = [tuple(part.shape) for part in next(Batches(dataset, 3).epoch(0))]
    assert shapes == [(3, 50, 3), (3, 50, 6), (3, 2, 50, 3), (3, 2, 50, 6)]


def test_defaults():
    assert ParticleSet().num_particles == 4096
    assert len(ParticleSet("test", horizon=6)) == 8 * 24


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(split="all"), "`split` of particles"),
        (dict(num_trajectories=0), "`num_trajectories` must be at least 1"),
        (dict(frame_time=0.0), "`frame_time` positive"),
        (dict(horizon=0), "`horizon` must lie between 1 and num_frames - 1 = 29, but is 0"),
        (dict(horizon=30), "but is 30"),
        (dict(num_particles=12), "`num_particles` must exceed `num_neighbors`=12 of the material, but is 12"),
    ],
)
def test_what_cannot_be_simulated_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ParticleSet(**options)


def test_indices_end(small):
    assert torch.equal(small[-1][0], small[17][0])
    with pytest.raises(IndexError):
        small[18]
    with pytest.raises(IndexError):
        small.trajectory(3)
