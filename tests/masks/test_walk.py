import copy
import io
import json
import pickle

import pytest
import torch
from safetensors.torch import load, save

import topomask as tm
from registry import directed_graph, ragged_graph, walk_mask
from topomask.walks import WalkFeatures


def same_walks(a: tm.WalkMask, b: tm.WalkMask) -> bool:
    return a._describe()["walks"] == b._describe()["walks"]


def test_is_the_product_of_its_features():
    mask = walk_mask(ragged_graph(), num_heads=2)
    query, key = mask.features
    expected = query.to_dense(mask.f()) @ key.to_dense(mask.f()).mT
    torch.testing.assert_close(mask.to_dense(), expected)
    asymmetric = walk_mask(ragged_graph(), num_heads=2, symmetric=False)
    torch.testing.assert_close(asymmetric.to_dense(), asymmetric.features.to_dense(asymmetric.f()))


def test_many_walkers_approach_the_power_series():
    graph = ragged_graph()
    f = torch.tensor([1.0, -0.6, 0.4], dtype=torch.float64)
    symmetric = tm.WalkMask(graph, 3000, 2, f=f, seed=0).double()
    torch.testing.assert_close(
        symmetric.to_dense(), tm.PowerSeriesMask(graph, tm.convolve(f)).to_dense(), rtol=0, atol=0.01
    )
    for any_graph in (graph, directed_graph()):
        asymmetric = tm.WalkMask(any_graph, 3000, 2, f=f, seed=0, symmetric=False).double()
        torch.testing.assert_close(
            asymmetric.to_dense(), tm.PowerSeriesMask(any_graph, f).to_dense(), rtol=0, atol=0.01
        )


def test_symmetric_features_are_refused_where_they_estimate_something_else():
    with pytest.raises(ValueError, match=r"W\^k \(W\^T\)\^l.*symmetric=False"):
        tm.WalkMask(directed_graph())
    with pytest.raises(ValueError, match="symmetric=False"):
        tm.WalkMask(ragged_graph(), normalization="row")
    with pytest.raises(ValueError, match="directed"):
        tm.WalkMask(directed_graph(), normalization="sym", symmetric=False)
    with pytest.raises(ValueError, match="shared_walks"):
        tm.WalkMask(ragged_graph(), symmetric=False, shared_walks=True)


def test_masks_walk_differently_by_default_and_alike_by_seed():
    graph = ragged_graph()
    torch.manual_seed(0)
    first, second = tm.WalkMask(graph), tm.WalkMask(graph)
    assert first.seed != second.seed
    assert not same_walks(first, second)
    torch.manual_seed(0)
    assert same_walks(tm.WalkMask(graph), first)
    assert same_walks(tm.WalkMask(graph, seed=first.seed), first)
    query, key = first.features
    assert query.fingerprint != key.fingerprint


def test_resample():
    mask = walk_mask(ragged_graph(), seed=1)
    before = mask.to_dense()
    mask.resample(2)
    assert mask.seed == 2
    assert mask._walks.loads.dtype == torch.float64
    assert not torch.equal(mask.to_dense(), before)
    mask.resample(1)
    assert torch.equal(mask.to_dense(), before)
    with pytest.raises(ValueError, match="seed"):
        mask.resample(-1)
    assert mask.seed == 1


def test_on_another_graph_shares_parameters():
    mask = walk_mask(ragged_graph(), num_heads=2)
    other = tm.grid_graph(3, 3)
    view = mask.on(other)
    assert view.modulation is mask.modulation
    assert (view.num_queries, mask.num_queries) == (9, 11)
    view.to_dense().sum().backward()
    assert mask.modulation.weight.grad.abs().sum() > 0
    assert same_walks(view, walk_mask(other, num_heads=2))
    assert same_walks(view.on(ragged_graph()), mask)


def test_on_features_already_sampled():
    mask = walk_mask(ragged_graph(), num_heads=2)
    graphs = [tm.grid_graph(3, 3), tm.cycle_graph(4)]
    sampled = [mask.sample(graph) for graph in graphs]
    batch = tuple(WalkFeatures.batch(side) for side in zip(*sampled, strict=True))
    view = mask.on(tm.Graph.batch(graphs), features=batch)
    assert same_walks(view, mask.on(tm.Graph.batch(graphs)))
    with pytest.raises(ValueError, match="same graph with the same settings"):
        mask.on(graphs[0], features=sampled[1])
    with pytest.raises(ValueError, match="a pair"):
        mask.on(graphs[0], features=sampled[0][0])
    row = tuple(tm.sample_features(graphs[0], 6, 3, num_heads=2, normalization="row") for _ in range(2))
    with pytest.raises(ValueError, match="normalization"):
        mask.on(graphs[0], features=row)


def test_deepcopy_and_pickle():
    mask = walk_mask(ragged_graph(), num_heads=2)
    for other in (copy.deepcopy(mask), pickle.loads(pickle.dumps(mask))):
        assert torch.equal(other.to_dense(), mask.to_dense())
        assert other.modulation.weight is not mask.modulation.weight
        with torch.no_grad():
            other.modulation.weight.add_(1.0)
        assert not torch.equal(other.to_dense(), mask.to_dense())


def test_walks_follow_the_module_but_not_below_float32():
    mask = walk_mask(ragged_graph()).float()
    assert mask._walks.loads.dtype == torch.float32
    assert mask.double()._walks.loads.dtype == torch.float64
    for convert in (torch.nn.Module.half, torch.nn.Module.bfloat16):
        mask = convert(mask)
        assert mask._walks.loads.dtype == torch.float32
    # Nothing to sample on the meta device: the walks stay where they are, the parameters go.
    meta = copy.deepcopy(mask).to("meta")
    assert meta.modulation.weight.is_meta
    assert meta._walks.loads.device.type == "cpu"


def test_walks_are_neither_parameters_nor_buffers():
    mask = walk_mask(ragged_graph())
    assert [name for name, _ in mask.named_parameters()] == ["modulation.weight"]
    assert not list(mask.buffers())


def test_built_under_another_default_device_and_dtype():
    with torch.device("meta"):
        mask = tm.WalkMask(ragged_graph(), seed=1)
    assert mask._walks.loads.device.type == "cpu"
    torch.set_default_dtype(torch.float64)
    try:
        mask = tm.WalkMask(ragged_graph(), seed=1)
        assert mask.f().dtype == torch.float64
        assert mask.to_dense().dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("save_walks", [False, True])
@pytest.mark.parametrize("options", [{}, {"symmetric": False}, {"shared_walks": True}])
def test_checkpoint_restores_walks_and_settings(options, save_walks):
    trained = walk_mask(ragged_graph(), num_heads=2, seed=5, num_walks=9, save_walks=save_walks, **options)
    with torch.no_grad():
        trained.modulation.weight.mul_(2.0)
    # Through safetensors, which holds tensors and nothing else.
    state = load(save(trained.state_dict()))
    fresh = walk_mask(ragged_graph(), num_heads=2, seed=77, num_walks=3, **options)
    fresh.load_state_dict(state)
    assert same_walks(fresh, trained)
    assert fresh.seed == 5
    assert torch.equal(fresh.to_dense(), trained.to_dense())
    buffer = io.BytesIO()
    torch.save(trained.state_dict(), buffer)
    buffer.seek(0)
    fresh.load_state_dict(torch.load(buffer, weights_only=True))


def test_checkpoint_of_another_graph_is_refused_with_the_way_out():
    state = walk_mask(ragged_graph(), seed=5).state_dict()
    other = walk_mask(tm.grid_graph(3, 3), seed=1)
    with pytest.raises(RuntimeError, match=r"another graph.*mask\.on\(new_graph\)"):
        other.load_state_dict(state)
    del state["walks"]
    other.load_state_dict(state, strict=False)
    assert other.seed == 1


def test_checkpoints_that_cannot_be_trusted_are_refused():
    mask = walk_mask(ragged_graph(), seed=5)
    state = mask.state_dict()
    cut = state | {"walks": state["walks"][:40]}
    with pytest.raises(RuntimeError, match="cannot be read"):
        mask.load_state_dict(cut)
    with pytest.raises(RuntimeError, match=r'Missing.*"walks"'):
        mask.load_state_dict({k: v for k, v in state.items() if k != "walks"})

    def rewritten(**changes):
        text = mask._describe() | changes
        return state | {"walks": torch.tensor(list(json.dumps(text).encode()), dtype=torch.uint8)}

    with pytest.raises(RuntimeError, match="save_walks=True"):
        mask.load_state_dict(rewritten(sampler_version=0))
    with pytest.raises(RuntimeError, match="did not give the walks"):
        mask.load_state_dict(rewritten(walks=["x", "y"]))
    with pytest.raises(RuntimeError, match="symmetric=False"):
        mask.load_state_dict(rewritten(symmetric=False))
    assert mask.seed == 5
    mask.load_state_dict(state)

    whole = mask._describe()
    for name in ("graph", "sampler_version", "seed"):
        text = {key: value for key, value in whole.items() if key != name}
        with pytest.raises(RuntimeError, match="not complete"):
            mask.load_state_dict(state | {"walks": torch.tensor(list(json.dumps(text).encode()), dtype=torch.uint8)})
    with pytest.raises(RuntimeError, match="not complete"):
        mask.load_state_dict(rewritten(option=1))
    for name in ("walks.key.sizes", "walks.query.loads"):
        lacking = walk_mask(ragged_graph(), seed=5, save_walks=True).state_dict()
        del lacking[name]
        with pytest.raises(RuntimeError, match="must have the tensors"):
            mask.load_state_dict(lacking)

    stored = walk_mask(ragged_graph(), seed=5, save_walks=True).state_dict()
    stored["walks.query.columns"] = stored["walks.query.columns"] + 100
    with pytest.raises(RuntimeError, match="contradict"):
        mask.load_state_dict(stored)


def test_features_of_its_own_need_save_walks():
    graph = ragged_graph()
    foreign = tm.sample_features(graph, 6, 3, seed=99)
    mask = walk_mask(graph, symmetric=False, features=foreign)
    with pytest.raises(RuntimeError, match="save_walks=True"):
        walk_mask(graph, symmetric=False).load_state_dict(mask.state_dict())
    mask.save_walks = True
    fresh = walk_mask(graph, symmetric=False)
    fresh.load_state_dict(mask.state_dict())
    assert same_walks(fresh, mask)


def test_modulation_choices():
    graph = tm.grid_graph(3, 3)
    assert torch.equal(tm.WalkMask(graph, max_length=2, num_heads=2).f()[1], torch.tensor([1.0, 0.5, 0.25]))
    positive = tm.WalkMask(graph, max_length=2, positive=True)
    with torch.no_grad():
        positive.modulation.weight.sub_(50.0)
    assert (positive.f() > 0).all()
    assert positive.magnitude() is positive
    for bad in (torch.ones(2), torch.tensor([1.0, torch.nan, 1.0])):
        with pytest.raises(ValueError, match="`f`"):
            tm.WalkMask(graph, max_length=2, f=bad)
    with pytest.raises(ValueError, match="positive=False"):
        tm.WalkMask(graph, max_length=2, f=torch.tensor([1.0, -1.0, 1.0]), positive=True)


@pytest.mark.parametrize("symmetric", [True, False])
def test_entries_are_kept_until_something_changes(symmetric):
    mask = walk_mask(ragged_graph(), num_heads=2, symmetric=symmetric)

    def agrees(mask) -> bool:
        pattern, values, magnitudes = mask.entries()
        rows = torch.repeat_interleave(torch.arange(pattern.shape[0]), pattern.row_ptr.diff())
        for found, expected in ((values, mask), (magnitudes, mask.magnitude())):
            dense = torch.zeros(pattern.shape, dtype=found.dtype).index_put((rows, pattern.columns), found)
            if not torch.allclose(dense, torch.block_diag(*expected.to_dense())):
                return False
        return True

    with torch.no_grad():
        assert mask.entries() is mask.entries()
        for change in (
            lambda: mask.modulation.weight.mul_(2.0),
            lambda: mask.resample(9),
            lambda: mask.float(),
            lambda: mask.modulation.load_state_dict({"weight": torch.ones(2, 4)}),
            lambda: setattr(mask.modulation.weight, "data", torch.full((2, 4), 3.0)),
        ):
            assert agrees(mask)
            change()
            assert agrees(mask)
        assert agrees(mask.on(tm.grid_graph(3, 3)))
        assert agrees(mask.magnitude())
    assert mask.entries().values.requires_grad
    mask.requires_grad_(False)
    assert mask.entries() is mask.entries()


def test_product_refuses_wrong_shapes():
    mask = walk_mask(ragged_graph(), num_heads=2)
    for shape in ((11, 3), (2, 10, 3), (3, 11, 3)):
        with pytest.raises(ValueError, match="num_keys=11"):
            mask @ torch.zeros(shape)


def test_learning_starts_from_a_zero_coefficient():
    """A length that does not count yet still has a gradient, in linear and in softmax attention."""
    mask = walk_mask(tm.grid_graph(3, 3), f=torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64))
    q, k, v = torch.randn(3, 1, 1, 9, 4, dtype=torch.float64)
    for attend in (tm.masked_attention, tm.masked_softmax_attention):
        for strategy in ("pairs", "dense"):
            (gradient,) = torch.autograd.grad(
                attend(q, k, v, mask, strategy=strategy).square().sum(), mask.modulation.weight
            )
            assert gradient[0, 1] != 0
