"""Packages whose names are imported when they are first used."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import topomask as tm
from topomask.data import ImageFolder, VideoFolder
from topomask.data.digits import digits
from topomask.support.imports import need

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


def test_a_missing_package_is_named_with_its_extra():
    with pytest.raises(ModuleNotFoundError, match=r"Juggling needs Balls.*pip install 'topomask\[circus\]'"):
        need("no_such_module", "Balls", "circus", "Juggling")


def test_a_package_that_is_broken_inside_keeps_its_own_message(tmp_path, monkeypatch):
    (tmp_path / "broken_package.py").write_text("import also_not_there")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="also_not_there"):
        need("broken_package", "Broken", "data", "Anything")


@pytest.mark.parametrize(
    ("module", "make", "message"),
    [
        ("sklearn", lambda folder: digits(), r"'digits' needs scikit-learn.*topomask\[data\]"),
        ("PIL", lambda folder: ImageFolder(folder), r"pictures needs Pillow.*topomask\[data\]"),
        ("av", lambda folder: VideoFolder(folder), r"videos needs PyAV.*topomask\[video\]"),
    ],
)
def test_sets_say_which_extra_they_need(tmp_path, monkeypatch, module, make, message):
    (tmp_path / "train" / "cat").mkdir(parents=True)
    (tmp_path / "train" / "cat" / "1.png").write_bytes(b"")
    for name in [name for name in sys.modules if name.partition(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [_Refuse(module), *sys.meta_path])
    with pytest.raises(ModuleNotFoundError, match=message):
        make(tmp_path)


class _Refuse:
    def __init__(self, module):
        self.module = module

    def find_spec(self, name, *_):
        if name.partition(".")[0] == self.module:
            raise ModuleNotFoundError(f"No module named {self.module!r}", name=self.module)
