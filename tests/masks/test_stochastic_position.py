"""What is particular to masks of stochastic positions; codes are tested on their own, and the laws cover the rest."""

import copy
import pickle

import numpy as np
import pytest
import torch

import topomask as tm
from helpers.graphs import ragged_graph, sequence_batch
from helpers.mask_cases.positions import position_mask

KINDS = {"sine": dict(kind="sine", num_sines=3), "conv": dict(kind="conv", kernel_size=5)}


def exact(mask: tm.StochasticPositionMask) -> torch.Tensor:
    """The template as a matrix, [H, N, N]."""
    size = mask.graph.num_nodes
    nodes = torch.arange(size)
    return mask.template()[:, nodes[:, None] - nodes + size - 1]


@pytest.mark.parametrize("kind", KINDS)
def test_is_the_product_of_its_codes(kind):
    mask = position_mask(10, num_heads=3, **KINDS[kind])
    query, key = mask.codes()
    assert query.shape == key.shape == (3, 10, 24)
    torch.testing.assert_close(mask.to_dense(), query @ key.mT)
    torch.testing.assert_close(mask.magnitude().to_dense(), query.abs() @ key.abs().mT)


@pytest.mark.parametrize("kind", KINDS)
def test_template_has_the_lags_in_order(kind):
    mask = position_mask(6, num_heads=2, **KINDS[kind])
    assert mask.template().shape == (2, 11)
    for place, lag in enumerate(range(-5, 6)):
        torch.testing.assert_close(mask.template()[:, place], mask.template(torch.tensor([lag]))[:, 0])


@pytest.mark.parametrize("kind", KINDS)
def test_error_falls_as_one_over_the_root_of_realizations(kind):
    """Slope -0.5 +- 0.05 from 16 to 4,096 realizations; every width has noise of its own, in 40 heads."""
    widths = [16, 64, 256, 1024, 4096]
    errors = []
    for width in widths:
        mask = position_mask(12, 40, num_realizations=width, seed=width, **KINDS[kind])
        truth = exact(mask).detach()
        deviation = (mask.to_dense().detach() - truth).norm(dim=(1, 2)) / truth.norm(dim=(1, 2))
        errors.append(float(deviation.mean()))
    slope = np.polyfit(np.log(widths), np.log(errors), 1)[0]
    assert abs(slope + 0.5) < 0.05, (slope, errors)
    assert errors[-1] < 0.1


@pytest.mark.parametrize("gated", [True, False])
def test_sines_need_no_noise(gated):
    """A sum of cosines has low rank, so that codes as wide as its rank are exact."""
    mask = position_mask(20, num_heads=2, num_sines=2, gated=gated, num_realizations=None, seed=None)
    assert mask.num_realizations == 5
    torch.testing.assert_close(mask.to_dense(), exact(mask), rtol=1e-12, atol=1e-12)
    for bad, message in ((dict(seed=0), "nothing is random"), (dict(kind="conv"), "low rank")):
        for num_nodes in (5, None):
            with pytest.raises(ValueError, match=message):
                tm.StochasticPositionMask(num_nodes, num_realizations=None, **bad)
    with pytest.raises(ValueError, match="no noise"):
        mask.resample(0)


@pytest.mark.parametrize("kind", KINDS)
def test_length_is_data(kind):
    """Longer sequences have more of the same codes, and a batch of sequences has each as it would be alone."""
    mask = position_mask(9, num_heads=2, **KINDS[kind])
    short, long = mask.on(tm.path_graph(4)), mask.on(tm.path_graph(90))
    gradients = torch.autograd.grad(long.to_dense().square().sum(), list(mask.parameters()))
    assert all(gradient.abs().sum() > 0 for gradient in gradients), "parameters are shared"
    torch.testing.assert_close(short.to_dense(), mask.to_dense()[:, :4, :4])
    torch.testing.assert_close(long.to_dense()[:, :9, :9], mask.to_dense())
    batch = mask.on(sequence_batch())
    blocks = [mask.on(tm.path_graph(n)).to_dense() for n in (1, 6, 70, 2)]
    for head in range(2):
        expected = torch.block_diag(*(block[head] for block in blocks))
        torch.testing.assert_close(batch.to_dense()[head], expected)
    assert mask.on().num_queries == 9
    x = torch.randn(3, 2, 79, 4, dtype=torch.float64)
    alone = [mask.on(tm.path_graph(n)) @ part for n, part in zip((1, 6, 70, 2), x.split((1, 6, 70, 2), 2), strict=True)]
    torch.testing.assert_close(batch @ x, torch.cat(alone, dim=2))


def test_a_part_of_a_sequence_keeps_its_positions():
    mask = position_mask(9, kind="conv", kernel_size=3)
    part = tm.path_graph(9).neighborhood([5], 2)
    torch.testing.assert_close(mask.on(part).to_dense(), mask.to_dense()[:, 3:8, 3:8])


@pytest.mark.parametrize(
    "graph",
    [
        ragged_graph(),
        tm.cycle_graph(5),
        tm.grid_graph(2, 3),
        tm.Graph.from_edges([[0, 1], [2, 1]], num_nodes=3),
        tm.Graph.from_edges([[0, 1], [1, 2]], num_nodes=3, directed=True),
        tm.Graph.from_edges([[0, 1]], num_nodes=3),
        tm.Graph.from_edges([[0, 1], [1, 1]], num_nodes=2),
        tm.Graph.batch([tm.path_graph(3), tm.cycle_graph(3)]),
    ],
    ids=["ragged", "cycle", "grid", "shuffled", "directed", "gap", "loop", "batch"],
)
def test_other_graphs_are_refused(graph):
    with pytest.raises(ValueError, match="path_graph"):
        position_mask(3).on(graph)


def test_masks_differ_by_default_and_agree_by_seed():
    first, second = (tm.StochasticPositionMask(8, num_heads=2) for _ in range(2))
    assert first.seed != second.seed
    assert torch.equal(position_mask(8, 2).to_dense(), position_mask(8, 2).to_dense())
    dense = position_mask(8, 2).to_dense()
    assert not torch.allclose(dense, position_mask(8, 2, seed=4).to_dense())
    heads = first.to_dense()
    assert not torch.allclose(heads[0], heads[1])


def test_resample():
    mask = position_mask(8, kind="conv", kernel_size=3)
    before = mask.to_dense()
    mask.resample(9)
    assert mask.seed == 9
    assert not torch.allclose(mask.to_dense(), before)
    torch.testing.assert_close(mask.to_dense(), position_mask(8, kind="conv", kernel_size=3, seed=9).to_dense())
    mask.resample(3)
    assert torch.equal(mask.to_dense(), before)


def test_codes_are_kept_until_something_changes():
    mask = position_mask(8)
    assert mask.codes()[0].requires_grad
    with torch.no_grad():
        kept = mask.codes()
        assert mask.codes()[0] is kept[0]
        mask.templates.phases.add_(0.1)
        assert not torch.equal(mask.codes()[0], kept[0])
        before = mask.codes()[0]
        mask.resample(1)
        assert not torch.equal(mask.codes()[0], before)
        assert (mask.magnitude().codes()[0] >= 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_checkpoint_restores_noise_for_any_length(kind):
    trained = position_mask(12, 2, seed=3, **KINDS[kind])
    state = trained.state_dict()
    assert sum(buffer.numel() for buffer in trained.buffers()) == 1, "its seed alone is handed to other processes"
    assert sum(tensor.numel() for tensor in state.values()) < 50, "nor saved"
    fresh = position_mask(5, 2, seed=4, **KINDS[kind])
    fresh.load_state_dict(state)
    assert fresh.seed == 3
    assert torch.equal(fresh.on(tm.path_graph(12)).to_dense(), trained.to_dense())
    spoilt = dict(state)
    spoilt["_extra_state"] = torch.tensor([7, 3])
    with pytest.raises(ValueError, match="release"):
        fresh.load_state_dict(spoilt)
    del spoilt["_extra_state"]
    with pytest.raises(RuntimeError, match="_extra_state"):
        fresh.load_state_dict(spoilt)


def test_copies_and_precision():
    mask = position_mask(8, 2, kind="conv", kernel_size=3)
    for other in (copy.deepcopy(mask), pickle.loads(pickle.dumps(mask))):
        assert torch.equal(other.to_dense(), mask.to_dense())
        with torch.no_grad():
            other.templates.gate.add_(1.0)
        assert not torch.equal(other.to_dense(), mask.to_dense())
    # Noise is the same whatever precisions the mask went through.
    torch.testing.assert_close(mask.float().double().to_dense(), mask.to_dense())
    half = mask.half()
    assert half.to_dense().dtype == torch.float32
    out = half @ torch.full((2, 8, 3), 1000.0, dtype=torch.float16)
    assert out.dtype == torch.float16
    assert out.isfinite().all()


def test_built_on_no_device_and_loaded_later():
    with torch.device("meta"):
        mask = tm.StochasticPositionMask(8, num_realizations=24, seed=0)
    assert mask.templates.phases.is_meta
    mask.to_empty(device="cpu").load_state_dict(position_mask(8).state_dict())
    torch.testing.assert_close(mask.to_dense(), position_mask(8).float().to_dense())


def test_inference_mode_first_does_not_spoil_training():
    mask = position_mask(8, kind="conv", kernel_size=3)
    with torch.inference_mode():
        mask.resample(5)
        mask @ torch.ones(1, 8, 2, dtype=torch.float64)
    mask.to_dense().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in mask.parameters())


@pytest.mark.parametrize("graph", [tm.path_graph(9), sequence_batch()], ids=["one", "batch"])
def test_compiled_products_notice_new_noise(graph):
    torch._dynamo.reset()
    mask = position_mask(graph, 2, kind="conv", kernel_size=3)
    run = torch.compile(mask, fullgraph=True, backend="aot_eager")
    x = torch.randn(2, graph.num_nodes, 3, dtype=torch.float64, requires_grad=True)
    # More draws than torch would recompile for.
    for seed in range(10):
        mask.resample(seed)
        found = []
        for product in (run, mask):
            out = product(x)
            found.append([out, *torch.autograd.grad(out.square().sum(), [x, *mask.parameters()])])
        for compiled, eager in zip(*found, strict=True):
            torch.testing.assert_close(compiled, eager, rtol=1e-9, atol=1e-9)


def test_attention_learns_the_template():
    """Every parameter gets a gradient through attention by default settings."""
    for kind in KINDS:
        mask = position_mask(16, 2, **KINDS[kind])
        q, k, v = torch.randn(3, 1, 2, 16, 4, dtype=torch.float64)
        tm.masked_attention(q, k, v, mask, feature_map="elu").square().sum().backward()
        assert all(parameter.grad.abs().sum() > 0 for parameter in mask.parameters())


def test_padding_that_leaves_no_key_gives_zero():
    mask = position_mask(6).float()
    q, k, v = (x.requires_grad_() for x in torch.randn(3, 1, 1, 6, 4))
    padding = torch.ones(1, 6, dtype=torch.bool)
    for strategy in ("product", "dense"):
        out = tm.masked_attention(q, k, v, mask, strategy=strategy, key_padding_mask=padding)
        assert torch.equal(out, torch.zeros_like(out))
        for gradient in torch.autograd.grad(out.sum(), [q, k, v]):
            assert torch.equal(gradient, torch.zeros_like(gradient))


def test_nothing_of_size_n_squared():
    """Products on 2^16 tokens, and on a ragged batch: N x N would take 17 GB."""
    mask = tm.StochasticPositionMask(2**16, num_realizations=8, kind="conv", kernel_size=8)
    assert (mask @ torch.ones(1, 2**16, 2)).shape == (1, 2**16, 2)
    ragged = mask.on(tm.Graph.batch([tm.path_graph(2**15), *[tm.path_graph(2)] * 500]))
    assert (ragged @ torch.ones(1, ragged.num_keys, 2)).isfinite().all()


def test_masks_made_of_it_divide_by_the_plain_sum_too():
    mask = position_mask(6)
    other = tm.WalkMask(tm.path_graph(6), seed=0)
    whole = [mask + other, other - mask, tm.KroneckerMask(tm.NeighborMask(tm.path_graph(2)), mask)]
    whole += [tm.PrefixMask(mask + other, 1), (mask + other)]
    operators = [*(each.on() for each in whole), whole[-1].on().select(torch.arange(6), None)]
    assert [each.default_normalizer for each in operators] == ["signed"] * 6
    assert (other + other).on().default_normalizer == "absolute"
    q, k, v = torch.randn(3, 1, whole[0].num_heads, 6, 4)
    signed = tm.masked_attention(q, k, v, whole[0], normalizer="signed")
    assert torch.equal(tm.masked_attention(q, k, v, whole[0]), signed)
    assert not torch.allclose(tm.masked_attention(q, k, v, whole[0], normalizer="absolute"), signed)


def test_costs():
    mask = tm.StochasticPositionMask(100, num_heads=2, num_realizations=16, num_sines=3)
    cost = mask.on().cost()
    assert cost.product == 2 * 2 * 100 * 16
    assert cost.dense == 2 * 100 * 100 * 16
    assert cost.refresh == 2 * 2 * 100 * 16 * 6
    with torch.no_grad():
        assert mask.on().cost().refresh == 0
    assert (
        tm.plan_attention(tm.StochasticPositionMask(2**15, num_heads=1, num_realizations=8), 16, 16).strategy
        == "product"
    )


def test_bad_arguments_are_named():
    for options, message in (
        (dict(num_nodes=0), "num_nodes"),
        (dict(num_heads=0), "num_heads"),
        (dict(num_realizations=0), "num_realizations"),
        (dict(kind="cosine"), "kind"),
        (dict(seed=1.5), "seed"),
        (dict(seed=2**63), "seed"),
    ):
        with pytest.raises(ValueError, match=message):
            tm.StochasticPositionMask(**(dict(num_nodes=4) | options))
    with pytest.raises(ValueError, match="does not use walks"):
        position_mask(4).on(tm.path_graph(4), walks=object())
    assert "num_realizations=24" in repr(position_mask(4))
