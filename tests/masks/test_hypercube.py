import copy

import pytest
import torch

import topomask as tm


@pytest.mark.parametrize("dim", [0, 1, 2, 5, 6, 7])
def test_is_the_exponential_of_the_laplacian(dim):
    mask = tm.HypercubeMask(dim, num_heads=2, rate=torch.tensor([0.2, 1.5], dtype=torch.float64))
    adjacency = torch.from_numpy(tm.hypercube_graph(dim).adjacency("none").toarray())
    laplacian = adjacency.sum(dim=1).diag() - adjacency
    expected = torch.linalg.matrix_exp(-mask.rate[:, None, None] * laplacian)
    torch.testing.assert_close(mask.to_dense(), expected, rtol=1e-10, atol=1e-13)
    x = torch.randn(3, 2, 2**dim, 4, dtype=torch.float64)
    torch.testing.assert_close(mask @ x, expected @ x)


@pytest.mark.parametrize("dim", [3, 6])
@pytest.mark.parametrize("rate", [1e-8, 1e-3, 0.5, 20.0])
def test_closed_form_in_the_hamming_distance(dim, rate):
    """Also for tiny rates, where 1 - exp(-2 lambda) cancels, to the last digits."""
    mask = tm.HypercubeMask(dim, rate=torch.tensor(rate, dtype=torch.float64))
    nodes = torch.arange(2**dim)
    differ = nodes ^ nodes[:, None]
    hamming = sum((differ >> bit) & 1 for bit in range(dim))
    change = -torch.expm1(torch.tensor(-2 * rate, dtype=torch.float64)) / 2
    expected = (1 - change) ** (dim - hamming) * change**hamming
    torch.testing.assert_close(mask.to_dense()[0], expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(mask.to_dense().sum(dim=-1), torch.ones(1, 2**dim, dtype=torch.float64))


def test_small_results_are_not_lost_beside_large_ones():
    """All terms are positive, so products keep their relative precision: there is no rounding noise to state."""
    mask = tm.HypercubeMask(10, rate=0.01)
    x = torch.full((1, 1024, 1), 1e-12)
    x[0, 0] = 1e6
    exact = mask.double().to_dense() @ x.double()
    torch.testing.assert_close((mask.float() @ x).double(), exact, rtol=1e-5, atol=0)
    operator = mask.on()
    assert operator.product_noise(x) is None
    assert operator.magnitude() is operator


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_precisions(dtype):
    for mask in (tm.HypercubeMask(6), tm.HypercubeMask(6).to(dtype)):
        x = torch.full((1, 64, 2), 60000.0 if dtype == torch.float16 else 1e30, dtype=dtype)
        assert (mask @ x).dtype == dtype
        torch.testing.assert_close(mask @ x, x, rtol=2e-2 if dtype.itemsize == 2 else 1e-5, atol=0)
        assert mask.to_dense().dtype == torch.promote_types(mask.log_rate.dtype, torch.float32)


def test_copies_and_saved_parameters():
    mask = tm.HypercubeMask(4, num_heads=2, rate=[0.1, 0.9])
    assert torch.equal(copy.deepcopy(mask).to_dense(), mask.to_dense())
    other = tm.HypercubeMask(4, num_heads=2)
    other.load_state_dict(mask.state_dict())
    assert torch.equal(other.to_dense(), mask.to_dense())
    torch.testing.assert_close(mask.rate, torch.tensor([0.1, 0.9]))


def test_nothing_of_size_n_squared():
    """On 2^17 nodes N x N would take 69 GB."""
    mask = tm.HypercubeMask(17)
    x = torch.ones(1, 2**17, 2, requires_grad=True)
    out = mask @ x
    torch.testing.assert_close(out, torch.ones_like(out), rtol=1e-5, atol=0)
    out.square().sum().backward()
    assert x.grad.isfinite().all()
    assert tm.plan_attention(mask, 8, 8).strategy == "product"


def test_compiles_without_a_break():
    torch.manual_seed(0)
    torch._dynamo.reset()
    mask = tm.HypercubeMask(6, num_heads=2).double()
    x = torch.randn(2, 2, 64, 3, dtype=torch.float64)
    run = torch.compile(mask, fullgraph=True, backend="aot_eager")
    found = []
    for multiply in (run, lambda x: mask @ x):
        given = x.clone().requires_grad_()
        out = multiply(given)
        found.append([out, *torch.autograd.grad(out.square().sum(), [given, mask.log_rate])])
    for compiled, eager in zip(*found, strict=True):
        torch.testing.assert_close(compiled, eager, rtol=1e-12, atol=1e-12)


def test_bad_arguments_are_named():
    for dim in (-1, 2.0, True, "3"):
        with pytest.raises(ValueError, match="dim"):
            tm.HypercubeMask(dim)
    with pytest.raises(ValueError, match="num_heads"):
        tm.HypercubeMask(3, num_heads=0)
    for rate in (0.0, -1.0, torch.inf, [1.0, 2.0]):
        with pytest.raises(ValueError, match="rate"):
            tm.HypercubeMask(3, rate=rate)
    with pytest.raises(ValueError, match="does not take a graph"):
        tm.HypercubeMask(3).on(tm.hypercube_graph(3))
