"""Tasks on graphs: classification of graphs and of nodes."""

from __future__ import annotations

from typing import Any, get_args

import torch
from torch import Tensor, nn

from topomask.data import GraphBatch, NodeBatch
from topomask.data.node_sets import Metric
from topomask.support.checks import check_choice
from topomask.train.tasks import Classification, Task, accuracy, cross_entropy, in_full


class GraphClassification(Classification):
    """Cross entropy and accuracy of batches of graphs (:class:`topomask.data.GraphBatch`).

    The model is called with the features of all nodes, and the batch as one graph.

    Args:
        label_smoothing: Probability spread evenly over all classes, in training only.
    """

    def loss(self, model: nn.Module, batch: GraphBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Cross entropy and accuracy."""
        logits = in_full(model(batch.x, batch.graph))  # [G, classes]
        _check_rows(logits, len(batch.labels), "graph", "Use a model with readout='mean', 'sum' or 'attention'.")
        return self.judge(logits, batch.labels, model.training)

    def size(self, batch: Any) -> int:
        """Number of graphs in a batch."""
        return _count(batch, GraphBatch, "data.GraphBatches(graph_set, batch_size)")


class NodeClassification(Task):
    """Cross entropy, and accuracy or ROC-AUC, of the selected nodes of a :class:`topomask.data.NodeBatch`.

    ROC-AUC is not a mean over batches, so evaluate on one batch: the whole graph.

    Args:
        metric: ``"accuracy"``, or ``"roc_auc"`` for two classes; it also selects the best checkpoint.
    """

    higher_is_better = True

    def __init__(self, metric: Metric = "accuracy") -> None:
        check_choice("metric", metric, get_args(Metric))
        self.monitor = self.metric = metric

    def loss(self, model: nn.Module, batch: NodeBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Cross entropy and the metric."""
        logits = in_full(model(batch.x, batch.graph))
        _check_rows(logits, batch.graph.num_nodes, "node", "Use a model with readout='node'.")
        logits = logits[batch.nodes]  # [n, classes]
        loss = cross_entropy(logits, batch.labels)
        if self.metric == "accuracy":
            return loss, {"accuracy": accuracy(logits, batch.labels)}
        if logits.shape[-1] != 2:
            raise ValueError(f"`metric` is 'roc_auc', which is for two classes, but there are {logits.shape[-1]}.")
        scores = logits.detach()[:, 1] - logits.detach()[:, 0]
        return loss, {"roc_auc": roc_auc(scores, batch.labels)}

    def size(self, batch: Any) -> int:
        """Number of selected nodes."""
        return _count(batch, NodeBatch, "[node_set.batch('train')]")


def _count(batch: Any, kind: type[GraphBatch | NodeBatch], how: str) -> int:
    """Return the number of labels, or raise a ValueError that says how to make a batch of this kind."""
    if not isinstance(batch, kind):
        name = kind.__name__
        raise ValueError(
            f"`data` must consist of batches of type {name}, but one is a {type(batch).__name__}. Pass {how}; "
            f"data.{name.removesuffix('Batch')}Set.from_pyg(name, ...) converts PyG's data."
        )
    return len(batch.labels)


def _check_rows(logits: Tensor, count: int, unit: str, fix: str) -> None:
    """Raise a ValueError unless the model returned one row per graph or node."""
    if len(logits) != count:
        raise ValueError(f"The model must return one row per {unit}, {count}, but returned {len(logits)}. {fix}")


def roc_auc(scores: Tensor, labels: Tensor) -> Tensor:
    r"""Compute the area under the ROC curve: how often an example of class 1 scores higher than one of class 0.

    .. math:: \frac{1}{n_1 n_0} \sum_{i: y_i = 1} \sum_{j: y_j = 0} \big([s_i > s_j] + \tfrac12 [s_i = s_j]\big)

    Args:
        scores: Scores, higher for class 1, [n].
        labels: Labels, 0 or 1, [n].

    Returns:
        The area; NaN if a score is NaN.

    Example:
        >>> roc_auc(torch.tensor([0.1, 0.4, 0.4, 0.8]), torch.tensor([0, 0, 1, 1]))
        tensor(0.8750, dtype=torch.float64)
    """
    others = (labels != 0) & (labels != 1)
    if others.any():
        raise ValueError(f"`labels` must be 0 or 1, but contain {labels[others][0].item()}.")
    if scores.isnan().any():
        return scores.new_tensor(torch.nan, dtype=torch.float64)
    positive = labels == 1
    num_positive = int(positive.sum())
    num_negative = len(labels) - num_positive
    if not num_positive or not num_negative:
        raise ValueError(
            f"`labels` must contain both classes, but contain {num_positive} times 1 and {num_negative} times 0."
        )
    _, places, counts = torch.unique(scores, return_inverse=True, return_counts=True)
    # The mean rank, from 1, of every distinct score.
    ranks = counts.cumsum(0) - (counts - 1).double() / 2
    total = ranks[places][positive].sum()
    return (total - num_positive * (num_positive + 1) / 2) / (num_positive * num_negative)
