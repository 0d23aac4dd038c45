import numpy as np
import pytest
import torch

import topomask as tm
from benchmarks import graphs, peers, scaling, strategies


@pytest.mark.parametrize("integers", peers.INTEGERS)
@pytest.mark.parametrize("chunk", [3, 64])
def test_algorithm_1_gives_our_answer(integers, chunk):
    mask = tm.WalkMask(tm.grid_graph(4, 5), num_walks=4, max_length=3, seed=0)
    q, k, v = torch.randn(3, 1, 1, 20, 8)
    with torch.no_grad():
        found = peers.algorithm_1(mask, integers, chunk)(q, k, v)
        torch.testing.assert_close(found, tm.masked_attention(q, k, v, mask))


def test_log_of_a_positive_mask_as_a_bias_is_masked_softmax_attention():
    mask = tm.WalkMask(tm.grid_graph(4, 5), num_walks=4, max_length=3, seed=0)
    q, k, v = torch.randn(3, 1, 1, 20, 8)
    with torch.no_grad():
        found = peers.softmax_with_bias(mask.to_dense()[0].log())(q, k, v)
        torch.testing.assert_close(found, tm.masked_softmax_attention(q, k, v, mask))


def test_a_peer_that_does_not_run_is_written_down_and_a_wrong_one_refused():
    x = torch.ones(1, 1, 4, 2)
    contest = peers.Contest(x, x, x, linear=x, softmax=x)

    def make_broken():
        raise RuntimeError("no compiler\nand more")

    contest.enter("broken", make_broken, "linear")
    assert contest.failures == {"broken": "RuntimeError: no compiler"}
    with pytest.raises(AssertionError, match="wrong gives a different result than the reference"):
        contest.enter("wrong", lambda: lambda q, k, v: q + 1, "linear")
    assert not contest.ways


def test_crossing_is_interpolated_between_powers_of_two():
    points = [{"nodes": 2**k, "flops": {scaling.OURS: 1000.0 * 2**k, scaling.SOFTMAX: 4.0**k}} for k in range(6, 14)]
    assert scaling.crossing(points, "flops") == pytest.approx(1000.0)
    assert scaling.crossing(points[:3], "flops") is None
    assert scaling.crossing(points[-3:], "flops") == 0


def test_strategies_are_compared_with_the_best():
    case = strategies.Case("path", "4 x 3", 8, "linear", "dense", {"pairs": [1.0, 1.0], "dense": [3.0, 2.0]})
    assert case.best == "pairs"
    assert case.ratio.value == 2.5


def test_a_case_times_every_open_strategy(monkeypatch):
    monkeypatch.setattr(strategies, "BUDGET", 0.0)
    mask = tm.WalkMask(tm.grid_graph(4, 4), num_walks=2, max_length=2, seed=0)
    case = strategies.run_case(strategies.Case("grid", "2 x 2", 8, "softmax"), mask)
    assert set(case.seconds) == {"pairs", "dense"}
    assert case.auto in case.seconds


def test_graphs_of_data_sets_are_read_or_named_as_missing(tmp_path, monkeypatch, capsys):
    (tmp_path / "node").mkdir()
    np.savez(tmp_path / "node" / "tolokers.npz", edges=np.array([[0, 1], [1, 2]]), y=np.zeros(4))
    monkeypatch.setenv("TOPOMASK_DATA", str(tmp_path))
    found = graphs.data_sets()
    assert found["tolokers"]().num_nodes == 4
    assert "coauthor-physics is left out" in capsys.readouterr().out


def test_a_star_has_one_hub():
    assert sorted(graphs.star(5).degrees.tolist()) == [1, 1, 1, 1, 1, 5]
