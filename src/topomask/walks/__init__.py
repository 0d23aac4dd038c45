"""Random walks on graphs, what is modulated and estimated by them, and what is known of it.

Names are imported when they are first used.
"""

from typing import TYPE_CHECKING

from topomask.support.imports import lazy_names

if TYPE_CHECKING:
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

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "checkpoint": (),
        "features": ("WalkFeatures", "Weighting"),
        "modulation": (),
        "recipe": (),
        "record": (),
        "sample": ("SAMPLER_VERSION", "Coupling", "Ensemble", "random_walks", "sample_features"),
        "series": (),
        "theory": (),
    },
)
