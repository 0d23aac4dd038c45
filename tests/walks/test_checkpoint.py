"""States of masks that walk, with settings that nobody can have meant."""

import json
import math

import pytest
import torch

import topomask as tm
from topomask.walks import checkpoint, sample


def with_header(state: torch.Tensor, **changes) -> torch.Tensor:
    data = state.numpy().tobytes()
    end = 8 + int.from_bytes(data[:8], "little")
    text = json.dumps(json.loads(data[8:end]) | changes).encode()
    return torch.frombuffer(bytearray(len(text).to_bytes(8, "little") + text + data[end:]), dtype=torch.uint8)


ABSURD = {
    "walks": ({"num_walks": 10**13}, "asks for .* steps per node and head, but there are at most 4,194,304"),
    "negative walks": ({"num_walks": -1}, "`num_walks` must be an integer of at least 1"),
    "walks as text": ({"num_walks": "20"}, "`num_walks` must be an integer"),
    "length": ({"max_length": 10**13}, "`max_length` must be"),
    "heads": ({"num_heads": 10**13}, "`num_heads` must be"),
    "halting": ({"halt_prob": math.nan}, "`halt_prob` must lie in"),
    "halting as text": ({"halt_prob": "0"}, "`halt_prob` must lie in"),
    "halting as a list": ({"halt_prob": [0]}, "`halt_prob` must lie in"),
    "negative halting": ({"halt_prob": -0.5}, "`halt_prob` must lie in"),
    "seed": ({"seed": -1}, "`seed` must be"),
    "coupling": ({"coupling": {}}, "`coupling` must be one of"),
    "normalization": ({"normalization": {"a": 1}}, "damaged .normalization"),
    "shared walks": ({"shared_walks": 2}, "damaged .shared_walks"),
    "fingerprints": ({"walks": 5}, "damaged .walks is 5"),
    "bytes that are not there": ({"tensors": [["int64", 10**15]] * 12}, "bytes of walks where"),
    "lengths that overflow": ({"tensors": [["int64", 2**62]] * 12}, "damaged"),
    "lengths beyond all": ({"tensors": [["int64", 10**400]] * 12}, "damaged"),
    "objects": ({"tensors": [["object", 1]] * 12}, "damaged"),
    "no layout": ({"tensors": 7}, "damaged"),
}


@pytest.mark.parametrize("save_walks", [False, True])
@pytest.mark.parametrize(("changes", "message"), ABSURD.values(), ids=list(ABSURD))
def test_absurd_settings_are_refused(changes, message, save_walks):
    mask = tm.WalkMask(tm.path_graph(4), num_walks=2, max_length=2, seed=0, save_walks=save_walks)
    before = mask.on().to_dense()
    state = mask.state_dict()
    state["_extra_state"] = with_header(state["_extra_state"], **changes)
    with pytest.raises(ValueError, match=message):
        mask.load_state_dict(state)
    assert torch.equal(mask.on().to_dense(), before)


def test_deeply_nested_headers_are_refused():
    mask = tm.WalkMask(tm.path_graph(4), seed=0)
    text = b"[" * 100_000
    state = torch.frombuffer(bytearray(len(text).to_bytes(8, "little") + text), dtype=torch.uint8)
    with pytest.raises(ValueError, match="damaged"):
        mask.set_extra_state(state)


def test_the_limit_is_raised_by_name(monkeypatch):
    graph = tm.path_graph(4)
    monkeypatch.setattr(sample, "_MAX_STEPS", 20)
    monkeypatch.setenv("TOPOMASK_MAX_WALK_STEPS", "30")
    assert tm.sample_features(graph, 10, 3).num_rows == 4
    for draw in (
        lambda: tm.sample_features(graph, 11, 3),
        lambda: tm.random_walks(graph, 11, 3),
        lambda: tm.WalkMask(graph, num_walks=11, max_length=3),
        lambda: tm.VisitMask(graph, num_walks=11, max_length=3),
        lambda: tm.DiffusionMask(graph).by_walks(11, 3),
    ):
        with pytest.raises(ValueError, match=r"33 steps .* at most 30. .* TOPOMASK_MAX_WALK_STEPS"):
            draw()


@pytest.mark.parametrize("name", ["num_walks", "max_length", "num_heads"])
@pytest.mark.parametrize("value", [10**13, -1, 2.5, math.nan, "3", None, True])
def test_walks_are_not_sampled_by_absurd_settings(name, value):
    with pytest.raises(ValueError, match=f"`{name}`"):
        tm.sample_features(tm.path_graph(4), **{name: value})
    if (name, value) == ("num_walks", None):
        # The default of the mask, which frontiers do not take.
        return
    with pytest.raises(ValueError, match=f"`{name}`"):
        tm.WalkMask(tm.path_graph(4), **{name: value})


def test_bare_walks_are_returned_in_parts_where_there_are_many():
    graph = tm.grid_graph(64, 64)
    with pytest.raises(ValueError, match=r"would visit 21,474,836,480 nodes, .* fewer `start_nodes`"):
        tm.random_walks(graph, num_walks=2**20, length=4)


def test_a_checkpoint_does_not_ask_for_many_more_walks_than_the_mask_has():
    graph = tm.grid_graph(60, 60)
    stored = tm.WalkMask(graph, num_walks=2, max_length=10, seed=0).state_dict()
    _, header, data = checkpoint._split(stored["_extra_state"])
    text = json.dumps(header | {"num_walks": 8000}).encode()
    bytes_of = len(text).to_bytes(8, "little") + text + data
    larger = stored | {"_extra_state": torch.frombuffer(bytearray(bytes_of), dtype=torch.uint8)}
    with pytest.raises(
        ValueError, match=r"num_walks=8,000, which may leave 12,960,000 loads .* build the mask with the"
    ):
        tm.WalkMask(graph, num_walks=2, max_length=10, seed=0).load_state_dict(larger)
