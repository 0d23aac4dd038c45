import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import topomask as tm
from helpers import training, two_processes
from topomask.train import join_processes, read_checkpoint, read_metrics
from topomask.train.processes import check_precision


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> Path:
    """What two processes have left; see helpers/two_processes.py."""
    folder = tmp_path_factory.mktemp("shared")
    source = Path(tm.__file__).parents[1]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(source), str(Path(training.__file__).parents[1])]),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, "-m", "helpers.two_processes", str(folder)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return folder


def last(folder: Path):
    return read_checkpoint(max((folder / "checkpoints").glob("step-*")))


# Of 8 examples each process has 4, of 3 they have 2 and 1.
@pytest.mark.parametrize(("name", "examples"), [("one step", 51), ("one ragged step", 3)])
def test_gradients_are_those_of_one_process_with_the_whole_batch(name, examples, shared, tmp_path):
    two_processes.run_plainly(tmp_path, two_processes.ONE_STEP, examples)
    alone = last(tmp_path).moments
    together = last(shared / name).moments
    # After one step the running mean is the gradient times 1 - beta.
    names = [name for name in alone if name.endswith("exp_avg")]
    assert "attention.mask.modulation.weight.exp_avg" in names
    for name in names:
        assert alone[name].abs().max() > 0
        torch.testing.assert_close(together[name], alone[name], rtol=1e-9, atol=1e-12)


def test_a_run_is_that_of_one_process(shared, tmp_path):
    """Ragged last batches included, of which one process has 2 examples and the other 1."""
    two_processes.run_plainly(tmp_path)
    torch.testing.assert_close(last(shared / "plain").weights, last(tmp_path).weights, rtol=1e-6, atol=1e-9)
    lines = (read_metrics(path / "metrics.jsonl") for path in (tmp_path, shared / "plain"))
    for ours, theirs in zip(*lines, strict=True):
        assert (ours["event"], ours["step"]) == (theirs["event"], theirs["step"])
        assert theirs["loss"] == pytest.approx(ours["loss"], rel=1e-6)


def test_processes_have_the_same_walks(shared):
    assert (shared / "walks 0").read_bytes() == (shared / "walks 1").read_bytes() != b""


def test_a_resumed_run_gives_the_same_numbers(shared):
    """With dropout, of which every process has its own."""
    whole, resumed = (shared / name for name in ("whole", "resumed"))
    ours, theirs = last(whole), last(resumed)
    assert ours.info["step"] == 28
    assert len(ours.info["random"]) == 2
    assert ours.info["random"] == theirs.info["random"]
    assert ours.info["random"][0] != ours.info["random"][1]
    for values, others in ((ours.weights, theirs.weights), (ours.moments, theirs.moments)):
        assert all(torch.equal(value, others[name]) for name, value in values.items())
    lines = [[line | {"time": None} for line in read_metrics(path / "metrics.jsonl")] for path in (whole, resumed)]
    assert lines[0] == lines[1]


@pytest.mark.parametrize("how", ["early", "late", "copied", "compiled", "copied once wrapped", "wrapped twice"])
def test_unseeded_masks_have_the_seeds_of_the_first_process_once_wrapped(shared, how):
    """By users themselves, whose processes draw from generators of their own."""
    first, second = (json.loads((shared / f"unseeded {rank}").read_text())[how] for rank in (0, 1))
    *own, given = zip(first["before"], second["before"], strict=True)
    assert all(ours != theirs for ours, theirs in own)
    assert first["after"] == first["before"]
    # Walks that are given are the same in both, and do not depend on the seed.
    assert second["after"] == [*first["after"][:-1], given[1]]
    assert first["out"] == second["out"]
    assert first["mask"] == second["mask"]
    assert not first["names"], "a checkpoint is what it was"


def test_a_signal_to_one_process_stops_all_at_the_same_step(shared):
    assert [(shared / f"stopped {rank}").read_text() for rank in (0, 1)] == ["143", "143"]
    ours, theirs = last(shared / "whole"), last(shared / "signalled")
    assert ours.info["random"] == theirs.info["random"]
    assert all(torch.equal(value, theirs.weights[name]) for name, value in ours.weights.items())
    lines = [read_metrics(shared / name / "metrics.jsonl") for name in ("whole", "signalled")]
    assert [line | {"time": None} for line in lines[0]] == [line | {"time": None} for line in lines[1]]


def test_what_cannot_go_on_stops_in_all_processes(shared):
    for rank in (0, 1):
        different, faulty, listed, uneven, taken = (shared / f"messages {rank}").read_text().splitlines()
        assert "The 2 processes built different models" in different
        assert "step 2 (epoch 0, batch 2" in faulty
        assert "the loss is nan" in faulty
        assert "data must have a method shard(rank, world_size), but list has none" in listed
        assert "The 2 processes must have equally many batches per epoch, but have [7, 6]" in uneven
        assert "already contains a run" in taken


def test_a_run_goes_on_with_another_number_of_processes(shared, tmp_path, capsys):
    two_processes.copy_until(shared / "plain", tmp_path / "run", step=24)
    two_processes.run_plainly(tmp_path / "run", replace(training.CONFIG, progress=True), resume=True)
    assert "processes 2 is now 1" in capsys.readouterr().out
    torch.testing.assert_close(last(tmp_path / "run").weights, last(shared / "plain").weights, rtol=1e-6, atol=1e-9)


def test_a_device_that_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="`device` is 'cuda', but torch finds no CUDA device"):
        join_processes("cuda")
    assert join_processes("auto").device.type == "cpu"


def test_a_precision_that_the_device_does_not_have_is_refused(monkeypatch):
    check_precision("bfloat16", torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    check_precision("float32", torch.device("cuda"))
    with pytest.raises(ValueError, match="`precision` is 'bfloat16', but this CUDA device does not support it"):
        check_precision("bfloat16", torch.device("cuda"))
