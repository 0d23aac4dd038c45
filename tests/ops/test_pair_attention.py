"""The compiled kernels against the reference, forward and backward."""

import gc
import itertools

import pytest
import torch
from torch.autograd import gradcheck

import topomask as tm
from helpers.graphs import ragged_graph, star_graph
from helpers.mask_cases import CASES
from helpers.mask_cases.walks import walk_mask
from topomask.ops.pair_attention import Attention, _pair_attention, count_tiles, numba, pair_attention, reference
from topomask.ops.tiles import layout

PATTERNS = {
    "ragged": lambda: walk_mask(ragged_graph(), num_heads=2),
    "star": lambda: walk_mask(star_graph(40), max_length=2),
    "grid": lambda: walk_mask(tm.grid_graph(9, 7)),
    "one node": lambda: walk_mask(tm.path_graph(1)),
    "rectangular": CASES["selected_asymmetric"],
}
# (softmax, absolute, normalize). Softmax attention is normalised, and has no features that could be absolute.
WAYS = [(True, False, True), *((False, *flags) for flags in itertools.product([True, False], repeat=2))]


def arguments(
    name: str,
    dtype: torch.dtype,
    flags=(False, False, True),
    width: int = 5,
    depth: int = 3,
    separate: bool = True,
    heads: tuple[int, ...] = (),
    batch: int = 2,
) -> Attention:
    """Random numbers on the pattern of a mask; with padding for softmax attention."""
    torch.manual_seed(0)
    softmax, absolute, normalize = flags
    pattern, values, magnitudes = PATTERNS[name]().on().entries()
    # One row of values: heads of these masks have patterns of their own.
    ((values,), (magnitudes,)) = values, magnitudes
    rows, columns = pattern.shape
    q = torch.randn(batch, width, rows, dtype=dtype).mT
    k, v = torch.randn(batch, columns, width, dtype=dtype), torch.randn(batch, columns, depth, dtype=dtype)
    factors = torch.rand(*heads, 1) + 0.5 if heads else torch.ones(1)
    values, magnitudes = ((x.detach() * factors).to(dtype) for x in (values, magnitudes))
    # A normaliser that sums signed numbers can come close to 0, where rounding is amplified: make them positive.
    if normalize and not separate:
        values = values.abs() + 0.1
    if normalize and not softmax and not absolute:
        q, k = q.abs(), k.abs()
    is_key = torch.rand(batch, columns) > 0.3 if softmax else None
    return Attention(pattern, values, magnitudes if separate else None, q, k, v, is_key, *flags)


def leaves(attention: Attention) -> dict[str, torch.Tensor]:
    """What gets a gradient."""
    found = {name: getattr(attention, name) for name in ("values", "magnitudes", "q", "k", "v")}
    return {name: x for name, x in found.items() if x is not None}


def both_passes(backend, attention, grad):
    out, denominator = backend.pair_attention(attention)
    grads = backend.pair_attention_backward(attention, (out, denominator), grad, frozenset(leaves(attention)))
    # For softmax attention the denominator is known up to a factor that cancels.
    parts = {"out": out} if attention.softmax else {"out": out, "denominator": denominator}
    return parts | {name: grads[name] for name in leaves(attention)}


def assert_agree(attention, tolerance):
    """Compared in float64: sums that cancel are judged by the size of what was summed."""
    grad = torch.randn(*attention.q.shape[:2], attention.v.shape[2], dtype=attention.q.dtype)
    found = both_passes(numba, attention, grad)
    fine = attention._replace(**{name: x.double() for name, x in leaves(attention).items()})
    for name, expected in both_passes(reference, fine, grad.double()).items():
        scale = max(1.0, float(expected.abs().max())) if expected.numel() else 1.0
        torch.testing.assert_close(
            found[name].double(),
            expected,
            rtol=tolerance,
            atol=tolerance * scale,
            msg=lambda text, name=name: f"{name}: {text}",
        )


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("separate", [True, False])
@pytest.mark.parametrize("flags", WAYS)
def test_rows_agree_with_the_reference(name, dtype, separate, flags, monkeypatch):
    monkeypatch.setattr(numba, "MIN_ENTRIES_PER_ROW", 10**9)
    for width, depth, heads in ((1, 1, ()), (5, 3, (2,)), (16, 32, ())):
        attention = arguments(name, dtype, flags, width, depth, separate, heads)
        assert_agree(attention, 1e-4 if dtype == torch.float32 else 1e-10)


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("separate", [True, False])
@pytest.mark.parametrize("flags", [flags for flags in WAYS if not flags[1]])
@pytest.mark.parametrize("min_lanes", [1, 4, 17])
def test_tiles_agree_with_the_reference(name, separate, flags, min_lanes, monkeypatch):
    """Keys processed in all lanes, pair by pair, and both; widths that fill vectors and that do not."""
    monkeypatch.setattr(numba, "MIN_ENTRIES_PER_ROW", 0)
    monkeypatch.setattr(layout, "MIN_LANES", min_lanes)
    for width, depth, heads in ((16, 32, ()), (1, 1, (1,)), (21, 37, (2,))):
        attention = arguments(name, torch.float32, flags, width, depth, separate, heads)
        assert numba._layout(attention) is not None
        assert_agree(attention, 2e-4)


@pytest.mark.parametrize("name", ["ragged", "grid", "one node", "rectangular"])
@pytest.mark.parametrize("way", ["rows", "tiles", "reference"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("separate", [True, False])
@pytest.mark.parametrize("flags", WAYS)
def test_heads_may_share_a_pattern(name, way, dtype, separate, flags, monkeypatch):
    """Six items, of which 0 and 3, 1 and 4, 2 and 5 have the same values: the same as one head after the other."""
    monkeypatch.setenv("TOPOMASK_BACKEND", "reference" if way == "reference" else "auto")
    monkeypatch.setattr(numba, "MIN_ENTRIES_PER_ROW", 0 if way == "tiles" else 10**9)
    attention = arguments(name, dtype, flags, 7, 18, separate, heads=(3,), batch=6)
    inputs = {key: x.requires_grad_() for key, x in leaves(attention).items()}
    pattern, options = attention.pattern, dict(zip(("softmax", "absolute", "normalize"), flags, strict=True))

    def run(head):
        part = slice(head, None, 3)
        values, magnitudes = (None if x is None else x[head] for x in (attention.values, attention.magnitudes))
        q, k, v, is_key = (None if x is None else x[part] for x in attention[3:7])
        return pair_attention(pattern, values, magnitudes, q, k, v, is_key=is_key, **options).out

    found = pair_attention(pattern, *attention[1:6], is_key=attention.is_key, **options).out
    expected = torch.stack([run(head) for head in range(3)], dim=1).flatten(0, 1)
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 1e-9, "atol": 1e-9}
    torch.testing.assert_close(found, expected, **tolerance)
    weights = torch.randn_like(found)
    grads = [torch.autograd.grad((x * weights).sum(), list(inputs.values())) for x in (found, expected)]
    for a, b in zip(*grads, strict=True):
        scale = max(1.0, float(b.abs().max()))
        torch.testing.assert_close(a / scale, b / scale, **tolerance)


def test_batches_that_do_not_fit_the_heads_are_refused():
    attention = arguments("ragged", torch.float32, heads=(3,), batch=4)
    with pytest.raises(ValueError, match=r"values of 3 heads.*multiple of 3 items.*\(4, 22, 5\)"):
        pair_attention(*attention[:6])


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("separate", [True, False])
@pytest.mark.parametrize("heads", [(), (2,)])
@pytest.mark.parametrize("flags", WAYS)
def test_gradcheck(backend, separate, heads, flags, monkeypatch):
    monkeypatch.setenv("TOPOMASK_BACKEND", backend)
    softmax, absolute, normalize = flags
    attention = arguments("ragged", torch.float64, flags, separate=separate, heads=heads)

    def run(values, q, k, v, magnitudes=None):
        return pair_attention(
            attention.pattern, values, None if magnitudes is None else magnitudes.abs(), q, k, v,
            is_key=attention.is_key, softmax=softmax, absolute=absolute, normalize=normalize,
        ).out  # fmt: skip

    names = ("values", "q", "k", "v", "magnitudes")[: 5 if separate else 4]
    assert gradcheck(run, [getattr(attention, name).requires_grad_() for name in names], fast_mode=True)


@pytest.mark.parametrize("way", ["rows", "tiles"])
def test_only_what_is_asked_for_gets_a_gradient(way, monkeypatch):
    monkeypatch.setattr(numba, "MIN_ENTRIES_PER_ROW", 0 if way == "tiles" else 10**9)
    attention = arguments("grid", torch.float32)
    whole = leaves(attention)
    expected = dict(
        zip(
            whole,
            torch.autograd.grad(
                pair_attention(attention.pattern, *(x.requires_grad_() for x in whole.values())).out.sum(),
                whole.values(),
            ),
            strict=True,
        )
    )
    for name in whole:
        inputs = {key: x.detach() for key, x in whole.items()}
        inputs[name].requires_grad_()
        (found,) = torch.autograd.grad(pair_attention(attention.pattern, *inputs.values()).out.sum(), inputs[name])
        torch.testing.assert_close(found, expected[name])


def test_layouts_are_kept_as_long_as_their_pattern(monkeypatch):
    monkeypatch.setattr(numba, "MIN_ENTRIES_PER_ROW", 0)
    attention = arguments("grid", torch.float32)
    assert numba._layout(attention) is numba._layout(attention)
    count = len(numba._layouts)
    del attention
    gc.collect()
    assert len(numba._layouts) < count


def test_the_backward_pass_finds_the_layout_of_the_forward_pass(monkeypatch):
    monkeypatch.setattr(numba, "MIN_ENTRIES_PER_ROW", 0)
    attention = arguments("grid", torch.float32)
    made = []
    original = numba.make_layout
    monkeypatch.setattr(numba, "make_layout", lambda *args, **kwargs: made.append(1) or original(*args, **kwargs))
    inputs = [x.requires_grad_() for x in leaves(attention).values()]
    for _ in range(2):
        pair_attention(attention.pattern, *inputs).out.sum().backward()
    assert len(made) == 1


def test_opcheck():
    for flags in ((False, True, True), (True, False, True)):
        for separate, heads in ((True, ()), (False, (2,))):
            attention = arguments("ragged", torch.float64, flags, separate=separate, heads=heads)
            for x in leaves(attention).values():
                x.requires_grad_()
            _pair_attention.check(attention)


def test_threads_do_not_matter():
    attention = arguments("grid", torch.float64, flags=(False, True, True))
    outputs = numba.pair_attention(attention)
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            grad = torch.ones_like(outputs[0])
            found.append(numba.pair_attention_backward(attention, outputs, grad, frozenset(leaves(attention))))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        for name in found[0]:
            torch.testing.assert_close(other[name], found[0][name])


def test_half_precision_is_summed_in_float32():
    attention = arguments("grid", torch.float32, width=16, depth=16)
    inputs = leaves(attention).values()
    expected = pair_attention(attention.pattern, *inputs).out
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = pair_attention(attention.pattern, *(x.to(torch.bfloat16) for x in inputs)).out
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=0.1, atol=0.1)


def test_tiles_of_a_dense_pattern_are_counted(monkeypatch):
    """Of two tiles of 16 and 1 queries: a key that two of them see, and two keys that one sees."""
    pairs = torch.zeros(1, 17, 4, dtype=torch.bool)
    pairs[0, [3, 8], 0] = pairs[0, 5, 1] = pairs[0, 16, 0] = True
    assert count_tiles(pairs) == (1, 2)
    assert count_tiles(pairs[:, :0]) == (0, 0)
    monkeypatch.setenv("TOPOMASK_BACKEND", "reference")
    assert count_tiles(pairs) is None
