from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from experiments.reproduce.study import numbers_config
from helpers.graph_files import write_nodes
from topomask.recipes.nodes import NodeData, nodes, nodes_baseline
from topomask.recipes.registry import load_run
from topomask.support.config import apply_overrides
from topomask.train.reports import read_metrics

SMALL = [
    "--model.depth",
    "1",
    "--model.dim",
    "8",
    "--model.num_heads",
    "2",
    "--train.epochs",
    "30",
    "--train.progress",
    "False",
]


@pytest.mark.parametrize("recipe", [nodes, nodes_baseline])
def test_nodes_are_trained_on_and_measured_on_the_test_nodes(tmp_path, recipe):
    write_nodes(tmp_path)
    experiment = replace(apply_overrides(recipe(), [*SMALL, "--model.depth=2"]), data=NodeData("rings", root=tmp_path))
    result = experiment.run(tmp_path / "run")
    found = experiment.measure(result)
    assert {"accuracy", "val_accuracy"} <= found.keys()
    loaded = load_run(tmp_path / "run")
    assert loaded.evaluate("test")["accuracy"] == pytest.approx(found["accuracy"])


def test_what_features_tell_is_learnt(tmp_path):
    write_nodes(tmp_path)
    fields = [
        *SMALL,
        "--model.mask",
        "none",
        "--model.local",
        "none",
        "--model.dropout",
        "0",
        "--model.input_dropout",
        "0",
    ]
    experiment = replace(apply_overrides(nodes(), fields), data=NodeData("rings", root=tmp_path))
    assert experiment.measure(experiment.run(tmp_path / "run"))["accuracy"] == 1.0


@pytest.mark.parametrize(("choose_by", "metric", "best"), [("metric", "accuracy", max), ("loss", "loss", min)])
def test_weights_are_chosen_by_the_metric_or_the_loss(tmp_path, choose_by, metric, best):
    write_nodes(tmp_path)
    fields = [*SMALL, f"--choose_by={choose_by}", "--train.optim.lr=0.1"]
    experiment = replace(apply_overrides(nodes(), fields), data=NodeData("rings", root=tmp_path))
    result = experiment.run(tmp_path / "run")
    seen = [line[metric] for line in read_metrics(result.folder / "metrics.jsonl") if line["event"] == "eval"]
    assert result.best[metric] == pytest.approx(best(seen))
    assert len(set(seen)) > 1
    assert experiment.measure(result)[f"val_{metric}"] == pytest.approx(best(seen))


def test_what_weights_are_chosen_by_is_checked():
    with pytest.raises(ValueError, match=r"`choose_by` must be one of \('metric', 'loss'\), but is 'los'"):
        replace(nodes(), choose_by="los")


def test_a_seed_is_a_split_where_there_are_several(tmp_path):
    write_nodes(tmp_path)
    experiment = replace(nodes(), data=NodeData("rings", root=tmp_path))
    assert [experiment.with_seed(seed).data.split for seed in range(2)] == [0, 1]
    with pytest.raises(ValueError, match=r"Seeds of rings select its splits and must be in \[0, 2\), but one is 2"):
        experiment.with_seed(2)
    assert [nodes().with_seed(seed).data.split for seed in range(3)] == [0, 0, 0]
    (batch,) = experiment.with_seed(1).batches("train")
    assert batch.nodes.tolist() == [node for node in range(30) if (node + 1) % 3 == 0]


def test_scaling_and_metric_are_settable_and_recorded(tmp_path):
    write_nodes(tmp_path)
    experiment = replace(apply_overrides(nodes(), SMALL), data=NodeData("rings", root=tmp_path))
    for whole in (experiment.fitted(), experiment.with_seed(1)):
        assert (whole.data.scaling, whole.data.metric) == ("none", "accuracy")
    changed = apply_overrides(experiment, ["--data.metric=roc_auc", "--data.scaling=binary", "--train.epochs=2"])
    assert numbers_config(changed.with_seed(0)) != numbers_config(experiment.with_seed(0))
    assert {"roc_auc", "val_roc_auc"} <= changed.measure(changed.run(tmp_path / "run")).keys()
    cora = nodes().with_seed(0)
    assert (cora.data.scaling, cora.data.metric) == ("row", "accuracy")


def test_an_unknown_set_gets_the_nearest(tmp_path):
    with pytest.raises(ValueError, match=r"no node data set 'coraa'. Did you mean cora"):
        NodeData("coraa", root=tmp_path).load()
    with pytest.raises(FileNotFoundError, match=r"cora\.npz"):
        NodeData("cora", root=tmp_path).load()
    with pytest.raises(ValueError, match=r"node/mien\.npz; in that folder there is: no such file"):
        NodeData("mien", root=tmp_path).load()
    (tmp_path / "node").mkdir()
    (tmp_path / "node" / "mine.npz").touch()
    with pytest.raises(ValueError, match=r"'mien'. Did you mean mine\?.*node/mien\.npz; in that .*there is: mine\."):
        NodeData("mien", root=tmp_path).load()


def test_a_split_that_there_is_not_is_named(tmp_path):
    write_nodes(tmp_path)
    experiment = replace(nodes(), data=NodeData("rings", root=tmp_path, split=7))
    with pytest.raises(ValueError, match=r"`data.split` must be in \[0, \d+\), the splits of rings, but is 7"):
        experiment.batches("train")


def test_a_run_is_not_tested_on_nodes_that_it_has_trained_on(tmp_path, forget_data):
    write_nodes(tmp_path)
    file = tmp_path / "node" / "rings.npz"
    experiment = replace(apply_overrides(nodes(), [*SMALL, "--train.epochs=2"]), data=NodeData("rings", root=tmp_path))
    experiment.run(tmp_path / "run")
    arrays = dict(np.load(file))
    arrays["train_mask"], arrays["test_mask"] = arrays["test_mask"], arrays["train_mask"]
    np.savez(file, **arrays)
    forget_data()
    with pytest.raises(ValueError, match="Split 0 of rings has other nodes than when the run was made: its masks"):
        load_run(tmp_path / "run").evaluate("test")


def test_a_folder_may_be_called_default():
    assert apply_overrides(nodes(), ["--data.root=default"]).data.root == Path("default")
    assert apply_overrides(nodes(), ["--data.root=None"]).data.root is None
