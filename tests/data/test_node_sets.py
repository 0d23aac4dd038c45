from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch_geometric.data import Data

from helpers.hostile_files import MIB, header, little_memory, npy, write_npz
from topomask.data import MissingDataError, NodeSet, data_root, node_set
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
    assert isinstance(found.x, torch.Tensor)
    assert found.x.tolist() == [[2, 0, 1], [0, 0, 0], [0, 3, 0], [1, 1, 1]]
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
    binary = node_set(NAME, tmp_path, scaling="binary").x
    assert binary.tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0], [1, 1, 1]]
    rows = node_set(NAME, tmp_path, scaling="row").x
    torch.testing.assert_close(rows.sum(dim=1), torch.tensor([1.0, 0.0, 1.0, 1.0]))
    monkeypatch.setitem(NODE_SETS, NAME, NodeEntry(4, 2, "roc_auc", scaling="binary", sparse=False))
    write(tmp_path, y=np.array([0, 1, 1, 0]))
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
    with pytest.raises(ValueError, match=r"it is a single array, not an archive of arrays"):
        node_set(NAME, tmp_path)
    write(tmp_path, y=np.array([0, 1, "a", None], dtype=object))
    with pytest.raises(
        ValueError, match=r"tiny.npz cannot be read: y.npy holds Python objects, which are never unpickled"
    ):
        node_set(NAME, tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y": np.array([0, 1, 2])}, "`y` of .*tiny.npz must be 4 classes, integers from 0"),
        ({"edges": np.array([[0, 9]])}, "is inconsistent: .*9"),
        (
            {"train_mask": np.ones((1, 3), dtype=bool)},
            r"`masks\['train'\]` must be bool of shape \[splits, num_nodes=4\]",
        ),
        ({"train_mask": np.ones(4, dtype=bool)}, r"`masks\['train'\]` must be bool"),
        ({"val_mask": np.zeros((2, 4), dtype=bool)}, r"Split 0 of `masks\['val'\]` must have nodes, but has none"),
        (
            {"test_mask": np.ones((2, 4), dtype=bool)},
            "train and test of split 0 must have no node in common, but share 2",
        ),
        (
            {"test_mask": np.zeros((3, 4), dtype=bool)},
            "same number of splits, at least 1, but train, val and test have 2, 2 and 3. Repeat a mask",
        ),
        (
            {f"{split}_mask": np.zeros((0, 4), dtype=bool) for split in ("train", "val", "test")},
            "at least 1, but train, val and test have 0, 0 and 0",
        ),
        ({"train_mask": np.array([["a"] * 4] * 2)}, "is inconsistent: train_mask must be bool, but is <U1"),
        ({"train_mask": np.array(True)}, r"`masks\['train'\]` must be bool .*, but is torch.bool of shape \(\)"),
        ({"x_data": np.array(["a"] * 6)}, "`x_data` of .*tiny.npz must be real numbers, but is <U1"),
        ({"x_data": np.ones(6) * 1j}, "`x_data` of .*tiny.npz must be real numbers, but is complex128"),
        ({"x_indices": np.full(6, 7)}, "The features in .*tiny.npz are not a valid sparse matrix"),
        ({"x_data": np.ones(2)}, "The features in .*tiny.npz are not a valid sparse matrix"),
        (
            {"x_data": np.array([1, 1, np.nan, 1, 1, 1])},
            "The features in .*tiny.npz must be finite, but node 2 has NaN or inf",
        ),
        ({"edges": np.array([[0.4, 1.0], [3.0, 2.0]])}, "is inconsistent: .*integers"),
    ],
)
def test_contradictions_are_named(tmp_path, changes, message):
    write(tmp_path, **changes)
    with pytest.raises(ValueError, match=message):
        node_set(NAME, tmp_path)


def test_a_known_set_of_another_size_is_refused(tmp_path, monkeypatch):
    write(tmp_path)
    monkeypatch.setitem(NODE_SETS, NAME, NodeEntry(5, 2))
    with pytest.raises(ValueError, match=r"tiny.npz has 4 nodes, but tiny has 5"):
        node_set(NAME, tmp_path)
    monkeypatch.setitem(NODE_SETS, NAME, NodeEntry(4, 3))
    with pytest.raises(ValueError, match=r"is inconsistent: there are 2 edges, but tiny has 3"):
        node_set(NAME, tmp_path)


def test_sets_come_from_pyg():
    data = Data(x=torch.ones(3, 2), edge_index=torch.tensor([[0, 1], [1, 0]]), y=torch.tensor([0, 1, 1]))
    with pytest.raises(ValueError, match=r"`data` of one must be one PyG Data, but is a list. Pass one Data"):
        NodeSet.from_pyg("one", [data])
    with pytest.raises(ValueError, match=r"one must have `train_mask` and `val_mask` and `test_mask`\. Create"):
        NodeSet.from_pyg("one", data)
    data.train_mask = torch.tensor([[True, False], [False, True], [False, False]])
    data.val_mask = ~data.train_mask & torch.tensor([[True], [True], [False]])
    # One test part for all splits, as in WikiCS.
    data.test_mask = torch.tensor([False, False, True])
    for field, value, message in (
        ("x", None, "one has no `x`, features of its nodes"),
        ("y", None, "one has no `y`, classes of its nodes"),
        ("y", torch.tensor([0.2, 0.7, 1.6]), "`y` of one must hold integers, classes from 0"),
        ("y", torch.tensor([0, -1, 1]), r"must be classes in \[0, 2\), but the label of node 1 is -1"),
        ("x", torch.tensor([[0.0], [torch.inf], [torch.nan]]), "must be finite, but node 1 has NaN or inf"),
        ("x", torch.ones(3), r"`x` of one must be dense, of shape \[num_nodes, features\], but has .* shape \(3,\)"),
        ("x", torch.ones(3, 1).to_sparse(), "`x` of one must be dense, .*, but has layout torch.sparse_coo"),
        ("train_mask", torch.tensor(True), r"`masks\['train'\]` must be bool of shape"),
        ("y", torch.tensor([0, 1]), r"`y` of one must hold 3 class labels, but has shape \(2,\)"),
    ):
        kept = data[field]
        data[field] = value
        with pytest.raises(ValueError, match=message):
            NodeSet.from_pyg("one", data)
        data[field] = kept
    with pytest.raises(ValueError, match=r"`metric` must be one of .*, but is 'auc'"):
        NodeSet.from_pyg("one", data, "auc")
    found = NodeSet.from_pyg("one", data)
    assert (found.num_splits, found.num_classes) == (2, 2)
    assert [found.batch(split, 1).nodes.tolist() for split in ("train", "val", "test")] == [[1], [0], [2]]
    data.test_mask[:] = True
    with pytest.raises(ValueError, match="train and test of split 0 must have no node in common, but share 1"):
        NodeSet.from_pyg("one", data)


def pyg_data(**changes) -> Data:
    torch.manual_seed(0)
    ends = torch.tensor([[0, 1, 1, 4, 2, 2], [1, 0, 4, 1, 2, 3]])
    masks = {f"{split}_mask": torch.arange(30) % 3 == k for k, split in enumerate(("train", "val", "test"))}
    edge_index = torch.cat([ends, ends.flip(0)], dim=1)
    return Data(**({"x": torch.rand(30, 40), "edge_index": edge_index, "y": torch.arange(30) % 2, **masks} | changes))


@pytest.mark.parametrize("kept", [0.05, 1.0])
def test_sets_of_pyg_can_be_saved_and_read(kept, tmp_path):
    data = pyg_data()
    data.x *= torch.rand(30, 40) < kept
    found = NodeSet.from_pyg("mine", data, "roc_auc")
    assert isinstance(found.features, SparseRows) == (kept < 0.1)
    found.save(tmp_path / "node" / "mine.npz")
    assert [path.name for path in (tmp_path / "node").iterdir()] == ["mine.npz"]
    read = node_set("mine", tmp_path, metric="roc_auc")
    assert type(read.features) is type(found.features)
    assert read.graph.fingerprint == found.graph.fingerprint
    assert torch.equal(read.x, data.x)
    assert torch.equal(read.labels, found.labels)
    assert all(torch.equal(read.masks[split], mask) for split, mask in found.masks.items())


@pytest.mark.parametrize("kept", [0.05, 1.0])
def test_x_is_always_a_dense_tensor(kept):
    data = pyg_data()
    data.x *= torch.rand(30, 40) < kept
    found = NodeSet.from_pyg("mine", data)
    assert type(found.x) is torch.Tensor
    assert torch.equal(found.x, data.x)
    assert found.x is found.x, "built once"
    # Models get the features as they are stored, without a dense copy of sparse ones.
    assert found.batch("train").x is found.features
    assert (found.features is found.x) == (kept == 1.0)
    assert tuple(found.features.shape) == (30, found.num_features)
    with pytest.raises(AttributeError, match="'x'"):
        found.x = data.x


def test_features_of_pyg_are_scaled(tmp_path):
    data = pyg_data(x=torch.tensor([[2.0, 6.0], [0.0, 0.0], [4.0, 0.0]] * 10))
    expected = {"none": [2.0, 6.0], "binary": [1.0, 1.0], "row": [0.25, 0.75]}
    for scaling, first in expected.items():
        x = NodeSet.from_pyg("mine", data, scaling=scaling).x
        assert x[:2].tolist() == [first, [0.0, 0.0]]
    with pytest.raises(ValueError, match="`scaling` must be 'none', 'binary' or 'row', but is 'rows'"):
        NodeSet.from_pyg("mine", data, scaling="rows")
    assert data.x[0].tolist() == [2.0, 6.0], "changed in place"


def test_what_cannot_be_saved(tmp_path):
    one_way = pyg_data(edge_index=torch.tensor([[0], [1]]))
    with pytest.raises(ValueError, match="Pass directed=True"):
        NodeSet.from_pyg("mine", one_way)
    found = NodeSet.from_pyg("mine", one_way, directed=True)
    assert found.graph.directed
    weighted = NodeSet.from_pyg("mine", pyg_data(edge_weight=torch.full((12,), 2.0)))
    batch = NodeSet.from_pyg("mine", pyg_data(batch=torch.arange(30) // 15))
    for each in (found, weighted, batch):
        with pytest.raises(ValueError, match="mine must be a single undirected graph without weights to be saved"):
            each.save(tmp_path / "mine.npz")
    assert not list(tmp_path.iterdir())


def test_nodes_in_no_split_need_no_class(tmp_path):
    data = Data(x=torch.ones(4, 2), edge_index=torch.tensor([[0, 1], [1, 0]]), y=[1, 0, -1, 1])
    for split, node in (("train", 0), ("val", 1), ("test", 3)):
        data[f"{split}_mask"] = torch.arange(4) == node
    found = NodeSet.from_pyg("some", data)
    assert (found.num_classes, found.batch("test").labels.tolist()) == (2, [1])
    data.y = [1, 0, 99, 1]
    assert NodeSet.from_pyg("some", data, "roc_auc").num_classes == 2
    data.y = [2, 0, -1, 1]
    with pytest.raises(ValueError, match="`metric` 'roc_auc' needs two classes, but there are 3"):
        NodeSet.from_pyg("some", data, "roc_auc")
    masks = {f"{split}_mask": data[f"{split}_mask"].numpy()[None] for split in ("train", "val", "test")}
    write(tmp_path, y=np.array([1, 0, -1, 1]), **masks)
    assert node_set(NAME, tmp_path).num_classes == 2
    write(tmp_path, y=np.array([1, -1, 0, 1]), **masks)
    with pytest.raises(
        ValueError, match=r"the label of node 1 is -1. If its class is unknown, remove it from all splits"
    ):
        node_set(NAME, tmp_path)


def test_a_single_mask_counts_for_all_splits(tmp_path):
    masks = np.array([[True, False, False, False], [False, True, False, False]])
    val, test = masks[::-1], np.array([[False, False, True, True]])
    write(tmp_path, train_mask=masks, val_mask=val, test_mask=test)
    found = node_set(NAME, tmp_path)
    assert [found.batch("test", number).nodes.tolist() for number in range(2)] == [[2, 3]] * 2


def test_the_metric_of_a_set_of_one_s_own(tmp_path):
    write(tmp_path, y=np.array([0, 1, 1, 0]))
    assert node_set(NAME, tmp_path).metric == "accuracy"
    assert node_set(NAME, tmp_path, metric="roc_auc").metric == "roc_auc"
    with pytest.raises(ValueError, match="`metric` must be one of"):
        node_set(NAME, tmp_path, metric="auc")


@pytest.mark.parametrize("name", NODE_SETS)
def test_the_real_sets_have_splits_that_are_possible(name):
    if not (data_root() / "node" / f"{name}.npz").is_file():
        pytest.skip(f"the data root has no node/{name}.npz: set TOPOMASK_DATA to run this")
    found = node_set(name)
    assert (found.graph.num_nodes, found.num_splits) == (NODE_SETS[name].num_nodes, NODE_SETS[name].num_splits)
    sizes = torch.stack([found.masks[split].sum(dim=1) for split in ("train", "val", "test")])
    assert sizes.min() > 0
    assert sizes.sum(dim=0).max() <= found.graph.num_nodes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_shape": np.array([4, 10**12])}, r"x_shape is \(4, 1000000000000\), but there are 6 entries"),
        ({"x_shape": np.array([10**12, 3])}, "not a valid sparse matrix"),
        ({"x_shape": np.array([4, -3])}, "not a valid sparse matrix"),
        ({"x_shape": np.array([4, np.inf])}, "not a valid sparse matrix"),
        ({"x_shape": np.array([[4, 3]])}, "not a valid sparse matrix"),
        ({"x_shape": np.array(4)}, "not a valid sparse matrix"),
        ({"x_shape": np.array([12])}, "not a valid sparse matrix"),
        ({"x_indices": np.full(6, -1)}, "not a valid sparse matrix"),
        ({"x_indices": np.full(6, 0.5)}, "must be integers, but one is float64"),
        ({"x_indptr": np.array([0, 10**9, 2, 3, 6])}, "not a valid sparse matrix"),
        ({"y": np.array([0, 1, 10**12, 1])}, "there are 4 nodes, but a class has the number 1000000000000"),
        ({"y": np.array([0, 1, 2**64 - 1, 1], dtype=np.uint64)}, "is inconsistent"),
        ({"edges": np.array([[0, 4 * 10**9]])}, "is inconsistent: .*4000000000"),
        ({"edges": np.array([0, 1])}, "is inconsistent"),
        ({"edges": npy(header("(1000000000000, 2)"))}, r"edges.npy is damaged"),
        ({"train_mask": npy(header("(1000000000000, 4)", "'|b1'"))}, r"train_mask.npy is damaged"),
    ],
)
def test_numbers_that_ask_for_much_memory_are_refused(tmp_path, changes, message):
    write_npz(tmp_path / "node" / f"{NAME}.npz", **(arrays() | changes))
    with little_memory(), pytest.raises(ValueError, match=rf"tiny.npz.*{message}") as found:
        node_set(NAME, tmp_path)
    assert "\n" not in str(found.value)


def test_a_small_file_that_becomes_large_is_refused_unless_it_is_trusted(tmp_path, monkeypatch):
    write_npz(tmp_path / "node" / f"{NAME}.npz", **arrays(), more=np.zeros(3 * MIB))
    with little_memory(), pytest.raises(ValueError, match=r"takes .* bytes, more than `max_bytes`=16,777,216"):
        node_set(NAME, tmp_path)
    assert node_set(NAME, tmp_path, max_bytes=30 * MIB).graph.num_nodes == 4
    monkeypatch.setenv("TOPOMASK_MAX_BYTES", str(30 * MIB))
    assert node_set(NAME, tmp_path).graph.num_nodes == 4


def test_dense_features_are_limited(tmp_path, monkeypatch):
    """A set whose features are known to be dense, with columns that nobody uses."""
    write_npz(tmp_path / "node" / f"{NAME}.npz", **(arrays() | {"x_shape": np.array([4, 60_000])}))
    monkeypatch.setitem(NODE_SETS, NAME, NodeEntry(4, 2, sparse=False))
    with (
        little_memory(),
        pytest.raises(ValueError, match=r"`x`, dense, takes 960,000 bytes, more than `max_bytes`=100,000"),
    ):
        node_set(NAME, tmp_path, max_bytes=100_000)
    assert node_set(NAME, tmp_path).num_features == 60_000
