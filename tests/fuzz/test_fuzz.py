"""A short form of the fuzzer: fixed cases of every mask and of every kind of graph. ``make fuzz`` has the long form."""

from __future__ import annotations

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from fuzz.cases import BY_NAME, MASKS
from fuzz.graphs import KINDS
from fuzz.runner import Report, run_case

# Cases per mask and per kind of graph.
PER_MASK, PER_KIND = 10, 3


def report_of(seed: int, count: int, mask: str | None = None, kind: str | None = None) -> Report:
    total = Report()
    for index in range(count):
        total.add(run_case(seed, index, mask, kind))
    return total


def show(report: Report, seed: int, options: str = "") -> str:
    lines = [f"python -m tests.fuzz --seed {seed} --index {index}{options}: {text}" for index, text in report.failures]
    return "\n".join(lines)


@pytest.mark.parametrize("mask", [*MASKS, *BY_NAME])
def test_mask_is_what_it_is_by_definition(mask: str) -> None:
    report = report_of(19, PER_MASK, mask)
    assert not report.failures, show(report, 19, f" --mask {mask}")
    assert report.calls >= 2 * PER_MASK
    # Queries that rounding decides are left out; a formula that leaves out most of them would compare nothing.
    assert report.skipped <= 0.5 * report.queries


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "no_nodes"])
def test_attention_on_every_kind_of_graph(kind: str) -> None:
    report = report_of(23, PER_KIND, kind=kind)
    assert not report.failures, show(report, 23, f" --graph {kind}")


def test_a_graph_without_nodes_is_refused() -> None:
    report = run_case(0, 0, "neighbor", "no_nodes")
    assert not report.failures
    assert report.refused["no nodes"] == 1


@settings(derandomize=True, max_examples=40, deadline=None, phases=[Phase.generate], database=None)
@given(seed=st.integers(0, 2**31), index=st.integers(0, 2**31))
def test_any_case(seed: int, index: int) -> None:
    report = run_case(seed, index)
    assert not report.failures, show(report, seed)


# Cases, by seed and index, that failed once, and what was wrong.
FAILED_ONCE = {
    (0, 2060): "loads of float32 in an operator in float64",
    (0, 9195): "the same inside a prefix mask",
    (0, 14420): "slopes of weights beyond float32, which cancel in f",
    (0, 20553): "slopes of zero entries beside small weights",
    (0, 22070): "a bound of the formula that was not a number",
    (0, 22212): "slopes of zero entries beside padding with a large entry",
    (0, 22412): "slopes of powers beside entries of 1e30",
    (0, 30214): "a mask in float64 beside tokens in bfloat16",
    (0, 32012): "slopes of powers beside large entries in float64",
    (0, 32314): "a slope that the formula loses",
    (0, 33248): "slopes of powers beside tiny queries",
    (0, 46724): "another slope that the formula loses",
    (0, 50372): "subnormal queries times a scale",
    (5, 38957): "differences across the kink of an absolute value",
    (5, 4559): "the noise of a Kronecker product beside large keys of another graph",
}


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("case", FAILED_ONCE, ids=FAILED_ONCE.values())
def test_a_case_that_failed_once(case: tuple[int, int], backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPOMASK_BACKEND", backend)
    report = run_case(*case)
    assert not report.failures, show(report, case[0])
