import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.io import read_tu_data

from helpers.data_files import zip_folder
from helpers.hostile_files import MIB, little_memory
from topomask.data import MissingDataError, data_root, tu_dataset
from topomask.data.tu import TU_SETS, TUEntry

NAME = "TINY"
FILES = {
    # Both directions, one direction only, and one edge twice; node 5 is alone; the third graph is one node.
    "A": "1, 2\n2, 1\n2, 3\n3, 2\n3,1\n1, 3\n4, 6\n4, 6\n6, 4\n",
    "graph_indicator": "1\n1\n1\n2\n2\n2\n3\n",
    "graph_labels": "1\n-1\n1\n",
    "node_labels": "0\n2\n2\n0\n7\n2\n0\n",
    "node_attributes": "1.0, 5\n2.0, 5\n3.0, 5\n4.0, 5\n5.0, 5\n6.0, 5\n7.5e0, 5\n",
}


def write(root: Path, leave_out: str = "", **changes: str) -> Path:
    folder = root / "tudataset" / NAME
    folder.mkdir(parents=True)
    for kind, text in (FILES | changes).items():
        if kind != leave_out:
            (folder / f"{NAME}_{kind}.txt").write_text(text)
    return folder


def test_folders_and_archives_give_the_same(tmp_path):
    folder = write(tmp_path / "a")
    found = [tu_dataset(NAME, tmp_path / "a")]
    for number, prefix in enumerate((f"{NAME}/", "")):
        place = tmp_path / str(number) / "tudataset"
        place.mkdir(parents=True)
        zip_folder(folder, place / f"{NAME}.zip", prefix)
        found.append(tu_dataset(NAME, tmp_path / str(number)))
    # As PyG downloads it.
    (tmp_path / "pyg" / "tudataset" / NAME).mkdir(parents=True)
    folder.rename(tmp_path / "pyg" / "tudataset" / NAME / "raw")
    found.append(tu_dataset(NAME, tmp_path / "pyg"))
    for given in found:
        assert [graph.num_nodes for graph in given.graphs] == [3, 3, 1]
        assert [graph.num_edges for graph in given.graphs] == [3, 1, 0]
        assert given.graphs[1].to_scipy().toarray().tolist() == [[0, 0, 1], [0, 0, 0], [1, 0, 0]]
        assert (given.labels.tolist(), given.classes) == ([1, 0, 1], ("-1", "1"))
        assert given.features[1].tolist() == [[1, 0, 0], [0, 0, 1], [0, 1, 0]]


def test_is_what_pyg_reads(tmp_path):
    folder = write(tmp_path)
    data, slices, _ = read_tu_data(str(folder), NAME)
    ours = tu_dataset(NAME, tmp_path, attributes=True)
    x = torch.cat(ours.features)
    labels = data.x[:, 2:]  # attributes, then labels, one column for each number up to the largest
    torch.testing.assert_close(x[:, :3], labels[:, labels.sum(dim=0) > 0])
    raw = data.x[:, :1]
    torch.testing.assert_close(x[:, 3:4], (raw - raw.mean()) / raw.std(correction=0))
    # A column that is constant says nothing.
    assert not x[:, 4].any()
    edges = sum(graph.to_edge_index()[0].shape[1] for graph in ours.graphs)
    assert edges == data.edge_index.shape[1]
    assert slices["x"].tolist() == [0, 3, 6, 7]


def test_degrees_are_one_hot_up_to_a_cap_or_logarithms(tmp_path):
    folder = write(tmp_path, leave_out="node_labels")
    with pytest.warns(UserWarning, match="has node attributes, but no node labels: the only feature is the constant 1"):
        tu_dataset(NAME, tmp_path)
    (folder / f"{NAME}_node_attributes.txt").unlink()
    assert torch.cat(tu_dataset(NAME, tmp_path).features).tolist() == [[1.0]] * 7
    one_hot = torch.cat(tu_dataset(NAME, tmp_path, degree="one-hot").features)
    assert one_hot.argmax(dim=1).tolist() == [2, 2, 2, 1, 0, 1, 0]
    capped = torch.cat(tu_dataset(NAME, tmp_path, degree="one-hot", max_degree=1).features)
    assert capped.argmax(dim=1).tolist() == [1, 1, 1, 1, 0, 1, 0]
    degrees = np.log1p([2, 2, 2, 1, 0, 1, 0])
    logs = torch.cat(tu_dataset(NAME, tmp_path, degree="log").features)[:, 0]
    np.testing.assert_allclose(logs, (degrees - degrees.mean()) / degrees.std(), rtol=1e-6)
    for options, message in (
        ({"degree": "log2"}, "`degree` must be"),
        ({"degree": "one-hot", "max_degree": 0}, "max_"),
        ({"degree": "log", "max_degree": 5}, "max_"),
        ({"max_degree": 5}, "max_"),
    ):
        with pytest.raises(ValueError, match=message):
            tu_dataset(NAME, tmp_path, **options)


@pytest.mark.parametrize("kind", ["A", "graph_indicator", "graph_labels"])
def test_missing_files_are_named(tmp_path, kind):
    write(tmp_path, leave_out=kind)
    with pytest.raises(MissingDataError, match=rf"'TINY' needs .*TINY_{kind}.txt.*TOPOMASK_DATA"):
        tu_dataset(NAME, tmp_path)


def test_a_set_that_is_not_there_is_named(tmp_path):
    with pytest.raises(MissingDataError, match=r"'DD' needs DD.zip or DD/DD_A.txt in .*tudataset, but"):
        tu_dataset("DD", tmp_path)
    write(tmp_path, leave_out="node_attributes")
    with pytest.raises(MissingDataError, match=r"TINY_node_attributes.txt"):
        tu_dataset(NAME, tmp_path, attributes=True)


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("A", "1, 2\n2, 1\n2,", r"TINY_A.txt in .* has 5 numbers in 3 lines: it is truncated"),
        ("A", "1, 2\n2, x\n", r"TINY_A.txt in .* has something that is not a whole number"),
        ("A", "0, 1\n1, 0\n", r"TINY_A.txt in .* has an edge of node 0, but nodes are numbered from 1"),
        ("A", "1\n2\n", "must have two numbers per line"),
        ("A", "", "has 0 numbers in 0 lines: it is truncated"),
        ("A", "1, 9\n", "has an edge of node 9, but there are 7 nodes"),
        ("A", "3, 4\n", r"Edge \(3, 4\) of TINY_A.txt in .* joins two graphs"),
        ("graph_labels", "1\n-1\n", "TINY_graph_labels.txt in .* has 2 lines for 3 graphs: a file is truncated"),
        ("graph_labels", "1, 0\n-1, 1\n1, 1\n", "must have one class per line, but has 2 numbers"),
        ("graph_indicator", "1\n1\n3\n", "must number graphs 1, 2, 3"),
        ("node_labels", "0\n1\n", "TINY_node_labels.txt in .* has 2 lines for 7 nodes: a file is truncated"),
    ],
)
def test_files_that_are_cut_off_are_named(tmp_path, kind, text, message):
    write(tmp_path, **{kind: text})
    with pytest.raises(ValueError, match=message):
        tu_dataset(NAME, tmp_path)


def test_archives_that_are_cut_off_are_named(tmp_path):
    folder = write(tmp_path / "a", A="1, 2\n" * 5000)
    place = tmp_path / "b" / "tudataset"
    place.mkdir(parents=True)
    whole = zip_folder(folder, place / f"{NAME}.zip").read_bytes()
    (place / f"{NAME}.zip").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"TINY.zip is not a complete zip archive"):
        tu_dataset(NAME, tmp_path / "b")
    with zipfile.ZipFile(place / f"{NAME}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for file in folder.iterdir():
            archive.write(file, file.name)
    damaged = bytearray((place / f"{NAME}.zip").read_bytes())
    with zipfile.ZipFile(place / f"{NAME}.zip") as archive:
        start = archive.getinfo(f"{NAME}_A.txt").header_offset + 30 + len(f"{NAME}_A.txt")
    damaged[start + 4 : start + 12] = b"\xff" * 8
    (place / f"{NAME}.zip").write_bytes(damaged)
    with pytest.raises(ValueError, match=r"TINY_A.txt in .* is damaged"):
        tu_dataset(NAME, tmp_path / "b")


def test_an_archive_packed_in_an_unknown_way_is_named(tmp_path):
    folder = write(tmp_path / "a")
    place = tmp_path / "b" / "tudataset"
    place.mkdir(parents=True)
    archive = zip_folder(folder, place / f"{NAME}.zip")
    content = bytearray(archive.read_bytes())
    with zipfile.ZipFile(archive) as source:
        headers = [member.header_offset + 8 for member in source.infolist()]
    headers += [match.start() + 10 for match in re.finditer(b"PK\x01\x02", content)]
    for start in headers:
        content[start : start + 2] = (97).to_bytes(2, "little")
    archive.write_bytes(content)
    with pytest.raises(ValueError, match=r"TINY_\w+.txt in .*TINY.zip .*not supported. Get it again"):
        tu_dataset(NAME, tmp_path / "b")


def test_a_known_set_with_too_few_graphs_is_refused(tmp_path, monkeypatch):
    write(tmp_path)
    monkeypatch.setitem(TU_SETS, NAME, TUEntry(5, 2))
    with pytest.raises(ValueError, match=r"has 3 graphs in 2 classes, but TINY has 5 in 2: a file is truncated"):
        tu_dataset(NAME, tmp_path)


def test_a_known_set_with_other_edges_is_refused(tmp_path, monkeypatch):
    folder = write(tmp_path)
    monkeypatch.setitem(TU_SETS, NAME, TUEntry(3, 2, 4))
    assert sum(graph.num_edges for graph in tu_dataset(NAME, tmp_path).graphs) == 4
    # Whole lines are missing, and every node and label is there.
    (folder / f"{NAME}_A.txt").write_text("1, 2\n2, 1\n2, 3\n3, 2\n")
    with pytest.raises(
        ValueError, match=r"TINY_A.txt in .* has 2 edges, but TINY has 4: it is truncated.*Get it again"
    ):
        tu_dataset(NAME, tmp_path)
    # Loops, edges that are listed twice and those with one direction do not matter.
    (folder / f"{NAME}_A.txt").write_text(FILES["A"] + "5, 5\n4, 6\n")
    assert sum(graph.num_edges for graph in tu_dataset(NAME, tmp_path).graphs) == 4


@pytest.mark.parametrize("end", ["\n", "\n\n", "\r\n \n", ""])
@pytest.mark.parametrize("chunk", [7, 1 << 20])
def test_empty_lines_at_the_end_are_no_lines(tmp_path, monkeypatch, end, chunk):
    monkeypatch.setattr("topomask.data.tu._CHUNK", chunk)
    write(tmp_path, **{kind: text.rstrip("\n") + end for kind, text in FILES.items()})
    found = tu_dataset(NAME, tmp_path, attributes=True)
    assert [graph.num_edges for graph in found.graphs] == [3, 1, 0]
    assert found.num_features == 5


def test_names_that_are_near_are_offered(tmp_path):
    with pytest.raises(MissingDataError, match=r"Did you mean 'PROTEINS'\?"):
        tu_dataset("proteins", tmp_path)
    with pytest.raises(MissingDataError) as missing:
        tu_dataset("PROTEINS", tmp_path)
    assert "Did you mean" not in str(missing.value)


def test_a_known_set_without_its_node_labels_is_refused(tmp_path, monkeypatch):
    folder = write(tmp_path, leave_out="node_labels")
    (folder / f"{NAME}_node_attributes.txt").unlink()
    assert tu_dataset(NAME, tmp_path).num_features == 1, "a set of one's own may have none"
    monkeypatch.setitem(TU_SETS, NAME, TUEntry(3, 2))
    with pytest.raises(MissingDataError, match=r"'TINY' needs TINY_node_labels.txt"):
        tu_dataset(NAME, tmp_path)


def test_attributes_that_are_no_numbers_are_named(tmp_path):
    write(tmp_path, node_attributes=FILES["node_attributes"].replace("3.0", "nan"))
    assert tu_dataset(NAME, tmp_path).num_features == 3
    with pytest.raises(ValueError, match=r"TINY_node_attributes.txt in .* must have finite numbers, but line 3 has"):
        tu_dataset(NAME, tmp_path, attributes=True)


# What is left out is large: COLLAB and REDDIT-BINARY take seconds to minutes.
@pytest.mark.parametrize("name", ["ENZYMES", "IMDB-BINARY", "IMDB-MULTI", "MUTAG", "PROTEINS"])
def test_the_real_sets_are_what_is_known_of_them(name):
    if not (data_root() / "tudataset" / f"{name}.zip").is_file():
        pytest.skip(f"the data root has no tudataset/{name}.zip: set TOPOMASK_DATA to run this")
    found = tu_dataset(name)
    assert len(found) == TU_SETS[name].num_graphs
    assert sum(graph.num_edges for graph in found.graphs) == TU_SETS[name].num_edges


def test_every_known_set_has_its_number_of_edges():
    assert all(entry.num_edges for entry in TU_SETS.values())


def zipped(root: Path, **changes: str) -> Path:
    """The set in an archive, packed."""
    file = root / "tudataset" / f"{NAME}.zip"
    file.parent.mkdir(parents=True)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as out:
        for kind, text in (FILES | changes).items():
            out.writestr(f"{NAME}/{NAME}_{kind}.txt", text)
    return file


@pytest.mark.parametrize("kind", ["A", "graph_indicator", "edge_labels"])
def test_a_small_archive_that_becomes_large_is_refused_unless_it_is_trusted(tmp_path, kind, monkeypatch):
    file = zipped(tmp_path, **{kind: "1\n" * (10 * MIB)})
    assert file.stat().st_size < MIB
    message = rf"{NAME}.zip takes .* bytes, more than `max_bytes`=16,777,216. .*max_bytes=.*TOPOMASK_MAX_BYTES"
    with little_memory(), pytest.raises(ValueError, match=message):
        tu_dataset(NAME, tmp_path)
    if kind == "edge_labels":
        # This file is not read, and the others are as they should be.
        assert len(tu_dataset(NAME, tmp_path, max_bytes=30 * MIB)) == 3
        monkeypatch.setenv("TOPOMASK_MAX_BYTES", str(30 * MIB))
        assert len(tu_dataset(NAME, tmp_path)) == 3


def test_files_of_a_folder_are_limited_too(tmp_path):
    write(tmp_path)
    with pytest.raises(ValueError, match=rf"{NAME}_graph_indicator.txt takes 14 bytes, more than `max_bytes`=13"):
        tu_dataset(NAME, tmp_path, max_bytes=13)


def test_numbers_that_take_more_than_their_text_are_refused(tmp_path):
    write(tmp_path, graph_indicator="1\n" * 1000)
    with pytest.raises(ValueError, match=r"graph_indicator.txt in .* takes 8,000 bytes, more than `max_bytes`=4,000"):
        tu_dataset(NAME, tmp_path, max_bytes=4000)


@pytest.mark.parametrize("options", [{}, {"degree": "one-hot"}])
def test_input_that_takes_more_than_the_files_is_refused(tmp_path, options):
    """A label of its own for each of 20,000 nodes would be 3.2 GB; so would many degrees."""
    count = 20_000
    labels = range(count) if not options else [0] * count
    star = "".join(f"1, {node}\n" for node in range(2, 130))
    write(
        tmp_path,
        A=star,
        graph_indicator="1\n" * count,
        graph_labels="1\n",
        node_labels="".join(f"{label}\n" for label in labels),
        node_attributes="0\n" * count,
    )
    with (
        little_memory(30 * MIB),
        pytest.raises(ValueError, match=r"One-hot input of 20,000 nodes .*more than `max_bytes`"),
    ):
        tu_dataset(NAME, tmp_path, max_bytes=10 * MIB, **options)
