from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

import topomask as tm
from helpers import training
from helpers.graphs import star_graph
from topomask import train
from topomask.data import GraphBatches, GraphSet, NodeSet
from topomask.models import GraphMaskOptions, GraphNetworkConfig, GraphTransformerConfig
from topomask.train import GraphClassification, NodeClassification, OptimConfig, TrainConfig, roc_auc


@pytest.mark.parametrize("num_values", [2, 5, 1000])
def test_roc_auc_is_that_of_scikit_learn(num_values):
    """With many ties, some, and none."""
    rng = np.random.default_rng(num_values)
    for size in (2, 7, 500):
        labels = rng.permutation([0, 1, *rng.integers(0, 2, size - 2).tolist()])
        scores = rng.integers(0, num_values, size) / num_values
        found = roc_auc(torch.from_numpy(scores), torch.from_numpy(labels))
        assert float(found) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)


def test_roc_auc_needs_both_classes():
    with pytest.raises(ValueError, match="must contain both classes, but contain 2 times 1 and 0 times 0"):
        roc_auc(torch.ones(2), torch.ones(2, dtype=torch.long))


def test_a_model_with_the_wrong_readout_is_named():
    found = graphs(4, 0)
    config = GraphTransformerConfig.preset("linear", in_features=1, num_classes=2, dim=8, num_heads=2)
    with pytest.raises(
        ValueError, match=r"must return one row per graph, 2, but returned \d+. Use a model with readout='mean'"
    ):
        GraphClassification().loss(config.build(), found.batch([0, 1]))
    graph = tm.path_graph(3)
    masks = {split: torch.arange(3)[None] == k for k, split in enumerate(("train", "val", "test"))}
    nodes = NodeSet("three", graph, torch.ones(3, 1), torch.tensor([0, 1, 1]), 2, masks)
    with pytest.raises(
        ValueError, match=r"must return one row per node, 3, but returned 1. Use a model with readout='node'"
    ):
        NodeClassification().loss(replace(config, readout="mean").build(), nodes.batch("train"))


def test_labels_beyond_the_classes_of_the_model_are_named():
    config = GraphTransformerConfig.preset("linear", in_features=1, num_classes=1, dim=8, num_heads=2, readout="mean")
    with pytest.raises(ValueError, match=r"`labels` must be classes in \[0, 1\).* but lie between 0 and 1. Build"):
        GraphClassification().loss(config.build(), graphs(4, 0).batch([0, 1]))


def test_other_batches_name_what_makes_them(tmp_path):
    """Such as those of PyG's loaders, or a set that was not split into batches."""
    found, model = graphs(4, 0), MODEL.build()
    for data in (found, [object()], [found.batch([0]), torch.ones(1)]):
        for use in (
            lambda data=data: train.evaluate(model, data, GraphClassification()),
            lambda data=data: train.run(CONFIG, MODEL.build, data, GraphClassification(), tmp_path),
        ):
            with pytest.raises(
                ValueError, match=r"of type GraphBatch, but one is a .*data\.GraphBatches.*GraphSet.from_"
            ):
                use()
    with pytest.raises(ValueError, match=r"of type NodeBatch, but one is a GraphBatch.*\[node_set\.batch\('train'\)\]"):
        train.evaluate(model, [found.batch([0])], NodeClassification())


def graphs(count: int, seed: int) -> GraphSet:
    """Stars and paths of many sizes, told apart by the largest degree alone."""
    sizes = torch.randint(4, 9, (count,), generator=torch.Generator().manual_seed(seed)).tolist()
    made = [star_graph(n) if k % 2 else tm.path_graph(n + 1) for k, n in enumerate(sizes)]
    features = [torch.tensor(graph.degrees).float()[:, None] for graph in made]
    return GraphSet("stars", made, features, torch.arange(count) % 2, ("path", "star"))


CONFIG = TrainConfig(OptimConfig(lr=5e-3, warmup=0.1, decay=0.5), epochs=6, log_every=2, progress=False)
MODEL = GraphTransformerConfig.preset(
    "grf", in_features=1, num_classes=2, dim=16, depth=1, num_heads=2, readout="mean", dropout=0.1
)


def run(folder, config=CONFIG, model=MODEL, task=None, **options):
    data, valid = GraphBatches(graphs(40, 0), 8), GraphBatches(graphs(20, 1), 8, shuffle=False)
    return train.run(config, model.build, data, task or GraphClassification(), folder, valid=valid, **options)


@pytest.mark.parametrize("model", [MODEL, GraphNetworkConfig(1, 2, "gin", dim=8, readout="mean", norm="batch")])
def test_graphs_are_learnt(model, tmp_path):
    result = run(tmp_path, replace(CONFIG, epochs=10), model)
    assert result.best["accuracy"] >= 0.9


def test_a_run_on_graphs_resumes_to_the_same_numbers(tmp_path):
    config = replace(CONFIG, epochs=2, checkpoint_every=3)
    run(tmp_path / "whole", config)
    with pytest.raises(training.StoppedError):
        run(tmp_path / "broken", config, task=training.StopsAt(7, GraphClassification()))
    run(tmp_path / "broken", config, resume=True)
    training.assert_same_run(tmp_path / "whole", tmp_path / "broken")


def nodes() -> NodeSet:
    """A node's class is that of most of its neighbours."""
    graph = tm.grid_graph(20, 20)
    left = torch.arange(400) % 20 < 10
    generator = torch.Generator().manual_seed(0)
    x = torch.nn.functional.one_hot((left ^ (torch.rand(400, generator=generator) < 0.3)).long(), 2).float()
    draw = torch.rand(400, generator=generator)
    masks = {"train": (draw < 0.5)[None], "val": ((draw >= 0.5) & (draw < 0.75))[None], "test": (draw >= 0.75)[None]}
    return NodeSet("grid", graph, x, left.long(), 2, masks)


@pytest.mark.parametrize("metric", ["accuracy", "roc_auc"])
def test_nodes_are_learnt_beyond_what_their_features_say(metric, tmp_path):
    found = nodes()
    options = GraphMaskOptions(num_walks=10, max_length=4)
    model = GraphTransformerConfig(2, 2, 16, 2, 2, mask_options=options)
    config = replace(CONFIG, optim=replace(CONFIG.optim, lr=0.01), epochs=60, eval_every=15)
    task, batches = NodeClassification(metric), {split: [found.batch(split)] for split in ("train", "val")}
    result = train.run(config, model.build, batches["train"], task, tmp_path, valid=batches["val"])
    assert result.step == 60
    # A feature alone is right seven times out of ten.
    assert result.best[metric] > 0.82
    assert task.monitor == metric
    assert task.size(batches["val"][0]) == int(found.masks["val"].sum())


def test_scores_that_are_no_numbers_have_no_area_and_no_model_is_best_by_them(tmp_path):
    labels = torch.tensor([0, 0, 1, 1])
    assert roc_auc(torch.tensor([0.1, torch.nan, 0.2, 0.3]), labels).isnan()
    with pytest.raises(ValueError, match="`labels` must be 0 or 1, but contain 2"):
        roc_auc(torch.rand(4), labels + 1)

    class Broken(GraphClassification):
        """NaN after the three batches of the first evaluation: the largest class of NaN may be right."""

        batches = 0

        def loss(self, model, batch):
            loss, metrics = super().loss(model, batch)
            if model.training:
                return loss, metrics
            self.batches += 1
            late = self.batches > 3
            return loss * (torch.nan if late else 1.0), metrics | ({"accuracy": torch.tensor(1.0)} if late else {})

    result = run(tmp_path, replace(CONFIG, epochs=3), MODEL, task=Broken())
    assert result.best["accuracy"] < 1


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="`metric` must be one of"):
        NodeClassification("f1")
    with pytest.raises(ValueError, match=r"`label_smoothing` must lie in \[0, 1\)"):
        GraphClassification(1.0)
    model = GraphTransformerConfig(2, 3, 8, 1, 2).build()
    with pytest.raises(ValueError, match="for two classes, but there are 3"):
        NodeClassification("roc_auc").loss(model, nodes().batch("val"))
