import errno
import json
import os
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch

import topomask as tm
from helpers import training
from topomask.attention import costs
from topomask.train import (
    CheckpointError,
    Classification,
    FolderInUse,
    build_optimizer,
    read_checkpoint,
    read_metrics,
    save_checkpoint,
)
from topomask.train.checkpoint import restore_checkpoint
from topomask.train.run_folder import RunFolder, versions


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A run that nothing stopped."""
    folder = tmp_path_factory.mktemp("whole")
    training.run(folder / "run")
    return folder / "run"


def test_a_run_that_was_killed_again_and_again_gives_the_same_numbers(tmp_path):
    source = Path(tm.__file__).parents[1]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(source), str(Path(training.__file__).parents[1])])}
    command = [sys.executable, "-m", "helpers.killed_runs", str(tmp_path), "0"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    at_lines, at_moments = json.loads(done.stdout)
    assert min(at_lines, at_moments) >= 2
    training.assert_same_run(tmp_path / "whole", tmp_path / "at lines")
    training.assert_same_run(tmp_path / "whole", tmp_path / "at moments")


@pytest.mark.slow
def test_nothing_is_lost_by_signals_at_any_moment(tmp_path):
    folders = [Path(tm.__file__).parents[1], *Path(training.__file__).parents[1:3]]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, folders)), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "helpers.kill_storm", str(tmp_path), "0", "16"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert counts["kills"] == 16
    assert counts["gone on to the same numbers"] > 0
    assert (counts["lost"], counts["other numbers"], counts["temporary files left"]) == (0, 0, 0)


# Before the first checkpoint, just after one, inside an epoch, at its end, and in the last step.
@pytest.mark.parametrize("step", [0, 3, 4, 5, 7, 18, 27])
def test_a_run_that_broke_off_gives_the_same_numbers(step, whole, tmp_path):
    with pytest.raises(training.StoppedError):
        training.run(tmp_path, task=training.StopsAt(step))
    torch.manual_seed(99)
    training.run(tmp_path, resume=True)
    training.assert_same_run(whole, tmp_path)


def test_resuming_a_run_that_is_done_does_nothing(whole):
    before = {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()}
    result = training.run(whole, resume=True, task=training.StopsAt(0))
    assert {path: path.read_bytes() for path in before} == before
    assert result.step == 28
    assert result.metrics["accuracy"] == read_metrics(whole / "metrics.jsonl")[-1]["accuracy"]
    assert result.seconds > 0
    assert result.best["accuracy"] >= result.metrics["accuracy"]


def test_a_folder_with_a_run_is_not_overwritten(whole, tmp_path):
    with pytest.raises(FileExistsError, match=r"already contains a run. Pass resume=True"):
        training.run(whole)
    # A run whose metrics were removed is one too.
    run = shutil.copytree(whole, tmp_path / "run")
    (run / "metrics.jsonl").unlink()
    with pytest.raises(FileExistsError, match="already contains a run"):
        training.run(run)


def test_another_config_is_refused_by_its_fields(whole, tmp_path):
    run = shutil.copytree(whole, tmp_path / "run")
    with pytest.raises(
        CheckpointError, match=r"another config: train.optim.lr=0.02 is now 0.01, train.seed=0 is now 1\."
    ):
        training.run(run, replace(training.CONFIG, seed=1, optim=replace(training.OPTIM, lr=0.01)), resume=True)
    # What does not change the numbers may change.
    training.run(run, replace(training.CONFIG, keep=9, checkpoint_every=3), resume=True)


def test_lines_that_are_not_whole_are_cut(whole, tmp_path):
    with pytest.raises(training.StoppedError):
        training.run(tmp_path, task=training.StopsAt(18))
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"event": "train", "st')
    training.run(tmp_path, resume=True)
    training.assert_same_run(whole, tmp_path)


def test_lines_that_are_cut_are_said(tmp_path, capsys):
    with pytest.raises(training.StoppedError):
        training.run(tmp_path, task=training.StopsAt(18))
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"event": "train", "st')
    training.run(tmp_path, replace(training.CONFIG, progress=True), resume=True)
    said = capsys.readouterr().out.splitlines()[0]
    # Step 18 has a line of training, and the last checkpoint is of step 16.
    assert said == (
        "Resuming from step 16. Lines removed from metrics.jsonl: 1 after that step, which will be written again; "
        "1 incomplete."
    )


@pytest.mark.parametrize(
    ("kept", "missing"),
    [
        (0, r"8 lines from before step 17 are missing: train at step 3, .*train at step 15 and 3 more\."),
        (6, r"2 lines from before step 17 are missing: train at step 15, eval at step 15\."),
    ],
)
def test_metrics_that_were_cut_short_are_noticed(kept, missing, whole, tmp_path):
    with pytest.raises(training.StoppedError):
        training.run(tmp_path, task=training.StopsAt(17))
    path = tmp_path / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    assert len(lines) == 8
    # In the middle of a line.
    path.write_text("".join(lines[:kept]) + lines[kept][:20])
    with pytest.warns(UserWarning, match=missing):
        training.run(tmp_path, resume=True)
    found = read_metrics(whole / "metrics.jsonl")
    assert [line | {"time": None} for line in read_metrics(path)] == [
        line | {"time": None} for line in found[:kept] + found[8:]
    ]


def test_a_damaged_checkpoint_is_an_error_unless_told_otherwise(whole, tmp_path):
    with pytest.raises(training.StoppedError):
        training.run(tmp_path, task=training.StopsAt(18))
    last = tmp_path / "checkpoints" / "step-000000016.safetensors"
    last.write_bytes(last.read_bytes()[:-1])
    with pytest.raises(CheckpointError) as found:
        training.run(tmp_path, resume=True)
    assert "step-000000016.safetensors is damaged or cut short" in str(found.value)
    assert "Pass fallback=True (--fallback on the command line) to continue from an older" in str(found.value)
    assert "checkpoint; the one before it is step-000000012.safetensors" in str(found.value)
    with pytest.warns(UserWarning, match=r"It was renamed to \.damaged; the one before it is step-000000012"):
        training.run(tmp_path, resume=True, fallback=True)
    (tmp_path / "checkpoints" / "step-000000016.damaged").unlink()
    training.assert_same_run(whole, tmp_path)


def test_what_changes_the_rounding_is_said(whole, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("topomask.train.running.versions", lambda: {"torch": "0.1"})
    training.run(shutil.copytree(whole, tmp_path / "run"), replace(training.CONFIG, progress=True), resume=True)
    said = capsys.readouterr().out
    assert "Resuming from step 28. Results may differ from those of an uninterrupted run: torch " in said
    assert "is now 0.1" in said


def test_all_that_changes_the_numbers_is_said(whole, tmp_path, capsys, monkeypatch):
    """Packages that came or went, and other constants of the planner."""
    now = versions() | {"costs": "0000", "scipy": "0.2"}
    del now["numba"]
    monkeypatch.setattr("topomask.train.running.versions", lambda: now)
    training.run(shutil.copytree(whole, tmp_path / "run"), replace(training.CONFIG, progress=True), resume=True)
    said = capsys.readouterr().out
    before = versions()
    changes = [f"{name} {before[name]} is now {now.get(name, 'missing')}" for name in ("scipy", "costs", "numba")]
    assert f"uninterrupted run: {', '.join(changes)}." in said


def test_the_constants_of_the_planner_are_told_apart(monkeypatch):
    before = versions()["costs"]
    monkeypatch.setattr(costs, "constants", dict(costs.DEFAULTS) | {"dense: call": 1.0})
    assert versions()["costs"] != before
    assert len(before) == 8


def change_info(path: Path, change) -> None:
    """Write a checkpoint again, with another header."""
    found = read_checkpoint(path)
    model = training.Tiny()
    optimizer = build_optimizer(model, training.OPTIM)
    restore_checkpoint(found, model, optimizer)
    change(found.info)
    save_checkpoint(path, model, optimizer, found.info)


def test_a_checkpoint_of_an_earlier_version_is_gone_on_from(tmp_path, capsys, whole):
    with pytest.raises(training.StoppedError):
        training.run(tmp_path, task=training.StopsAt(18))

    def age(info):
        del info["length"]
        for name in ("numba", "scipy", "scikit-learn", "torch-geometric", "costs"):
            del info["versions"][name]

    change_info(tmp_path / "checkpoints" / "step-000000016.safetensors", age)
    training.run(tmp_path, replace(training.CONFIG, progress=True), resume=True)
    assert "Results may differ" not in capsys.readouterr().out
    assert read_metrics(tmp_path / "metrics.jsonl")[-1]["loss"] == read_metrics(whole / "metrics.jsonl")[-1]["loss"]


@pytest.mark.parametrize(
    ("config", "data", "message"),
    [
        (
            training.CONFIG,
            training.make_data(64),
            "7 steps per epoch, but there are 8 now, and 28 steps in total, but there are 32 now: the data, the",
        ),
        (
            replace(training.CONFIG, epochs=None, steps=20),
            training.make_data(batch_size=4),
            "7 steps per epoch, but there are 13 now: the data, the batch size or the number of processes changed",
        ),
    ],
)
def test_a_run_whose_data_changed_is_not_gone_on_with(config, data, message, tmp_path):
    with pytest.raises(training.StoppedError):
        training.run(tmp_path, config, task=training.StopsAt(18))
    with pytest.raises(CheckpointError) as found:
        training.run(tmp_path, config, data=data, resume=True)
    assert message in str(found.value)
    # The folder is as it was, and free.
    training.run(tmp_path, config, resume=True)


# Holds the folder of a run until its input ends.
HOLD = """
import sys
from pathlib import Path
from topomask.train.run_folder import RunFolder
folder = RunFolder(Path(sys.argv[1]), {})
folder.open(resume=True, fallback=False)
print("open", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def held(tmp_path):
    """A folder in which another process is at work, and that process."""
    environment = os.environ | {"PYTHONPATH": str(Path(tm.__file__).parents[1])}
    command = [sys.executable, "-c", HOLD, str(tmp_path / "run")]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "open\n"
        yield tmp_path / "run", other
        other.kill()


@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_is_for_one_process_at_a_time(held, resume):
    folder, other = held
    # Ours, and that of safetensors.
    unfinished = [folder / "checkpoints" / name for name in (".step-000000004.safetensors.1.tmp", ".tmpCj6ftg")]
    for path in unfinished:
        path.touch()
    with pytest.raises(FolderInUse, match=r"Another process is training in .*run. Wait for it to finish"):
        training.run(folder, resume=resume)
    assert all(path.exists() for path in unfinished), "they may be the other's"
    assert not (folder / "metrics.jsonl").exists()
    # A process that was killed is not an obstacle, and neither is what it left.
    other.kill()
    other.wait()
    training.run(folder, resume=resume)
    assert not any(path.exists() for path in unfinished)


def test_a_run_does_not_start_in_the_folder_of_one_that_goes_on(tmp_path):
    class Intrudes(Classification):
        def loss(self, model, batch):
            with pytest.raises(FolderInUse):
                training.run(tmp_path, resume=True)
            return super().loss(model, batch)

    training.run(tmp_path, replace(training.CONFIG, epochs=None, steps=1), task=Intrudes())


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK])
def test_without_locks_runs_go_on(number, tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(number, "no locks on this file system")

    monkeypatch.setattr("fcntl.flock", refuse)
    training.run(tmp_path, replace(training.CONFIG, epochs=None, steps=1))


def test_a_lock_that_cannot_be_opened_is_not_passed_over(tmp_path):
    (tmp_path / "lock").mkdir()
    with pytest.raises(IsADirectoryError, match="lock"):
        training.run(tmp_path)


def test_a_folder_is_free_once_it_is_closed_however_often_it_was_opened(tmp_path):
    first, second = RunFolder(tmp_path, {}), RunFolder(tmp_path, {})
    for _ in range(2):
        first.open(resume=True, fallback=False)
    with pytest.raises(FolderInUse):
        second.open(resume=True, fallback=False)
    # In another thread, as a server might.
    thread = threading.Thread(target=first.close)
    thread.start()
    thread.join()
    second.open(resume=True, fallback=False)
    second.close()


# The best of the small run of `training` is early, so that it stops before its 28 steps.
PATIENT = replace(training.CONFIG, epochs=12, patience=2)


def test_a_run_stops_when_evaluations_get_no_better(tmp_path):
    result = training.run(tmp_path / "a", PATIENT)
    evaluated = [line for line in read_metrics(tmp_path / "a" / "metrics.jsonl") if line["event"] == "eval"]
    assert result.step == evaluated[-1]["step"] < 12 * 7
    accuracies = [line["accuracy"] for line in evaluated]
    assert result.best["accuracy"] == max(accuracies) == accuracies[-3]
    no_better = [accuracy <= max(accuracies[:k]) for k, accuracy in enumerate(accuracies) if k]
    # Two in a row, at the end and nowhere before.
    assert [a and b for a, b in pairwise(no_better)] == [False] * (len(no_better) - 2) + [True]
    # A patience that is never exhausted changes nothing but itself.
    endless = training.run(tmp_path / "b", replace(PATIENT, epochs=4, patience=99))
    assert endless.step == 28
    with pytest.raises(ValueError, match="`patience` counts evaluations, but there is nothing to evaluate on"):
        training.run(tmp_path / "c", PATIENT, valid=None)
    with pytest.raises(ValueError, match="`patience` must be at least 1"):
        replace(PATIENT, patience=0)


def test_a_run_that_stopped_early_goes_on_with_more_patience(tmp_path):
    stopped = training.run(tmp_path / "a", PATIENT)
    endless = replace(PATIENT, patience=None)
    on, never_stopped = training.run(tmp_path / "a", endless, resume=True), training.run(tmp_path / "b", endless)
    assert stopped.step < on.step == never_stopped.step == 12 * 7
    weights = on.model.state_dict()
    assert all(torch.equal(weights[name], value) for name, value in never_stopped.model.state_dict().items())
    assert on.best == never_stopped.best
    # With less it would have stopped before.
    for less in (PATIENT, replace(PATIENT, patience=1)):
        with pytest.raises(CheckpointError, match=f"train.patience=None is now {less.patience}"):
            training.run(tmp_path / "b", less, resume=True)


def test_a_run_that_stops_early_resumes_to_the_same_numbers(tmp_path):
    whole = training.run(tmp_path / "whole", PATIENT)
    for step in (whole.step - 1, whole.step - 6, 5):
        folder = tmp_path / str(step)
        with pytest.raises(training.StoppedError):
            training.run(folder, PATIENT, task=training.StopsAt(step))
        torch.manual_seed(99)
        assert training.run(folder, PATIENT, resume=True).step == whole.step
        training.assert_same_run(tmp_path / "whole", folder)
    files = {path: path.read_bytes() for path in (tmp_path / "whole").rglob("*") if path.is_file()}
    again = training.run(tmp_path / "whole", PATIENT, resume=True, task=training.StopsAt(0))
    assert again.step == whole.step
    assert {path: path.read_bytes() for path in files} == files
