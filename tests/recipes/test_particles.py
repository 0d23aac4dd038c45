from dataclasses import replace

import torch

from topomask.recipes.particles import ParticleData, particles

DATA = ParticleData(num_particles=32, num_frames=9, num_trajectories=2, batch_size=4)


def test_training_looks_one_frame_ahead_and_evaluation_six():
    experiment = replace(particles(), data=DATA)
    assert experiment.fitted() == experiment
    train, test = experiment.batches("train", training=True), experiment.batches(experiment.held_out)
    assert (train.dataset.horizon, test.dataset.horizon) == (1, 6)
    # Two trajectories of 8 windows; eight of 3.
    assert (len(train.dataset), len(test.dataset)) == (16, 24)
    assert [tuple(part.shape) for part in next(test.epoch(0))] == [(4, 32, 3), (4, 32, 6), (4, 6, 32, 3), (4, 6, 32, 6)]


def test_the_horizon_of_training_can_be_set():
    experiment = replace(particles(), data=replace(DATA, horizon=3))
    assert experiment.batches("train", training=True).dataset.horizon == 3
    assert experiment.batches("train").dataset.horizon == 6


def test_bodies_are_simulated_once_and_seen_in_an_order_of_the_seed():
    one, two = (replace(particles(), data=DATA).with_seed(seed) for seed in (0, 1))
    assert one.batches("train", training=True).dataset is two.batches("train", training=True).dataset
    first, second = (next(each.batches("train", training=True).epoch(0))[0] for each in (one, two))
    assert not torch.equal(first, second)
    first, second = (next(each.batches("test").epoch(0))[0] for each in (one, two))
    assert torch.equal(first, second)
