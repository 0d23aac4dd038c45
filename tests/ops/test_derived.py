import gc
import weakref

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from topomask.ops import derived
from topomask.ops.derived import derivation

calls: list[int] = []


@derivation(lambda tensors, numbers: [(tensors[0].shape[0], torch.int64), (None, torch.int64), (None, torch.int64)])
def places(tensors, numbers):
    """Scaled numbers, and where they are above a bound, twice."""
    calls.append(1)
    scaled = numbers[0] * (tensors[0] + sum(tensors[1:], torch.zeros_like(tensors[0])))
    found = (scaled > numbers[1]).nonzero().flatten()
    return [scaled, found, found + 1]


@pytest.fixture(autouse=True)
def _no_calls():
    calls.clear()


def test_results_are_computed_once_for_the_same_tensors_and_numbers():
    a, b = torch.arange(5), torch.arange(5)
    first = places([a, b], [2, 5])
    assert [x.tolist() for x in first] == [[0, 4, 8, 12, 16], [2, 3, 4], [3, 4, 5]]
    assert all(x is y for x, y in zip(places([a, b], [2, 5]), first, strict=True))
    assert len(calls) == 1
    for tensors, numbers in (([a, b.clone()], [2, 5]), ([a.clone(), b], [2, 5]), ([a, b], [2, 6]), ([a], [2, 5])):
        calls.clear()
        places(tensors, numbers)
        assert len(calls) == 1
    calls.clear()
    places([a, b], [2, 5])
    assert not calls
    assert places.__doc__.startswith("Scaled numbers")


def test_results_are_kept_as_long_as_their_first_tensor():
    a, b = torch.arange(5), torch.arange(5)
    gone = [weakref.ref(x) for x in places([a, b], [1, 1])]
    gc.collect()
    assert all(reference() is not None for reference in gone)
    kept = weakref.ref(a)
    del a
    gc.collect()
    assert kept() is None
    assert all(reference() is None for reference in gone)


def test_a_tensor_that_outlives_many_others_keeps_the_last_results():
    a = torch.arange(5)
    gone = [weakref.ref(places([a, torch.full((5,), k)], [1, 1])[0]) for k in range(20)]
    gc.collect()
    assert [reference() is not None for reference in gone] == [False] * (20 - derived._MAX_SLOTS) + [
        True
    ] * derived._MAX_SLOTS


def test_results_serve_training_whatever_asks_for_them_first():
    a = torch.arange(5)
    with torch.inference_mode():
        found = places([a], [1, 1])
    assert not any(x.is_inference() for x in found)
    (torch.ones(5, requires_grad=True)[found[1]]).sum().backward()


def test_compiled_code_holds_nothing_of_its_tensors():
    """One compiled function, for tensors and results of any length; cached results are found inside it, too."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")

    def run(a, x):
        scaled, found, _ = places([a], [1, 4])
        return (x * scaled).sum() + x.index_select(0, found).sum()

    compiled = torch.compile(run, fullgraph=True, backend=counter)
    gone = []
    for size in (8, 9, 12, 6, 30, 8):
        a, x = torch.arange(size), torch.randn(size, requires_grad=True)
        torch.testing.assert_close(compiled(a, x), run(a, x))
        assert len(calls) == 1
        torch.testing.assert_close(compiled(a, x), run(a, x))
        assert len(calls) == 1, "found again"
        calls.clear()
        ours, theirs = (torch.autograd.grad(one(a, x), x)[0] for one in (compiled, run))
        torch.testing.assert_close(ours, theirs)
        gone.append(weakref.ref(a))
    assert counter.frame_count <= 2
    del a
    gc.collect()
    assert all(reference() is None for reference in gone)
    torch._dynamo.reset()


def test_a_graph_of_operations_is_what_it_says():
    a = torch.arange(7)
    name = next(name for name in derived._derivations if name.endswith("test_derived.places"))
    arguments = (name, [a], [1, 2])
    torch.library.opcheck(
        derived._derive, arguments, test_utils=("test_schema", "test_faketensor", "test_autograd_registration")
    )
