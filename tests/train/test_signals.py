"""Runs that SIGINT (Ctrl-C) and SIGTERM stop: they save what there is first."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import topomask as tm
from helpers import training
from topomask.train import read_checkpoint
from topomask.train.processes import HeldSignals

SIGNALS = [signal.SIGINT, signal.SIGTERM]
ENDS = {signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: SystemExit}


def handlers() -> list:
    return [signal.getsignal(number) for number in SIGNALS]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A run that nothing stopped."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    training.run(folder)
    return folder


# Before the first checkpoint, where one is due anyway, between two, and in the last step.
@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("step", [0, 3, 16, 27])
def test_a_signal_saves_the_step_and_the_run_goes_on_to_the_same_numbers(number, step, whole, tmp_path, capsys):
    before = handlers()
    with pytest.raises(ENDS[number]) as stop:
        training.run(tmp_path, task=training.SignalledAt(step, number))
    if number == signal.SIGTERM:
        assert stop.value.code == 143
    saved = tmp_path / "checkpoints" / f"step-{step + 1:09d}.safetensors"
    assert read_checkpoint(saved).info["step"] == step + 1
    message = f"{number.name} at step {step + 1} of 28: saved {saved}. Pass resume=True to continue.\n"
    assert capsys.readouterr().err == message
    assert handlers() == before
    training.run(tmp_path, resume=True)
    training.assert_same_run(whole, tmp_path)


def test_a_handler_of_the_user_is_called_once_the_step_is_saved(whole, tmp_path):
    calls = []
    before = signal.signal(signal.SIGTERM, lambda number, _: calls.append((number, saved.is_file())))
    saved = tmp_path / "checkpoints" / "step-000000006.safetensors"
    try:
        training.run(tmp_path, task=training.SignalledAt(5, signal.SIGTERM))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert calls == [(signal.SIGTERM, True)]
    # It did not stop the run.
    training.assert_same_run(whole, tmp_path)


def test_a_signal_that_is_ignored_stays_ignored(whole, tmp_path):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        training.run(tmp_path, task=training.SignalledAt(5, signal.SIGINT))
    finally:
        signal.signal(signal.SIGINT, before)
    training.assert_same_run(whole, tmp_path)


def test_runs_in_other_threads_leave_signals_alone(whole, tmp_path):
    thread = threading.Thread(target=training.run, args=(tmp_path,))
    thread.start()
    thread.join()
    training.assert_same_run(whole, tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_second_signal_ends_at_once(number, tmp_path):
    source = Path(tm.__file__).parents[1]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(source), str(Path(training.__file__).parents[1])])}
    code = f"from helpers import training as t; t.run({str(tmp_path)!r}, task=t.SignalledAt(5, {number:d}, times=2))"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == -number, done.stderr
    assert done.stderr == ""
    assert [path.name for path in (tmp_path / "checkpoints").glob("step-*")] == ["step-000000004.safetensors"]


def test_processes_that_are_forked_meanwhile_can_be_ended():
    """Workers of a pool inherit handlers; they have nothing to save."""
    context = multiprocessing.get_context("fork")
    with HeldSignals():
        child = context.Process(target=time.sleep, args=(60,))
        child.start()
        time.sleep(0.2)
        child.terminate()
        child.join(10)
    assert child.exitcode == -signal.SIGTERM
