from dataclasses import replace

import pytest

from graph_files import write_graphs
from topomask.config import apply_overrides
from topomask.recipes.graphs import GraphData, graphs, graphs_baseline, motif
from topomask.recipes.registry import load_run

SMALL = ["model.depth=1", "model.dim=8", "model.num_heads=2", "train.epochs=2", "train.progress=false"]


def small(experiment, root):
    return replace(apply_overrides(experiment, SMALL), data=GraphData("RINGS", root=root, batch_size=8))


@pytest.mark.parametrize("recipe", [graphs, graphs_baseline])
def test_graphs_are_trained_on_and_measured_on_the_test_fold(tmp_path, recipe):
    write_graphs(tmp_path)
    experiment = small(recipe(), tmp_path)
    result = experiment.run(tmp_path / "run")
    found = experiment.measure(result)
    assert {"accuracy", "loss", "val_accuracy", "val_step"} <= found.keys()
    assert found["val_accuracy"] == result.best["accuracy"]
    loaded = load_run(tmp_path / "run")
    assert loaded.evaluate("test")["accuracy"] == pytest.approx(found["accuracy"])
    assert (loaded.experiment.model.in_features, loaded.experiment.model.num_classes) == (1, 2)


def test_a_seed_is_a_fold(tmp_path):
    write_graphs(tmp_path)
    experiment = small(graphs(), tmp_path).with_seed(1)
    assert (experiment.data.fold, experiment.train.seed) == (1, 1)
    sizes = [len(experiment.data.load(split)) for split in ("train", "val", "test")]
    assert sizes == [12, 6, 6]
    with pytest.raises(ValueError, match=r"`data.fold` must lie in \[0, 2\), but is 2"):
        experiment.with_seed(2).data.load("train")


def test_only_training_graphs_are_shuffled(tmp_path):
    write_graphs(tmp_path)
    experiment = small(graphs(), tmp_path)

    def order(**how):
        return [batch.labels.tolist() for batch in experiment.batches("train", **how).epoch(0)]

    assert order() == [[0, 1] * 4, [0, 1] * 2]
    assert order(training=True) != order()


def test_motifs_are_generated():
    experiment = motif().with_seed(3)
    found = experiment.data.load("val")
    assert (found.name, len(found)) == ("cycle", 512)
    assert experiment.data.load("val") is found


def test_an_unknown_set_gets_the_nearest(tmp_path):
    with pytest.raises(ValueError, match=r"no set of graphs 'PROTEIN'. Did you mean PROTEINS"):
        GraphData("PROTEIN", root=tmp_path).load("train")
    with pytest.raises(FileNotFoundError, match=r"PROTEINS\.zip"):
        GraphData("PROTEINS", root=tmp_path).load("train")
