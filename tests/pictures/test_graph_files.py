"""Files of graphs, good and bad."""

import pickle
import sys

import networkx as nx
import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp

from helpers.hostile_files import MIB, header, little_memory, npy, write_npz
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
        ("0 1\nzero one\n", "line 2 must have two node numbers"),
        ("0 1\n\n2\n", "line 3 must have two node numbers"),
        ("0 1.5\n", "line 1 must have two node numbers"),
        ("0 1\n1 2 3.0\n", "line 2 must have 2 columns"),
        ("0 1 2 3\n", "two or three columns, but has 4"),
        ("0 -1\n", "negative node numbers"),
        ("0 1 nan\n", "must be finite"),
        ("0 1 1\n1 0 2\n", "different weights"),
        ("", "no edges"),
        ("a,b\n", "no edges below its header, line 1"),
        (
            "alice bob\nbob carol\n0 1\n",
            r"line 2 must have .*'bob carol'. Number the names: np\.unique\(names, return_inv",
        ),
        ("0 1\nalice bob\n", r"line 2 must have .*Number the names"),
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
        ("other.npz", "array `edges`, but has"),
        ("objects.npz", "edges.npy holds Python objects, which are never unpickled"),
        ("points.npz", r"shape \[2, 2 or 3\]"),
        ("text.npz", "it is not an .npz archive"),
        ("pickle.npz", "it is not an .npz archive"),
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
    monkeypatch.setitem(sys.modules, "networkx", None)
    with pytest.raises(ModuleNotFoundError, match=rf"Reading graph{suffix} needs networkx.*topomask\[networkx\]"):
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
        ("f 1 2 3\n", "it has no vertices"),
        ("v 0 0 0\nf 1 2 3\n", "refers to vertex 3, but the last one is 1"),
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
    with pytest.raises(
        ValueError, match=r"unknown suffix. Graphs are read from edge lists \(\.txt, .*meshes \(\.obj\)"
    ):
        read_graph(tmp_path / "graph.xlsx")
    (tmp_path / "latin.txt").write_bytes(b"0 1\n# \xe9\n")
    with pytest.raises(ValueError, match=r"latin\.txt"):
        read_graph(tmp_path / "latin.txt")
    assert all(suffix.startswith(".") for suffix in READERS)


SCIPY = {"format": np.array(b"csr"), "shape": [3, 3], "data": [1.0], "indices": [0], "indptr": [0, 1, 1, 1]}
COO = {"format": np.array(b"coo"), "shape": [3, 3], "data": [1.0], "row": [0], "col": [0]}
HUGE = r"4,000,000,001 nodes, but at most 20,000 can be drawn"
ARCHIVES = {
    "node number": ({"edges": [[0], [4 * 10**9]]}, HUGE),
    "largest number": ({"edges": [[0], [2**63 - 1]]}, "nodes, but at most 20,000 can be drawn"),
    "unsigned": ({"edges": np.array([[0], [2**64 - 1]], np.uint64)}, "does not fit in int64"),
    "num_nodes": ({"edges": [[0], [1]], "num_nodes": 2**62}, "4,611,686,018,427,387,904 nodes, but at most 20,000"),
    "two num_nodes": ({"edges": [[0], [1]], "num_nodes": [2, 2]}, "`num_nodes` must be an integer, but is int64"),
    "num_nodes of text": ({"edges": [[0], [1]], "num_nodes": "2"}, "`num_nodes` must be an integer, but is <U1"),
    "negative num_nodes": ({"edges": [[0], [1]], "num_nodes": -2}, "`num_nodes` must be an integer of at least 1, but"),
    "header": ({"edges": npy(header("(2, 1000000000000)"))}, "edges.npy is damaged: its header says int64"),
    "points of text": ({"edges": [[0], [1]], "points": [["a", "b"]] * 2}, "`points` must be real numbers"),
    "weights of text": ({"edges": [[0], [1]], "weights": ["a"]}, "`weights` must be real numbers"),
    "floats": ({"edges": [[0.0], [1.0]]}, "`edges` must be integers, but has dtype float64"),
    "shape": (COO | {"shape": [10**12, 10**12]}, "1,000,000,000,000 nodes, but at most 20,000"),
    "negative shape": (COO | {"shape": [-3, -3]}, "negative"),
    "shape of one": (COO | {"shape": [3]}, "`shape` must be 2 integers"),
    "row": (COO | {"row": [5]}, "exceeds matrix dimension"),
    "indices": (SCIPY | {"indices": [99]}, "indices must be < 3"),
    "negative indices": (SCIPY | {"indices": [-9]}, "indices must be >= 0"),
    "fractions": (SCIPY | {"indices": [0.5]}, "must have `indices`, integers"),
    "indptr": (SCIPY | {"indptr": [0, 10**9, 1, 1]}, "non-decreasing"),
    "no indptr": ({key: SCIPY[key] for key in ("format", "shape", "data", "indices")}, "must have `indptr`, integers"),
    "format": (SCIPY | {"format": np.array(b"random")}, "`format` must be one of csr, csc, bsr, coo, dia, but is 'ran"),
    "no format": (SCIPY | {"format": 5}, "`format` must be one of"),
    "no blocks": (SCIPY | {"format": np.array(b"bsr"), "data": np.ones((1, 0, 0))}, "not a valid matrix"),
    "text": (SCIPY | {"data": ["a"]}, "does not support dtype"),
    "rectangle": (COO | {"shape": [3, 2]}, "must be square"),
    "nothing": (SCIPY | {"shape": [0, 0], "data": [], "indices": np.zeros(0, int), "indptr": [0]}, "at least 1, but"),
}
MARKET = "%%MatrixMarket matrix "
LAUGHS = "".join(f'<!ENTITY a{k} "{"xxxxxxxxxx" if k == 0 else f"&a{k - 1};" * 20}">' for k in range(9))
GRAPHML = '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">'
TEXTS = {
    "a.txt": ("0 4000000000\n", HUGE),
    "b.txt": (f"0 {10**30}\n", "nodes, but at most 20,000 can be drawn"),
    "c.txt": (f"0 -{10**30}\n", "line 1 must not have negative node numbers"),
    "d.txt": (f"0 {'9' * 6000}\n", "line 1 must have two node numbers"),
    "e.txt": ("0 1\0\n", "line 1 must have two node numbers"),
    "f.txt": ("0 " * 100_000, "two or three columns"),
    "a.csv": ("\0" * 100, "no edges"),
    "a.mtx": (f"{MARKET}coordinate real general\n4000000001 4000000001 1\n1 1 1\n", HUGE),
    "b.mtx": (f"{MARKET}coordinate real general\n3 3 1000000000000\n1 1 1\n", "says 1,000,000,000,000 entries"),
    "c.mtx": (f"{MARKET}array real general\n20000 20000\n1\n", "says 400,000,000 entries, but it has 55 bytes"),
    "d.mtx": (f"{MARKET}array real general\n0 0\n", "must be a square matrix with at least one row"),
    "e.mtx": (f"{MARKET}coordinate real general\n{10**30} 3 1\n", "too large"),
    "f.mtx": (f"{MARKET}coordinate integer general\n3 3 1\n1 1 {10**30}\n", "too large"),
    "g.mtx": (f"{MARKET}coordinate real general\n3 3 1\n9 9 1\n", "out of bounds"),
    "h.mtx": (f"{MARKET}coordinate complex general\n3 3 1\n1 1 1 2\n", "must be real numbers"),
    "i.mtx": ("\0" * 100, "banner"),
    "a.gml": ("graph [ " + "a [ " * 100_000, "networkx cannot read it .*recursion"),
    "b.gml": ('graph [ node [ id 0 label "a" ] edge [ source 0 target 0 weight "x" ] ]', "must be a finite number"),
    "c.gml": (
        f"graph [ node [ id 0 label 1 ] edge [ source 0 target 0 weight {10**400} ] ]",
        "must be a finite number, but is 1000",
    ),
    "d.gml": ("\0" * 100, "networkx cannot read it"),
    "a.graphml": (f"<!DOCTYPE a [{LAUGHS}]><graphml>&a8;</graphml>", "networkx cannot read it"),
    "b.graphml": ("<a>" * 20_000, "networkx cannot read it"),
    "c.graphml": (
        f'<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]>{GRAPHML}<graph edgedefault="directed"><node id="&b;"/>'
        "</graph></graphml>",
        "networkx cannot read it .*external entity",
    ),
    "a.obj": (f"v 0 0 0\nf 1 2 {10**30}\n", f"refers to vertex {10**30}, but the last one is 1"),
    "b.obj": (f"v 0 0 0\nf 1 1 -{10**30}\n", "line 2 cannot be read"),
    "c.obj": ("v 1e999 0 0\n", "must be finite"),
}


@pytest.mark.parametrize("case", ARCHIVES)
def test_archives_that_ask_for_much_or_lie_are_refused(tmp_path, case):
    arrays, message = ARCHIVES[case]
    write_npz(tmp_path / "bad.npz", **arrays)
    with little_memory(), pytest.raises(ValueError, match=rf"bad\.npz: .*{message}") as found:
        read_graph(tmp_path / "bad.npz")
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("name", TEXTS)
def test_text_that_asks_for_much_or_lies_is_refused(tmp_path, name):
    text, message = TEXTS[name]
    (tmp_path / name).write_text(text)
    # Networkx parses deep text before it gives up.
    with little_memory(64 * MIB), pytest.raises(ValueError, match=rf"{name}: .*{message}") as found:
        read_graph(tmp_path / name)
    assert "\n" not in str(found.value)
    assert len(str(found.value)) < 400


@pytest.mark.parametrize("suffix", READERS)
def test_files_without_end_take_no_memory(tmp_path, suffix):
    with (tmp_path / f"holes{suffix}").open("wb") as out:
        out.truncate(1 << 40)
    with (
        little_memory(),
        pytest.raises(ValueError, match=rf"holes{suffix}: .*(more than `max_|it is not an \.npz archive)"),
    ):
        read_graph(tmp_path / f"holes{suffix}")
    (tmp_path / f"folder{suffix}").mkdir()
    with pytest.raises(ValueError, match=rf"There is no file .*folder{suffix}"):
        read_graph(tmp_path / f"folder{suffix}")


def test_the_limit_of_text_is_raised_by_name(tmp_path, monkeypatch):
    (tmp_path / "graph.txt").write_text("0 1\n1 2\n")
    monkeypatch.setenv("TOPOMASK_MAX_TEXT_BYTES", "7")
    with pytest.raises(ValueError, match=r"takes 8 bytes, more than `max_text_bytes`=7. .*TOPOMASK_MAX_TEXT_BYTES"):
        read_graph(tmp_path / "graph.txt")
    monkeypatch.setenv("TOPOMASK_MAX_TEXT_BYTES", "8")
    assert read_graph(tmp_path / "graph.txt")[0].num_nodes == 3


@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "bsr", "dia"])
@pytest.mark.parametrize("make", [sp.csr_array, sp.csr_matrix])
def test_every_format_of_scipy_is_read(tmp_path, kind, make):
    sp.save_npz(tmp_path / "a.npz", make(MATRIX).asformat(kind))
    np.testing.assert_array_equal(read_graph(tmp_path / "a.npz")[0].to_scipy().toarray(), MATRIX)


@pytest.mark.parametrize("kind", ["real symmetric", "real general", "integer symmetric", "integer general"])
def test_dense_matrices_of_few_letters_are_read(tmp_path, kind):
    count = 9 if "general" in kind else 6
    (tmp_path / "a.mtx").write_text(f"{MARKET}array {kind}\n3 3\n" + "1\n" * count)
    assert read_graph(tmp_path / "a.mtx")[0].num_edges == 6
