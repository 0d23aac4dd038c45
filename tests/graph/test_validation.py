"""Arrays that somebody hands to Graph(...)."""

import dataclasses
import pickle

import numpy as np
import pytest
import torch

import topomask as tm


def fields_of(graph: tm.Graph) -> dict:
    return {entry.name: getattr(graph, entry.name) for entry in dataclasses.fields(graph) if entry.init}


def changed(name: str, place: int, value: float) -> dict:
    array = np.array(fields_of(tm.path_graph(4))[name])
    array[place] = value
    return {name: array}


# A path of four nodes: indptr 0 1 3 5 6, indices 1 0 2 1 3 2.
WRONG = {
    "column too large": (changed("indices", 0, 10**6), r"`indices` must lie in \[0, 4\), but indices\[0\] is 1000000"),
    "negative column": (changed("indices", 2, -5), r"indices\[2\] is -5"),
    "column repeated": (changed("indices", 2, 0), "row 1 has 0 before 0"),
    "columns descend": (changed("indices", 1, 3), "row 1 has 3 before 2"),
    "float columns": ({"indices": np.ones(6)}, "`indices` must be a one-dimensional array of integers"),
    "pointers descend": (
        changed("indptr", 1, 4),
        r"`indptr` must not decrease, but indptr\[1\] is 4 and indptr\[2\] is 3",
    ),
    "pointers wrap": (
        {"indptr": np.array([0, 2**63 - 1, -(2**63), 5, 6])},
        r"`indptr` must not decrease, but indptr\[1\]",
    ),
    "pointers end early": (changed("indptr", 4, 5), "goes from 0 to 5"),
    "pointers start late": (changed("indptr", 0, 1), "goes from 1 to 6"),
    "no pointers": ({"indptr": np.zeros(0, np.int64)}, "`indptr` must have shape"),
    "no node": ({"indptr": np.zeros(1, np.int64)}, "`indptr` must have shape"),
    "two axes": ({"indptr": np.zeros((5, 1), np.int64)}, "`indptr` must be a one-dimensional array of integers"),
    "weight missing": ({"weights": np.ones(5)}, r"`weights` must have shape \[6\]"),
    "weight not finite": (changed("weights", 3, np.nan), r"edge \(2, 1\) has weight nan"),
    "weight of zero": (changed("weights", 0, 0.0), r"edge \(0, 1\) has weight 0.0"),
    "not symmetric": (changed("weights", 0, 0.5), r"entry \(0, 1\) is 0.5 and entry \(1, 0\) is 1.0"),
    "degree too small": (changed("degrees", 1, 1.0), "node 1 has degree 1.0, and its weights sum to 2.0"),
    "id missing": ({"ids": np.arange(3)}, r"`ids` must have shape \[4\]"),
    "negative id": (changed("ids", 0, -1), "`ids` must not be negative"),
    "graph out of range": (changed("graph_index", 3, 1), r"`graph_index` must ascend within \[0, num_graphs=1\)"),
    "edge between graphs": (changed("graph_index", 3, 1) | {"num_graphs": 2}, r"Edge \(2, 3\) joins two graphs"),
    "number of graphs": ({"num_graphs": 2**62}, "a graph has at most"),
    "other parts": ({"parts": (tm.path_graph(3),)}, "`parts` must be the graphs that this one is a batch of"),
    "directed": ({"directed": "no"}, "`directed` must be True or False"),
}


@pytest.mark.parametrize(("changes", "message"), WRONG.values(), ids=list(WRONG))
def test_wrong_arrays_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        tm.Graph(**fields_of(tm.path_graph(4)) | changes)
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(tm.path_graph(4), **changes)


@pytest.mark.parametrize("make", [np.asarray, torch.tensor, list], ids=["NumPy", "torch", "lists"])
def test_right_arrays_make_the_same_graph(make):
    graph = tm.Graph.batch([tm.grid_graph(3, 4), tm.cycle_graph(5)])
    given = fields_of(graph)
    arrays = {name: make(np.array(value)) for name, value in given.items() if isinstance(value, np.ndarray)}
    built = tm.Graph(**given | arrays)
    assert built.fingerprint == graph.fingerprint
    assert built.parts == graph.parts
    assert (built.indices.dtype, built.weights.dtype) == (np.int64, np.float64)


def test_non_contiguous_and_narrow_arrays_are_taken():
    graph = tm.path_graph(5)
    given = fields_of(graph)
    given["indices"] = np.repeat(given["indices"], 2)[::2].astype(np.int16)
    assert tm.Graph(**given).fingerprint == graph.fingerprint


def test_the_graph_of_somebody_elses_arrays_does_not_change():
    given = {
        name: np.array(value) if isinstance(value, np.ndarray) else value
        for name, value in fields_of(tm.path_graph(4)).items()
    }
    graph = tm.Graph(**given)
    given["indices"][:] = 10**6
    assert graph.fingerprint == tm.path_graph(4).fingerprint
    for name in ("indptr", "indices", "weights", "ids", "degrees", "graph_index"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(graph, name)[0] = 7
        with pytest.raises(ValueError, match="WRITEABLE"):
            getattr(graph, name).flags.writeable = True


def test_part_of_a_graph_keeps_its_degrees():
    part = tm.grid_graph(5, 5).neighborhood([12], 1)
    built = tm.Graph(**fields_of(part))
    assert np.array_equal(built.degrees, part.degrees)
    assert pickle.loads(pickle.dumps(built)).fingerprint == part.fingerprint


@pytest.mark.parametrize("used_before", [False, True])
@pytest.mark.parametrize(("name", "value"), [("columns", 10**6), ("columns", -5), ("row_ptr", 10**6), ("columns", 1)])
def test_tensors_that_were_written_to_are_refused(name, value, used_before):
    graph = tm.grid_graph(4, 4)
    if used_before:
        graph.matrix()
        tm.sample_features(graph)
    getattr(graph.matrix().pattern, name)[3] = value
    for use in (
        lambda: tm.sample_features(graph, seed=1),
        lambda: tm.random_walks(graph),
        lambda: graph.matrix("row"),
        lambda: graph.node_groups,
    ):
        with pytest.raises(ValueError, match="was written to"):
            use()


def test_matrix_that_was_written_to_is_refused():
    matrix = tm.grid_graph(4, 4).matrix()
    matrix.multiply(torch.ones(16, 2))
    matrix.pattern.columns.fill_(10**6)
    with pytest.raises(ValueError, match="was written to"):
        matrix.multiply(torch.ones(16, 2))


def test_names_of_nodes_are_to_be_numbered():
    with pytest.raises(
        ValueError, match=r"has dtype <U1. Number the nodes: names, edges = numpy.unique\(edges, return_inv"
    ):
        tm.Graph.from_edges([["a", "b"], ["b", "c"], ["c", "d"]])
    names, edges = np.unique([["a", "b"], ["b", "c"], ["c", "d"]], return_inverse=True)
    assert tm.Graph.from_edges(edges, len(names)).num_edges == 3


@pytest.mark.parametrize(
    ("edges", "arrays", "given"),
    [
        ([torch.tensor([[0, 1], [1, 2]])], {}, r"\(Tensor\)"),
        ([[[0, 1], [1, 2]], 3], {}, r"\(list, int\)"),
        ([], {"edge_index": torch.tensor([[0, 1], [1, 2]])}, r"\(edge_index\)"),
        ([], {"indptr": [0, 1], "indices": [0]}, r"\(fewer\)"),
    ],
)
def test_the_constructor_called_with_edges_names_what_builds_a_graph(edges, arrays, given):
    with pytest.raises(ValueError, match=rf"takes all of indptr, .* by name, but got {given}.*tm\.Graph\.from_edges"):
        tm.Graph(*edges, **arrays)
