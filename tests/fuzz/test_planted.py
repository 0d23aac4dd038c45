"""The fuzzer catches faults that are planted. ``python -m tests.fuzz.planted`` plants all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz.faults import FAULTS, Fault
from fuzz.planted import SOURCE, baseline, catch, plant

# Faults of a gradient and of a feature map that are quick to catch.
QUICK = ("wrong sign in the gradient of a quotient", "a clamp of exponents in elu")


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_has_its_place(fault: Fault) -> None:
    """The list is up to date: every fault replaces one piece of source by another."""
    text = (SOURCE / "topomask" / fault.file).read_text()
    assert text.count(fault.old) == 1
    assert fault.new != fault.old


def test_fault_without_a_place_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is there 0 times\. Update"):
        plant(Fault("none", "ops/quotient.py", "no such line", ""), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault.name in QUICK], ids=lambda fault: fault.name)
def test_planted_fault_is_caught(fault: Fault) -> None:
    assert not baseline(fault.backend, 100)
    assert catch(fault, set(), 100) is not None
