import re

import numpy as np
import pytest
import scipy.sparse as sp

import topomask as tm
from topomask.pictures.graph_files import FILE_TYPES, READERS
from topomask.pictures.named_graphs import BUILDERS, load_graph


@pytest.mark.parametrize(
    ("text", "nodes", "edges"),
    [
        ("grid:5", 5, 4),
        ("grid:3x4", 12, 17),
        ("grid:2x3x4", 24, 46),
        ("path:7", 7, 6),
        ("cycle:6", 6, 6),
        ("hypercube:4", 16, 32),
        ("tree:50", 50, 49),
        ("tree:1", 1, 0),
        ("ba:40:3", 40, 37 * 3),
        ("ba:20", 20, 18 * 2),
    ],
)
def test_sizes(text, nodes, edges):
    source = load_graph(text)
    assert (source.graph.num_nodes, source.graph.num_edges) == (nodes, edges)
    if source.places is not None:
        assert source.places.shape == (nodes, 2)
        assert len(np.unique(source.places.round(6), axis=0)) == nodes, "no node hides another"


def test_what_is_known_of_graphs():
    assert load_graph("grid:3x4").shape == (3, 4)
    assert load_graph("path:9").shape == (9,)
    assert load_graph("hypercube:3").dim == 3
    assert load_graph("cycle:4").shape is None
    assert load_graph("tree:4").places is None


def test_neighbours_on_a_long_path_are_drawn_next_to_each_other():
    places = load_graph("path:50").places
    assert (np.linalg.norm(np.diff(places, axis=0), axis=1) == 1).all()


def test_random_graphs_follow_the_seed():
    for text in ("knn:30", "tree:30", "ba:30"):
        same, other = load_graph(text, seed=0).graph, load_graph(text, seed=1).graph
        assert load_graph(text, seed=0).graph.fingerprint == same.fingerprint != other.fingerprint


def test_hubs_arise_in_barabasi_albert_graphs():
    degrees = load_graph("ba:500:2").graph.degrees
    assert degrees.min() == 2
    assert degrees.max() > 25


def test_coordinates_in_space_are_seen_from_the_side(tmp_path):
    points = np.random.default_rng(0).normal(size=(30, 3)) * [1.0, 5.0, 0.01]
    graph = tm.knn_graph(points, 3)
    np.savez(tmp_path / "cloud.npz", edges=graph.to_edge_index()[0].numpy(), points=points)
    places = load_graph(str(tmp_path / "cloud.npz")).places
    np.testing.assert_allclose(np.sort(places.std(axis=0)), np.sort(points.std(axis=0))[1:], rtol=0.05)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ring:5", "no graph 'ring:5'"),
        ("grid", "as in grid:16x16"),
        ("grid:4x", "as in grid:16x16"),
        ("path:-3", "as in path:64"),
        ("cycle:3:4", "as in cycle:32"),
        ("cycle:2", "at least 3"),
        ("grid:0x3", "at least 1"),
        ("knn:3", "`k` must be less"),
        ("ba:3:3", "1 to 2 edges per node"),
        ("grid:200x200", "40,000 nodes, but at most 20,000 can be drawn"),
        ("hypercube:60", "at most 20,000 can be drawn"),
    ],
)
def test_what_is_no_graph_is_named(text, message):
    with pytest.raises(ValueError, match=message):
        load_graph(text)


def test_errors_list_the_files_that_are_read_and_what_works_on_the_command_line(tmp_path):
    assert set(re.findall(r"\.[a-z]+", FILE_TYPES)) == set(READERS)
    with pytest.raises(ValueError, match=rf"no graph 'mesh\.ply'.* or a file: {re.escape(FILE_TYPES)}"):
        load_graph("mesh.ply")
    (tmp_path / "mesh.ply").write_text("")
    with pytest.raises(ValueError, match=rf"mesh\.ply has an unknown suffix.*{re.escape(FILE_TYPES)}"):
        load_graph(str(tmp_path / "mesh.ply"))
    with pytest.raises(ValueError, match=r"Cannot build knn:3: .* An example that works is knn:200:4\."):
        load_graph("knn:3")
    with pytest.raises(ValueError, match=r"Choose a smaller one, or save part of it to a file"):
        load_graph("path:30000")
    with pytest.raises(ValueError, match=r"path:5 is undirected\. Leave out --directed"):
        load_graph("path:5", directed=True)
    sp.save_npz(tmp_path / "one-way.npz", sp.csr_array(np.eye(3, k=1)))
    with pytest.raises(ValueError, match=r"one-way\.npz: .*must be symmetric.*\(on the command line: --directed\)"):
        load_graph(str(tmp_path / "one-way.npz"))


def test_the_list_of_graphs_in_the_help_is_complete():
    from topomask.cli.mask import run

    text = " ".join((run.__doc__ or "").split())
    assert f"graph: {', '.join(f'{name}:{builder.example}' for name, builder in BUILDERS.items())}; or a file" in text
    assert all(suffix in text for suffix in READERS)
