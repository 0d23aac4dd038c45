import argparse

import pytest

from topomask.cli.failures import plain_failures
from topomask.train import CheckpointError, NonFiniteError


def stopped(error):
    @plain_failures
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
    assert "--resume" in stopped(KeyboardInterrupt())


@pytest.mark.parametrize("error", [RuntimeError("fault"), TypeError("fault"), ZeroDivisionError("fault")])
def test_faults_of_the_program_keep_their_traceback(error):
    @plain_failures
    def run(options):
        raise error

    with pytest.raises(type(error), match="fault"):
        run(argparse.Namespace())
