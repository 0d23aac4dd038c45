"""Files of graphs, good and bad."""

import builtins
import pickle

import networkx as nx
import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp

from topomask.pictures.graph_files import READERS, read_graph

MATRIX = np.array([[0, 2.0, 0], [2.0, 0, -1.0], [0, -1.0, 0]])


@pytest.mark.parametrize(
    "text",
    [
        "0 1 2.0\n1 2 -1\n",
        "source,target,weight\n0,1,2\n2,1,-1.0\n",
        "# a comment\n\n0\t1\t2\n1;2;-1  # why\n",
        "% MATLAB\r\n0, 1, 2\r\n1, 2, -1\r\n",
        "\ufeff0 1 2\n1 2 -1",
    ],
)
@pytest.mark.parametrize("suffix", [".txt", ".csv", ".tsv", ".edges"])
def test_lists_of_edges(tmp_path, text, suffix):
    path = tmp_path / f"graph{suffix}"
    path.write_text(text, encoding="utf-8")
    graph, points = read_graph(path)
    np.testing.assert_array_equal(graph.to_scipy().toarray(), MATRIX)
    assert points is None


def test_two_columns_and_directions(tmp_path):
    path = tmp_path / "graph.txt"
    path.write_text("0 1\n1 2\n")
    assert read_graph(path)[0].num_edges == 2
    np.testing.assert_array_equal(read_graph(path, directed=True)[0].to_scipy().toarray(), np.eye(3, k=1))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0 1\nzero one\n", "line 2 must hold two node numbers"),
        ("0 1\n\n2\n", "line 3 must hold"),
        ("0 1.5\n", "line 1 must hold"),
        ("0 1\n1 2 3.0\n", "line 2 must have 2 columns"),
        ("0 1 2 3\n", "two or three columns, but has 4"),
        ("0 -1\n", "negative node numbers"),
        ("0 1 nan\n", "must be finite"),
        ("0 1 1\n1 0 2\n", "different weights"),
        ("", "no edges"),
        ("a,b\n", "no edges"),
    ],
)
def test_bad_lists_are_named(tmp_path, text, message):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"bad\.csv.*{message}"):
        read_graph(path)


def test_matrices(tmp_path):
    sp.save_npz(tmp_path / "a.npz", sp.csr_array(MATRIX))
    scipy.io.mmwrite(tmp_path / "b.mtx", sp.coo_array(MATRIX))
    np.savez(tmp_path / "c.npz", edges=[[0, 1], [1, 2]], weights=[2.0, -1.0], num_nodes=3)
    for name in ("a.npz", "b.mtx", "c.npz"):
        np.testing.assert_array_equal(read_graph(tmp_path / name)[0].to_scipy().toarray(), MATRIX)
    sp.save_npz(tmp_path / "d.npz", sp.csr_array(np.triu(MATRIX)))
    with pytest.raises(ValueError, match=r"d\.npz.*must be symmetric"):
        read_graph(tmp_path / "d.npz")
    assert read_graph(tmp_path / "d.npz", directed=True)[0].directed


def test_bad_archives_are_named(tmp_path):
    np.savez(tmp_path / "other.npz", stuff=[1])
    np.savez(tmp_path / "objects.npz", edges=np.array([{}, {}], dtype=object))
    np.savez(tmp_path / "points.npz", edges=[[0], [1]], points=np.zeros((3, 2)))
    (tmp_path / "text.npz").write_text("no archive")
    (tmp_path / "pickle.npz").write_bytes(pickle.dumps({"edges": [[0], [1]]}))
    (tmp_path / "text.mtx").write_text("no matrix")
    for name, message in (
        ("other.npz", "array `edges`, but holds"),
        ("objects.npz", "allow_pickle=False"),
        ("points.npz", r"shape \[2, 2 or 3\]"),
        ("text.npz", "no .npz archive"),
        ("pickle.npz", "no .npz archive"),
        ("text.mtx", "text.mtx"),
    ):
        with pytest.raises(ValueError, match=message):
            read_graph(tmp_path / name)


@pytest.mark.parametrize(("suffix", "write"), [(".gml", nx.write_gml), (".graphml", nx.write_graphml)])
def test_networkx_formats(tmp_path, suffix, write, monkeypatch):
    path = tmp_path / f"graph{suffix}"
    graph = nx.from_numpy_array(MATRIX)
    write(graph, path)
    np.testing.assert_array_equal(read_graph(path)[0].to_scipy().toarray(), MATRIX)
    assert read_graph(path, directed=True)[0].directed
    (tmp_path / f"bad{suffix}").write_text("no graph")
    with pytest.raises(ValueError, match="networkx cannot read it"):
        read_graph(tmp_path / f"bad{suffix}")
    original = builtins.__import__

    def without(name, *args):
        if name == "networkx":
            raise ModuleNotFoundError("No module named 'networkx'", name="networkx")
        return original(name, *args)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ValueError, match=r"topomask\[networkx\]"):
        read_graph(path)


def test_meshes(tmp_path):
    path = tmp_path / "mesh.obj"
    path.write_text("# two triangles\nv 0 0 0\nv 1 0 0\nv 1 1 0\nvt 0 0\nf 1/1 2/1 3/1\nv 0 1 1.5\nf -1//2 1 3\n")
    graph, points = read_graph(path)
    assert sorted(map(tuple, graph.to_edge_index()[0].T.tolist()))[:3] == [(0, 1), (0, 2), (0, 3)]
    assert graph.num_edges == 5
    np.testing.assert_array_equal(points[3], [0, 1, 1.5])
    for text, message in (
        ("v 0 0\n", "three coordinates"),
        ("v 0 x 0\n", "line 1 cannot be read"),
        ("f 1 2 3\n", "no vertices"),
        ("v 0 0 0\nf 1 2 3\n", "num_nodes=1"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            read_graph(path)
    with pytest.raises(ValueError, match="no directed edges"):
        read_graph(path, directed=True)


def test_files_that_are_not_there_or_of_another_kind(tmp_path):
    with pytest.raises(ValueError, match="no file"):
        read_graph(tmp_path / "missing.txt")
    (tmp_path / "graph.xlsx").write_text("")
    with pytest.raises(ValueError, match=r"end in \.txt"):
        read_graph(tmp_path / "graph.xlsx")
    (tmp_path / "latin.txt").write_bytes(b"0 1\n# \xe9\n")
    with pytest.raises(ValueError, match=r"latin\.txt"):
        read_graph(tmp_path / "latin.txt")
    assert all(suffix.startswith(".") for suffix in READERS)
