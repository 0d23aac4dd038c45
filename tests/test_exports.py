import os
import subprocess
import sys
from pathlib import Path

import pytest

import topomask as tm


def test_every_name_resolves_and_is_listed():
    for name in tm.__all__:
        assert getattr(tm, name) is not None
        assert name in dir(tm)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'WalkMaks'"):
        _ = tm.WalkMaks


def test_names_resolve_in_a_process_that_has_used_none_of_them():
    """Inside torch.compile too, which must not trip over the import."""
    code = """
import topomask as tm
assert "masked_attention" not in vars(tm)
import torch
mask = tm.WalkMask(tm.grid_graph(3, 3), num_walks=2, max_length=2, seed=0)
attend = torch.compile(lambda q: tm.masked_attention(q, q, q, mask), fullgraph=True, backend="eager")
assert attend(torch.ones(1, 9, 4)).shape == (1, 9, 4)
from topomask import *
assert WalkMask is tm.WalkMask and nn.MaskedAttention is tm.nn.MaskedAttention
"""
    environment = os.environ | {"PYTHONPATH": str(Path(tm.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("package", "names"),
    [
        (tm.nn, ["AnchorLists", "MessagePassing"]),
        (tm.models, ["AnchorNeighbors", "NeighborLayer", "TokenGrid", "WalkNeighbors", "make_attention"]),
    ],
)
def test_what_users_pass_and_extend_is_exported(package, names):
    for name in names:
        assert name in package.__all__
        assert getattr(package, name).__name__ == name
