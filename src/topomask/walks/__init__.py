"""Random walks on graphs, what is modulated and estimated by them, and what is known of it."""

from topomask.walks.features import WalkFeatures, Weighting
from topomask.walks.sample import SAMPLER_VERSION, Coupling, Ensemble, random_walks, sample_features

__all__ = [
    "SAMPLER_VERSION",
    "Coupling",
    "Ensemble",
    "WalkFeatures",
    "Weighting",
    "random_walks",
    "sample_features",
]
