"""Random walks and frontiers: features, modulation, series and theory. Names are imported when first used."""

from typing import TYPE_CHECKING

from topomask.support.imports import lazy_names

if TYPE_CHECKING:
    from topomask.walks.expand import expand_features
    from topomask.walks.features import Prune, WalkFeatures, Weighting
    from topomask.walks.sample import SAMPLER_VERSION, Coupling, Ensemble, random_walks, sample_features

__all__ = ["SAMPLER_VERSION", "Coupling", "Ensemble", "Prune", "WalkFeatures", "Weighting"]
__all__ += ["expand_features", "random_walks", "sample_features"]

__getattr__, __dir__, _ = lazy_names(__name__)
