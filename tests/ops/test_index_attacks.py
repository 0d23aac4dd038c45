"""Index arrays that are wrong neither crash a process nor give a wrong answer."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import topomask as tm

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize(("first", "count"), [(0, 84), pytest.param(100, 7000, marks=pytest.mark.slow)])
def test_attacks_are_refused_or_answered(first, count):
    environment = os.environ | {"PYTHONPATH": f"{Path(tm.__file__).parents[1]}{os.pathsep}{TESTS}"}
    command = [sys.executable, "-W", "ignore", "-m", "helpers.index_attacks", str(first), str(count)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    assert "'refused'" in done.stdout
