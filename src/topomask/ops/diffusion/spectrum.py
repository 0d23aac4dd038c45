"""A bound on the eigenvalues of a sparse matrix."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

_NUM_STEPS = 32


def bound_spectral_radius(matrix: sp.csr_array, component: np.ndarray, num_components: int) -> np.ndarray:
    r"""A bound on the size of the eigenvalues of a symmetric matrix per connected component (Collatz-Wielandt).

    .. math:: \rho(A) \le \rho(|A|) \le \max_i \frac{(|A| x)_i}{x_i} \quad \text{for every } x > 0

    with x from a few steps of the power method. It holds for every x, so it is a bound however far x is from an
    eigenvector; on a star it is exact, where the largest degree is off by the root of the degree.

    Args:
        matrix: The matrix, [N, N].
        component: The component of every node, [N].
        num_components: How many components there are.

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
        # Adding x keeps entries positive, and the method from oscillating on bipartite graphs.
        x = product / np.where(bounds > 0, bounds, 1.0)[component] + x
        # Any positive x will do, so entries that grow slowly may be lifted.
        peaks = np.zeros(num_components)
        np.maximum.at(peaks, component, x)
        x = np.maximum(x / peaks[component], 1e-100)
    # Room for the rounding of the quotients.
    return bounds * (1.0 + 1e-12)
