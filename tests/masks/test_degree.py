import copy
import math

import networkx as nx
import pytest
import torch

import topomask as tm
from helpers.graphs import directed_graph, ragged_batch, ragged_graph, star_graph
from helpers.mask_cases.neighbourhoods import degree_mask
from helpers.mask_cases.walks import random_f


def formula(degrees: list[int], z: torch.Tensor) -> torch.Tensor:
    """sin(pi/4 (z(d_i) + z(d_j))) for z [H, max_degree + 1], pair by pair."""
    rows = [[float(row[min(degree, len(row) - 1)]) for degree in degrees] for row in z]
    entries = [[[math.sin(math.pi / 4 * (a + b)) for b in row] for a in row] for row in rows]
    return torch.tensor(entries, dtype=torch.float64)


@pytest.mark.parametrize("max_degree", [0, 2, 20])
def test_is_the_formula(max_degree):
    """Degrees beyond the table share its last number."""
    graph = nx.barabasi_albert_graph(30, 2, seed=0)
    degrees = [degree for _, degree in graph.degree]
    assert max(degrees) > 2
    z = random_f(3, max_degree).sigmoid()
    mask = tm.DegreeMask(tm.Graph.from_networkx(graph), num_heads=3, max_degree=max_degree, z=z)
    torch.testing.assert_close(mask.z(), z)
    torch.testing.assert_close(mask.to_dense(), formula(degrees, z))


def test_degrees_are_numbers_of_edges_that_leave_a_node():
    """Whatever their weights; a self-loop counts once."""
    z = torch.linspace(0.1, 0.9, 6, dtype=torch.float64)[None]
    expected = {ragged_graph: [2, 2, 3, 3, 0, 2, 3, 2, 3, 2, 1], directed_graph: [2, 2, 1, 0, 2, 0, 1]}
    for make, degrees in expected.items():
        torch.testing.assert_close(tm.DegreeMask(make(), max_degree=5, z=z).to_dense(), formula(degrees, z))


def test_a_part_of_a_graph_keeps_the_degrees_of_the_whole():
    graph = tm.grid_graph(5, 5)
    part = graph.neighborhood([12], num_hops=1)
    whole = degree_mask(graph, 1, 4).to_dense()[0]
    nodes = torch.tensor(part.ids)
    torch.testing.assert_close(degree_mask(part, 1, 4).to_dense()[0], whole[nodes[:, None], nodes])


def test_graphs_of_a_batch_do_not_see_each_other_but_components_do():
    batch = ragged_batch()
    mask = degree_mask(batch, 2, 3)
    dense, groups = mask.to_dense(), mask.on().key_groups
    assert ((dense != 0) == (groups[:, None] == groups)).all()
    parts = [mask.on(g).to_dense() for g in (tm.path_graph(1), tm.cycle_graph(5), ragged_graph(), tm.grid_graph(2, 3))]
    expected = torch.stack([torch.block_diag(*(part[head] for part in parts)) for head in range(2)])
    torch.testing.assert_close(dense, expected)
    assert (mask.on(ragged_graph()).to_dense() > 0).all(), "ragged_graph has several components"


def test_starts_as_if_there_were_no_mask():
    q, k, v = torch.randn(3, 1, 2, 11, 4)
    mask = tm.DegreeMask(ragged_graph(), num_heads=2)
    plain = tm.masked_attention(q, k, v, tm.DenseMask(torch.ones(11, 11)))
    out = tm.masked_attention(q, k, v, mask)
    torch.testing.assert_close(out, plain)
    out.square().sum().backward()
    assert (mask.logits.grad[:, :4].abs() > 0).all(), "but learns every degree that occurs"


def test_attention_takes_twice_the_features_and_never_spreads_them(monkeypatch):
    operator = degree_mask(star_graph(40), 2, 8).on()
    phi_q, phi_k, v = torch.rand(3, 2, 2, 41, 5, dtype=torch.float64)
    expected = tm.Operator.attend(operator, phi_q, phi_k, v)
    monkeypatch.setattr(tm.Operator, "attend", None)
    torch.testing.assert_close(operator.attend(phi_q, phi_k, v), expected)


def test_linear_in_the_number_of_nodes():
    """2^17 nodes: N x N would take 69 GB, and features spread over values 2 GB."""
    mask = tm.DegreeMask(tm.path_graph(2**17), max_degree=4)
    q, k, v = torch.rand(3, 1, 1, 2**17, 64).unbind()
    plan = tm.plan_attention(mask, 64, 64)
    assert plan.strategy == "product"
    assert plan.seconds["product"] < 1
    out = tm.masked_attention(q, k, v, mask)
    # Every z is the same at the start, so this is attention without a mask.
    queries, keys = q[0, 0, :3], k[0, 0]
    weights = queries @ keys.mT
    torch.testing.assert_close(out[0, 0, :3], weights @ v[0, 0] / weights.sum(-1, keepdim=True))
    assert mask.on().cost().product == 4 * 2**17


def test_half_precision_and_saturated_numbers_stay_finite():
    """z rounds to 0 or 1: rows between nodes of z = 0 attend to nothing, which gives 0 and no gradient."""
    mask = tm.DegreeMask(tm.path_graph(4), max_degree=2)
    with torch.no_grad():
        mask.logits.fill_(-1e4)
    for strategy in ("product", "dense"):
        q, k, v = (x.requires_grad_() for x in torch.randn(3, 1, 1, 4, 3).unbind())
        out = tm.masked_attention(q, k, v, mask, strategy=strategy)
        assert (out == 0).all()
        out.sum().backward()
        assert all((x.grad == 0).all() for x in (q, k, v))
    half = mask.half()
    with torch.no_grad():
        half.logits.fill_(100.0)
    x = torch.full((1, 4, 2), 1e4, dtype=torch.float16)
    assert (half @ x).dtype == torch.float16
    torch.testing.assert_close(half @ x, torch.full_like(x, 4e4))


def test_on_another_graph_and_copies_share_or_own_their_numbers():
    mask = degree_mask(ragged_graph(), 2, 5)
    dense = mask.on(tm.cycle_graph(4)).to_dense()
    torch.testing.assert_close(dense, degree_mask(tm.cycle_graph(4), 2, 5).to_dense())
    (gradient,) = torch.autograd.grad(dense.sum(), mask.logits)
    assert (gradient[:, 2] != 0).all()
    twin = copy.deepcopy(mask)
    with torch.no_grad():
        twin.logits.zero_()
    assert not torch.equal(twin.to_dense(), mask.to_dense())


def test_bad_arguments_are_named():
    graph = tm.path_graph(3)
    for options, match in (
        ({"num_heads": 0}, "num_heads"),
        ({"max_degree": -1}, "max_degree"),
        ({"max_degree": 2.0}, "max_degree"),
        ({"z": torch.ones(3)}, r"`z` must have shape \[max_degree \+ 1=65\]"),
        ({"max_degree": 1, "z": torch.tensor([0.5, 1.0])}, "between 0 and 1"),
        ({"max_degree": 1, "z": torch.tensor([0.5, torch.nan])}, "finite"),
    ):
        with pytest.raises(ValueError, match=match):
            tm.DegreeMask(graph, **options)
