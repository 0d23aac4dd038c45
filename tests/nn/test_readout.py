import pytest
import torch

import topomask as tm
from helpers.graphs import ragged_batch


@pytest.mark.parametrize("kind", ["mean", "sum", "attention"])
def test_every_graph_is_read_out_alone(kind):
    torch.manual_seed(0)
    graph = ragged_batch()
    readout = tm.nn.GraphReadout(kind, 3).double()
    x = torch.randn(graph.num_nodes, 3, dtype=torch.float64)
    parts = [x[torch.from_numpy(graph.graph_index == k)] for k in range(graph.num_graphs)]
    if kind == "attention":
        expected = [(readout.score(part).softmax(dim=0) * part).sum(dim=0) for part in parts]
    else:
        expected = [part.mean(dim=0) if kind == "mean" else part.sum(dim=0) for part in parts]
    torch.testing.assert_close(readout(x, graph), torch.stack(expected))


def test_nodes_stay_as_they_are_and_large_scores_do_not_overflow():
    graph = ragged_batch()
    x = 1e4 * torch.randn(graph.num_nodes, 3)
    assert tm.nn.GraphReadout("node", 3)(x, graph) is x
    assert tm.nn.GraphReadout("attention", 3)(x, graph).isfinite().all()


def test_an_unknown_readout_is_refused():
    with pytest.raises(ValueError, match="`readout` must be one of"):
        tm.nn.GraphReadout("max", 3)


@pytest.mark.parametrize("kind", ["mean", "attention"])
def test_sums_over_many_nodes_hold_in_half_precision(kind):
    count = 70_000
    out = tm.nn.GraphReadout(kind, 2).half()(torch.full((count, 2), 30.0).half(), tm.cycle_graph(count))
    torch.testing.assert_close(out, torch.full((1, 2), 30.0).half())
