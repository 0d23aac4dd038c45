import math

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from scipy.special import ive
from torch.autograd import gradcheck, gradgradcheck

import topomask as tm
from helpers.graphs import ragged_graph, star_graph
from topomask.masks.graph_operator import scale_matrix
from topomask.ops.diffusion import _diffuse, _Diffusion, bound_spectral_radius, diffuse, numba, reference, series

TIMES = [1e-8, 0.1, 1.0, 50.0, 25_000.0]


@pytest.mark.parametrize("z", [0.0, *TIMES])
@pytest.mark.parametrize("tolerance", [1e-3, 1e-7, 1e-15])
def test_terms_suffice_and_are_not_many_more_than_needed(z, tolerance):
    count = series.count_terms(z, tolerance)
    tail = 2 * ive(np.arange(count + 400), z)
    assert tail[count:].sum() <= tolerance
    assert series.tail_bound(z, count) <= tolerance
    assert count == 1 or series.tail_bound(z, count - 1) > tolerance
    # The exact tail, summed from its small end, would allow for hardly fewer.
    needed = int(np.argmax(tail[::-1].cumsum()[::-1] <= tolerance))
    assert count <= 1.2 * needed + 2


@pytest.mark.parametrize("z", TIMES)
def test_coefficients_are_a_law_with_second_moment_z(z):
    terms = series.coefficients(z, series.count_terms(z, 1e-16))
    orders = np.arange(len(terms))
    assert math.isclose(np.abs(terms).sum(), 1.0, rel_tol=1e-11)
    assert math.isclose((np.abs(terms) * orders**2).sum(), z, rel_tol=1e-7)
    # On the ends of the interval Chebyshev polynomials are 1 and (-1)^k.
    assert math.isclose((terms * (-1.0) ** orders).sum(), 1.0, rel_tol=1e-11)


def test_a_count_beyond_the_limit_is_seen():
    assert series.count_terms(1e9, 1e-7) > series.MAX_TERMS


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [0, 1, 5, 16, 65, 200])
def test_backends_agree(dtype, width):
    graph = tm.Graph.batch([ragged_graph(), star_graph(40), tm.grid_graph(5, 6)])
    operator = scale_matrix(graph, "laplacian")
    row_ptr, columns = operator.pattern[:2]
    x = torch.randn(width, graph.num_nodes, dtype=dtype).mT
    for num_terms in (1, 2, 3, 12):
        arguments = (row_ptr, columns, operator.entries.to(dtype), [0.8**k for k in range(num_terms)], x)
        tolerance = 1e-5 if dtype == torch.float32 else 1e-13
        found, expected = numba.expand(*arguments), reference.expand(*arguments)
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def test_the_series_is_that_of_chebyshev():
    operator = scale_matrix(ragged_graph(), "laplacian")
    row_ptr, columns = (part.numpy() for part in operator.pattern[:2])
    dense = sp.csr_array((operator.entries.numpy(), columns, row_ptr), shape=(11, 11)).toarray()
    terms = [0.5, -0.3, 0.2, 0.1, -0.4]
    values, vectors = np.linalg.eigh(dense)
    expected = vectors @ np.diag(np.polynomial.chebyshev.chebval(values, terms)) @ vectors.T
    for backend in (reference, numba):
        found = backend.expand(*operator.pattern[:2], operator.entries, terms, torch.eye(11, dtype=torch.float64))
        torch.testing.assert_close(found, torch.from_numpy(expected))


def arguments(dtype=torch.float64):
    operator = scale_matrix(ragged_graph(), "laplacian")
    times = torch.tensor([0.7, 2.5], dtype=dtype, requires_grad=True)
    x = torch.randn(2, 11, 3, dtype=dtype, requires_grad=True)
    return operator.pattern, operator.entries.to(dtype), times, x, operator.bounds, 1e-15


def test_op_is_registered_and_differentiable_twice():
    pattern, values, times, x, *rest = arguments()
    _diffuse.check(_Diffusion(pattern, values, times, x, *rest))
    assert gradcheck(lambda times, x: diffuse(pattern, values, times, x, *rest), (times, x), fast_mode=True)
    assert gradgradcheck(lambda times, x: diffuse(pattern, values, times, x, *rest), (times, x), fast_mode=True)
    with pytest.raises(ValueError, match="`values` requires a gradient, which topomask::diffuse does not compute"):
        diffuse(pattern, values.requires_grad_(), times, x, *rest).sum().backward()


def test_autocast_does_not_lower_the_arithmetic():
    pattern, values, times, x, *rest = arguments(torch.float32)
    plain = diffuse(pattern, values, times, x, *rest)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(diffuse(pattern, values, times, x, *rest), plain)


def test_times_that_cannot_be_obeyed_are_refused():
    pattern, values, _, x, bounds, tolerance = arguments()
    for times, growth, message in (
        ([1.0, math.nan], 0.0, "nan in head 1"),
        ([math.inf, 1.0], 0.0, "inf in head 0"),
        ([-1.0, 1.0], 0.0, "-1.0 in head 0"),
        ([1.0, 50.0], 2.0, r"exp\(100\).*time` is 50 in head 1.*-2\. Keep `time` below 40"),
        ([1.0, 1e8], 0.0, "more than 8192 steps.*normalized_laplacian"),
    ):
        with pytest.raises(ValueError, match=message):
            diffuse(pattern, values, torch.tensor(times), x, torch.stack([bounds[0], torch.tensor(growth)]), tolerance)


@pytest.mark.parametrize(
    "graph", [ragged_graph(), star_graph(100), tm.grid_graph(9, 7), tm.cycle_graph(31), tm.Graph.from_edges([], 3)]
)
def test_spectral_radius_is_bounded_per_component_and_tightly(graph):
    matrix = graph.to_scipy()
    count, component = sp.csgraph.connected_components(matrix)
    bounds = bound_spectral_radius(matrix, component, count)
    for k, bound in enumerate(bounds):
        nodes = np.flatnonzero(component == k)
        radius = np.abs(np.linalg.eigvalsh(matrix.toarray()[np.ix_(nodes, nodes)])).max()
        assert radius <= bound <= 1.05 * radius + 1e-300


def test_spectral_radius_of_parts_that_differ_by_many_orders_of_magnitude():
    graph = tm.Graph.from_edges([(0, 1), (1, 2), (3, 4)], weights=[1e30, 1e-30, 1e-40])
    count, component = sp.csgraph.connected_components(graph.to_scipy())
    bounds = bound_spectral_radius(graph.to_scipy(), component, count)
    assert bounds[component[0]] == pytest.approx(1e30)
    assert bounds[component[3]] == pytest.approx(1e-40)
