import pytest
import torch

from benchmarks import measure, report


def test_repeats_alternate_after_the_warm_up():
    calls = []
    times = measure.interleave({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, repeats=3)
    assert "".join(calls) == "ab" * 4
    assert [len(times[name]) for name in "ab"] == [3, 3]


def test_ratio_is_of_medians_with_quartiles_of_single_repeats():
    found = measure.ratio([2.0, 4.0, 9.0], [0.5, 2.0, 3.0])
    assert (found.value, found.lower, found.upper, found.least) == (2.0, 2.5, 3.5, 4.0)
    assert measure.ratio([3.0], [2.0]).value == 1.5


def test_another_answer_is_refused_by_name():
    expected = torch.ones(3)
    measure.check_same("fine", expected + 1e-6, expected)
    with pytest.raises(AssertionError, match="wrong way gives a different result than the reference"):
        measure.check_same("wrong way", expected + 0.1, expected)
    with pytest.raises(AssertionError):
        measure.check_same("no number", expected * torch.nan, expected)


def test_gradients_go_to_inputs_and_parameters_and_stay_nowhere():
    weight = torch.full((2,), 5.0, requires_grad=True)
    x = torch.full((2,), 3.0)
    by_input, by_weight = measure.forward_and_backward(lambda x: x * weight, [x], [weight])()
    assert (by_input.tolist(), by_weight.tolist()) == ([5.0, 5.0], [3.0, 3.0])
    assert x.grad is None
    assert weight.grad is None


def test_repeats_stay_within_limits():
    assert measure.enough_repeats(lambda: None, budget=1.0, most=7) == 7
    assert measure.enough_repeats(lambda: None, budget=0.0, least=3) == 3


def test_bars_are_judged_unless_quick(capsys):
    found = [report.Bar("low", 2.0, "<=", 1.0), report.Bar("high", 2.0, ">=", 1.0), report.Bar("free", 2.0)]
    assert [value["met"] for value in report.bars(found).values()] == [False, True, None]
    assert "NO" in capsys.readouterr().out
    assert [value["met"] for value in report.bars(found, quick=True).values()] == [None, None, None]
