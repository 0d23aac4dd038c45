from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch_geometric.data import Data

from topomask.data import MissingDataError, NodeSet, node_set
from topomask.data.node_sets import NODE_SETS, NodeEntry
from topomask.nn import SparseRows

NAME = "tiny"


def arrays() -> dict:
    x = sp.csr_array(np.array([[2.0, 0.0, 1.0], [0.0, 0.0, 0.0], [0.0, 3.0, 0.0], [1.0, 1.0, 1.0]]))
    masks = np.array([[True, False, True, False], [False, True, False, False]])
    return {
        "x_data": x.data,
        "x_indices": x.indices,
        "x_indptr": x.indptr,
        "x_shape": np.array(x.shape),
        "y": np.array([0, 1, 2, 1]),
        "edges": np.array([[0, 1], [3, 2]], dtype=np.int32),
        "train_mask": masks,
        "val_mask": ~masks & np.array([True, True, False, False]),
        "test_mask": ~masks & np.array([False, False, True, True]),
    }


def write(root: Path, leave_out: str = "", **changes) -> Path:
    file = root / "node" / f"{NAME}.npz"
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez(file, **{key: value for key, value in (arrays() | changes).items() if key != leave_out})
    return file


def test_reads_the_graph_its_features_and_its_splits(tmp_path):
    write(tmp_path)
    found = node_set(NAME, tmp_path)
    assert isinstance(found.x, SparseRows)
    assert found.x.to_dense().tolist() == [[2, 0, 1], [0, 0, 0], [0, 3, 0], [1, 1, 1]]
    assert (found.num_features, found.num_classes, found.num_splits, found.graph.num_edges) == (3, 3, 2, 2)
    assert repr(found) == "NodeSet('tiny', 4 nodes, 2 edges, 3 features, 3 classes, 2 splits)"
    batch = found.batch("train", 1)
    assert (batch.nodes.tolist(), batch.labels.tolist(), batch.graph) == ([1], [1], found.graph)
    assert found.batch("test").nodes.tolist() == [3]
    with pytest.raises(ValueError, match=r"`number` must lie in \[0, 2\)"):
        found.batch("train", 2)
    with pytest.raises(ValueError, match=r"`split` of tiny must be one of train, val, test"):
        found.batch("valid")


def test_features_are_scaled(tmp_path, monkeypatch):
    write(tmp_path)
    binary = node_set(NAME, tmp_path, scaling="binary").x.to_dense()
    assert binary.tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0], [1, 1, 1]]
    rows = node_set(NAME, tmp_path, scaling="row").x.to_dense()
    torch.testing.assert_close(rows.sum(dim=1), torch.tensor([1.0, 0.0, 1.0, 1.0]))
    monkeypatch.setitem(NODE_SETS, NAME, NodeEntry(4, "roc_auc", scaling="binary", sparse=False))
    found = node_set(NAME, tmp_path)
    assert torch.equal(found.x, binary)
    assert found.metric == "roc_auc"
    with pytest.raises(ValueError, match=r"`scaling` must be 'none', 'binary' or 'row'"):
        node_set(NAME, tmp_path, scaling="unit")
    assert {name for name, entry in NODE_SETS.items() if entry.scaling == "binary"} >= {
        "coauthor-cs",
        "coauthor-physics",
    }


def test_missing_files_and_arrays_are_named(tmp_path):
    with pytest.raises(MissingDataError, match=r"'cora' needs cora.npz in .*node, but .*TOPOMASK_DATA"):
        node_set("cora", tmp_path)
    write(tmp_path, leave_out="val_mask")
    with pytest.raises(ValueError, match=r"tiny.npz cannot be read: it has no val_mask"):
        node_set(NAME, tmp_path)


def test_files_that_are_cut_off_or_hold_objects_are_refused(tmp_path):
    file = write(tmp_path)
    whole = file.read_bytes()
    for end in (len(whole) // 2, 10, 0):
        file.write_bytes(whole[:end])
        with pytest.raises(ValueError, match=r"tiny.npz cannot be read: .*Get it again"):
            node_set(NAME, tmp_path)
    with file.open("wb") as out:
        np.save(out, np.ones(3))
    with pytest.raises(ValueError, match=r"it is one array"):
        node_set(NAME, tmp_path)
    write(tmp_path, y=np.array([0, 1, "a", None], dtype=object))
    with pytest.raises(ValueError, match=r"tiny.npz cannot be read: Object arrays cannot be loaded"):
        node_set(NAME, tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y": np.array([0, 1, 2])}, "`y` of .*tiny.npz must be 4 classes from 0"),
        ({"edges": np.array([[0, 9]])}, "contradicts itself: .*9"),
        (
            {"train_mask": np.ones((1, 3), dtype=bool)},
            r"`masks\['train'\]` must be bool of shape \[splits, num_nodes=4\]",
        ),
        ({"x_indices": np.full(6, 7)}, "The features in .*tiny.npz are no sparse matrix"),
        ({"x_data": np.ones(2)}, "The features in .*tiny.npz are no sparse matrix"),
    ],
)
def test_contradictions_are_named(tmp_path, changes, message):
    write(tmp_path, **changes)
    with pytest.raises(ValueError, match=message):
        node_set(NAME, tmp_path)


def test_a_known_set_of_another_size_is_refused(tmp_path, monkeypatch):
    write(tmp_path)
    monkeypatch.setitem(NODE_SETS, NAME, NodeEntry(5))
    with pytest.raises(ValueError, match=r"tiny.npz has 4 nodes, but tiny has 5"):
        node_set(NAME, tmp_path)


def test_sets_come_from_pyg():
    data = Data(x=torch.ones(3, 2), edge_index=torch.tensor([[0, 1], [1, 0]]), y=torch.tensor([0, 1, 1]))
    with pytest.raises(ValueError, match=r"one must have `train_mask`"):
        NodeSet.from_pyg("one", data)
    for split in ("train", "val", "test"):
        data[f"{split}_mask"] = torch.tensor([[True, False], [False, True], [False, False]])
    found = NodeSet.from_pyg("one", data)
    assert (found.num_splits, found.num_classes) == (2, 2)
    assert found.batch("train", 1).nodes.tolist() == [1]
