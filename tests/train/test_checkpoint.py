import errno
import json
import os
import random

import pytest
import safetensors
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import topomask as tm
from helpers import training
from topomask.train import CheckpointError, OptimConfig, build_optimizer, load_weights, read_checkpoint, save_checkpoint
from topomask.train import checkpoint as checkpoint_module
from topomask.train.checkpoint import restore_checkpoint


class Tied(nn.Module):
    """One layer under two names, a transposed buffer, an empty one, and a parameter that never learns."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = self.first
        self.register_buffer("turned", torch.arange(6.0).reshape(2, 3).T)
        self.register_buffer("empty", torch.zeros(0, 3))
        self.register_buffer("coarse", torch.ones(3, dtype=torch.bfloat16))
        self.unused = nn.Parameter(torch.ones(2, 2))

    def forward(self, x):
        return self.second(self.first(x))


def stepped(model: nn.Module, steps: int = 2) -> torch.optim.Optimizer:
    optimizer = build_optimizer(model, OptimConfig())
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(4, 3)).square().sum().backward()
        optimizer.step()
    return optimizer


@pytest.fixture
def saved(tmp_path):
    """A checkpoint of the small model."""
    torch.manual_seed(0)
    path = tmp_path / "model.safetensors"
    save_checkpoint(path, training.Tiny(), info={"step": 3})
    return path


def test_model_and_optimiser_come_back(tmp_path):
    torch.manual_seed(0)
    model = Tied()
    optimizer = stepped(model)
    path = tmp_path / "tied.safetensors"
    save_checkpoint(path, model, optimizer, {"step": 2, "note": "ä"})
    checkpoint = read_checkpoint(path)
    assert (checkpoint.info["step"], checkpoint.info["note"]) == (2, "ä")
    torch.manual_seed(1)
    other = Tied()
    restored = build_optimizer(other, OptimConfig())
    restore_checkpoint(checkpoint, other, restored)
    for name, value in model.state_dict().items():
        assert torch.equal(other.state_dict()[name], value), name
    assert other.first is other.second
    before, after = optimizer.state_dict()["state"], restored.state_dict()["state"]
    assert before.keys() == after.keys()
    for place, state in before.items():
        assert state.keys() == after[place].keys() == {"step", "exp_avg", "exp_avg_sq"}
        assert all(torch.equal(state[key], after[place][key]) for key in state)


def test_a_file_is_safetensors_with_json_in_its_header(saved):
    tensors = load_file(saved)
    assert tensors.keys() == {f"model.{name}" for name in training.Tiny().state_dict()}
    size = int.from_bytes(saved.read_bytes()[:8], "little")
    header = json.loads(saved.read_bytes()[8 : 8 + size])
    assert json.loads(header["__metadata__"]["topomask"])["step"] == 3


def test_a_checkpoint_that_is_cut_short_is_refused(saved):
    content = saved.read_bytes()
    for length in (0, 1, 7, 8, 100, len(content) // 2, len(content) - 1):
        saved.write_bytes(content[:length])
        with pytest.raises(CheckpointError, match=r"model\.safetensors is damaged"):
            read_checkpoint(saved)
    saved.unlink()
    with pytest.raises(FileNotFoundError, match="There is no checkpoint"):
        read_checkpoint(saved)


def test_a_flipped_bit_is_found_wherever_it_is(saved):
    content = saved.read_bytes()
    draw = random.Random(0)
    header = 8 + int.from_bytes(content[:8], "little")
    places = [draw.randrange(header) for _ in range(60)] + [draw.randrange(header, len(content)) for _ in range(20)]
    for place in places:
        damaged = bytearray(content)
        damaged[place] ^= 1 << draw.randrange(8)
        saved.write_bytes(damaged)
        with pytest.raises(CheckpointError):
            read_checkpoint(saved)


def test_other_files_are_refused(saved, monkeypatch):
    monkeypatch.setattr(checkpoint_module, "_FORMAT", 0)
    with pytest.raises(CheckpointError, match="has format 1, but this version of topomask reads format 0"):
        read_checkpoint(saved)
    save_file({"x": torch.ones(2)}, saved)
    with pytest.raises(CheckpointError, match="was not written by topomask"):
        read_checkpoint(saved)


def test_a_write_that_fails_leaves_the_old_checkpoint(saved, monkeypatch):
    before = saved.read_bytes()

    def half_a_file(tensors, path, metadata):
        path.write_bytes(b"half")
        raise OSError("No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", half_a_file)
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(saved, training.Tiny())
    assert saved.read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


@pytest.mark.parametrize(
    "error",
    [
        safetensors.SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "No space left on device"),
    ],
)
def test_a_full_disk_leaves_the_old_checkpoint_and_says_so(error, saved, monkeypatch):
    before = saved.read_bytes()

    def half_a_file(tensors, path, metadata):
        path.write_bytes(b"half")
        raise error

    monkeypatch.setattr("safetensors.torch.save_file", half_a_file)
    with pytest.raises(OSError) as found:
        save_checkpoint(saved, training.Tiny())
    assert str(found.value) == (
        f"{saved} could not be written: No space left on device. Any previous content is intact. Free some space, or "
        "choose another location."
    )
    assert saved.read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


def test_another_failure_of_safetensors_is_one_of_the_file(saved, monkeypatch):
    def fail(tensors, path, metadata):
        raise safetensors.SafetensorError("it broke")

    monkeypatch.setattr("safetensors.torch.save_file", fail)
    with pytest.raises(OSError, match=r"it broke.*model\.safetensors"):
        save_checkpoint(saved, training.Tiny())


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("first.weight.step", None),
        ("first.weight.exp_avg", None),
        ("first.weight.exp_avg", torch.ones(2)),
        ("first.weight.step", torch.ones((), dtype=torch.int64)),
        ("first.weight.more", torch.ones(3, 3)),
    ],
)
def test_moments_that_do_not_fit_are_named(name, change, tmp_path):
    model = Tied()
    optimizer = stepped(model)
    save_checkpoint(tmp_path / "x.safetensors", model, optimizer)
    found = read_checkpoint(tmp_path / "x.safetensors")
    if change is None:
        del found.moments[name]
    else:
        found.moments[name] = change
    with pytest.raises(CheckpointError, match=r"optimiser state of `first\.weight` must be step, exp_avg and exp_a"):
        restore_checkpoint(found, model, optimizer)


def test_a_checkpoint_gets_its_name_once_it_is_whole_and_on_disk(saved, monkeypatch):
    before, events = saved.read_bytes(), []
    flush, replace = os.fsync, os.replace

    def replace_and_look(source, target):
        assert saved.read_bytes() == before
        assert read_checkpoint(source).info["step"] == 4
        events.append("name")
        replace(source, target)

    def flush_and_note(descriptor):
        events.append("flush")
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", flush_and_note)
    monkeypatch.setattr(os, "replace", replace_and_look)
    save_checkpoint(saved, training.Tiny(), info={"step": 4})
    assert events[:2] == ["flush", "name"]
    assert read_checkpoint(saved).info["step"] == 4


def test_only_tensors_are_saved(tmp_path):
    class Odd(nn.Linear):
        def get_extra_state(self):
            return {"any": "thing"}

    with pytest.raises(CheckpointError, match=r"`model._extra_state` is a dict, but only tensors"):
        save_checkpoint(tmp_path / "odd.safetensors", Odd(1, 1))


def test_fine_tuning_takes_all_but_the_head(saved):
    torch.manual_seed(5)
    model = training.Tiny()
    model.head = nn.Linear(training.WIDTH, 17)
    head = model.head.weight.clone()
    load_weights(model, saved, except_prefix="head.")
    state = model.state_dict()
    assert torch.equal(model.head.weight, head)
    stored = read_checkpoint(saved).weights
    # The walks too, which were others when the model was built.
    assert all(torch.equal(state[name], value) for name, value in stored.items() if not name.startswith("head."))
    model(torch.randn(2, training.TOKENS, training.WIDTH)).sum().backward()


def test_weights_that_do_not_fit_are_listed_and_change_nothing(saved):
    model = training.Tiny()
    model.head = nn.Linear(training.WIDTH, 17)
    model.extra = nn.Linear(1, 1)
    del model.norm
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(CheckpointError) as found:
        load_weights(model, saved)
    for part in (
        "not in the checkpoint: extra.weight, extra.bias;",
        "not in the model: norm.bias, norm.weight;",
        "shapes differ: head.bias is [3] in the checkpoint and [17] in the model, head.weight is [3, 8] in",
        "except_prefix",
    ):
        assert part in str(found.value)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with pytest.raises(
        ValueError, match=r"`except_prefix` is 'haed.', but no weights of the model start with it: attention"
    ):
        load_weights(model, saved, except_prefix="haed.")


def test_a_mask_on_another_graph_says_so(saved):
    model = training.Tiny()
    model.attention.mask = tm.WalkMask(tm.grid_graph(2, 5), num_walks=4, max_length=3, num_heads=2)
    with pytest.raises(CheckpointError, match="The checkpoint was saved on another graph"):
        load_weights(model, saved)


def test_optimiser_state_of_another_model_is_refused(tmp_path):
    model = Tied()
    path = tmp_path / "tied.safetensors"
    save_checkpoint(path, model, stepped(model))
    model.first.bias.requires_grad_(False)
    with pytest.raises(CheckpointError, match=r"optimiser state for `first.bias`"):
        restore_checkpoint(read_checkpoint(path), model, build_optimizer(model, OptimConfig()))


def test_loading_does_not_unpickle(saved, monkeypatch):
    monkeypatch.setattr(torch, "load", None)
    monkeypatch.setattr("pickle.loads", None)
    monkeypatch.setattr("pickle.load", None)
    model = training.Tiny()
    load_weights(model, saved)
    kept = read_checkpoint(saved).weights
    assert all(torch.equal(value, kept[name]) for name, value in model.state_dict().items())


def test_parts_may_lack_what_they_say_older_checkpoints_do_not_have(tmp_path):
    def interlacer(num_neighbors: int) -> tm.models.Interlacer:
        return tm.models.Interlacer(feature_dim=1, dim=4, depth=1, num_heads=1, num_neighbors=num_neighbors)

    path = tmp_path / "particles.safetensors"
    model = interlacer(3)
    save_checkpoint(path, model)
    load_weights(interlacer(3), path)
    with pytest.raises(CheckpointError, match="num_neighbors=3, but the model has num_neighbors=2"):
        load_weights(interlacer(2), path)
    model.register_state_dict_post_hook(lambda _, state, *__: state.__delitem__("neighbors.0._extra_state"))
    save_checkpoint(path, model)
    load_weights(interlacer(3), path)
