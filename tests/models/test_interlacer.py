import inspect

import pytest
import torch

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
    mask = layer.attention.mask.on(*around)
    exact = tm.PowerSeriesMask(around.graph, mask.f().detach(), normalization="row")
    torch.testing.assert_close(mask.to_dense(), exact.to_dense().double(), rtol=1e-5, atol=1e-6)
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
    with pytest.raises(ValueError, match="`num_hops` says nothing"):
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
        (dict(neighbors="graph"), "neighbors"),
        (dict(neighbors="none", num_hops=2), "`num_hops` says nothing"),
        (dict(neighbors="grf", anchor_fraction=0.5), "`anchor_fraction` says nothing"),
        (dict(neighbors="messages", anchor_fraction=0.0), "anchor_fraction"),
    ],
)
def test_bad_arguments_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        Interlacer(**options)


def test_bad_clouds_are_named():
    model, (positions, features) = small(), clouds()
    with pytest.raises(ValueError, match="`positions` and `features`"):
        model(positions, features[:, 1:])
    with pytest.raises(ValueError, match="`padding`"):
        model(positions, features, torch.zeros(2, 3, dtype=torch.bool))
    with pytest.raises(ValueError, match="`k` must be less than the number of points"):
        model(positions[:, :3], features[:, :3])
    with pytest.raises(ValueError, match="num_steps"):
        model.rollout(positions, features, 0)
    positions[0, 5] = torch.nan
    with pytest.raises(ValueError, match="point 5"):
        model(positions, features)
