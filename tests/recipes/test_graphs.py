import json
from dataclasses import replace

import pytest
import torch

from experiments.reproduce.study import numbers_config
from helpers.graph_files import write_graphs
from topomask.data import MissingDataError, motifs
from topomask.data.tu import TU_SETS, TUEntry
from topomask.recipes.graphs import GraphData, gkat, gkat_diffusion, graphs, graphs_baseline, motif
from topomask.recipes.registry import load_run
from topomask.support.config import apply_overrides
from topomask.train import CheckpointError

SMALL = [
    "--model.depth",
    "1",
    "--model.dim",
    "8",
    "--model.num_heads",
    "2",
    "--train.epochs",
    "2",
    "--train.progress",
    "False",
]


def small(experiment, root):
    return replace(apply_overrides(experiment, SMALL), data=GraphData("RINGS", root=root, batch_size=8))


@pytest.mark.parametrize("recipe", [graphs, gkat, gkat_diffusion, graphs_baseline])
def test_graphs_are_trained_on_and_measured_on_the_test_fold(tmp_path, recipe):
    write_graphs(tmp_path)
    experiment = small(recipe(), tmp_path)
    result = experiment.run(tmp_path / "run")
    found = experiment.measure(result)
    assert {"accuracy", "loss", "val_accuracy", "val_step"} <= found.keys()
    assert found["val_accuracy"] == result.best["accuracy"]
    loaded = load_run(str(tmp_path / "run"))
    assert loaded.evaluate("test")["accuracy"] == pytest.approx(found["accuracy"])
    assert (loaded.experiment.model.in_features, loaded.experiment.model.num_classes) == (1, 2)


def test_a_seed_is_a_fold(tmp_path):
    write_graphs(tmp_path)
    experiment = small(graphs(), tmp_path).with_seed(1)
    assert (experiment.data.fold, experiment.train.seed) == (1, 1)
    sizes = [len(experiment.data.load(split)) for split in ("train", "val", "test")]
    assert sizes == [12, 6, 6]
    with pytest.raises(ValueError, match=r"`data.fold` must be in \[0, 2\), but is 2"):
        experiment.with_seed(2).data.load("train")


def test_folds_of_one_s_own_set_are_verified(tmp_path):
    write_graphs(tmp_path)
    file = tmp_path / "splits" / "RINGS.json"
    everything = list(range(24))
    for fold, message in (
        ({"train": everything, "validation": [1], "test": everything[:12]}, "each graph once, but has graph 0 2 times"),
        ({"train": everything[:12], "validation": everything[12:], "test": [24]}, "from 0 to 23, but has 24"),
    ):
        file.write_text(json.dumps([fold]))
        with pytest.raises(ValueError, match=rf"Fold 0 of .*RINGS.json must have .*{message}"):
            GraphData("RINGS", root=tmp_path).load("train")


def test_a_run_is_not_tested_on_other_folds_than_it_was_made_with(tmp_path, forget_data):
    write_graphs(tmp_path)
    file = tmp_path / "splits" / "RINGS.json"
    folds = file.read_text()
    file.unlink()
    experiment = small(graphs(), tmp_path)
    experiment.run(tmp_path / "run")
    load_run(tmp_path / "run").evaluate("test")
    file.write_text(folds)
    forget_data()
    with pytest.raises(ValueError, match=r"Fold 0 of RINGS has other graphs than when the run was made: .*RINGS.json"):
        load_run(tmp_path / "run").evaluate("test")
    with pytest.raises(CheckpointError, match=r"another config: data.parts=\w+ is now \w+"):
        experiment.run(tmp_path / "run", resume=True)
    # Another seed is another fold, so that what was recorded of this one is forgotten.
    load_run(tmp_path / "run").experiment.with_seed(1).data.load("test")


@pytest.mark.parametrize("name", ["rings.json", "RINGS_splits.json"])
def test_folds_of_another_name_are_not_passed_over(tmp_path, name):
    write_graphs(tmp_path)
    file = tmp_path / "splits" / "RINGS.json"
    file.rename(file.with_name(name))
    with pytest.raises(ValueError, match=f"{name} looks like folds of RINGS, which must be in RINGS.json"):
        GraphData("RINGS", root=tmp_path).load("train")


def test_a_set_without_folds_gets_some(tmp_path, monkeypatch):
    write_graphs(tmp_path)
    (tmp_path / "splits" / "RINGS.json").unlink()
    parts = [GraphData("RINGS", root=tmp_path, fold=fold).load("test") for fold in range(10)]
    assert sum(map(len, parts)) == 24
    assert min(map(len, parts)) >= 2
    with pytest.raises(ValueError, match="`split` of RINGS must be one of train, val, test, but is 'valid'"):
        GraphData("RINGS", root=tmp_path).load("valid")
    # What is published with folds needs them.
    monkeypatch.setitem(TU_SETS, "RINGS", TUEntry(24, 2, degree="log"))
    with pytest.raises(MissingDataError, match=r"RINGS.json"):
        GraphData("RINGS", root=tmp_path, fold=1).load("test")


def test_quantities_are_standardised_over_the_graphs_of_training(tmp_path):
    write_graphs(tmp_path)
    for fold in range(2):
        data = GraphData("RINGS", root=tmp_path, fold=fold, degree="log")
        parts = {split: torch.cat(data.load(split).features)[:, -1] for split in ("train", "val", "test")}
        torch.testing.assert_close(parts["train"].mean(), torch.tensor(0.0), atol=1e-6, rtol=0)
        torch.testing.assert_close(parts["train"].std(correction=0), torch.tensor(1.0))
        # Degrees are 1 and 2 everywhere, so that the same two numbers come again.
        torch.testing.assert_close(parts["test"].unique(), parts["train"].unique())
        assert abs(parts["test"].mean()) > 1e-3


def test_graphs_are_the_same_objects_in_all_folds(tmp_path):
    write_graphs(tmp_path)
    first, second = (GraphData("RINGS", root=tmp_path, fold=fold, degree="log").load("train") for fold in range(2))
    tests = GraphData("RINGS", root=tmp_path, fold=0, degree="log").load("test")
    assert second.graphs[-1] is tests.graphs[-1]
    assert first.graphs[0] is not second.graphs[0]


def test_what_shapes_the_input_is_recorded(tmp_path, monkeypatch):
    write_graphs(tmp_path)
    experiment = small(graphs(), tmp_path)
    assert experiment.data.degree is None
    for whole in (experiment.fitted(), experiment.with_seed(1)):
        assert (whole.data.degree, whole.data.attributes, whole.data.max_degree) == ("none", False, None)
        assert whole.data.version is not None
    changed = apply_overrides(experiment, ["--data.degree=one-hot", "--data.max_degree=1"])
    assert changed.fitted().model.in_features == 3
    assert numbers_config(changed.with_seed(0)) != numbers_config(experiment.with_seed(0))
    before = numbers_config(experiment.with_seed(0))
    monkeypatch.setitem(TU_SETS, "RINGS", TUEntry(24, 2, degree="log"))
    assert numbers_config(experiment.with_seed(0)) != before, "a default that changes makes old results count no more"
    with pytest.raises(ValueError, match=r"Unrecognized options: --data\.version=1"):
        apply_overrides(experiment, ["--data.version=1"])
    old = replace(experiment, data=replace(experiment.data, version=0))
    with pytest.raises(ValueError, match=r"`data.version` is 0, but graphs and inputs of RINGS now have version"):
        old.batches("test")
    with pytest.raises(ValueError, match=r"`max_degree` is 5, but only degree='one-hot' has it, not 'log'"):
        replace(experiment.data, degree="log", max_degree=5).load("train")


def test_motifs_record_the_version_of_their_generator(monkeypatch):
    before = numbers_config(motif().with_seed(0))
    monkeypatch.setattr("topomask.recipes.graphs.MOTIF_VERSION", 99)
    assert numbers_config(motif().with_seed(0)) != before
    with pytest.raises(ValueError, match=r"`data.degree` is for TUDataset, but cycle is a motif"):
        GraphData("cycle", degree="log").load("train")


def test_only_training_graphs_are_shuffled(tmp_path):
    write_graphs(tmp_path)
    experiment = small(graphs(), tmp_path)

    def order(**how):
        return [batch.labels.tolist() for batch in experiment.batches("train", **how).epoch(0)]

    assert order() == [[0, 1] * 4, [0, 1] * 2]
    assert order(training=True) != order()


def test_a_norm_over_graphs_is_not_trained_on_one(tmp_path):
    write_graphs(tmp_path)
    plain = small(graphs(), tmp_path)
    count = len(plain.data.load("train"))
    plain = replace(plain, data=replace(plain.data, batch_size=count - 1))
    normed = apply_overrides(plain, ["--model.head_norm=batch"])
    assert [len(each.batches("train", training=True)) for each in (plain, normed)] == [2, 1]
    assert len(normed.batches("train")) == 2, "all graphs are evaluated"
    normed.run(tmp_path / "run")
    alone = replace(normed, data=replace(normed.data, batch_size=1))
    with pytest.raises(ValueError, match="`head_norm` is 'batch', which needs more than one graph"):
        alone.run(tmp_path / "alone")


def test_runs_from_before_a_field_came_are_loaded(tmp_path):
    write_graphs(tmp_path)
    small(graphs(), tmp_path).run(tmp_path / "run")
    path = tmp_path / "run" / "config.json"
    config = json.loads(path.read_text())
    assert config["model"].pop("head_norm") is None
    path.write_text(json.dumps(config))
    assert load_run(tmp_path / "run").experiment.model.head_norm is None


def test_motifs_are_generated():
    experiment = motif().with_seed(3)
    found = experiment.data.load("val")
    assert (found.name, len(found)) == ("cycle", 512)
    assert experiment.data.load("val") is found
    # Degrees are standardised over the graphs for training, those of all splits by the same.
    train = torch.cat(experiment.data.load("train").features)
    torch.testing.assert_close(train.mean(dim=0), torch.zeros(5), rtol=0.0, atol=1e-5)
    torch.testing.assert_close(train.std(dim=0, correction=0), torch.ones(5), rtol=0.0, atol=1e-5)
    raw = [torch.cat(motifs("cycle", split, seed=3).features) for split in ("train", "val")]
    expected = (raw[1] - raw[0].mean(dim=0)) / raw[0].std(dim=0, correction=0)
    torch.testing.assert_close(torch.cat(found.features), expected, rtol=1e-4, atol=1e-5)


def test_an_unknown_set_gets_the_nearest(tmp_path):
    with pytest.raises(ValueError, match=r"no graph data set 'PROTEIN'. Did you mean PROTEINS"):
        GraphData("PROTEIN", root=tmp_path).load("train")
    with pytest.raises(FileNotFoundError, match=r"PROTEINS\.zip"):
        GraphData("PROTEINS", root=tmp_path).load("train")
    (tmp_path / "tudataset").mkdir()
    (tmp_path / "tudataset" / "mine.zip").touch()
    with pytest.raises(
        ValueError, match=r"'mien'. Did you mean mine\?.*tudataset/mien\.zip; in that .*there is: mine\."
    ):
        GraphData("mien", root=tmp_path).load("train")
