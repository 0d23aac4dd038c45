"""Packages whose names are imported when they are first used."""

import importlib
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

import topomask as tm
from topomask.data import ImageFolder, VideoFolder
from topomask.data.digits import digits
from topomask.support.imports import EXTRAS, Extra, installed, need

PACKAGES = ("attention", "data", "masks", "models", "nn", "train", "walks")


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


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(EXTRAS, "no_such_module", Extra("Balls", "balls", "circus"))
    assert not installed("no_such_module")
    for module in ("no_such_module", "no_such_module.inner"):
        with pytest.raises(ModuleNotFoundError, match=r"Juggling needs Balls.*pip install 'topomask\[circus\]'"):
            need(module, "Juggling")


def test_extras_are_those_that_can_be_installed():
    declared = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    for module, (_, distribution, extra) in EXTRAS.items():
        assert any(each.startswith(distribution) for each in declared["optional-dependencies"][extra])
        assert installed(module), "`make install` installs all of them"


def test_a_package_that_is_broken_inside_keeps_its_own_message(tmp_path, monkeypatch):
    (tmp_path / "broken_package.py").write_text("import also_not_there")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="also_not_there"):
        need("broken_package", "Anything")


@pytest.mark.parametrize(
    ("module", "make", "message"),
    [
        ("sklearn", lambda folder: digits(), r"'digits' needs scikit-learn.*topomask\[data\]"),
        ("PIL", lambda folder: ImageFolder(folder), r"Reading images needs Pillow.*topomask\[data\]"),
        ("av", lambda folder: VideoFolder(folder), r"videos needs PyAV, .*topomask\[video\]"),
    ],
)
def test_sets_say_which_extra_they_need(tmp_path, monkeypatch, module, make, message):
    (tmp_path / "train" / "cat").mkdir(parents=True)
    (tmp_path / "train" / "cat" / "1.png").write_bytes(b"")
    hide(module, monkeypatch)
    with pytest.raises(ModuleNotFoundError, match=message):
        make(tmp_path)


def hide(module, monkeypatch):
    """As if the module were not installed."""
    for name in [name for name in sys.modules if name.partition(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [_Refuse(module), *sys.meta_path])


class _Refuse:
    def __init__(self, module):
        self.module = module

    def find_spec(self, name, *_):
        if name.partition(".")[0] == self.module:
            raise ModuleNotFoundError(f"No module named {self.module!r}", name=self.module)


def test_checkpoints_and_plots_say_which_extra_they_need(tmp_path, monkeypatch):
    for module in ("safetensors", "matplotlib"):
        hide(module, monkeypatch)
    (tmp_path / "there").touch()
    with pytest.raises(ModuleNotFoundError, match=r"A checkpoint needs safetensors, .*topomask\[train\]"):
        tm.train.read_checkpoint(tmp_path / "there")
    with pytest.raises(ModuleNotFoundError, match=r"A checkpoint needs safetensors, .*topomask\[train\]"):
        tm.train.save_checkpoint(tmp_path / "new", torch.nn.Linear(1, 1))
    with pytest.raises(ModuleNotFoundError, match=r"A plot needs matplotlib, .*topomask\[plot\]"):
        tm.train.plots._new_figure(1, 1)
