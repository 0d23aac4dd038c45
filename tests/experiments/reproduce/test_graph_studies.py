"""Tables on graphs from end to end, on files of a few kilobytes."""

from dataclasses import replace
from functools import partial

import pytest

from experiments.reproduce.registry import GROUPS, STUDIES, reproduce
from experiments.reproduce.study import collect
from helpers.graph_files import write_graphs, write_nodes
from topomask.cli import main
from topomask.data import motifs
from topomask.data.node_sets import NODE_SETS
from topomask.data.tu import TU_SETS, TUEntry
from topomask.recipes import graphs

SHORT = ["--train.epochs", "1", "--train.progress", "False"]


@pytest.fixture(autouse=True)
def _own_data(monkeypatch, tmp_path, forget_data):
    """Sets of the same name come from other files here."""
    monkeypatch.setenv("TOPOMASK_DATA", str(tmp_path / "data"))


def run(name, folder, seeds=(0, 1)):
    return reproduce(name, folder / "results", folder / "runs", overrides=SHORT, seeds=seeds)


def values_of(name, folder):
    study = STUDIES[name]().changed(SHORT)
    return collect(study, folder / "results")


def test_a_table_of_graphs(monkeypatch, tmp_path):
    write_graphs(tmp_path / "data", "PROTEINS")
    monkeypatch.setitem(TU_SETS, "PROTEINS", TUEntry(24, 2))
    section = run("gkat-proteins", tmp_path)
    values = values_of("gkat-proteins", tmp_path)
    assert {cell: set(own) for cell, own in values.items()} == {cell: {0, 1} for cell in ("grf", "unmasked", "mlp")}
    ours = [row for row in section.table.rows if "(2 folds)" in row[2]]
    assert len(ours) == 3
    assert "[" in ours[0][3], "masked minus unmasked has an interval"
    assert "GKAT's published value, 75.8 ± 3.8 %: open here, with" in section.notes[2]
    assert section.notes[-1].startswith("Not complete yet")
    # Results do not survive a change of the input.
    monkeypatch.setitem(TU_SETS, "PROTEINS", TUEntry(24, 2, degree="log"))
    assert not any(values_of("gkat-proteins", tmp_path).values())


def test_the_command_says_what_a_group_lacks(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    main(["reproduce", "gkat-social", "--show"])
    printed = capsys.readouterr().out
    assert "REDDIT-MULTI-5K (REDDIT-5K), a row of GKAT's table, is not available here" in printed
    assert "0 of 4; not complete yet: 4" in printed


def test_what_a_group_lacks_is_judged_by_what_was_run(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    write_graphs(tmp_path / "data", "PROTEINS")
    monkeypatch.setitem(TU_SETS, "PROTEINS", TUEntry(24, 2))
    monkeypatch.setitem(GROUPS, "gkat-bio", ("gkat-proteins", "gkat-dd"))
    whole = replace(STUDIES["gkat-proteins"](), seeds=2)
    monkeypatch.setitem(STUDIES, "gkat-proteins", lambda: whole)
    folders = {"--results": tmp_path / "own", "--runs": tmp_path / "own-runs"}
    reproduce("gkat-proteins", *folders.values(), overrides=SHORT, only=["grf"])
    main(["reproduce", "gkat-bio", "--show", *(str(part) for pair in folders.items() for part in pair), *SHORT])
    assert "of 2; not complete yet: 1" in capsys.readouterr().out


@pytest.mark.parametrize(("name", "field"), [("gkat-dd", "data.fold"), ("nodes-minesweeper", "data.split")])
def test_folds_and_splits_are_those_of_the_seeds(name, field, tmp_path):
    with pytest.raises(ValueError, match=rf"`{field}` cannot be set.*Pass --seeds"):
        reproduce(name, tmp_path, tmp_path, overrides=[f"--{field}", "3"])


def test_fields_that_only_some_rows_have_tell_them_apart(tmp_path):
    with pytest.raises(ValueError, match=r"`model.mask` cannot be set: the runs .* differ in it. Pass --only"):
        reproduce("motif-cycle", tmp_path, tmp_path, overrides=["--model.mask", "walk"])
    with pytest.raises(ValueError, match=r"`data.name` cannot be set: the published values"):
        reproduce("motif-cycle", tmp_path, tmp_path, overrides=["--data.name", "grid"])


def test_a_table_of_motifs(monkeypatch, tmp_path):
    monkeypatch.setattr(graphs, "motifs", partial(motifs, num_pairs=3))
    section = run("motif-cycle", tmp_path, seeds=[0])
    values = values_of("motif-cycle", tmp_path)
    assert all(own.keys() == {0} for own in values.values())
    assert len(values) == 8
    assert all("(1 draw)" in row[3] for row in section.table.rows)


def test_a_table_of_nodes(monkeypatch, tmp_path):
    write_nodes(tmp_path / "data", "minesweeper")
    entry = replace(NODE_SETS["minesweeper"], num_nodes=30, num_edges=0, num_splits=2)
    monkeypatch.setitem(NODE_SETS, "minesweeper", entry)
    section = run("nodes-minesweeper", tmp_path, seeds=[1])
    values = values_of("nodes-minesweeper", tmp_path)
    assert all(own.keys() == {1} for own in values.values())
    assert len(values) == 6
    assert all("(1 split)" in row[2] for row in section.table.rows)
    assert section.notes[0].startswith("graph random features and neighbours better than GCN (PyG): open here")
