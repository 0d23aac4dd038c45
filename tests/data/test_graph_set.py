import zipfile

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import topomask as tm
from topomask.data import GraphBatches, GraphSet, tu_dataset
from topomask.recipes.graphs import GraphData


def make(count: int = 10) -> GraphSet:
    graphs = [tm.path_graph(n + 1) for n in range(count)]
    features = [torch.full((n + 1, 2), float(n)) for n in range(count)]
    return GraphSet("paths", graphs, features, torch.arange(count) % 3, ("a", "b", "c"))


def test_a_batch_is_its_graphs_side_by_side():
    found = make()
    x, labels, graph = found.batch([4, 0, 2])
    assert labels.tolist() == [1, 0, 2]
    assert graph.parts == (found.graphs[4], found.graphs[0], found.graphs[2])
    assert graph.num_graphs == 3
    assert (graph.to_scipy() != tm.Graph.batch(graph.parts).to_scipy()).nnz == 0
    assert x[:, 0].tolist() == [4.0] * 5 + [0.0] + [2.0] * 3
    part = found.subset(torch.tensor([4, 2]))
    assert part.graphs == (found.graphs[4], found.graphs[2])
    assert (len(part), part.num_features, part.num_classes, part[1][2]) == (2, 2, 3, 2)


def sizes(batches: GraphBatches, epoch: int = 0, skip: int = 0) -> list[list[int]]:
    return [[part.num_nodes for part in batch.graph.parts] for batch in batches.epoch(epoch, skip)]


def test_an_epoch_has_every_graph_once_in_an_order_of_its_own():
    batches = GraphBatches(make(), 4, seed=3)
    assert len(batches) == 3
    first, second = sizes(batches, 0), sizes(batches, 1)
    assert [len(batch) for batch in first] == [4, 4, 2]
    assert first != second
    for epoch in (first, second):
        assert sorted(size for batch in epoch for size in batch) == list(range(1, 11))
    assert sizes(GraphBatches(make(), 4, seed=3), 1) == second
    assert sizes(GraphBatches(make(), 4, seed=4), 1) != second


def test_what_was_seen_is_skipped():
    batches = GraphBatches(make(), 4)
    assert sizes(batches, 5, skip=2) == sizes(batches, 5)[2:]
    assert sizes(batches, 5, skip=3) == []
    with pytest.raises(ValueError, match="`skip` must lie between 0 and the 3 batches"):
        next(batches.epoch(0, 4))


def test_batches_that_are_not_shuffled_are_kept():
    batches = GraphBatches(make(), 4, shuffle=False)
    assert sizes(batches) == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10]]
    assert [a.graph is b.graph for a, b in zip(batches.epoch(0), batches.epoch(7), strict=True)] == [True] * 3


def test_processes_share_every_batch():
    batches = GraphBatches(make(9), 4)
    whole = sizes(batches)
    parts = [sizes(batches.shard(rank, 2)) for rank in range(2)]
    assert [len(part) for part in parts] == [3, 2]
    assert parts[0][0] + parts[1][0] == whole[0]
    with pytest.raises(ValueError, match=r"`rank` must lie in \[0, world_size=2\), but is 2"):
        batches.shard(2, 2)


@pytest.mark.parametrize(
    ("count", "whole", "shared"), [(9, [4, 4], [2, 2]), (10, [4, 4, 2], [2, 2]), (8, [4, 4], [2, 2])]
)
def test_last_batches_with_too_few_graphs_for_a_process_are_left_out_by_all(count, whole, shared):
    batches = GraphBatches(make(count), 4, min_graphs=2)
    assert [len(each) for each in sizes(batches)] == whole
    assert len(batches) == len(whole)
    for rank in range(2):
        assert [len(each) for each in sizes(batches.shard(rank, 2))] == shared
    with pytest.raises(ValueError, match=r"`min_graphs` must lie in \[1, batch_size=4\], but is 5"):
        GraphBatches(make(9), 4, min_graphs=5)


def test_sets_come_from_pyg():
    edges = torch.tensor([[0, 1], [1, 0]])
    data = [Data(x=torch.ones(2, 3), edge_index=edges, y=torch.tensor([k])) for k in (0, 2)]
    found = GraphSet.from_pyg("pairs", data)
    assert (found.num_classes, found.labels.tolist(), found.graphs[0].num_edges) == (3, [0, 2], 1)
    with pytest.raises(ValueError, match="Graph 0 of pairs has no `y`, its class"):
        GraphSet.from_pyg("pairs", [Data(x=torch.ones(2, 3), edge_index=edges)])
    with pytest.raises(ValueError, match="`dataset` of pairs is empty"):
        GraphSet.from_pyg("pairs", [])
    with pytest.raises(
        ValueError, match=r"Graph 1 of pairs must have `x` of shape \[num_nodes, features\], not \(2,\)"
    ):
        GraphSet.from_pyg("pairs", [data[0], Data(x=torch.ones(2), edge_index=edges, y=torch.tensor([0]))])
    for y, message in (
        (
            torch.tensor([0.9]),
            "`y` of graph 1 of pairs must hold integers, classes from 0, but has dtype torch.float32",
        ),
        (torch.tensor([[0, 1, 1]]), r"`y` of graph 1 of pairs must hold 1 class label, but has shape \(1, 3\)"),
        (torch.tensor([-1]), r"`labels` must be classes in \[0, 1\), but the label of graph 1 is -1"),
    ):
        with pytest.raises(ValueError, match=message):
            GraphSet.from_pyg("pairs", [data[0], Data(x=torch.ones(2, 3), edge_index=edges, y=y)])
    plain = [Data(x=torch.ones(2, 3), edge_index=edges, y=y) for y in (1, np.array([0]))]
    assert GraphSet.from_pyg("pairs", plain).labels.tolist() == [1, 0]
    data[1].x[1, 2] = torch.nan
    with pytest.raises(ValueError, match="`features` of graph 1 must be finite, but node 1 has NaN or inf"):
        GraphSet.from_pyg("pairs", data)
    data[1].x[1, 2] = 0
    with pytest.raises(ValueError, match="`max_degree` is 3, but only degree='one-hot' has it, not 'none'"):
        GraphSet.from_pyg("pairs", data, max_degree=3)


def test_parts_of_a_set_as_pyg_has_them():
    found = make(6)
    mask = torch.tensor([False, False, True, False, True, False])
    numpy = np.array([2, 4]), mask.numpy()
    for part in (*(found[each] for each in numpy), *map(found.subset, numpy)):
        assert part.graphs == (found.graphs[2], found.graphs[4])
    for part in (found[mask], found[[2, 4]], found[torch.tensor([2, 4])], found[2:5:2], found.subset(mask.tolist())):
        assert part.graphs == (found.graphs[2], found.graphs[4])
        assert part.labels.tolist() == found.labels[[2, 4]].tolist()
    assert found.batch(mask).graph.parts == (found.graphs[2], found.graphs[4])
    assert found[torch.tensor(3)][0] is found.graphs[3]
    with pytest.raises(ValueError, match=r"A mask for .* must have shape \(6,\), not \(5,\)"):
        found[mask[1:]]
    for wrong in ([0.7, 1.2], torch.tensor([[0, 1]])):
        with pytest.raises(ValueError, match=r"`indices` must be integers of shape \[n\], but are"):
            found.subset(wrong)
    with pytest.raises(ValueError, match="`indices` is empty"):
        found.batch([])


def test_bad_features_and_labels_are_named():
    graphs, labels = [tm.path_graph(2)], torch.tensor([0])
    with pytest.raises(
        ValueError, match=r"`features` of graph 0 must be floats of shape \[num_nodes=2, 1\], but are torch.int64"
    ):
        GraphSet("one", graphs, [torch.ones(2, 1).long()], labels, ("a",))
    with pytest.raises(ValueError, match=r"`labels` must have shape \(1,\), but have \(1, 1\)"):
        GraphSet("one", graphs, [torch.ones(2, 1)], labels[None], ("a",))
    pair = Data(x=torch.ones(2, 3), edge_index=torch.tensor([[0, 1], [1, 0]]), y=0)
    with pytest.raises(ValueError, match="must be a list of PyG's Data, but element 0 is a tuple"):
        GraphSet.from_pyg("one", pair)
    one_way = Data(x=torch.ones(2, 3), edge_index=torch.tensor([[0], [1]]), y=0)
    with pytest.raises(ValueError, match=r"Graph 1 of two: `edge_index` must be symmetric"):
        GraphSet.from_pyg("two", [pair, one_way])


def test_quantities_are_standardised_like_those_of_another_set():
    graphs, labels = [tm.path_graph(2)] * 2, torch.tensor([0, 0])
    values = [[[0.0], [4.0]], [[8.0], [4.0]]], [[[100.0], [200.0]], [[4.0], [4.0]]]
    known, new = (GraphSet("x", graphs, [torch.tensor(x) for x in each], labels, ("a",), [0]) for each in values)
    # The mean is 4 and the deviation the root of 8.
    expected = (torch.tensor([[100.0], [200.0], [4.0], [4.0]]) - 4) / 8**0.5
    torch.testing.assert_close(torch.cat(new.standardized(known).features), expected)
    torch.testing.assert_close(known.standardized(known).features, known.standardized().features)
    # What was standardised before is brought to what it was: new graphs, and those that they are compared with.
    for again in (
        new.standardized().standardized(known),
        new.standardized().subset([0, 1]).standardized(known[:].standardized()),
    ):
        torch.testing.assert_close(torch.cat(again.features), expected, rtol=1e-4, atol=1e-4)
    with pytest.raises(
        ValueError, match=r"`reference` must have the columns of x, .*, but has 1 features with quantities \[\]"
    ):
        new.standardized(GraphSet("y", graphs, [torch.ones(2, 1)] * 2, labels, ("a",)))


def test_attributes_of_pyg_can_be_quantities_and_edges_directed():
    one_way = torch.tensor([[0], [1]])
    values = ([0.0, 4.0], [8.0, 4.0], [100.0, 200.0])
    data = [Data(x=torch.tensor([[1.0, a], [0.0, b]]), edge_index=one_way, y=0) for a, b in values]
    with pytest.raises(ValueError, match="Pass directed=True"):
        GraphSet.from_pyg("pairs", data)
    found = GraphSet.from_pyg("pairs", data, quantities=[1], directed=True)
    assert found.graphs[0].directed
    with pytest.raises(ValueError, match=r"`quantities` must lie in \[0, 2\), the columns of `x`, but are \(2,\)"):
        GraphSet.from_pyg("pairs", data, quantities=[2], degree="one-hot", directed=True)
    x = torch.cat(found.standardized([0, 1]).features)
    assert x[:, 0].tolist() == [1.0, 0.0] * 3
    # Of the first two graphs, the mean is 4 and the deviation the root of 8.
    torch.testing.assert_close(x[:, 1], (torch.tensor([0.0, 4, 8, 4, 100, 200]) - 4) / 8**0.5)


def test_graphs_of_pyg_without_features_take_their_degrees():
    pair, path = torch.tensor([[0, 1], [1, 0]]), torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    data = [Data(edge_index=edges, num_nodes=3, y=torch.tensor([k])) for k, edges in enumerate((pair, path))]
    with pytest.raises(ValueError, match=r"Graph 0 of IMDB has no `x`.*degree='one-hot'.*transform=OneHotDegree"):
        GraphSet.from_pyg("IMDB", data)
    one_hot = GraphSet.from_pyg("IMDB", data, degree="one-hot")
    assert torch.cat(one_hot.features).argmax(dim=1).tolist() == [1, 1, 0, 1, 2, 1]
    x = torch.cat(GraphSet.from_pyg("IMDB", data, degree="log").features)
    torch.testing.assert_close((x.mean(), x.std(correction=0)), (torch.tensor(0.0), torch.tensor(1.0)))
    for each in data:
        each.x = torch.full((3, 2), 7.0)
    both = GraphSet.from_pyg("IMDB", data, degree="one-hot", max_degree=1)
    assert both.features[1].tolist() == [[7.0, 7.0, 0.0, 1.0]] * 3


def test_quantities_are_standardised_over_the_reference():
    draw = torch.Generator().manual_seed(0)
    features = [torch.randn(n + 1, 4, generator=draw) * 5 + 3 for n in range(6)]
    for x in features:
        x[:, 3] = 0.1
    found = GraphSet("x", [tm.path_graph(n + 1) for n in range(6)], features, torch.zeros(6).long(), "a", (1, 3))
    train = [1, 4, 5]
    scaled = found.standardized(train)
    known = torch.cat([scaled.features[k] for k in train])
    torch.testing.assert_close(known[:, 1].mean(), torch.tensor(0.0))
    torch.testing.assert_close(known[:, 1].std(correction=0), torch.tensor(1.0))
    seen = torch.cat([features[k] for k in train])[:, 1]
    torch.testing.assert_close(scaled.features[2][:, 1], (features[2][:, 1] - seen.mean()) / seen.std(correction=0))
    for ours, given in zip(scaled.features, found.features, strict=True):
        assert torch.equal(ours[:, [0, 2]], given[:, [0, 2]]), "categories stay"
        assert ours[:, 3].abs().max() < 1e-6, "a constant says nothing"
    assert scaled.subset([2]).quantities == (1, 3)
    # What other graphs hold does not matter.
    features[0] += 1000
    assert torch.equal(found.standardized(train).features[2], scaled.features[2])
    with pytest.raises(ValueError, match=r"`quantities` must lie in \[0, 4\)"):
        GraphSet("x", found.graphs, features, found.labels, "a", (4,))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"features": [torch.ones(1, 2), torch.ones(1, 2)]}, r"graph 1 must be floats of shape \[num_nodes=2, 2\]"),
        ({"labels": torch.tensor([0, 3])}, r"`labels` must be classes in \[0, 3\), but the label of graph 1 is 3"),
        (
            {"labels": torch.tensor([0])},
            "`graphs`, `features` and `labels` must have the same length, at least 1, but have 2, 2 and 1",
        ),
    ],
)
def test_parts_that_do_not_fit_are_named(change, message):
    given = {"graphs": [tm.path_graph(1), tm.path_graph(2)], "features": [torch.ones(1, 2), torch.ones(2, 2)]}
    given |= {"labels": torch.tensor([0, 1]), "classes": "abc"} | change
    with pytest.raises(ValueError, match=message):
        GraphSet("x", **given)
    with pytest.raises(ValueError, match="`batch_size` must be at least 1"):
        GraphBatches(make(), 0)


def test_batches_of_another_data_set_say_how_to_convert_it():
    with pytest.raises(ValueError, match=r"`dataset` must be a GraphSet, but is a list.*GraphSet\.from_pyg"):
        GraphBatches([object()], 2)


def saved(features: int = 3) -> GraphSet:
    graphs = [tm.path_graph(4), tm.Graph.from_edges(torch.empty(2, 0), 2), tm.cycle_graph(5)] * 4
    x = [torch.randn(graph.num_nodes, features) for graph in graphs]
    return GraphSet("mine", graphs, x, torch.arange(12) % 2, ("a", "b"))


def test_a_set_built_in_python_is_read_by_the_command_line(tmp_path, forget_data):
    found = saved()
    file = tmp_path / "tudataset" / "mine.zip"
    found.save(file)
    again = tu_dataset("mine", tmp_path, attributes=True, standardize=False)
    assert [graph.fingerprint for graph in again.graphs] == [graph.fingerprint for graph in found.graphs]
    assert all(map(torch.equal, again.features, found.features))
    assert torch.equal(again.labels, found.labels)
    parts = [GraphData("mine", root=tmp_path, attributes=True).load(split) for split in ("train", "val", "test")]
    assert sum(map(len, parts)) == 12
    assert not any(b"pickle" in zipfile.ZipFile(file).read(name) for name in zipfile.ZipFile(file).namelist())


def test_a_set_of_many_equal_features_is_not_refused_as_an_archive_that_grows(tmp_path):
    nodes = 20_000
    big = GraphSet("big", [tm.path_graph(nodes)], [torch.zeros(nodes, 300)], torch.tensor([0]), ("a",))
    big.save(tmp_path / "tudataset" / "big.zip")
    assert tu_dataset("big", tmp_path, attributes=True).num_features == 300


def test_a_set_that_cannot_be_saved_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    file = tmp_path / "mine.zip"
    saved().save(file)
    before = file.read_bytes()
    others = {
        "directed": tm.Graph.from_edges([[0, 1]], directed=True),
        "weighted": tm.Graph.from_edges([[0, 1]], weights=[2.0]),
        "loop": tm.Graph.from_edges([[0, 1], [1, 1]]),
        "batch": tm.Graph.batch([tm.path_graph(1)] * 2),
    }
    for graph in others.values():
        mixed = GraphSet("mine", [tm.path_graph(2), graph], [torch.ones(2, 1)] * 2, torch.tensor([0, 1]), ("a", "b"))
        with pytest.raises(ValueError, match="Graph 1 of mine must be a single undirected graph without weights and"):
            mixed.save(file)
    with pytest.raises(ValueError, match="at least one edge and one feature"):
        saved(0).save(file)
    with pytest.raises(ValueError, match=r"must end in \.zip, but is .*mine"):
        saved().save(tmp_path / "mine")

    def fail(*_, **__):
        raise OSError("the disk was pulled")

    monkeypatch.setattr(np, "savetxt", fail)
    with pytest.raises(OSError, match="the disk was pulled"):
        saved().save(file)
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


def test_a_set_without_quantities_says_that_nothing_is_standardised():
    data = [Data(x=torch.tensor([[170.0], [180.0]]), edge_index=torch.tensor([[0, 1], [1, 0]]), y=k) for k in range(2)]
    found = GraphSet.from_pyg("mine", data)
    with pytest.warns(UserWarning, match="mine has no `quantities`, so nothing is standardised.*quantities="):
        assert found.standardized() is found
    named = GraphSet.from_pyg("mine", data, quantities=[0]).standardized()
    assert torch.cat(named.features).flatten().tolist() == [-1, 1, -1, 1]
    categories = GraphSet("two", [tm.path_graph(2)], [torch.eye(2)], torch.tensor([0]), ("a",))
    assert categories.standardized() is categories


def test_quantities_are_saved_on_the_scale_of_new_graphs(tmp_path):
    x = [torch.tensor([[170.0, 1.0], [180.0, 0.0]]), torch.tensor([[150.0, 0.0], [161.5, 1.0]])]
    data = [Data(x=x[k], edge_index=torch.tensor([[0, 1], [1, 0]]), y=k) for k in range(2)]
    GraphSet.from_pyg("mine", data, quantities=[0]).save(tmp_path / "tudataset" / "mine.zip")
    read = tu_dataset("mine", tmp_path, attributes=True, standardize=False)
    torch.testing.assert_close(read.features, tuple(x))
    new = GraphSet.from_pyg("new", data, quantities=read.quantities).standardized(read.subset([0]))
    torch.testing.assert_close(new.features[0], torch.tensor([[-1.0, 1.0], [1.0, -1.0]]))
