import copy
import itertools
import math

import pytest
import scipy.linalg
import torch
from torch.autograd import gradcheck

import topomask as tm
from helpers.mask_cases import MASKS
from helpers.mask_cases.grids import toeplitz_mask
from topomask.masks import Operator
from topomask.ops import toeplitz
from topomask.ops.toeplitz import fourier

SHAPES = [(1,), (2,), (7,), (1, 5), (5, 1), (3, 4), (2, 1, 3), (2, 3, 4)]


def places(shape: tuple[int, ...]) -> torch.Tensor:
    """Coordinates of the nodes in the order of ``grid_graph``, [N, d]."""
    return torch.tensor(list(itertools.product(*(range(size) for size in shape))))


@pytest.mark.parametrize("shape", SHAPES)
def test_entries_are_those_of_the_offset(shape):
    mask = toeplitz_mask(shape, num_heads=2)
    where = places(shape)
    offset = where - where[:, None] + torch.tensor(shape) - 1  # key minus query
    expected = mask.weight[(slice(None), *offset.unbind(-1))]
    assert mask.weight.shape == (2, *(2 * size - 1 for size in shape))
    assert torch.equal(mask.to_dense(), expected)


def test_a_sequence_is_a_toeplitz_matrix():
    mask = toeplitz_mask(6)
    b = mask.weight[0].detach().numpy()
    expected = scipy.linalg.toeplitz(b[5::-1], b[5:])
    assert torch.equal(mask.to_dense()[0], torch.from_numpy(expected))
    x = torch.randn(1, 6, 2, dtype=torch.float64)
    product = scipy.linalg.matmul_toeplitz((b[5::-1], b[5:]), x[0].numpy())
    torch.testing.assert_close((mask @ x)[0], torch.from_numpy(product))


def test_nodes_are_numbered_as_in_the_grid_graph():
    """Distance 1 in l1 means neighbours."""
    for shape in ((5,), (3, 4), (2, 3, 2)):
        mask = tm.ToeplitzMask(shape, distance="l1")
        with torch.no_grad():
            mask.weight.zero_()[:, 1] = 1.0
        adjacency = torch.from_numpy(tm.grid_graph(*shape).adjacency("none").toarray()).float()
        assert torch.equal(mask.to_dense()[0], adjacency)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("distance", "order"), [("l1", 1), ("l2", 2), ("linf", math.inf)])
def test_functions_of_distance(shape, distance, order):
    where = places(shape).double()
    lengths = torch.linalg.vector_norm(where - where[:, None], ord=order, dim=-1)
    decay = tm.ToeplitzMask(shape, num_heads=2, distance=distance, f=tm.ExponentialDecay(2, rate=[0.3, 2.0])).double()
    torch.testing.assert_close(decay.to_dense(), torch.exp(-decay.f.rate[:, None, None] * lengths))
    default = tm.ToeplitzMask(shape, num_heads=2, distance=distance).double()
    torch.testing.assert_close(default.to_dense()[1], 1 / (1 + lengths), rtol=1e-6, atol=0)
    assert default.weight.shape == (2, len(default.distances))
    assert (default.distances.diff() > 0).all()
    torch.testing.assert_close(default.distances.double(), lengths.unique().float().unique().double())


def test_free_entries_start_by_euclidean_distance():
    free, table = tm.ToeplitzMask((3, 4), num_heads=2), tm.ToeplitzMask((3, 4), num_heads=2, distance="l2")
    assert torch.equal(free.to_dense(), table.to_dense())
    positive = tm.ToeplitzMask((3, 4), num_heads=2, positive=True)
    torch.testing.assert_close(positive.to_dense(), free.to_dense())


def test_given_values_are_where_learning_starts():
    b = torch.arange(1.0, 6.0)
    for options in ({}, {"positive": True}):
        mask = tm.ToeplitzMask(3, num_heads=2, f=b, **options)
        torch.testing.assert_close(mask.to_dense()[1], torch.tensor([[3.0, 4, 5], [2, 3, 4], [1, 2, 3]]))
    table = tm.ToeplitzMask(3, distance="linf", f=torch.tensor([[5, 6, 7]]))
    assert table.to_dense()[0, 0].tolist() == [5.0, 6.0, 7.0]


def test_causal_masks_see_no_later_key():
    for options in ({}, {"positive": True}, {"distance": "l1"}, {"distance": "l1", "f": tm.ExponentialDecay()}):
        dense = tm.ToeplitzMask(5, causal=True, **options).to_dense()[0]
        assert (dense.triu(1) == 0).all()
        assert (dense[torch.ones(5, 5).tril() > 0] > 0).all()
    assert tm.ToeplitzMask(5, num_heads=2, causal=True).weight.shape == (2, 5)
    given = tm.ToeplitzMask(3, causal=True, f=torch.tensor([1.0, 2.0, 3.0])).to_dense()[0]
    assert given.tolist() == [[3, 0, 0], [2, 3, 0], [1, 2, 3]]


def test_kernelised_attention_with_relative_positions():
    """exp(b_{j - i}) phi(q) phi(k), as in Luo et al. (2021), causal or not."""
    for causal in (False, True):
        mask = toeplitz_mask(8, 2, positive=True, causal=causal)
        q, k, v = torch.randn(3, 1, 2, 8, 3, dtype=torch.float64)
        b = mask.weight if not causal else torch.nn.functional.pad(mask.weight, (0, 7), value=-torch.inf)
        index = torch.arange(8) - torch.arange(8)[:, None] + 7
        weights = (b[:, index] + torch.log(torch.exp(q) @ torch.exp(k).mT)).softmax(dim=-1)
        out = tm.masked_attention(q, k, v, mask, feature_map="exp", strategy="product")
        torch.testing.assert_close(out, weights @ v)


@pytest.mark.parametrize("per_block", [1, 40, 200, 1 << 20])
@pytest.mark.parametrize("name", ["toeplitz_sequence", "toeplitz_grid", "toeplitz_space", "toeplitz_grid_positive"])
def test_blocks_of_columns_change_nothing(name, per_block, monkeypatch):
    """Products and attention, forward and backward, for any number of columns at a time."""
    monkeypatch.setattr(fourier, "_NUMBERS_PER_BLOCK", per_block)
    mask = MASKS[name]()
    heads, size = max(2, mask.num_heads), mask.on().num_keys
    q, k = torch.randn(2, 3, heads, size, 3, dtype=torch.float64, requires_grad=True).unbind()
    v = torch.randn(3, heads, size, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn_like(v)
    found = []
    for run in (
        lambda: mask.on().attend(q, k, v),
        lambda: ((q @ k.mT) * mask.to_dense()) @ v,
        lambda: mask @ v,
        lambda: mask.to_dense() @ v,
        lambda: mask.on().rmatmul(v),
        lambda: mask.to_dense().mT @ v,
    ):
        out = run()
        inputs = [q, k, v, *mask.parameters()]
        grads = torch.autograd.grad((out * weight).sum(), inputs, allow_unused=True)
        found.append([out, *(grad for grad in grads if grad is not None)])
    for ways in zip(found[::2], found[1::2], strict=True):
        for x, y in zip(*ways, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-11, atol=1e-11)


def test_ops_are_registered():
    shape = [3, 2]
    values = torch.randn(2, 5, 3, dtype=torch.float64, requires_grad=True)
    spectrum = toeplitz.spectrum(values.detach(), shape).requires_grad_()
    q, k, v = torch.randn(3, 2, 2, 6, 3, dtype=torch.float64, requires_grad=True).unbind()
    toeplitz._spectrum_op.check(toeplitz._Values(values, shape))
    toeplitz._product_op.check(toeplitz._Product(spectrum, v.detach().requires_grad_(), shape, True))
    inputs = (x.detach().requires_grad_() for x in (q, k, v))
    toeplitz._attend_op.check(toeplitz._Attention(spectrum, *inputs, shape))
    for odd in ([3, 2], [5, 3], [8], [2, 2, 3]):
        # Padded sizes that are odd and even.
        b = torch.randn(1, *(2 * n - 1 for n in odd), dtype=torch.float64, requires_grad=True)
        assert gradcheck(toeplitz.spectrum, (b, odd), fast_mode=True)


def test_transforms_have_fast_sizes_that_do_not_wrap():
    for size in (1, 2, 3, 100, 128, 257, 1021):
        (padded,) = fourier.padded_shape([size])
        assert 2 * size - 1 <= padded <= 2.5 * size
        for prime in (2, 3, 5):
            while padded % prime == 0:
                padded //= prime
        assert padded == 1


def columns(size: int) -> dict[str, torch.Tensor]:
    """Inputs that are random, or that hide small results behind large ones, [N, C]."""
    at = torch.randint(size, (4,))
    huge, unit = 1e-6 * torch.rand(size, 4), torch.zeros(size, 4)
    huge[at, range(4)], unit[at, range(4)] = 1e4, 1.0
    waves = torch.cos(torch.arange(size)[:, None] * torch.tensor([0.0, math.pi, 1.0, 2 * math.pi / size]))
    return {
        "random": torch.randn(size, 4),
        "positive": torch.rand(size, 4),
        "one huge key": huge,
        "one key": unit,
        "all sizes": torch.randn(size, 4).mul(4).exp(),
        "waves": waves,
    }


@pytest.mark.parametrize("shape", [(1,), (3,), (64,), (500,), (16, 16), (31, 9), (4, 5, 6)])
@pytest.mark.parametrize("entries", ["default", "random", "ones", "tiny", "one"])
def test_rounding_errors_are_below_the_stated_bound(shape, entries):
    torch.manual_seed(0)
    mask = tm.ToeplitzMask(shape)
    with torch.no_grad():
        if entries == "random":
            mask.weight.normal_()
        elif entries == "ones":
            mask.weight.fill_(1.0)
        elif entries == "tiny":
            mask.weight.copy_(torch.exp(-30 * torch.rand(mask.weight.shape)))
        elif entries == "one":
            mask.weight.zero_().flatten()[-1] = 100.0
        operator = mask.on()
        for name, x in columns(operator.num_keys).items():
            for multiply, dense in ((operator.matmul, mask.to_dense()), (operator.rmatmul, mask.to_dense().mT)):
                errors = (multiply(x[None]) - dense.double() @ x[None].double()).abs()
                bound = operator.product_noise(x[None])
                assert bound.shape == (1, 1, 4)
                assert (errors <= bound).all(), (name, (errors / bound).max())
            if name == "random" and entries == "random" and operator.num_keys > 1:
                assert (bound <= 200 * errors.amax()).all(), (
                    "a bound so loose would blank rows that attend to something"
                )


def test_noise_follows_the_precision():
    operator = tm.ToeplitzMask(32).on()
    x = torch.rand(1, 32, 1)
    single, double = operator.product_noise(x), operator.product_noise(x.double())
    assert (single.dtype, double.dtype) == (torch.float32, torch.float64)
    assert double < 1e-8 * single
    assert operator.product_noise(x.half()).dtype == torch.float32
    assert not operator.product_noise(x).requires_grad


def empty_rows() -> dict[str, tuple[tm.ToeplitzMask, torch.Tensor]]:
    """Masks, and which keys have features, such that some queries attend to nothing."""
    late = torch.arange(100) >= 40
    window = tm.ToeplitzMask((10, 10), f=torch.zeros(19, 19))
    with torch.no_grad():
        window.weight[:, 8:11, 8:11] = torch.tensor([[1.0, -2.0, 1.0], [0.5, 3.0, 0.5], [1.0, 1.0, -1.0]])
    return {
        "causal": (tm.ToeplitzMask(100, causal=True), late),
        "causal, positive": (tm.ToeplitzMask(100, causal=True, positive=True), late),
        "window": (window, late),
    }


@pytest.mark.parametrize("name", ["causal", "causal, positive", "window"])
@pytest.mark.parametrize("normalizer", ["absolute", "signed"])
def test_a_query_that_attends_to_nothing_gives_zero(name, normalizer):
    """Exactly, with zero gradient, although products are off by rounding there."""
    torch.manual_seed(0)
    mask, has_features = empty_rows()[name]
    q, k, v = (x.requires_grad_() for x in torch.randn(3, 1, 2, 100, 8).unbind())
    keys = torch.where(has_features[:, None], k.abs() + 0.1, -1.0)
    empty = ~(mask.to_dense()[0].abs() @ has_features.float()).bool()
    assert 20 < empty.sum() < 80
    noise = mask.magnitude() @ torch.relu(keys.detach())
    assert (noise[..., empty, :] != 0).any(), "the test needs products with rounding noise"
    out = tm.masked_attention(q.abs(), keys, v, mask, strategy="product", normalizer=normalizer)
    assert (out[..., empty, :] == 0).all()
    gradients = torch.autograd.grad(
        out[..., empty, :].square().sum() + out[..., empty, :].sum(), [q, k, v, mask.weight]
    )
    assert all((gradient == 0).all() for gradient in gradients)
    dense = tm.masked_attention(q.abs(), keys, v, mask, strategy="dense", normalizer=normalizer)
    if normalizer == "absolute":
        torch.testing.assert_close(out, dense, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_precisions(dtype):
    """Half precision goes through float32 and stays finite; any mask takes any input."""
    for mask in (tm.ToeplitzMask((6, 6), positive=True), tm.ToeplitzMask((6, 6)).to(dtype)):
        x = torch.full((1, 36, 2), 100.0, dtype=dtype)
        assert (mask @ x).dtype == mask.on().rmatmul(x).dtype == dtype
        assert mask.to_dense().dtype == torch.promote_types(mask.weight.dtype, torch.float32)
        torch.testing.assert_close((mask @ x).double(), mask.to_dense().double() @ x.double(), rtol=1e-2, atol=1e-2)
        q = torch.randn(1, 1, 36, 4).to(dtype)
        assert tm.masked_attention(q, q, q, mask, strategy="product").isfinite().all()
    exact = tm.ToeplitzMask((6, 6))
    x = torch.randn(1, 36, 2, dtype=torch.float64)
    torch.testing.assert_close(exact @ x, exact.to_dense().double() @ x, rtol=1e-13, atol=1e-13)


def test_half_precision_masks_keep_their_grid():
    mask = tm.ToeplitzMask((40, 40), distance="l2", f=tm.ExponentialDecay(rate=0.01)).half()
    reference = tm.ToeplitzMask((40, 40), distance="l2", f=tm.ExponentialDecay(rate=0.01))
    torch.testing.assert_close(mask.to_dense(), reference.to_dense(), rtol=5e-3, atol=0)
    assert mask.distances.dtype == torch.float32


def test_copies_and_saved_parameters():
    for mask in (toeplitz_mask((3, 4), 2), toeplitz_mask((3, 4), distance="l1", f=tm.ExponentialDecay())):
        twin = copy.deepcopy(mask)
        assert torch.equal(twin.to_dense(), mask.to_dense())
    assert set(tm.ToeplitzMask(4, distance="l2").state_dict()) == {"weight"}
    assert set(tm.ToeplitzMask(4, distance="l2", f=tm.ExponentialDecay()).state_dict()) == {"f.log_rate"}
    with torch.device("meta"):
        shell = tm.ToeplitzMask((3, 4), num_heads=2, distance="l2")
    assert shell.weight.is_meta
    shell.to_empty(device="cpu").load_state_dict(tm.ToeplitzMask((3, 4), num_heads=2, distance="l2").state_dict())
    assert torch.equal(shell.to_dense(), tm.ToeplitzMask((3, 4), num_heads=2, distance="l2").to_dense())


def test_the_spectrum_is_computed_once(monkeypatch):
    calls = []
    original = toeplitz.spectrum
    monkeypatch.setattr(toeplitz, "spectrum", lambda *args: calls.append(1) or original(*args))
    mask = tm.ToeplitzMask((4, 4))
    with torch.no_grad():
        for _ in range(3):
            mask @ torch.ones(1, 16, 2)
        assert len(calls) == 1
        for _ in range(3):
            mask.magnitude() @ torch.ones(1, 16, 2)
            mask.on().rmatmul(torch.ones(1, 16, 2))
        assert len(calls) == 2
        mask.weight.mul_(2.0)
        torch.testing.assert_close(mask @ torch.eye(16)[None], mask.to_dense(), rtol=1e-5, atol=1e-6)
    assert len(calls) == 3


def test_attention_agrees_with_the_default_of_all_masks():
    operator = toeplitz_mask((3, 4), 2).on()
    q, k, v = torch.randn(3, 2, 2, 12, 3, dtype=torch.float64)
    torch.testing.assert_close(operator.attend(q, k, v), Operator.attend(operator, q, k, v))
    positive = toeplitz_mask((3, 4), positive=True).on()
    assert positive.magnitude() is positive


def test_nothing_of_size_n_squared():
    """On 2^17 tokens N x N would take 69 GB, and all columns together 1 GB."""
    mask = tm.ToeplitzMask(2**17, positive=True)
    q = torch.rand(1, 1, 2**17, 2, requires_grad=True)
    out = tm.masked_attention(q, q, q, mask)
    assert tm.plan_attention(mask, 2, 2).strategy == "product"
    out.sum().backward()
    assert q.grad.isfinite().all()
    assert mask.weight.grad.isfinite().all()


def test_small_grids_are_dense_and_large_ones_go_by_transforms():
    for size, strategy in ((8, "dense"), (16, "dense"), (128, "product"), (256, "product")):
        assert tm.plan_attention(tm.ToeplitzMask((size, size)), 32, 32).strategy == strategy


def test_compiles_without_a_break():
    torch.manual_seed(0)
    torch._dynamo.reset()
    mask = toeplitz_mask((3, 4), 2)
    x = torch.randn(2, 2, 12, 3, dtype=torch.float64)
    run = torch.compile(mask, fullgraph=True, backend="aot_eager")
    found = []
    for multiply in (run, lambda x: mask @ x):
        given = x.clone().requires_grad_()
        out = multiply(given)
        found.append([out, *torch.autograd.grad(out.square().sum(), [given, mask.weight])])
    for compiled, eager in zip(*found, strict=True):
        torch.testing.assert_close(compiled, eager, rtol=1e-12, atol=1e-12)


def test_bad_arguments_are_named():
    for shape in ((), (2, 2, 2, 2), 0, (3, -1), (2.0, 3), "33", True):
        with pytest.raises(ValueError, match="shape"):
            tm.ToeplitzMask(shape)
    with pytest.raises(ValueError, match="num_heads"):
        tm.ToeplitzMask(3, num_heads=0)
    with pytest.raises(ValueError, match="sequences"):
        tm.ToeplitzMask((3, 3), causal=True)
    with pytest.raises(ValueError, match="sequences"):
        tm.ToeplitzMask((1, 3), causal=True)
    with pytest.raises(ValueError, match="`distance` must be None or one of"):
        tm.ToeplitzMask(3, distance="l3")
    with pytest.raises(ValueError, match=r"shape \[5\] or \[2, 5\], but has shape .*one number per offset"):
        tm.ToeplitzMask(3, num_heads=2, f=torch.ones(3))
    with pytest.raises(ValueError, match=r"shape \[3\] or \[1, 3\], but has shape .*one number per distinct distance"):
        tm.ToeplitzMask(3, distance="l1", f=torch.ones(5))
    with pytest.raises(ValueError, match="must be positive"):
        tm.ToeplitzMask(3, f=-torch.ones(5), positive=True)
    with pytest.raises(ValueError, match="finite"):
        tm.ToeplitzMask(3, f=torch.full((5,), torch.nan))
    with pytest.raises(ValueError, match=r"which needs `distance`\. Pass distance="):
        tm.ToeplitzMask(3, f=tm.ExponentialDecay())
    with pytest.raises(ValueError, match=r"\[3, num_heads=2\]"):
        tm.ToeplitzMask(3, num_heads=2, distance="l1", f=tm.ExponentialDecay(3)).to_dense()
    with pytest.raises(ValueError, match="one parameter per offset"):
        _ = tm.ToeplitzMask(3).distances
    for rate in (0.0, [1.0, 2.0], -1.0):
        with pytest.raises(ValueError, match="rate"):
            tm.ExponentialDecay(1, rate=rate)
    with pytest.raises(ValueError, match="does not take a graph"):
        tm.ToeplitzMask(3).on(tm.path_graph(3))


def test_decay_in_half_precision_is_evaluated_in_float32():
    half = tm.ToeplitzMask((3, 4), num_heads=2, distance="l2", f=tm.ExponentialDecay(2, rate=[0.3, 0.7])).bfloat16()
    fine = tm.ToeplitzMask((3, 4), num_heads=2, distance="l2", f=tm.ExponentialDecay(2, rate=[0.3, 0.7]))
    fine.load_state_dict(half.state_dict())
    assert torch.equal(half.to_dense(), fine.to_dense())
