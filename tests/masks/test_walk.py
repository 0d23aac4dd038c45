import copy
import io
import json
import pickle

import pytest
import torch
from safetensors.torch import load, save

import topomask as tm
from helpers.graphs import directed_graph, ragged_graph
from helpers.mask_cases.walks import walk_mask
from topomask.ops.sparse_heads import densify
from topomask.walks import WalkFeatures, checkpoint

# The keys of the walks in a state dict.
KEY = "_extra_state"


def sides(mask: tm.WalkMask) -> tuple[WalkFeatures, ...]:
    """The walks of queries, and those of keys where they have their own."""
    return mask.walks if isinstance(mask.walks, tuple) else (mask.walks,)


def same_walks(a: tm.WalkMask, b: tm.WalkMask) -> bool:
    return [side.fingerprint for side in sides(a)] == [side.fingerprint for side in sides(b)]


def test_is_the_product_of_its_features():
    mask = walk_mask(ragged_graph(), num_heads=2)
    query, key = mask.walks
    expected = query.to_dense(mask.f) @ key.to_dense(mask.f).mT
    torch.testing.assert_close(mask.to_dense(), expected)
    asymmetric = walk_mask(ragged_graph(), num_heads=2, symmetric=False)
    torch.testing.assert_close(asymmetric.to_dense(), asymmetric.walks.to_dense(asymmetric.f))


def test_many_walkers_approach_the_power_series():
    graph = ragged_graph()
    f = torch.tensor([1.0, -0.6, 0.4], dtype=torch.float64)
    symmetric = tm.WalkMask(graph, num_walks=3000, max_length=2, f=f, seed=0).double()
    torch.testing.assert_close(
        symmetric.to_dense(), tm.PowerSeriesMask(graph, tm.convolve(f)).to_dense(), rtol=0, atol=0.01
    )
    for any_graph in (graph, directed_graph()):
        asymmetric = tm.WalkMask(any_graph, num_walks=3000, max_length=2, f=f, seed=0, symmetric=False).double()
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
    query, key = first.walks
    assert query.fingerprint != key.fingerprint


def test_resample():
    mask = walk_mask(ragged_graph(), seed=1)
    before = mask.to_dense()
    mask.resample(2)
    assert mask.seed == 2
    assert sides(mask)[0].loads.dtype == torch.float64
    assert not torch.equal(mask.to_dense(), before)
    mask.resample(1)
    assert torch.equal(mask.to_dense(), before)
    for one in (mask, tm.WalkMask(seed=1)):
        with pytest.raises(ValueError, match="seed"):
            one.resample(-1)
        assert one.seed == 1


def test_on_another_graph_shares_parameters():
    mask = walk_mask(ragged_graph(), num_heads=2)
    other = tm.grid_graph(3, 3)
    operator = mask.on(other)
    assert (operator.num_queries, mask.on().num_queries) == (9, 11)
    operator.to_dense().sum().backward()
    assert mask.modulation.weight.grad.abs().sum() > 0
    assert torch.equal(operator.to_dense(), walk_mask(other, num_heads=2).to_dense())
    moved = walk_mask(other, num_heads=2)
    moved.graph = ragged_graph()
    assert same_walks(moved, mask)
    assert torch.equal(moved.to_dense(), mask.to_dense())


def test_a_mask_without_a_graph_is_on_those_that_it_is_given():
    mask, graph = tm.WalkMask(max_length=3, num_heads=2, seed=1), ragged_graph()
    on_graph = tm.WalkMask(graph, max_length=3, num_heads=2, seed=1)
    assert mask.graph is None
    assert torch.equal(mask.on(graph).to_dense(), on_graph.to_dense())
    for use in (mask.on, mask.to_dense, mask.magnitude, lambda: mask.walks, lambda: mask @ torch.ones(2, 11, 1)):
        with pytest.raises(ValueError, match=r"WalkMask has no default graph. Build it with one, or call mask.on"):
            use()
    with pytest.raises(ValueError, match=r"must be a topomask\.Graph, but is a list"):
        mask.on([graph])
    mask.resample(3)
    on_graph.resample(3)
    assert torch.equal(mask.on(graph).to_dense(), on_graph.to_dense())
    # A checkpoint of a mask without a graph says how walks are drawn, and serves one with a graph; and the reverse.
    other = tm.WalkMask(graph, max_length=3, num_heads=2, seed=7)
    other.load_state_dict(mask.state_dict())
    assert torch.equal(other.to_dense(), on_graph.to_dense())
    mask.resample(9)
    mask.load_state_dict(on_graph.state_dict())
    assert mask.seed == 3
    mask.graph = graph
    assert torch.equal(mask.to_dense(), on_graph.to_dense())


@pytest.mark.parametrize("symmetric", [True, False])
def test_heads_share_their_walks_where_asked(symmetric):
    """Every head is a mask of one head with the same walks and its own f."""
    mask = walk_mask(ragged_graph(), num_heads=3, shared_heads=True, symmetric=symmetric)
    assert {side.num_heads for side in sides(mask)} == {1}
    for head, f in enumerate(mask.f.detach()):
        alone = walk_mask(ragged_graph(), f=f, symmetric=symmetric)
        assert same_walks(alone, mask)
        torch.testing.assert_close(mask.to_dense()[head], alone.to_dense()[0])
    assert mask.on().entries().pattern.shape == (11, 11)
    assert mask.on().entries().values.shape[0] == 3
    assert not same_walks(mask, walk_mask(ragged_graph(), num_heads=3, symmetric=symmetric))
    cost, single = mask.on().cost(), alone.on().cost()
    assert (cost.product, cost.pairs, cost.max_pairs) == (3 * single.product, 3 * single.pairs, 3 * single.max_pairs)


def test_on_walks_already_sampled():
    mask = walk_mask(ragged_graph(), num_heads=2)
    graphs = [tm.grid_graph(3, 3), tm.cycle_graph(4)]
    sampled = [mask.sample(graph) for graph in graphs]
    batch = tuple(WalkFeatures.batch(side) for side in zip(*sampled, strict=True))
    whole = tm.Graph.batch(graphs)
    assert torch.equal(mask.on(whole, walks=batch).to_dense(), mask.on(tm.Graph.batch(graphs)).to_dense())
    other = walk_mask(ragged_graph(), num_heads=2, f=torch.ones(2, 4))
    assert other.on(whole, walks=batch)._record is mask.on(whole, walks=batch)._record, "made once for all layers"
    built = walk_mask(graphs[0], num_heads=2, walks=sampled[0])
    assert torch.equal(built.to_dense(), mask.on(graphs[0]).to_dense())
    with pytest.raises(ValueError, match=r"`walks` was given without `graph`\. Pass the graph"):
        walk_mask(None, num_heads=2, walks=sampled[0])
    with pytest.raises(ValueError, match="same graph with the same settings"):
        mask.on(graphs[0], walks=sampled[1])
    with pytest.raises(ValueError, match="a pair"):
        mask.on(graphs[0], walks=sampled[0][0])
    row = tuple(tm.sample_features(graphs[0], 6, 3, num_heads=2, normalization="row") for _ in range(2))
    with pytest.raises(ValueError, match="normalization"):
        mask.on(graphs[0], walks=row)


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
    assert sides(mask)[0].loads.dtype == torch.float32
    assert sides(mask.double())[0].loads.dtype == torch.float64
    for convert in (torch.nn.Module.half, torch.nn.Module.bfloat16):
        mask = convert(mask)
        assert sides(mask)[0].loads.dtype == torch.float32
        assert mask.to_dense().dtype == torch.float32


def test_nothing_is_sampled_on_the_meta_device():
    mask = walk_mask(ragged_graph(), seed=5).float()
    meta = copy.deepcopy(mask).to("meta")
    assert meta.modulation.weight.is_meta
    with torch.device("meta"):
        built = tm.WalkMask(ragged_graph(), num_walks=6, max_length=3, seed=1)
    for empty in (meta, built):
        state = mask.state_dict()
        assert set(empty.state_dict()) == set(state)
        empty.to_empty(device="cpu").load_state_dict(state)
        assert same_walks(empty, mask)
        assert torch.equal(empty.to_dense(), mask.to_dense())


def test_walks_are_neither_parameters_nor_buffers():
    mask = walk_mask(ragged_graph())
    assert [name for name, _ in mask.named_parameters()] == ["modulation.weight"]
    # The seed is one, for other processes.
    assert sum(buffer.numel() for buffer in mask.buffers()) == 1
    assert set(mask.state_dict()) == {"modulation.weight", KEY}


def test_built_under_another_default_dtype():
    torch.set_default_dtype(torch.float64)
    try:
        mask = tm.WalkMask(ragged_graph(), seed=1)
        assert mask.f.dtype == torch.float64
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
    with pytest.raises(ValueError, match=r"another graph.*mask\.on\(new_graph\)"):
        other.load_state_dict(state)
    assert other.seed == 1
    del state[KEY]
    other.load_state_dict(state, strict=False)
    assert other.seed == 1


def rewritten(state: dict, tail: bytes | None = None, without: str = "", **changes) -> dict:
    """A state dict whose walks are described in another way, with other bytes behind the description."""
    _, header, data = checkpoint._split(state[KEY])
    text = json.dumps({key: value for key, value in (header | changes).items() if key != without}).encode()
    whole = len(text).to_bytes(8, "little") + text + (data if tail is None else tail)
    return state | {KEY: torch.tensor(list(whole), dtype=torch.uint8)}


def test_checkpoints_that_cannot_be_trusted_are_refused():
    mask = walk_mask(ragged_graph(), seed=5)
    before, state = mask.to_dense(), mask.state_dict()
    for bad in (state[KEY][:40], state[KEY][:4], state[KEY].float(), state[KEY][None], b"walks", None):
        with pytest.raises(ValueError, match="damaged"):
            mask.load_state_dict(state | {KEY: bad})
    with pytest.raises(RuntimeError, match=rf'Missing.*"{KEY}"'):
        mask.load_state_dict({k: v for k, v in state.items() if k != KEY})
    for changes, message in (
        ({"sampler_version": 0}, "save_walks=True"),
        ({"walks": ["x", "y"]}, "did not reproduce the walks"),
        ({"symmetric": False}, "symmetric=False"),
        ({"num_heads": 2}, "num_heads=2"),
        ({"shared_heads": True}, "shared_heads=True"),
        ({"max_length": 4}, "max_length=4"),
        ({"weighting": "visits"}, "weighting='visits'"),
        ({"num_walks": -1}, "num_walks"),
        ({"coupling": "quasi"}, "coupling"),
        ({"option": 1}, "not complete"),
        ({"without": "graph"}, "not complete"),
        ({"without": "sampler_version"}, "not complete"),
        ({"without": "seed"}, "not complete"),
    ):
        with pytest.raises(ValueError, match=message):
            mask.load_state_dict(rewritten(state, **changes))
        assert mask.seed == 5
        assert torch.equal(mask.to_dense(), before), changes
    mask.load_state_dict(rewritten(state))


def test_stored_walks_that_contradict_themselves_are_refused():
    mask = walk_mask(ragged_graph(), seed=5)
    before = mask.to_dense()
    stored = walk_mask(ragged_graph(), seed=6, save_walks=True).state_dict()
    _, header, data = checkpoint._split(stored[KEY])
    layout = header["tensors"]
    for tail, changes, message in (
        (data[:-1], {}, "bytes of walks where"),
        (data + b"x", {}, "bytes of walks where"),
        (data, {"tensors": layout[:-1]}, "damaged"),
        (data, {"tensors": [*layout[:-1], ["int64", -4]]}, "damaged"),
        (data, {"tensors": [*layout[:-1], ["nothing", 4]]}, "damaged"),
        (data, {"tensors": [*layout[:-1], ["int64"]]}, "damaged"),
        (data, {"walks": ["x", "y"]}, "did not reproduce the walks"),
    ):
        with pytest.raises(ValueError, match=message):
            mask.load_state_dict(rewritten(stored, tail, **changes))
    query, key = checkpoint._read_walks(layout, data, mask.recipe)
    spoilt = query._with(query._tensors._replace(columns=query.columns + 100))
    other = walk_mask(ragged_graph(), seed=6, save_walks=True)
    wrong = checkpoint.write(other.recipe, other.graph, (spoilt, key), save_walks=True)
    with pytest.raises(ValueError, match="The stored walks are inconsistent"):
        mask.load_state_dict(stored | {KEY: wrong})
    assert mask.seed == 5
    assert torch.equal(mask.to_dense(), before)
    mask.load_state_dict(stored)
    assert same_walks(mask, other)


def test_walks_of_its_own_need_save_walks():
    graph = ragged_graph()
    foreign = tm.sample_features(graph, 6, 3, seed=99)
    mask = walk_mask(graph, symmetric=False, walks=foreign)
    with pytest.raises(ValueError, match="save_walks=True"):
        walk_mask(graph, symmetric=False).load_state_dict(mask.state_dict())
    mask.save_walks = True
    fresh = walk_mask(graph, symmetric=False)
    fresh.load_state_dict(mask.state_dict())
    assert same_walks(fresh, mask)


def test_modulation_choices():
    graph = tm.grid_graph(3, 3)
    assert torch.equal(tm.WalkMask(graph, max_length=2, num_heads=2).f[1], torch.tensor([1.0, 0.5, 0.25]))
    positive = tm.WalkMask(graph, max_length=2, positive=True)
    with torch.no_grad():
        positive.modulation.weight.sub_(50.0)
    assert (positive.f > 0).all()
    operator = positive.on()
    assert operator.magnitude() is operator
    for bad in (torch.ones(2), torch.tensor([1.0, torch.nan, 1.0])):
        with pytest.raises(ValueError, match="`f`"):
            tm.WalkMask(graph, max_length=2, f=bad)
    with pytest.raises(ValueError, match="positive=False"):
        tm.WalkMask(graph, max_length=2, f=torch.tensor([1.0, -1.0, 1.0]), positive=True)


@pytest.mark.parametrize("options", [{}, {"symmetric": False}, {"shared_heads": True}])
def test_entries_are_kept_until_something_changes(options):
    mask = walk_mask(ragged_graph(), num_heads=2, **options)

    def agrees(operator) -> bool:
        for found, expected in zip(operator.entries()[1:], (operator, operator.magnitude()), strict=True):
            dense = densify(operator.entries().pattern, found, 2, operator.num_queries, operator.num_keys)
            if not torch.allclose(dense, expected.to_dense()):
                return False
        return True

    with torch.no_grad():
        assert mask.on().entries() is mask.on().entries()
        for change in (
            lambda: mask.modulation.weight.mul_(2.0),
            lambda: mask.resample(9),
            lambda: mask.float(),
            lambda: mask.modulation.load_state_dict({"weight": torch.ones(2, 4)}),
            lambda: setattr(mask.modulation.weight, "data", torch.full((2, 4), 3.0)),
        ):
            kept = mask.on().entries()
            assert agrees(mask.on())
            change()
            assert mask.on().entries() is not kept
            assert agrees(mask.on())
        assert agrees(mask.on(tm.grid_graph(3, 3)))
        assert agrees(mask.on().magnitude())
    assert mask.on().entries().values.requires_grad
    mask.requires_grad_(False)
    assert mask.on().entries() is mask.on().entries()


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


def test_walks_must_be_a_pair_if_keys_walk():
    graph = tm.path_graph(5)
    walks = tuple(tm.sample_features(graph, 3, 3, seed=seed) for seed in range(3))
    for given in (walks, walks[:1], walks[0]):
        with pytest.raises(ValueError, match=r"`walks` must be a pair of WalkFeatures \(queries, keys\) for symm"):
            tm.WalkMask(graph, num_walks=3, max_length=3, walks=given)
    tm.WalkMask(graph, num_walks=3, max_length=3, walks=walks[:2])
