import inspect

import pytest
import torch
from scipy.spatial import cKDTree

import topomask as tm
from topomask.models import Interlacer, InterlacerConfig
from topomask.models.neighbors import AnchorNeighbors, NeighborLayer, WalkNeighbors

KINDS = ("grf", "messages", "none")


def small(neighbors: str = "grf", **options) -> Interlacer:
    torch.manual_seed(0)
    options = dict(feature_dim=4, dim=16, depth=2, num_heads=2, neighbors=neighbors) | options
    if neighbors == "messages":
        options = dict(num_neighbors=5) | options
    model = Interlacer(**options).double()
    # Otherwise particles hardly move at first.
    torch.nn.init.normal_(model.head.weight, std=0.5)
    return model


def clouds(batch: int = 2, num_particles: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    shape = (batch, num_particles)
    return (
        torch.rand(*shape, 3, generator=generator, dtype=torch.float64),
        torch.randn(*shape, 4, generator=generator, dtype=torch.float64),
    )


@pytest.mark.parametrize("neighbors", KINDS)
def test_gradients_reach_every_parameter(neighbors):
    model, (positions, features) = small(neighbors), clouds()
    positions.requires_grad_()
    moved, changed = model.rollout(positions, features, num_steps=2)
    assert moved.shape == (2, 2, 40, 3)
    assert changed.shape == (2, 2, 40, 4)
    (moved.square().sum() + changed.square().sum()).backward()
    for name, parameter in [*model.named_parameters(), ("positions", positions)]:
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("neighbors", KINDS)
def test_steps_are_limited(neighbors):
    model, (positions, features) = small(neighbors), clouds()
    torch.nn.init.normal_(model.head.weight, std=100.0)
    moved, _ = model(positions, features)
    steps = (moved - positions).abs()
    assert steps.max() <= 0.25 + 1e-12
    assert steps.max() > 0.24


@pytest.mark.parametrize("neighbors", KINDS)
def test_a_batch_equals_one_by_one(neighbors):
    model, (positions, features) = small(neighbors), clouds()
    together = model(positions, features)
    for cloud in range(2):
        alone = model(positions[cloud], features[cloud])
        for one, other in zip(alone, together, strict=True):
            torch.testing.assert_close(one, other[cloud])


@pytest.mark.parametrize("neighbors", KINDS)
def test_padding_equals_leaving_out(neighbors):
    model, (positions, features) = small(neighbors), clouds()
    padding = torch.zeros(2, 40, dtype=torch.bool)
    padding[0, 30:] = True
    together = model(positions, features, padding)
    alone = model(positions[0, :30], features[0, :30])
    for one, other in zip(alone, together, strict=True):
        torch.testing.assert_close(one, other[0, :30])


@pytest.mark.parametrize(("neighbors", "options"), [("grf", {}), ("messages", dict(anchor_fraction=1.0)), ("none", {})])
def test_permuted_particles_give_permuted_steps(neighbors, options):
    model, (positions, features) = small(neighbors, **options), clouds()
    order = torch.randperm(40, generator=torch.Generator().manual_seed(2))
    for one, other in zip(model(positions[:, order], features[:, order]), model(positions, features), strict=True):
        torch.testing.assert_close(one, other[:, order])


@pytest.mark.parametrize("neighbors", ["grf", "messages"])
def test_neighbours_matter(neighbors):
    """Particles that change places with their features far away change what their old neighbours do."""
    model, (positions, features) = small(neighbors), clouds(batch=1)
    alone = small("none")
    alone.load_state_dict(model.state_dict(), strict=False)
    assert not torch.allclose(model(positions, features)[0], alone(positions, features)[0])


def test_walks_of_the_neighbours_are_the_exact_series():
    """All walks of three hops on lists of three neighbours are taken once."""
    layer, (positions, _) = WalkNeighbors(8).double(), clouds(batch=1)
    around = layer.prepare(layer.find(positions, None))
    mask = layer.attention.mask
    exact = tm.PowerSeriesMask(around.graph, mask.f.detach(), normalization="row")
    torch.testing.assert_close(mask.on(*around).to_dense(), exact.to_dense().double(), rtol=1e-5, atol=1e-6)
    assert around.graph.num_edges == 3 * 40


def test_anchors_hear_their_nearest_others_and_speak_to_their_nearest():
    layer, (positions, _) = AnchorNeighbors(8, num_neighbors=4), clouds()
    anchors, neighbors, nearest = layer.find(positions, None)
    flat = positions.flatten(0, 1)
    distances = torch.cdist(flat, flat)
    cloud = torch.arange(2).repeat_interleave(40)
    distances[cloud[:, None] != cloud] = torch.inf
    assert len(anchors) == 20
    assert torch.equal(neighbors, distances[anchors].argsort(dim=1)[:, 1:5])
    assert torch.equal(nearest, distances[:, anchors].argmin(dim=1))


def test_layers_learn_their_own_modulation_of_shared_walks():
    model = small()
    first, second = (layer.attention.mask for layer in model.neighbors)
    assert first.modulation.weight is not second.modulation.weight
    assert first.seed == second.seed


def test_a_function_makes_neighbour_layers_of_its_own():
    class Still(NeighborLayer):
        def __init__(self, dim: int) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.full((dim,), 0.5))

        def find(self, positions, padding):  # noqa: ARG002
            return positions.mean(dim=1, keepdim=True)

        def forward(self, x, positions, around):  # noqa: ARG002
            return self.scale * x + around.sum()

    model = small(Still)
    assert [type(layer) for layer in model.neighbors] == [Still, Still]
    moved, _ = model(*clouds())
    assert moved.shape == (2, 40, 3)
    with pytest.raises(ValueError, match="has no option `num_hops`"):
        small(Still, num_hops=3)


@pytest.mark.parametrize("neighbors", KINDS)
def test_state_dict_round_trip(neighbors):
    trained, fresh = small(neighbors), small(neighbors)
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    fresh.load_state_dict(trained.state_dict())
    for one, other in zip(fresh(*clouds()), trained(*clouds()), strict=True):
        assert torch.equal(one, other)


def test_config_and_model_have_the_same_fields_and_defaults():
    defaults = {name: each.default for name, each in inspect.signature(Interlacer).parameters.items()}
    assert defaults == vars(InterlacerConfig())
    moved, _ = InterlacerConfig(feature_dim=2, dim=8, depth=1, num_heads=1).build()(torch.rand(9, 3), torch.rand(9, 2))
    assert moved.shape == (9, 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(neighbors="graph"), r"`neighbors` must be one of \('grf', 'messages', 'none'\), or a function"),
        (dict(neighbors="none", num_hops=2), "has no option `num_hops`"),
        (dict(neighbors="grf", anchor_fraction=0.5), "has no option `anchor_fraction`"),
        (dict(neighbors="messages", anchor_fraction=0.0), "anchor_fraction"),
        (dict(neighbors="messages", num_walks=8), "has no option `num_walks`"),
        (dict(depth=0), "`depth` must be an integer of at least 1, but is 0"),
        (dict(num_axes=0), "`num_axes` must"),
        (dict(feature_dim=-1), "`feature_dim` must"),
        (dict(num_neighbors=0), "`num_neighbors` must"),
        (dict(neighbors="messages", num_neighbors=0), "`num_neighbors` must"),
        (dict(num_hops=0), "`num_hops` must"),
        (dict(num_walks=0), "`num_walks` must"),
        (dict(max_step=0.0), "`max_step` must be positive"),
        (dict(max_step=float("nan")), "`max_step` must be positive"),
        (dict(num_neighbors=11), r"11\*\*3 = 1,331 walks .* Set num_walks"),
    ],
)
def test_bad_arguments_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        Interlacer(**options)


def test_the_mask_s_name_of_grf_is_accepted():
    assert isinstance(Interlacer(dim=8, depth=1, neighbors="walk").neighbors[0], WalkNeighbors)


def test_bad_clouds_are_named():
    model, (positions, features) = small(), clouds()
    with pytest.raises(ValueError, match="`positions` and `features`"):
        model(positions, features[:, 1:])
    with pytest.raises(ValueError, match="`padding`"):
        model(positions, features, torch.zeros(2, 3, dtype=torch.bool))
    with pytest.raises(ValueError, match="num_steps"):
        model.rollout(positions, features, 0)
    positions[0, 5] = torch.nan
    with pytest.raises(ValueError, match="`positions` must be finite, but particle 5 of cloud 0"):
        model(positions, features)


@pytest.mark.parametrize("neighbors", KINDS)
def test_space_may_have_two_dimensions(neighbors):
    model, (positions, features) = small(neighbors, num_axes=2), clouds()
    moved, _ = model(positions[..., :2], features)
    assert moved.shape == (2, 40, 2)


# The compiler itself looks at the gradients of tokens between two of its graphs.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("neighbors", KINDS)
def test_compiles_once(neighbors):
    model, (positions, features) = small(neighbors), clouds()
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager")
    for one, other in zip(compiled(positions, features), model(positions, features), strict=True):
        torch.testing.assert_close(one, other)
    with torch.compiler.set_stance("fail_on_recompile"):
        found, expected = (each(positions.flip(1), features) for each in (compiled, model))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    ("neighbors", "options", "message"),
    [
        ("grf", dict(num_neighbors=4), "num_neighbors=3, but the model has num_neighbors=4.* Build the model with"),
        ("messages", dict(num_neighbors=6), "num_neighbors=5, but the model has num_neighbors=6"),
        ("messages", dict(anchor_fraction=0.5), "anchor_fraction=0.25, but the model has anchor_fraction=0.5"),
    ],
)
def test_checkpoints_of_other_settings_are_refused(neighbors, options, message):
    saved = small(neighbors).state_dict()
    with pytest.raises(ValueError, match=message):
        small(neighbors, **options).load_state_dict(saved)


@pytest.mark.parametrize("neighbors", KINDS)
def test_checkpoints_from_before_settings_were_saved_load(neighbors):
    """Those of the layers: what the mask needs to walk again always stood there."""
    state = small(neighbors).state_dict()
    saved = {name: value for name, value in state.items() if "_extra_state" not in name or ".mask." in name}
    assert len(saved) < len(state) or neighbors == "none"
    small(neighbors).load_state_dict(saved)


@pytest.mark.parametrize("neighbors", KINDS)
def test_what_stands_in_padding_does_not_matter(neighbors):
    model, (positions, features) = small(neighbors), clouds()
    padding = torch.zeros(2, 40, dtype=torch.bool)
    padding[0, 30:] = True

    def gradients(fill: float) -> list[torch.Tensor]:
        state = [x.masked_fill(padding[..., None], fill).requires_grad_() for x in (positions, features)]
        moved, changed = model(*state, padding)
        loss = moved[~padding].square().sum() + changed[~padding].square().sum()
        return [loss, *torch.autograd.grad(loss, [*state, *model.parameters()])]

    for poisoned, clean in zip(gradients(torch.nan), gradients(1.0), strict=True):
        assert torch.equal(poisoned, clean)


def test_fewer_walks_estimate_the_mask():
    assert small(num_neighbors=11, num_walks=7).neighbors[0].attention.mask.recipe.num_walks == 7
    assert InterlacerConfig(num_walks=7).build().neighbors[0].attention.mask.recipe.num_walks == 7
    assert small(num_neighbors=10).neighbors[0].attention.mask.recipe.num_walks == 1000


@pytest.mark.parametrize("num_particles", [0, 1, 2, 3])
def test_clouds_of_few_particles_beside_others(num_particles):
    """Three neighbours are more than a small cloud has: all others are neighbours there."""
    model, (positions, features) = small(), clouds()
    padding = torch.zeros(2, 40, dtype=torch.bool)
    padding[0, num_particles:] = True
    together = model(positions, features, padding)
    large = model(positions[1], features[1])
    alone = model(positions[0, :num_particles], features[0, :num_particles])
    for one, other, whole in zip(large, alone, together, strict=True):
        torch.testing.assert_close(one, whole[1])
        torch.testing.assert_close(other, whole[0, :num_particles])


def test_particles_of_a_small_cloud_see_all_others():
    layer, (positions, _) = WalkNeighbors(8), clouds(batch=1, num_particles=3)
    graph = layer.find(positions, None)
    assert (graph.num_nodes, graph.num_edges) == (3, 6)


def test_anchors_of_a_small_cloud_are_refused_by_name():
    model, (positions, features) = small("messages"), clouds()
    padding = torch.zeros(2, 40, dtype=torch.bool)
    padding[1, 5:] = True
    with pytest.raises(ValueError, match=r"`num_neighbors` must be less .* is 5, and cloud 1 has 5 particles"):
        model(positions, features, padding)


@pytest.mark.parametrize("neighbors", KINDS)
@pytest.mark.parametrize("shape", [(0, 40), (2, 0), (0,)])
def test_no_particles_give_no_particles(neighbors, shape):
    positions, features = torch.zeros(*shape, 3, dtype=torch.float64), torch.zeros(*shape, 4, dtype=torch.float64)
    moved, changed = small(neighbors)(positions, features, torch.zeros(shape, dtype=torch.bool))
    assert (moved.shape, changed.shape) == (positions.shape, features.shape)


def test_the_search_has_as_many_threads_as_torch(monkeypatch):
    workers = []

    class Tree:
        def __init__(self, points) -> None:
            self.tree = cKDTree(points)

        def query(self, *arguments, **options):
            workers.append(options["workers"])
            return self.tree.query(*arguments, **options)

    for module in ("scipy.spatial", "topomask.models.neighbors"):
        monkeypatch.setattr(f"{module}.cKDTree", Tree)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    small("messages")(*clouds())
    assert set(workers) == {3}
