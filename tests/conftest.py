import os
import signal

import pytest
import torch

# Plans are tested with the constants that are shipped, not with those of the machine.
os.environ["TOPOMASK_COSTS"] = os.devnull + ".missing"

# Two workers share two cores: threads inside a worker would only wait for each other.
if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)


# A shell that starts the tests in the background has them ignore Ctrl-C, which some of them send to themselves.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Every test draws the same numbers, whichever ran before it."""
    torch.manual_seed(0)


@pytest.fixture
def forget_data():
    """A function that lets go of the sets that recipes keep; they are forgotten before and after the test, too."""
    from topomask.recipes import graphs, nodes

    def forget() -> None:
        for kept in (graphs._motifs, graphs._tu, graphs._fold, nodes._load):
            kept.cache_clear()

    forget()
    yield forget
    forget()
