"""Sampling random walks into sparse loads."""

from topomask.ops.sample_walks.reference import GraphTensors, Loads, WalkSettings, sample_walks

__all__ = ["GraphTensors", "Loads", "WalkSettings", "sample_walks"]
