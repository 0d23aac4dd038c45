"""What a run imports: its own domain, and nothing to draw with before something is drawn."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

from topomask.masks.registry import MASKS

ROOT = Path(__file__).parents[2]
# Modules of topomask that `topomask train digits` may import.
BAR = 90
# Other domains: the parts of the library that pictures have no use for.
OTHERS = {
    "recipes": ("graphs", "nodes", "particles", "videos"),
    "pictures": ("mask_pictures", "plots", "pages"),
    "models": ("baselines", "graph_masks", "graph_transformer", "interlacer", "neighbors", "video"),
    "data": ("cifar", "class_folders", "folds", "graph_set", "mnist", "motifs", "node_sets", "particles", "tu"),
    "masks": tuple({entry.module for entry in MASKS.values()} - {"walk"}),
    "nn": ("graph_convolution", "message_passing", "readout", "sparse_rows", "stochastic_position"),
    "train": ("graph_tasks",),
    "cli": ("checkout", "doctor", "listing", "mask", "reproduce", "trained"),
}
TRAIN = """
import json, sys, tempfile
from topomask.cli import main
from topomask.recipes import experiment

draw, found = experiment.plot_run, {}
def plot_run(*arguments):
    found["before drawing"] = sorted(sys.modules)
    return draw(*arguments)

experiment.plot_run = plot_run
small = ["--data.limit=32", "--data.batch_size=32", "--model.depth=1", "--train.progress=False"]
with tempfile.TemporaryDirectory() as folder:
    main(["train", "digits", "--output", folder, "--train.epochs=1", *small])
found["in all"] = sorted(sys.modules)
print(json.dumps(found))
"""


@cache
def modules_of_a_run() -> dict[str, list[str]]:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", TRAIN], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_training_imports_no_other_domain():
    others = {f"topomask.{package}.{name}" for package, names in OTHERS.items() for name in names}
    assert not others & set(modules_of_a_run()["in all"])
    # A module that was renamed would never be found.
    assert all((ROOT / "src" / f"{name.replace('.', '/')}.py").is_file() for name in others)


def test_matplotlib_is_imported_where_something_is_drawn():
    found = modules_of_a_run()
    drawing = {"matplotlib", "PIL"}
    assert not drawing & set(found["before drawing"])
    assert drawing <= set(found["in all"])


def test_few_modules_are_imported():
    own = [name for name in modules_of_a_run()["in all"] if name.split(".")[0] == "topomask"]
    assert len(own) < BAR, f"{len(own)}: {' '.join(own)}"
