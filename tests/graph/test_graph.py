import copy
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
import torch

import topomask as tm
from helpers.graphs import directed_graph, ragged_graph, signed_graph

EDGES = np.array([[0, 1, 2], [1, 2, 0]])


def test_both_edge_layouts_and_both_libraries_agree():
    dense = tm.Graph.from_edges(EDGES).to_scipy().toarray()
    for edges in (
        EDGES.T,
        torch.from_numpy(EDGES),
        torch.from_numpy(EDGES.T.copy()),
        EDGES.tolist(),
        EDGES.astype(np.uint8),
    ):
        np.testing.assert_array_equal(tm.Graph.from_edges(edges).to_scipy().toarray(), dense)
    np.testing.assert_array_equal(dense, [[0, 1, 1], [1, 0, 1], [1, 1, 0]])


def test_two_by_two_is_read_as_pyg_does():
    graph = tm.Graph.from_edges([[0, 1], [2, 3]], directed=True)
    assert graph.to_scipy()[0, 2] == 1
    assert graph.to_scipy()[1, 3] == 1


def test_duplicates_are_one_edge_and_self_loops_count_once():
    graph = tm.Graph.from_edges([(0, 1), (1, 0), (0, 1), (1, 1)], weights=[2.0, 2.0, 2.0, 5.0])
    np.testing.assert_array_equal(graph.to_scipy().toarray(), [[0, 2], [2, 5]])
    np.testing.assert_array_equal(graph.degrees, [2, 7])
    assert graph.num_edges == 2


def test_zero_weights_are_no_edges():
    graph = tm.Graph.from_edges([(0, 1), (1, 2)], weights=[0.0, 1.0])
    assert graph.num_edges == 1
    assert graph.degrees[0] == 0


def test_directed_edges_keep_their_direction():
    graph = tm.Graph.from_edges([(0, 1), (0, 2), (2, 1)], directed=True)
    np.testing.assert_array_equal(graph.to_scipy().toarray(), [[0, 1, 1], [0, 0, 0], [0, 1, 0]])
    assert graph.num_edges == 3
    assert "directed=True" in repr(graph)


@pytest.mark.parametrize("make", [ragged_graph, signed_graph])
def test_normalizations_undirected(make):
    graph = make()
    a = graph.to_scipy().toarray()
    s = np.abs(a).sum(1)
    np.testing.assert_allclose(graph.degrees, s, rtol=1e-15)
    inverse = np.where(s > 0, 1 / np.where(s > 0, s, 1), 0)
    np.testing.assert_allclose(graph.adjacency("row").toarray(), inverse[:, None] * a)
    np.testing.assert_allclose(graph.adjacency().toarray(), np.sqrt(inverse)[:, None] * a * np.sqrt(inverse))
    np.testing.assert_array_equal(graph.adjacency("none").toarray(), a)


def test_normalization_of_directed_graphs():
    graph = directed_graph()
    np.testing.assert_allclose(graph.adjacency().toarray(), graph.adjacency("row").toarray())
    with pytest.raises(ValueError, match="directed"):
        graph.adjacency("sym")
    with pytest.raises(ValueError, match="normalization"):
        graph.adjacency("rows")


def test_scipy_round_trip():
    for graph in (ragged_graph(), signed_graph(), directed_graph()):
        again = tm.Graph.from_scipy(graph.to_scipy(), directed=graph.directed, signed=True)
        assert again.fingerprint == graph.fingerprint
    edges, weights = ragged_graph().to_edge_index()
    assert tm.Graph.from_edges(edges, 11, weights).fingerprint == ragged_graph().fingerprint
    coo = sp.coo_array(([1.0, 2.0, 3.0], ([0, 0, 1], [1, 1, 0])), shape=(2, 2))
    assert tm.Graph.from_scipy(coo).to_scipy()[0, 1] == 3


def test_networkx():
    graph = tm.Graph.from_networkx(nx.karate_club_graph())
    assert (graph.num_nodes, graph.num_edges) == (34, 78)
    assert graph.degrees.max() > 34
    assert tm.Graph.from_networkx(nx.DiGraph([(0, 1)])).directed


def test_pyg_data_and_batch():
    from torch_geometric.data import Batch, Data

    parts = [tm.cycle_graph(4), tm.path_graph(1), ragged_graph()]
    data = []
    for part in parts:
        edge_index, weights = part.to_edge_index()
        data.append(Data(edge_index=edge_index, edge_weight=weights, num_nodes=part.num_nodes))
    assert tm.Graph.from_pyg(data[2]).fingerprint == parts[2].fingerprint
    assert tm.Graph.from_pyg(Batch.from_data_list(data)).fingerprint == tm.Graph.batch(parts).fingerprint
    batch = Batch.from_data_list(data)
    del batch.ptr
    assert tm.Graph.from_pyg(batch).fingerprint == tm.Graph.batch(parts).fingerprint
    owners = batch.batch
    batch.batch = owners.tolist()
    assert tm.Graph.from_pyg(batch).fingerprint == tm.Graph.batch(parts).fingerprint
    for wrong in (owners.float(), owners[:, None], owners[1:], owners - 1):
        batch.batch = wrong
        with pytest.raises(ValueError, match="`batch` must be the graph of each of the 16 nodes"):
            tm.Graph.from_pyg(batch)
    batch.batch = owners.flip(0)
    with pytest.raises(
        ValueError, match="`batch` must be the graph of each of the 16 nodes as ascending non-negative integers"
    ):
        tm.Graph.from_pyg(batch)
    nothing = Data(edge_index=torch.zeros(2, 0, dtype=torch.int64), edge_weight=torch.zeros(0), num_nodes=0)
    trailing = Batch.from_data_list([*data, nothing])
    assert tm.Graph.from_pyg(trailing).num_graphs == 4
    one_way = Data(edge_index=torch.tensor([[0], [1]]), num_nodes=2)
    with pytest.raises(ValueError, match="to_undirected"):
        tm.Graph.from_pyg(one_way)
    assert tm.Graph.from_pyg(one_way, directed=True).num_edges == 1
    with pytest.raises(ValueError, match="`data` has no `edge_index`"):
        tm.Graph.from_pyg(Data(x=torch.ones(3, 2)))


def test_weights_of_two_directions_may_differ_by_rounding():
    from torch_geometric.data import Data
    from torch_geometric.nn.conv.gcn_conv import gcn_norm

    torch.manual_seed(0)
    matrix = torch.rand(20, 20) * (torch.rand(20, 20) < 0.2)
    matrix = matrix + matrix.T
    edge_index = matrix.nonzero().T
    # Symmetric, but for the order in which PyG multiplies.
    edge_index, weights = gcn_norm(edge_index, matrix[*edge_index], 20)
    dense = torch.zeros(20, 20).index_put(tuple(edge_index), weights)
    assert not torch.equal(dense, dense.T)
    graph = tm.Graph.from_pyg(Data(edge_index=edge_index, edge_weight=weights, num_nodes=20))
    found = torch.from_numpy(graph.to_scipy().toarray())
    assert torch.equal(found, found.T)
    torch.testing.assert_close(found, dense.double(), rtol=1e-6, atol=0.0)
    unequal = Data(edge_index=torch.tensor([[0, 1], [1, 0]]), edge_weight=torch.tensor([0.3, 0.4]), num_nodes=2)
    with pytest.raises(ValueError, match=r"Pass directed=True, or use to_undirected\(..., reduce='mean'\)"):
        tm.Graph.from_pyg(unequal)


def test_batches_take_any_iterable_of_graphs():
    graphs = [tm.path_graph(2), tm.cycle_graph(3)]
    assert tm.Graph.batch(graph for graph in graphs).fingerprint == tm.Graph.batch(graphs).fingerprint
    with pytest.raises(ValueError, match=r"`graphs` must be topomask.Graphs, but graphs\[1\] is a list"):
        tm.Graph.batch([graphs[0], []])


def test_batch_is_block_diagonal_and_keeps_ids():
    parts = [tm.cycle_graph(3), tm.path_graph(1), ragged_graph()]
    batch = tm.Graph.batch(parts)
    blocks = sp.block_diag([p.to_scipy() for p in parts]).toarray()
    np.testing.assert_array_equal(batch.to_scipy().toarray(), blocks)
    np.testing.assert_array_equal(batch.ids, np.concatenate([np.arange(p.num_nodes) for p in parts]))
    assert batch.num_graphs == 3
    again = tm.Graph.batch([batch, parts[0]])
    assert again.num_graphs == 4
    assert again.fingerprint == tm.Graph.batch([*parts, parts[0]]).fingerprint
    with pytest.raises(ValueError, match="empty"):
        tm.Graph.batch([])
    with pytest.raises(ValueError, match=r"`graphs` must be a list .* is one topomask\.Graph\. Pass \[graph\]"):
        tm.Graph.batch(parts[0])
    with pytest.raises(ValueError, match="mixes"):
        tm.Graph.batch([parts[0], directed_graph()])


def test_graph_is_immutable_also_after_copying():
    for graph in (ragged_graph(), pickle.loads(pickle.dumps(ragged_graph())), copy.deepcopy(ragged_graph())):
        for name in ("indptr", "indices", "weights", "degrees", "ids", "graph_index"):
            with pytest.raises(ValueError, match="read-only"):
                getattr(graph, name)[0] = 1
        with pytest.raises(AttributeError):
            graph.directed = True
        assert graph.indptr.dtype == np.int64


def test_fingerprint_tells_graphs_apart():
    prints = {
        g.fingerprint for g in (tm.path_graph(4), tm.cycle_graph(4), tm.path_graph(5), ragged_graph(), directed_graph())
    }
    assert len(prints) == 5


def test_neighborhood_sees_what_walks_see():
    graph = tm.grid_graph(7, 7)
    part = graph.neighborhood([24], num_hops=2)
    assert part.num_nodes == 13
    assert tm.Graph.from_edges([], 3).neighborhood([1], 2).num_nodes == 1
    with pytest.raises(ValueError, match="empty"):
        graph.neighborhood([], 2)
    with pytest.raises(ValueError, match="num_hops"):
        graph.neighborhood([0], -1)
    np.testing.assert_array_equal(part.degrees, graph.degrees[part.ids])


BAD = {
    "out of range": (dict(edges=[[0, 1], [1, 7]], num_nodes=5), r"edge 1 is \(1, 7\).*num_nodes=8"),
    "negative": (dict(edges=[[0, -1], [1, 2]]), r"edge 1 is \(-1, 2\)"),
    "float": (dict(edges=[[0.0, 1.0], [1.0, 2.0]]), r"float64.*\.long\(\)"),
    "boolean": (dict(edges=np.ones((2, 3), dtype=bool)), "bool"),
    "complex": (dict(edges=np.ones((2, 3), dtype=complex)), "complex"),
    "shape": (dict(edges=[[0, 1, 2]]), r"\[2, E\] or \[E, 2\].*\(1, 3\)"),
    "three columns": (dict(edges=np.ones((5, 3))), r"\(5, 3\).*edges\[:, :2\] as integers, and weights=edges\[:, 2\]"),
    "three rows": (dict(edges=np.ones((3, 5))), r"\(3, 5\).*edges\[:2\] as integers, and weights=edges\[2\]"),
    "path": (dict(edges="edges.csv"), r"is the path 'edges\.csv'\. Load the file, as with numpy\.loadtxt"),
    "Path": (dict(edges=Path("edges.csv")), r"is the path 'edges\.csv'"),
    "flat": (dict(edges=[0, 1]), r"shape \(2,\)"),
    "ragged": (dict(edges=[[0, 1], [1]]), "rectangular"),
    "strings": (dict(edges=[["a", "b"], ["c", "d"]]), "integers"),
    "identifier": (dict(edges=[[0], [10**13]]), "Renumber"),
    "huge": (dict(edges=np.array([[2**63], [0]], dtype=np.uint64)), "int64"),
    "no nodes": (dict(edges=[], num_nodes=None), "num_nodes"),
    "zero nodes": (dict(edges=[], num_nodes=0), "`num_nodes` must be an integer of at least 1, but is 0"),
    "fractional nodes": (dict(edges=[], num_nodes=2.5), r"`num_nodes` must be an integer of at least 1, but is 2\.5"),
    "nan": (dict(edges=EDGES, weights=[1.0, np.nan, 1.0]), r"edge 1, \(1, 2\), has weight nan"),
    "infinite": (dict(edges=EDGES, weights=[1.0, 1.0, np.inf]), r"edge 2, \(2, 0\), has weight inf"),
    "negative weight": (dict(edges=EDGES, weights=[1.0, -1.0, 1.0]), "signed=True"),
    "weight shape": (dict(edges=EDGES, weights=[1.0, 2.0]), r"\[num_edges=3\].*\(2,\)"),
    "weight overflow": (dict(edges=EDGES, weights=[1e308] * 3), "node 0.*overflow"),
    "weight dtype": (dict(edges=EDGES, weights=["a", "b", "c"]), "real numbers"),
    "conflict": (
        dict(edges=[(0, 1), (1, 0), (0, 2)], weights=[1.0, 2.0, 1.0]),
        r"\(0, 1\) is listed with different weights, 1.0 and 2.0",
    ),
}


@pytest.mark.parametrize("case", BAD, ids=BAD.keys())
def test_bad_edges_are_named(case):
    arguments, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        tm.Graph.from_edges(**arguments)


def test_bad_matrices_are_named():
    with pytest.raises(ValueError, match=r"entry \(0, 1\) is 1.0 and entry \(1, 0\) is 0.0.*directed=True"):
        tm.Graph.from_scipy(sp.csr_array([[0.0, 1.0], [0.0, 0.0]]))
    with pytest.raises(ValueError, match="square"):
        tm.Graph.from_scipy(sp.csr_array(np.ones((2, 3))))
    with pytest.raises(ValueError, match="csr_array"):
        tm.Graph.from_scipy(np.ones((2, 2)))
    with pytest.raises(ValueError, match="no nodes"):
        tm.Graph.from_networkx(nx.Graph())
    with pytest.raises(ValueError, match="signed=True"):
        tm.Graph.from_scipy(sp.csr_array([[0.0, -1.0], [-1.0, 0.0]]))


def test_fuzzed_edges_give_a_graph_or_a_value_error():
    """Anything may be wrong at once; the process must survive and every refusal must be a ValueError."""
    script = textwrap.dedent("""
        import numpy as np, topomask as tm
        rng = np.random.default_rng(0)
        built = refused = 0
        for _ in range(3000):
            count = int(rng.integers(0, 6))
            shape = [(2, count), (count, 2), (3, count), (count,)][rng.choice(4, p=[.55, .3, .1, .05])]
            dtype = rng.choice(["int64", "int32", "uint8", "float64", "bool", "uint64"], p=[.6, .1, .1, .1, .05, .05])
            edges = rng.integers(-1 if rng.random() < .1 else 0, 9, size=shape).astype(dtype)
            nodes = [None, 9, 4, 0, -1][rng.choice(5, p=[.3, .5, .1, .05, .05])]
            weights = None
            if rng.random() < .5:
                values = [0., 1., .5, -1., np.nan, np.inf, 1e300, 1e-300]
                weights = rng.choice(values, size=count + int(rng.random() < .05))
            options = dict(directed=bool(rng.random() < .5), signed=bool(rng.random() < .5))
            try:
                graph = tm.Graph.from_edges(edges, nodes, weights, **options)
            except ValueError as error:
                assert str(error)
                refused += 1
                continue
            features = tm.sample_features(graph, num_walks=3, max_length=2, seed=1)
            assert features.num_rows == graph.num_nodes
            built += 1
        assert built > 300 and refused > 300, (built, refused)
        print("survived")
    """)
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    assert "survived" in run.stdout
