"""Every mask inside transforms of torch.func, on the meta device, with fake tensors, exported, in inference mode."""

import pytest
import torch
from torch._subclasses import FakeTensorMode

import topomask as tm
from helpers.mask_cases import CASES, MASKS, Case
from helpers.operator_inputs import strategies, tokens

EXACT = {"rtol": 1e-9, "atol": 1e-9}
ATTENTION = {"linear": tm.masked_attention, "softmax": tm.masked_softmax_attention}

# Of torch's own operations.
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop because we have not yet implemented")

# All of them take minutes.
QUICK = ("walk_symmetric", "walk_batch", "toeplitz_grid", "forest_table", "diffusion_laplacian", "selected_walk")


def names(known: dict, quick: tuple[str, ...]) -> list:
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in known]


def ways(case: Case) -> list[tuple[str, str]]:
    return [(kernel, way) for kernel in ATTENTION for way in [*strategies(case.on(), kernel), "auto"]]


def attention(case: Case, kernel: str, strategy: str):
    nodes = {"query_nodes": case.query_nodes, "key_nodes": case.key_nodes}
    return lambda q, k, v: ATTENTION[kernel](q, k, v, case.mask, strategy=strategy, **nodes)


def inputs(case: Case) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    return tokens(case.on(), heads=max(2, case.on().num_heads))


class Attention(torch.nn.Module):
    """A module, so that parameters can be replaced."""

    def __init__(self, case: Case, kernel: str, strategy: str) -> None:
        super().__init__()
        self.mask, self.attend = case.mask, attention(case, kernel, strategy)

    def forward(self, q, k, v):
        return self.attend(q, k, v)


@pytest.mark.parametrize("name", names(CASES, QUICK))
def test_gradients(name):
    case = CASES[name]()
    leaves = inputs(case)
    for kernel, strategy in ways(case):
        run = attention(case, kernel, strategy)

        def loss(*leaves, run=run):
            return run(*leaves).square().sum()

        found = torch.func.grad(loss, argnums=(0, 1, 2))(*leaves)
        learnt = [x.clone().requires_grad_() for x in leaves]
        torch.testing.assert_close(found, torch.autograd.grad(loss(*learnt), learnt), **EXACT)


@pytest.mark.parametrize("name", names(CASES, QUICK))
def test_vmap_over_the_batch(name):
    case = CASES[name]()
    leaves = inputs(case)
    for kernel, strategy in ways(case):
        run = attention(case, kernel, strategy)
        torch.testing.assert_close(torch.func.vmap(run)(*leaves), run(*leaves), **EXACT)


@pytest.mark.parametrize("name", names(CASES, QUICK))
def test_gradients_of_parameters_per_input(name):
    case = CASES[name]()
    leaves, learnt = inputs(case), case.parameters()
    if not learnt:
        pytest.skip("nothing is learnt")
    if name == "sum_nested":
        pytest.skip("torch.func.functional_call does not put back parameters of a module that is used in two places")
    for kernel, strategy in ways(case):
        module = Attention(case, kernel, strategy)
        values = {key: x.detach() for key, x in module.named_parameters() if x.requires_grad}

        def loss(values, *leaves, module=module):
            return torch.func.functional_call(module, values, leaves).square().sum()

        found = torch.func.vmap(torch.func.grad(loss), (None, 0, 0, 0))(values, *leaves)
        for number, one in enumerate(zip(*leaves, strict=True)):
            expected = torch.autograd.grad(module(*one).square().sum(), learnt)
            torch.testing.assert_close([x[number] for x in found.values()], list(expected), **EXACT)


def refuses(run) -> bool:
    """Whether there is no forward-mode derivative, which is said."""
    try:
        run()
    except NotImplementedError as error:
        # Where all entries are 1, softmax attention is PyTorch's own, and so is its error.
        return any(text in str(error) for text in ("has no forward-mode derivative", "Trying to use forward AD"))
    return False


@pytest.mark.parametrize("name", names(CASES, QUICK))
def test_forward_mode_is_right_or_refused(name):
    case = CASES[name]()
    leaves = inputs(case)
    directions = tuple(torch.randn_like(x) for x in leaves)
    for kernel, strategy in ways(case):
        run = attention(case, kernel, strategy)
        if strategy != "dense" and refuses(lambda run=run: torch.func.jvp(run, leaves, directions)):
            continue
        _, found = torch.func.jvp(run, leaves, directions)
        _, pull = torch.func.vjp(run, *leaves)
        weights = torch.randn_like(found)
        there = sum((x * y).sum() for x, y in zip(pull(weights), directions, strict=True))
        torch.testing.assert_close((weights * found).sum(), there, **EXACT)


def test_what_is_kept_outlives_the_transform_that_asked_for_it_first():
    """Records, patterns and entries must not be wrappers of a transform that is over."""
    q, k, v = torch.randn(3, 2, 2, 12, 4)
    for strategy in ("pairs", "product", "dense"):
        graph = tm.knn_graph(torch.rand(12, 3), 3, directed=False)
        mask = tm.WalkMask(num_heads=2, seed=0).requires_grad_(False)

        def loss(q, graph=graph, mask=mask, strategy=strategy):
            return tm.masked_attention(q, k, v, mask.on(graph), strategy=strategy).sum()

        found = torch.func.grad(loss)(q)
        learnt = q.clone().requires_grad_()
        torch.testing.assert_close(torch.autograd.grad(loss(learnt), learnt)[0], found, rtol=1e-4, atol=1e-5)
        fresh = tm.Graph.from_scipy(graph.to_scipy())
        torch.testing.assert_close(mask.on(graph).to_dense(), mask.on(fresh).to_dense())


@pytest.mark.parametrize("name", names(MASKS, QUICK))
def test_shapes_on_the_meta_device(name):
    case = Case(MASKS[name]())
    leaves, found = inputs(case), ways(case)
    moved = Case(MASKS[name]().to("meta"))
    for kernel, strategy in found:
        out = attention(moved, kernel, strategy)(*(x.to("meta") for x in leaves))
        assert out.is_meta
        assert out.shape == (*leaves[0].shape[:-1], leaves[2].shape[-1])
        assert moved.on()(leaves[2][:, : moved.mask.num_heads].to("meta")).is_meta


@pytest.mark.parametrize("name", names(MASKS, QUICK))
def test_shapes_of_fake_tensors(name):
    case = Case(MASKS[name]())
    leaves, found = inputs(case), ways(case)
    before = case.on().to_dense()
    for kernel, strategy in found:
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            fake = [mode.from_tensor(x) for x in leaves]
            out = attention(case, kernel, strategy)(*fake)
            assert type(out) is type(fake[0])
            assert out.shape == (*leaves[0].shape[:-1], leaves[2].shape[-1])
    # Nothing fake is left behind.
    assert torch.equal(case.on().to_dense(), before)


@pytest.mark.parametrize("feature_map", ["relu", "softmax"])
def test_a_layer_that_is_made_of_fake_tensors(feature_map):
    with FakeTensorMode():
        mask = tm.WalkMask(tm.grid_graph(4, 4), num_heads=2) + tm.NeighborMask(tm.grid_graph(4, 4))
        layer = tm.nn.MaskedAttention(8, 2, mask, feature_map=feature_map)
        assert layer(torch.randn(3, 16, 8)).shape == (3, 16, 8)


@pytest.mark.parametrize("strict", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", names(MASKS, ("neighbor",)))
def test_exported_programs_give_the_same_numbers(name, strict):
    case = Case(MASKS[name]())
    leaves = inputs(case)
    for kernel, strategy in ways(case):
        module = Attention(case, kernel, strategy)
        program = torch.export.export(module, leaves, strict=strict)
        other = tuple(torch.randn_like(x) for x in leaves)
        torch.testing.assert_close(program.module()(*other), module(*other), **EXACT)


@pytest.mark.parametrize("name", names(MASKS, QUICK))
def test_masks_of_inference_mode_can_be_trained_or_say_why_not(name):
    torch.manual_seed(0)
    with torch.inference_mode():
        mask = MASKS[name]()
        mask.on().to_dense()
    given = any(parameter.is_inference() for parameter in mask.parameters())
    if given:
        # Parameters that were handed in.
        with pytest.raises(RuntimeError, match=r"was created inside torch\.inference_mode.*Create it outside"):
            mask.on()
        return
    learnt = [x for x in mask.parameters() if x.requires_grad]
    if not learnt:
        pytest.skip("nothing is learnt")
    torch.manual_seed(0)
    expected = MASKS[name]()
    for one in (mask, expected):
        one.on().to_dense().square().sum().backward()
        torch.optim.SGD(one.parameters(), lr=0.1).step()
    torch.testing.assert_close(list(mask.parameters()), list(expected.parameters()))
