import torch
from benchmarks.memory import held_bytes, peak_extra_bytes

import topomask as tm


def test_peak_is_what_is_held_at_one_time():
    """A chain of three products holds two results at a time."""
    x = torch.ones(256, 256)
    assert peak_extra_bytes(lambda: ((x @ x) @ x) @ x) == 2 * x.nbytes


def test_nothing_is_counted_twice():
    x = torch.ones(100)
    assert held_bytes([x, x[:10], {"again": x}]) == x.nbytes


def test_a_mask_holds_at_least_its_walks():
    mask = tm.WalkMask(tm.grid_graph(5, 5), symmetric=False, seed=0)
    assert held_bytes(mask) >= mask.walks.num_bytes
