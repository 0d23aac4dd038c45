"""The command line where none of the extras are installed."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from topomask.recipes.images import digits
from topomask.support.config import to_dict

ROOT = Path(__file__).parents[2]
# What torch, numpy, scipy and numba do not bring along; networkx comes with torch.
EXTRAS = ("PIL", "av", "matplotlib", "rich", "safetensors", "sklearn", "tensorboard", "torch_geometric")
# What is asked for, what is installed beside the core, and the error; none where it works.
CASES = [
    (["--help"], [], None),
    (["mask", "--help"], [], None),
    (["list"], [], None),
    *((["list", kind], [], None) for kind in ("recipes", "attention", "data", "masks", "graphs")),
    (["list", "studies"], [], "topomask[plot]"),
    (["doctor"], [], None),
    (["mask", "walk", "--graph", "path:4"], [], "topomask[plot]"),
    (["demo"], [], "topomask[plot]"),
    (["reproduce", "fig3"], [], "topomask[plot]"),
    (["train", "digits", "--help"], [], None),
    (["train", "digits"], [], "topomask[train,plot]"),
    (["train", "digits"], ["safetensors"], "topomask[plot]"),
    (["train", "digits"], ["safetensors", "matplotlib", "PIL"], "topomask[data]"),
    (["train", "video-folder", "--data.path", "."], ["safetensors", "matplotlib", "PIL"], "topomask[video]"),
    (["predict", "{run}", "cat.png"], [], "topomask[train]"),
    (["eval", "{run}"], [], "topomask[train]"),
]
CODE = """
import contextlib, importlib.util, io, json, sys

# As if they were not installed: the import system does not find them.
extras, cases = json.loads(sys.argv[1]), json.loads(sys.argv[2])
hidden = set(extras)

class Without:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in hidden else self.finder.find_spec(name, path, target)

sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
from topomask.cli import main

found = []
for arguments, installed in cases:
    hidden = set(extras) - set(installed)
    out, code = io.StringIO(), 0
    with contextlib.redirect_stdout(out):
        try:
            main(arguments)
        except SystemExit as stop:
            code = stop.code
    found.append([code, out.getvalue()])
    for name in [name for name in sys.modules if name.partition(".")[0] in {"experiments", "benchmarks", *extras}]:
        del sys.modules[name]
print("@" + json.dumps(found))
"""


@cache
def outcomes(folder: Path) -> list:
    run = folder / "run"
    (run / "checkpoints").mkdir(parents=True)
    (run / "checkpoints" / "step-000000001.safetensors").write_bytes(b"")
    (run / "config.json").write_text(json.dumps(to_dict(digits().fitted())))
    cases = [[[part.format(run=run) for part in arguments], installed] for arguments, installed, _ in CASES]
    done = subprocess.run(
        [sys.executable, "-c", CODE, json.dumps(EXTRAS), json.dumps(cases)],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.rpartition("@")[2])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("core")


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda number: " ".join(CASES[number][0][:2]))
def test_a_verb_works_or_names_the_extra_in_one_line(folder, number):
    arguments, _, extra = CASES[number]
    code, out = outcomes(folder)[number]
    if extra is None:
        assert code == 0, code
        assert out
    else:
        assert isinstance(code, str)
        assert f"pip install '{extra}'" in code
        assert "\n" not in code
    if arguments == ["list"]:
        assert all(f"{kind}:\n" in out for kind in ("recipes", "attention", "data", "masks", "graphs", "studies"))
