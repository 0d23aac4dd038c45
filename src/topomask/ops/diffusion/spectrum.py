"""A bound on the eigenvalues of a sparse matrix."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

_NUM_STEPS = 32


def bound_spectral_radius(matrix: sp.csr_array, component: np.ndarray, num_components: int) -> np.ndarray:
    r"""Bound the absolute eigenvalues of a symmetric matrix per connected component (Collatz-Wielandt).

    .. math:: \rho(A) \le \rho(|A|) \le \max_i \frac{(|A| x)_i}{x_i} \quad \text{for every } x > 0

    with x from a few steps of the power method. The bound holds for every x, however far it is from an eigenvector. On
    a star it is exact, while the largest degree, also a bound, is larger by a factor of the square root of the degree.

    Args:
        matrix: The matrix, [N, N].
        component: The component of every node, [N].
        num_components: Number of components.

    Returns:
        One bound per component.
    """
    absolute = abs(matrix)
    x = np.ones(matrix.shape[0])
    bounds = np.full(num_components, np.inf)
    for _ in range(_NUM_STEPS):
        product = absolute @ x
        largest = np.zeros(num_components)
        np.maximum.at(largest, component, product / x)
        bounds = np.minimum(bounds, largest)
        # Adding x keeps entries positive, and prevents oscillations on bipartite graphs.
        x = product / np.where(bounds > 0, bounds, 1.0)[component] + x
        # Any positive x gives a bound, so entries that grow slowly may be raised.
        peaks = np.zeros(num_components)
        np.maximum.at(peaks, component, x)
        x = np.maximum(x / peaks[component], 1e-100)
    # A margin for the rounding errors of the quotients.
    return bounds * (1.0 + 1e-12)
