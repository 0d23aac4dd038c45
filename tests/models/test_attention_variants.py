import pytest
import torch

import topomask as tm
from topomask.models.attention_variants import VARIANTS, AttentionOptions, TokenGrid, make_attention


def mask_of(name: str, options: AttentionOptions | None = None, num_prefix: int = 0) -> tm.Mask:
    return make_attention(name, TokenGrid((4, 5), num_prefix), 8, 2, options).mask


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("num_prefix", [0, 1])
def test_every_variant_attends_and_learns(name, num_prefix):
    torch.manual_seed(0)
    layer = make_attention(name, TokenGrid((4, 5), num_prefix), 8, 2)
    x = torch.randn(3, 20 + num_prefix, 8)
    out = layer(x)
    assert out.shape == x.shape
    out.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())


def test_the_paper_s_walks_are_the_paper_s():
    settings = mask_of("grf-paper").recipe
    assert (settings.halt_prob, settings.coupling, settings.shared_walks) == (0.1, "iid", True)
    assert (settings.num_walks, settings.max_length) == (20, 10)
    ours = mask_of("grf").recipe
    assert (ours.halt_prob, ours.coupling, ours.shared_walks) == (0.0, "repelling", False)


def test_visits_take_the_paper_s_walks_and_start_from_ones():
    mask = mask_of("visits")
    settings = mask.recipe
    assert (settings.halt_prob, settings.coupling, settings.shared_walks) == (0.1, "iid", True)
    assert mask.f.eq(1).all()
    assert torch.equal(mask_of("grf-paper").f[0], 0.5 ** torch.arange(11))


@pytest.mark.parametrize("attention", [None, 3, ["grf"]])
def test_what_is_no_name_is_refused(attention):
    with pytest.raises(ValueError, match="`attention` must be one of"):
        mask_of(attention)
    with pytest.raises(ValueError, match="`options` must be a topomask"):
        mask_of("grf", {"seed": 1})


def test_options_reach_the_mask_and_the_attention():
    options = AttentionOptions("elu", "signed", 7, 3, 0.5, "antithetic", False, 11)
    layer = make_attention("grf-paper", TokenGrid((4, 5)), 8, 2, options)
    settings = layer.mask.recipe
    assert (settings.num_walks, settings.max_length, settings.halt_prob, settings.seed) == (7, 3, 0.5, 11)
    assert (settings.coupling, settings.shared_walks) == ("antithetic", False)
    assert (layer.feature_map, layer.normalizer) == ("elu", "signed")


def test_exact_series_is_what_walks_estimate():
    options = dict(max_length=3)
    exact = mask_of("exact", AttentionOptions(**options)).to_dense()
    estimate = mask_of("grf", AttentionOptions(num_walks=2000, seed=0, **options)).to_dense()
    assert (estimate - exact).norm() < 0.02 * exact.norm()
    # It can fail: one power less is further away.
    other = mask_of("exact", AttentionOptions(max_length=2)).to_dense()
    assert (estimate - other).norm() > 0.05 * exact.norm()


def test_prefix_tokens_see_and_are_seen_by_all():
    for name in ("toeplitz", "exact", "grf", "learned"):
        dense = mask_of(name, num_prefix=1).to_dense()
        assert dense.shape == (2, 21, 21)
        assert dense[:, 0].eq(1).all()
        assert dense[:, :, 0].eq(1).all()


def test_toeplitz_knows_the_shape_of_the_grid():
    assert mask_of("toeplitz").weight.shape == (2, 7, 9)
    assert make_attention("toeplitz", TokenGrid((6,)), 8, 2).mask.weight.shape == (2, 11)


def test_a_function_makes_its_own_layer():
    def factory(grid, dim, num_heads, options):
        return tm.nn.MaskedAttention(dim, num_heads, tm.NeighborMask(grid.graph))

    assert isinstance(make_attention(factory, TokenGrid((4, 5)), 8, 2).mask, tm.NeighborMask)


def test_the_mask_s_name_of_grf_is_accepted():
    options = AttentionOptions(num_walks=3, seed=0)
    assert torch.equal(mask_of("walk", options).to_dense(), mask_of("grf", options).to_dense())
    assert options.obeyed_by("walk") == options


@pytest.mark.parametrize(
    ("name", "here"),
    [("visit", "'visits'"), ("power-series", "'exact'"), ("learned-features", "'learned'"), ("all", "'linear' or")],
)
def test_other_names_of_masks_are_answered_by_their_names_here(name, here):
    with pytest.raises(ValueError, match=rf"must be one of \('softmax', .*'learned'\), but is '{name}'.* Pass {here}"):
        mask_of(name)


@pytest.mark.parametrize(
    ("name", "close"), [("grf_paper", "grf-paper"), ("soft-max", "softmax"), ("toplitz", "toeplitz")]
)
def test_an_unknown_name_is_refused_with_the_nearest(name, close):
    with pytest.raises(ValueError, match=f"Did you mean '{close}'"):
        mask_of(name)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("softmax", dict(feature_map="elu")),
        ("linear", dict(num_walks=3)),
        ("exact", dict(seed=0)),
        ("toeplitz", dict(halt_prob=0.1)),
    ],
)
def test_options_that_cannot_be_obeyed_are_refused(name, options):
    with pytest.raises(ValueError, match=f"attention '{name}' has no option `{next(iter(options))}`"):
        mask_of(name, AttentionOptions(**options))
