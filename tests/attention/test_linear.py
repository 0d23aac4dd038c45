import math

import pytest
import torch
from torch.nn import functional as F

import topomask as tm
from helpers.graphs import ragged_batch, ragged_graph, star_graph
from helpers.mask_cases.walks import walk_mask
from helpers.tokens import EXACT, FEATURE_MAPS, STRATEGIES, qkv
from topomask.nn import SoftmaxFeatures


def reference(mask, phi_q, phi_k, v):
    weights = mask.to_dense() * (phi_q @ phi_k.mT)
    magnitude = mask.magnitude().to_dense() * (phi_q.abs() @ phi_k.abs().mT)
    return (weights @ v / magnitude.sum(-1, keepdim=True)).nan_to_num(0.0)


def test_a_mask_of_ones_is_plain_linear_attention():
    q, k, v = qkv(9)
    phi_q, phi_k = F.relu(q), F.relu(k)
    plain = (phi_q @ (phi_k.mT @ v) / (phi_q @ phi_k.sum(-2, keepdim=True).mT)).nan_to_num(0.0)
    mask = tm.DenseMask(torch.ones(9, 9, dtype=torch.float64))
    for strategy in ("product", "dense"):
        torch.testing.assert_close(tm.masked_attention(q, k, v, mask, strategy=strategy), plain, **EXACT)


@pytest.mark.parametrize("feature_map", FEATURE_MAPS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_feature_maps(feature_map, strategy):
    mask = walk_mask(ragged_graph(), num_heads=2)
    q, k, v = qkv(11)
    phi = {
        "relu": F.relu,
        "elu": lambda x: F.elu(x) + 1,
        "exp": torch.exp,
        "softmax": SoftmaxFeatures(4),
        "identity": torch.clone,
    }[feature_map]
    out = tm.masked_attention(q, k, v, mask, feature_map=feature_map, strategy=strategy)
    torch.testing.assert_close(out, reference(mask, phi(q), phi(k), v), **EXACT)
    # A function in place of the name, without what the library knows of it.
    torch.testing.assert_close(tm.masked_attention(q, k, v, mask, feature_map=phi, strategy=strategy), out, **EXACT)


@pytest.mark.parametrize("feature_map", FEATURE_MAPS)
def test_without_a_normalizer_features_are_not_rescaled(feature_map):
    mask = walk_mask(ragged_graph(), num_heads=2)
    q, k, v = qkv(11)
    phi = tm.feature_maps.resolve(feature_map)
    expected = (mask.to_dense() * (phi(q) @ phi(k).mT)) @ v
    out = tm.masked_attention(q, k, v, mask, feature_map=feature_map, normalizer="none")
    torch.testing.assert_close(out, expected, **EXACT)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_block_diagonal_batch_equals_one_by_one(strategy, symmetric):
    """No leak between graphs, also where shifts and scales are taken over a graph."""
    parts = [tm.path_graph(1), tm.cycle_graph(5), ragged_graph(), tm.grid_graph(2, 3)]
    whole = walk_mask(tm.Graph.batch(parts), num_heads=2, symmetric=symmetric)
    q, k, v = qkv(whole.graph.num_nodes, batch=1)
    # Keys of one graph would drown those of another if they shared a shift.
    k[..., 1:6, :] += 300.0
    for feature_map in FEATURE_MAPS:
        together = tm.masked_attention(q, k, v, whole, strategy=strategy, feature_map=feature_map)
        start = 0
        for part in parts:
            nodes = slice(start, start + part.num_nodes)
            alone = tm.masked_attention(
                q[..., nodes, :],
                k[..., nodes, :],
                v[..., nodes, :],
                whole.on(part),
                strategy=strategy,
                feature_map=feature_map,
            )
            torch.testing.assert_close(together[..., nodes, :], alone, **EXACT)
            start += part.num_nodes


def test_nothing_leaks_between_graphs():
    mask = walk_mask(ragged_batch(), num_heads=2)
    q, k, v = qkv(mask.graph.num_nodes, batch=1)
    v.requires_grad_()
    out = tm.masked_attention(q, k, v, mask, feature_map="elu")
    (gradient,) = torch.autograd.grad(out[..., 1:6, :].sum(), v)
    assert gradient[..., 1:6, :].abs().sum() > 0
    assert gradient[..., :1, :].abs().sum() == 0
    assert gradient[..., 6:, :].abs().sum() == 0


@pytest.mark.parametrize("feature_map", FEATURE_MAPS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_padding_touches_nothing(strategy, feature_map):
    """Padded keys equal absent keys, whatever they contain, forward and backward."""
    mask = walk_mask(ragged_graph(), num_heads=2)
    q, k, v = qkv(11)
    padded = torch.zeros(2, 11, dtype=torch.bool)
    padded[0, [2, 5]] = padded[1, 9] = True
    dirty_k, dirty_v = k.clone(), v.clone()
    dirty_k[padded[:, None].expand(2, 2, 11)] = math.nan
    dirty_v[padded[:, None].expand(2, 2, 11)] = math.inf
    dirty_k.requires_grad_()
    options = dict(strategy=strategy, feature_map=feature_map)
    out = tm.masked_attention(q, dirty_k, dirty_v, mask, key_padding_mask=padded, **options)
    for b in range(2):
        present = (~padded[b]).nonzero().flatten()
        alone = tm.masked_attention(
            q[b : b + 1], k[b : b + 1, :, present], v[b : b + 1, :, present], mask, key_nodes=present, **options
        )
        torch.testing.assert_close(out[b : b + 1], alone, **EXACT)
    (gradient,) = torch.autograd.grad(out.sum(), dirty_k)
    assert gradient.isfinite().all()
    assert gradient[padded[:, None].expand(2, 2, 11)].abs().sum() == 0


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_queries_that_attend_to_nothing_give_zero(strategy):
    mask = walk_mask(ragged_graph(), num_heads=2)
    q, k, v = (x.requires_grad_() for x in qkv(11).unbind())
    dead = torch.zeros(2, 2, 11, 1, dtype=torch.bool)
    dead[0, 0, 3] = True
    padded = torch.ones(2, 11, dtype=torch.bool)
    padded[0] = False
    for normalizer in ("absolute", "signed"):
        out = tm.masked_attention(
            q.masked_fill(dead, -1.0), k, v, mask, key_padding_mask=padded, strategy=strategy, normalizer=normalizer
        )
        assert (out[0, 0, 3] == 0).all()
        assert (out[1] == 0).all()
        for gradient in torch.autograd.grad(out[1].sum() + out[0, 0, 3].sum(), [q, k, v, *mask.parameters()]):
            assert (gradient == 0).all()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_cross_attention_between_nodes(strategy):
    mask = walk_mask(ragged_graph(), num_heads=2)
    queries, keys = torch.tensor([3, 3, 0, 10]), torch.tensor([2, 1, 0, 9, 2, 3, 10])
    q, _, _ = qkv(4)
    _, k, v = qkv(7, seed=1)
    options = dict(query_nodes=queries, key_nodes=keys, feature_map="elu", strategy=strategy)
    out = tm.masked_attention(q, k, v, mask, **options)
    dense = tm.DenseMask(mask.to_dense()[:, queries][:, :, keys])
    magnitude = mask.magnitude().to_dense()[:, queries][:, :, keys]
    phi_q, phi_k = F.elu(q) + 1, F.elu(k) + 1
    expected = (dense.to_dense() * (phi_q @ phi_k.mT)) @ v / (magnitude * (phi_q @ phi_k.mT)).sum(-1, keepdim=True)
    torch.testing.assert_close(out, expected, **EXACT)
    asymmetric = walk_mask(ragged_graph(), num_heads=2, symmetric=False)
    part = asymmetric.to_dense()[:, queries][:, :, keys]
    out = tm.masked_attention(q, k, v, asymmetric, normalizer="none", **options)
    torch.testing.assert_close(out, (part * (phi_q @ phi_k.mT)) @ v, **EXACT)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_half_precision_stays_finite_and_close(dtype, strategy):
    """Sums of half-precision products would overflow at 65,504; they are taken in float32."""
    mask = walk_mask(tm.grid_graph(6, 6), num_heads=2, f=torch.ones(4)).to(dtype)
    q, k, v = (100 * qkv(36, dtype=dtype)).unbind()
    out = tm.masked_attention(q, k, v, mask, strategy=strategy)
    assert out.dtype == dtype
    assert out.isfinite().all()
    exact = tm.masked_attention(q.double(), k.double(), v.double(), mask, strategy=strategy)
    torch.testing.assert_close(out.double(), exact, rtol=2e-2, atol=1.0)
    for p in (q, k, v):
        p.requires_grad_()
    out = tm.masked_attention(q, k, v, mask, strategy=strategy)
    for gradient in torch.autograd.grad(out.float().sum(), [q, k, v, *mask.parameters()]):
        assert gradient.isfinite().all()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_function_as_feature_map_sees_the_input_precision(strategy):
    mask = walk_mask(ragged_graph(), num_heads=2).half()
    phi = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU()).half()
    q, k, v = qkv(11, dtype=torch.float16)
    assert tm.masked_attention(q, k, v, mask, feature_map=phi, strategy=strategy).dtype == torch.float16
    other = tm.masked_attention(q, k, v, mask, feature_map=lambda x: x.double().exp(), strategy=strategy)
    assert other.isfinite().all()
    with pytest.raises(ValueError, match="feature_map"):
        tm.masked_attention(q, k, v, mask, feature_map=lambda x: x[..., :1, :], strategy=strategy)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_chunks_do_not_matter(strategy, monkeypatch):
    from topomask.masks import operator
    from topomask.ops.pair_values import reference as pair_values
    from topomask.ops.sparse_product import reference as sparse_product

    mask = walk_mask(ragged_graph(), num_heads=2)
    parameters = list(mask.parameters())

    def run():
        q, k, v = (x.requires_grad_() for x in qkv(11).unbind())
        out = tm.masked_attention(q, k, v, mask, strategy=strategy, feature_map="identity")
        return [out, *torch.autograd.grad(out.square().sum(), [q, k, v, *parameters])]

    whole = run()
    monkeypatch.setattr(operator, "ELEMENTS_PER_CHUNK", 1)
    monkeypatch.setattr(pair_values, "_TRIPLES_PER_CHUNK", 7)
    monkeypatch.setattr(sparse_product, "_ELEMENTS_PER_CHUNK", 9)
    mask.resample(mask.seed)
    for a, b in zip(run(), whole, strict=True):
        torch.testing.assert_close(a, b, **EXACT)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_empty_inputs_give_empty_outputs(strategy):
    for symmetric in (True, False):
        mask = walk_mask(ragged_graph(), num_heads=2, symmetric=symmetric)
        q, k, v = qkv(11)
        none = torch.zeros(0, dtype=torch.int64)
        assert tm.masked_attention(q[:0], k[:0], v[:0], mask, strategy=strategy).shape == (0, 2, 11, 4)
        assert tm.masked_attention(q, k, v[..., :0], mask, strategy=strategy).shape == (2, 2, 11, 0)
        few = tm.masked_attention(q[:, :, :0], k, v, mask, query_nodes=none, strategy=strategy)
        assert few.shape == (2, 2, 0, 4)
        blind = tm.masked_attention(q, k[:, :, :0], v[:, :, :0], mask, key_nodes=none, strategy=strategy)
        assert (blind == 0).all()


@pytest.mark.parametrize("feature_map", FEATURE_MAPS)
@pytest.mark.parametrize("scale", [1e-30, 1e-10, 1e10, 1e18])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_adversarial_queries_and_keys_stay_finite(feature_map, scale, strategy):
    mask = walk_mask(ragged_graph(), num_heads=2).float()
    q, k, v = (x.requires_grad_() for x in qkv(11, dtype=torch.float32).unbind())
    out = tm.masked_attention(scale * q, scale * k, v, mask, feature_map=feature_map, strategy=strategy)
    assert out.isfinite().all()
    assert out.abs().max() <= v.abs().max() * (1 + 1e-5)
    for gradient in torch.autograd.grad(out.sum(), [q, k, v, *mask.parameters()]):
        assert gradient.isfinite().all()


def test_scale_of_queries_does_not_change_relu_attention():
    """Powers of two are factored out of features, so even the last bit survives a change of units."""
    mask = walk_mask(ragged_graph(), num_heads=2).float()
    q, k, v = qkv(11, dtype=torch.float32)
    for strategy in STRATEGIES:
        plain = tm.masked_attention(q, k, v, mask, strategy=strategy)
        scaled = tm.masked_attention(2.0**60 * q, 2.0**-50 * k, v, mask, strategy=strategy)
        assert torch.equal(plain, scaled)


def test_dropout_is_refused_where_pairs_do_not_exist():
    q, k, v = qkv(11)
    mask = walk_mask(ragged_graph(), num_heads=2)
    with pytest.raises(ValueError, match="dropout acts on pairs"):
        tm.masked_attention(q, k, v, mask, strategy="product", dropout_p=0.1)
    with pytest.raises(ValueError, match="dropout_p"):
        tm.masked_attention(q, k, v, mask, dropout_p=1.0)


def test_a_hub_gives_the_same_by_every_way():
    """A star has few features per row but all pairs."""
    mask = walk_mask(star_graph(500), max_length=4, num_walks=8)
    assert mask.on().cost().max_pairs > 500**2
    q, k, v = qkv(501, heads=1, batch=1)
    dense, *others = (tm.masked_attention(q, k, v, mask, strategy=s) for s in ("dense", "pairs", "product"))
    for other in others:
        torch.testing.assert_close(other, dense, **EXACT)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(feature_map="gelu"), r"`feature_map` must be one of .*'identity'\) or a function, but is 'gelu'"),
        (dict(normalizer="l2"), r"`normalizer` must be one of \('absolute', 'signed', 'none'\), but is 'l2'"),
        (dict(strategy="fast"), r"`strategy` must be one of \('auto', 'pairs', 'product', 'dense'\), but is 'fast'"),
        (dict(q=torch.zeros(2, 2, 10, 4)), "query_nodes"),
        (dict(q=torch.zeros(2, 3, 11, 4)), "multiple"),
        (dict(q=torch.zeros(2, 4, 11, 4)), "one head or as many as `q`, 4"),
        (dict(q=torch.zeros(1, 2, 11, 4)), "match in batch and width"),
        (dict(q=torch.zeros(2, 2, 11, 4, dtype=torch.int64)), "floating"),
        (dict(q=torch.zeros(11, 4)), r"\[..., H, N, D\]"),
        (dict(v=torch.zeros(2, 2, 10, 4)), "`k` and `v`"),
        (dict(key_padding_mask=torch.zeros(2, 11)), "boolean"),
        (dict(key_padding_mask=torch.zeros(3, 11, dtype=torch.bool)), "one row per input"),
        (dict(mask=torch.ones(11, 11)), "DenseMask"),
        (dict(mask=ragged_graph()), "is a Graph"),
        (dict(mask=walk_mask(tm.path_graph(3), num_heads=2).on()), r"3 queries and 3 keys.*mask.on\(graph\)"),
        (dict(query_nodes=[0, 99]), r"query_nodes\[1\] is 99"),
    ],
)
def test_bad_input_is_named(change, message):
    q, k, v = qkv(11, dtype=torch.float32)
    arguments = dict(q=q, k=k, v=v, mask=walk_mask(ragged_graph(), num_heads=2)) | change
    with pytest.raises(ValueError, match=message):
        tm.masked_attention(**arguments)


def test_a_graph_in_place_of_a_mask_is_named():
    graph = tm.path_graph(3)
    q = torch.zeros(1, 1, 3, 2)
    with pytest.raises(ValueError, match=r"but is a Graph. Build one: tm.WalkMask\(graph\)\."):
        tm.masked_attention(q, q, q, graph)
