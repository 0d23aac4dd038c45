"""Masks by name: every line of the registry against the classes."""

import dataclasses
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

import topomask as tm
from topomask.masks.registry import CLASS_NAMES, MASKS, ON_GRAPHS
from topomask.models import GraphMaskOptions
from topomask.models.graph_masks import GRAPH_MASKS, layer_masks, options_of
from topomask.pictures.named_graphs import BUILDERS, load_graph
from topomask.pictures.named_masks import build_mask

LEARNT = ["learnable", "shared_heads"]


def test_every_public_mask_is_in_the_registry():
    classes = {name for name in tm.__all__ if name.endswith("Mask") and name != "Mask"}
    assert {entry.class_name for entry in MASKS.values()} == classes
    for entry in MASKS.values():
        assert getattr(tm, entry.class_name).__module__ == f"topomask.masks.{entry.module}"


@pytest.mark.parametrize("name", MASKS)
def test_an_entry_agrees_with_the_class(name):
    entry = MASKS[name]
    options = entry.options()
    assert callable(entry.load())
    assert name == name.lower()
    assert entry.about
    assert "O(" in entry.product or entry.place == "masks"
    first = next(iter(inspect.signature(entry.load()).parameters))
    assert first == entry.place or entry.place in ("matrix", "masks")
    assert options.keys() >= {*entry.picture, *(entry.in_models or {}), *entry.model_names}
    fields = {field.name for field in dataclasses.fields(GraphMaskOptions)}
    assert fields >= set(entry.model_names.values())
    # What has no default must be known, for pictures and for models.
    needed = {option.name for option in options.values() if option.default is option.empty}
    assert needed <= entry.picture.keys() or name not in ON_GRAPHS
    assert entry.in_models is None or needed <= entry.in_models.keys()


@pytest.mark.parametrize("name", ON_GRAPHS)
def test_the_example_is_a_graph_that_the_mask_can_be_on(name):
    kind = ON_GRAPHS[name].example
    source = load_graph(f"{kind}:{BUILDERS[kind].example}")
    assert build_mask(name, source, {}).on().num_keys == source.graph.num_nodes


@pytest.mark.parametrize("name", GRAPH_MASKS)
def test_graph_transformers_take_it_without_a_graph(name):
    (mask,) = layer_masks(name, depth=1, num_heads=2)
    assert (mask is None) == (name == "none")
    if mask is not None:
        assert mask.on(tm.cycle_graph(5)).to_dense().shape[1:] == (5, 5)
        assert mask.num_heads == (2 if options_of(name) else 1)


def test_options_of_graph_transformers():
    walks = ["num_walks", "max_length", "halt_prob", "coupling"]
    frontiers = ["prune", "width", "max_entries"]
    assert options_of("walk") == [*walks, "symmetric", "normalization", "seed", "own_walks", *LEARNT, *frontiers]
    assert options_of("visit") == [*walks, "unit_diagonal", "seed", "own_walks", *LEARNT]
    assert options_of("power-series") == ["max_length", "normalization", *LEARNT]
    assert options_of("diffusion") == ["operator", "time", *LEARNT]
    assert options_of("shortest-path") == ["max_length", *LEARNT]
    assert options_of("degree") == LEARNT
    assert options_of("neighbor") == options_of("all") == options_of("none") == []


def test_nothing_heavy_is_imported():
    code = (
        "import sys, topomask.masks.registry, topomask.pictures.named_masks\n"
        "assert not {'torch', 'numpy', 'scipy', 'matplotlib'} & set(sys.modules)"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(tm.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", CLASS_NAMES)
def test_sizes_are_passed_by_name(name):
    """The second argument of a mask is a number of walks here, of heads there: nobody may have to remember which."""
    kind = getattr(tm, name)
    first, *options = inspect.signature(kind).parameters.values()
    sizes = [
        option.name for option in options if "int" in str(option.annotation) and option.kind != option.KEYWORD_ONLY
    ]
    assert sizes == (["num_prefix"] if name == "PrefixMask" else []), first
    if options and all(option.kind == option.KEYWORD_ONLY for option in options):
        with pytest.raises(
            TypeError, match=rf"{name} takes its options by name, such as num_heads=4, but got 4 without"
        ):
            kind(None, 4)
