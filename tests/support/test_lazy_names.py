"""Packages whose names are imported when they are first used."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import topomask as tm

PACKAGES = ("data", "masks", "models", "nn", "train")


@pytest.mark.parametrize("name", PACKAGES)
def test_every_name_resolves_and_is_listed(name):
    package = getattr(tm, name)
    for each in package.__all__:
        assert getattr(package, each) is not None
        assert each in dir(package)


@pytest.mark.parametrize("name", PACKAGES)
def test_modules_are_found_and_unknown_names_are_not(name):
    package = getattr(tm, name)
    first = next(path.stem for path in sorted(Path(package.__file__).parent.glob("*.py")) if path.stem[0] != "_")
    assert importlib.import_module(f"topomask.{name}.{first}") is getattr(package, first)
    with pytest.raises(AttributeError, match=f"'topomask.{name}' has no attribute 'nothing'"):
        _ = package.nothing


@pytest.mark.parametrize("first", ["import topomask.data.motifs", "from topomask.data.motifs import MOTIFS"])
def test_a_module_does_not_hide_the_function_of_its_name(first):
    code = f"""
{first}
import sys, types, topomask as tm
from topomask.data import motifs
assert isinstance(motifs, types.FunctionType) and tm.data.motifs is motifs
assert sys.modules["topomask.data.motifs"].motifs is motifs
"""
    environment = os.environ | {"PYTHONPATH": str(Path(tm.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
