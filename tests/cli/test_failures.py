import argparse
from functools import partial

import pytest

from topomask.cli import bench, demo, evaluate, listing, mask, predict, reproduce, train
from topomask.cli.failures import plain_failures
from topomask.train import CheckpointError, NonFiniteError


def stopped(error, **options):
    @partial(plain_failures, **options)
    def run(options):
        raise error

    with pytest.raises(SystemExit) as stop:
        run(argparse.Namespace())
    # Python itself would show the error that this one came from.
    assert stop.value.__suppress_context__
    return stop.value.code


@pytest.mark.parametrize(
    "error", [ValueError("wrong"), FileNotFoundError("wrong"), CheckpointError("wrong"), NonFiniteError("wrong")]
)
def test_what_a_user_can_mend_is_one_line(error):
    assert stopped(error) == "wrong"


def test_a_missing_package_says_how_to_install_it():
    plain = ModuleNotFoundError("No module named 'rich'", name="rich")
    assert "pip install 'topomask[train,data,plot]'" in stopped(plain)
    told = ModuleNotFoundError("Videos need PyAV: pip install 'topomask[video]'")
    assert stopped(told) == str(told)


def test_stopping_by_hand_is_no_fault():
    assert stopped(KeyboardInterrupt()) == "Stopped."
    assert stopped(KeyboardInterrupt(), go_on="Go on.") == "Stopped. Go on."


class Stops:
    """Options in which a verb is stopped as soon as it looks at one."""

    def __getattribute__(self, name):
        raise KeyboardInterrupt


VERBS = [verb.run for verb in (bench, demo, evaluate, listing, mask, predict, reproduce, train)]


@pytest.mark.parametrize("run", VERBS, ids=lambda run: f"{run.__module__}.{run.__name__}")
def test_every_verb_says_how_it_goes_on(run):
    with pytest.raises(SystemExit) as stop:
        run(Stops())
    told = {
        train.run: "Stopped. What was saved is whole; the same command goes on with --resume.",
        reproduce.run: "Stopped. What was saved is whole; the same command goes on where it was.",
    }
    assert stop.value.code == told.get(run, "Stopped.")


@pytest.mark.parametrize("error", [ValueError("x"), OSError("x"), CheckpointError("x"), KeyboardInterrupt()])
def test_the_traceback_is_there_for_who_asks(error, monkeypatch):
    for value in ("", "0", "false"):
        monkeypatch.setenv("TOPOMASK_DEBUG", value)
        stopped(error)
    monkeypatch.setenv("TOPOMASK_DEBUG", "1")

    @plain_failures
    def run(options):
        raise error

    with pytest.raises(type(error)) as found:
        run(argparse.Namespace())
    assert found.value is error


@pytest.mark.parametrize("error", [RuntimeError("fault"), TypeError("fault"), ZeroDivisionError("fault")])
def test_faults_of_the_program_keep_their_traceback(error):
    @plain_failures
    def run(options):
        raise error

    with pytest.raises(type(error), match="fault"):
        run(argparse.Namespace())
