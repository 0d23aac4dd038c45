"""What is cached while no parameter changes, and that it is dropped as soon as something changes."""

import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

import topomask as tm
from helpers.graphs import ragged_graph, star_graph
from helpers.mask_cases import CASES, MASKS
from helpers.mask_cases.walks import random_f, walk_mask
from helpers.operator_inputs import columns, strategies, tokens
from topomask.masks import kept

EXACT = {"rtol": 1e-9, "atol": 1e-9}


def owner(mask: nn.Module, name: str) -> tuple[nn.Module, str]:
    """The module that has a parameter, and what it calls it."""
    *path, last = name.split(".")
    return mask.get_submodule(".".join(path)), last


def optimiser_step(mask: tm.Mask) -> None:
    parameters = list(mask.parameters())
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    torch.optim.SGD(parameters, lr=0.1).step()


def changed(mask: tm.Mask) -> dict[str, torch.Tensor]:
    """Other values, by name; a parameter may have several names."""
    values = {id(x): x.detach() + 0.1 * torch.randn_like(x) for x in mask.parameters()}
    return {name: values[id(x)] for name, x in mask.named_parameters(remove_duplicate=False)}


def load(mask: tm.Mask) -> None:
    mask.load_state_dict(mask.state_dict() | changed(mask))


def assign(mask: tm.Mask) -> None:
    mask.load_state_dict(mask.state_dict() | changed(mask), assign=True)


def copy_data(mask: tm.Mask) -> None:
    for name, value in changed(mask).items():
        mask.get_parameter(name).data.copy_(value)


def set_data(mask: tm.Mask) -> None:
    for name, value in changed(mask).items():
        mask.get_parameter(name).data = value


def replace_parameters(mask: tm.Mask) -> None:
    new: dict[int, nn.Parameter] = {}
    for name, value in changed(mask).items():
        module, last = owner(mask, name)
        setattr(module, last, new.setdefault(id(value), nn.Parameter(value)))


CHANGES = [optimiser_step, load, assign, copy_data, set_data, replace_parameters]


class Dense(nn.Module):
    """The mask as a matrix, for functional calls."""

    def __init__(self, mask: tm.Mask) -> None:
        super().__init__()
        self.mask = mask

    def forward(self) -> torch.Tensor:
        return self.mask.on().to_dense()


def learnt(name: str) -> tm.Mask:
    mask = MASKS[name]()
    # Other numbers than those that masks are made with: a multiple of them would not change normalised rows.
    torch.manual_seed(7)
    if not list(mask.parameters()):
        pytest.skip("nothing is learnt")
    return mask


def matters(mask: tm.Mask) -> bool:
    """Whether entries depend on what is learnt; on one node they may not."""
    gradients = torch.autograd.grad(mask.to_dense().square().sum(), list(mask.parameters()), allow_unused=True)
    return any(gradient is not None and bool((gradient.abs() > 1e-9).any()) for gradient in gradients)


@pytest.mark.parametrize("name", MASKS)
def test_an_operator_is_kept_as_long_as_nothing_changes(name):
    mask = MASKS[name]()
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            operator = mask.on()
            assert mask.on() is operator
            assert mask.on().magnitude() is operator.magnitude()
            assert operator.cost().refresh == 0
            operator @ columns(operator)
    with torch.no_grad():
        assert mask.on() is operator
    if not list(mask.parameters()):
        assert mask.on() is operator, "there is nothing to learn, in training too"
        return
    assert mask.on() is not mask.on()
    mask.requires_grad_(False)
    assert mask.on() is operator
    mask.eval().train()
    assert mask.on() is operator
    assert copy.deepcopy(mask).on() is not operator


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", MASKS)
def test_every_change_of_parameters_is_seen(name, change):
    mask = learnt(name)
    with torch.no_grad():
        before = mask.on()
        dense, magnitude = before.to_dense().clone(), before.magnitude().to_dense().clone()
    change(mask)
    with torch.no_grad():
        after = mask.on()
        assert after is not before
        assert mask.on() is after
        found = after.to_dense(), after.magnitude().to_dense()
    if matters(mask):
        assert not torch.allclose(found[0], dense)
        assert not torch.allclose(found[1], magnitude)
    torch.testing.assert_close(found[0], mask.on().to_dense(), **EXACT)
    torch.testing.assert_close(found[1], mask.magnitude().to_dense(), **EXACT)


@pytest.mark.parametrize("name", MASKS)
def test_functional_calls_are_seen_and_leave_nothing_behind(name):
    mask = learnt(name)
    new = changed(mask)
    values = {f"mask.{name}": new[name] for name, _ in mask.named_parameters()}
    other = copy.deepcopy(mask)
    other.load_state_dict(other.state_dict() | new)
    matters_at_all = matters(mask)
    with torch.no_grad():
        before = mask.to_dense().clone()
        if matters_at_all:
            assert not torch.allclose(functional_call(Dense(mask), values), before)
        torch.testing.assert_close(functional_call(Dense(mask), values), other.to_dense(), **EXACT)
        if len(list(mask.named_parameters(remove_duplicate=False))) == len(list(mask.parameters())):
            # Where a module has two names, torch itself leaves it changed.
            torch.testing.assert_close(mask.to_dense(), before, **EXACT)


@pytest.mark.parametrize("name", MASKS)
def test_precision_is_seen(name):
    mask = MASKS[name]()
    with torch.no_grad():
        double = mask.on()
        dense = mask.to_dense()
        assert dense.dtype == torch.float64
        for convert, dtype in ((nn.Module.float, torch.float32), (nn.Module.half, torch.float32)):
            convert(mask)
            assert mask.on() is not double
            assert mask.on().dtype == mask.to_dense().dtype == dtype
            x = columns(mask.on()).half()
            assert (mask @ x).dtype == torch.float16
        mask.double()
        assert mask.to_dense().dtype == torch.float64
        tolerance = 5e-2 * max(1.0, dense.abs().max())
        torch.testing.assert_close(mask.to_dense(), dense, rtol=5e-2, atol=float(tolerance))


@pytest.mark.parametrize("name", MASKS)
def test_an_operator_that_is_used_after_a_change_is_refused(name):
    mask = learnt(name)
    q, k, v = tokens(mask.on(), heads=max(2, mask.num_heads))
    for mode in (torch.enable_grad, torch.no_grad):
        for parameter in list(mask.parameters()):
            with mode():
                operator = mask.on()
            operator @ columns(operator)
            with torch.no_grad():
                parameter.mul_(1.01)
            message = r"parameter of the mask has changed since this \w+ was made.*call mask\.on\(graph\) again"
            with pytest.raises(RuntimeError, match=message):
                operator @ columns(operator)
            for attend in (tm.masked_attention, tm.masked_softmax_attention):
                with pytest.raises(RuntimeError, match=message):
                    attend(q, k, v, operator)
            selected = mask.on().select(torch.tensor([0]), None)
            with torch.no_grad():
                parameter.mul_(1.01)
            with pytest.raises(RuntimeError, match=message):
                selected @ columns(selected)


@pytest.mark.parametrize("name", CASES)
def test_inference_mode_does_not_spoil_training(name):
    torch.manual_seed(0)
    case, fresh = CASES[name](), CASES[name]()
    fresh.mask.load_state_dict(case.mask.state_dict())
    q, k, v = tokens(case.on(), heads=max(2, case.on().num_heads))
    leaves = [x.requires_grad_() for x in (q, k, v)]
    for attend, kernel in ((tm.masked_attention, "linear"), (tm.masked_softmax_attention, "softmax")):
        for strategy in strategies(case.on(), kernel):
            with torch.inference_mode():
                attend(q, k, v, case.on(), strategy=strategy)
            gradients = []
            for one in (case, fresh):
                out = attend(q, k, v, one.on(), strategy=strategy)
                gradients.append(torch.autograd.grad(out.square().sum(), [*leaves, *one.parameters()]))
            for ours, theirs in zip(*gradients, strict=True):
                torch.testing.assert_close(ours, theirs, **EXACT)


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_an_operator_from_outside_a_checkpoint_learns_inside(name, use_reentrant):
    torch.manual_seed(0)
    case = CASES[name]()
    q, k, v = (x.requires_grad_() for x in tokens(case.on(), heads=max(2, case.on().num_heads)))
    leaves = [q, k, v, *case.parameters()]
    for strategy in strategies(case.on()):

        def run(operator, q, k, v, strategy=strategy):
            return tm.masked_attention(q, k, v, operator, feature_map="elu", strategy=strategy)

        def gradients(out):
            for leaf in leaves:
                leaf.grad = None
            out.square().sum().backward()
            return [leaf.grad for leaf in leaves]

        expected = gradients(run(case.on(), q, k, v))
        operator = case.on()
        found = gradients(checkpoint(lambda *x, o=operator: run(o, *x), q, k, v, use_reentrant=use_reentrant))
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs, **EXACT)


@pytest.mark.parametrize("made", ["outside", "inside"])
@pytest.mark.parametrize("name", ["walk_symmetric", "visit_normalized", "degree", "sum_learnt", "kronecker_walks"])
def test_layers_under_checkpoints_share_an_operator(name, made):
    """What one layer computes inside its checkpoint is not found by the next."""
    torch.manual_seed(0)
    mask = MASKS[name]()
    q, k, v = tokens(mask.on(), heads=max(2, mask.num_heads))
    v = v[..., :4].contiguous()

    def gradients(is_checkpointed: bool) -> list[torch.Tensor]:
        operator = mask.on()

        def layer(x):
            found = operator if made == "outside" else mask.on()
            return tm.masked_attention(q, k, x, found, strategy=strategies(found)[-1])

        x = v
        for _ in range(3):
            x = checkpoint(layer, x, use_reentrant=False) if is_checkpointed else layer(x)
        return torch.autograd.grad(x.square().sum(), list(mask.parameters()))

    for ours, theirs in zip(gradients(True), gradients(False), strict=True):
        torch.testing.assert_close(ours, theirs, **EXACT)


GRAPH_MASKS = {
    "walk": lambda graph: walk_mask(graph, num_heads=2),
    "visit": lambda graph: tm.VisitMask(graph, num_walks=4, max_length=3, seed=0).double(),
    "neighbor": lambda graph: tm.NeighborMask(graph).double(),
    "degree": lambda graph: tm.DegreeMask(graph, num_heads=2, max_degree=3, z=random_f(2, 3).sigmoid()),
    "all pairs": lambda graph: tm.AllPairsMask(graph).double(),
    "prefix": lambda graph: tm.PrefixMask(walk_mask(graph)),
    "sum": lambda graph: walk_mask(graph, symmetric=False) - 0.5 * tm.NeighborMask(graph).double(),
    "kronecker": lambda graph: tm.KroneckerMask(walk_mask(graph), tm.DenseMask(torch.eye(2, dtype=torch.float64))),
}


@pytest.mark.parametrize("name", GRAPH_MASKS)
def test_another_graph_is_seen(name):
    """As the default, and as an argument; also one of as many nodes."""
    make = GRAPH_MASKS[name]
    graphs = [ragged_graph(), tm.cycle_graph(11), tm.Graph.batch([tm.path_graph(5), tm.path_graph(6)]), star_graph(4)]
    mask = make(graphs[0])
    pair = (lambda graph: (graph, None)) if name == "kronecker" else (lambda graph: graph)
    with torch.no_grad():
        operators = [mask.on(pair(graph)) for graph in graphs]
        dense = [operator.to_dense() for operator in operators]
        for graph, operator, matrix in zip(graphs, operators, dense, strict=True):
            assert mask.on(pair(graph)) is operator
            torch.testing.assert_close(matrix, make(graph).to_dense())
        for graph, matrix in [*zip(graphs, dense, strict=True), (graphs[0], dense[0])]:
            mask.graph = pair(graph)
            assert mask.graph == pair(graph)
            assert torch.equal(mask.to_dense(), matrix)
    if name != "all pairs":
        assert not torch.equal(dense[0], dense[1])


@pytest.mark.parametrize("name", ["walk", "visit", "prefix", "sum", "kronecker"])
def test_new_walks_are_seen(name):
    mask = GRAPH_MASKS[name](ragged_graph())
    walking = next(part for part in mask.modules() if hasattr(part, "resample"))
    with torch.no_grad():
        before, dense = mask.on(), mask.to_dense()
        walking.resample(9)
        assert mask.on() is not before
        assert not torch.equal(mask.to_dense(), dense)
        walking.resample(before_seed(name))
        assert torch.equal(mask.to_dense(), dense)


def before_seed(name: str) -> int:
    return 0 if name == "visit" else 1


def test_large_parameters_are_told_apart_by_their_versions():
    """Nothing of the size of a graph is compared by value."""
    mask = tm.DenseMask(nn.Parameter(torch.randn(80, 80)))
    assert mask.matrix.numel() > kept._MAX_COMPARED
    with torch.no_grad():
        before = mask.on()
        assert mask.on() is before
        mask.matrix.mul_(2.0)
        assert mask.on() is not before
        assert torch.equal(mask.to_dense()[0], mask.matrix)
    assert kept.Seen.now(mask.matrix).values is None


def test_parameters_made_in_inference_mode_are_never_kept():
    """They have no version, so changes could not be noticed."""
    with torch.inference_mode():
        mask = tm.DenseMask(nn.Parameter(torch.randn(80, 80)))
        before = mask.to_dense().clone()
        mask.matrix.mul_(2.0)
        assert torch.equal(mask.to_dense(), 2.0 * before)


def test_parameters_that_no_operator_is_made_of_are_not_looked_at():
    first, second = walk_mask(ragged_graph()), walk_mask(ragged_graph(), seed=3)
    with torch.no_grad():
        before = first.on()
        second.modulation.weight.mul_(2.0)
        assert first.on() is before
        (first + second).on()
        assert first.on() is before


@pytest.mark.parametrize(
    ("mask", "setting", "value"),
    [
        (lambda graph: tm.VisitMask(graph, num_walks=4, max_length=3, seed=0), "normalize", True),
        (lambda graph: tm.PrefixMask(tm.NeighborMask(graph)), "num_prefix", 2),
        (lambda graph: tm.DiffusionMask(graph, time=3.0), "tolerance", 0.3),
        (lambda graph: tm.NeighborMask(graph), "default_normalizer", "signed"),
    ],
)
def test_settings_that_change_are_seen(mask, setting, value):
    mask = mask(tm.grid_graph(3, 3))
    with torch.no_grad():
        before = mask.on()
        setattr(mask, setting, value)
        assert mask.on() is not before


def test_large_parameters_that_move_in_memory_are_seen():
    mask = tm.LearnedFeatureMask(70)
    assert mask.features.numel() > kept._MAX_COMPARED
    with torch.no_grad():
        before = mask.to_dense().clone()
        mask.features.data = mask.features.data + 1.0
        assert not torch.allclose(mask.to_dense(), before)


@pytest.mark.parametrize("name", ["to_dense", "entries", "magnitude"])
def test_an_operator_is_not_used_after_a_change(name):
    mask = walk_mask(ragged_graph())
    operator = mask.on()
    optimiser_step(mask)
    with pytest.raises(RuntimeError, match="An operator is a snapshot"):
        getattr(operator, name)()
