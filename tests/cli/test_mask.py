import errno
import os
import sys

import numpy as np
import pytest
from PIL import Image

from helpers.hostile_files import MIB, header, little_memory, npy, write_npz
from topomask.cli import main
from topomask.masks.registry import ON_GRAPHS

GRAPHS = {"hypercube": "hypercube:4", "stochastic-position": "path:12", "forest": "tree:12"}


QUICK = ("walk", "toeplitz", "forest")
NAMES = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in ON_GRAPHS]


@pytest.mark.parametrize("name", NAMES)
def test_every_mask_is_drawn(tmp_path, name, capsys):
    path = tmp_path / "mask.png"
    main(["mask", name, "--graph", GRAPHS.get(name, "grid:4x4"), "--output", str(path)])
    with Image.open(path) as picture:
        pixels = np.asarray(picture.convert("RGB"))
    # Rows, all entries and the spectrum beside each other, with colours in them.
    assert pixels.shape[1] > 2 * pixels.shape[0]
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 100
    assert "Mask" in capsys.readouterr().out


def test_options_that_others_depend_on(tmp_path, capsys):
    for name, graph, *options in (("degree", "grid:4x4", "--set", "max_degree=3"), ("spanning-forest", "grid:4x4")):
        main(["mask", name, "--graph", graph, "--output", str(tmp_path / "mask.png"), "--show", "heat", *options])
    assert "ForestMask" in capsys.readouterr().out


def test_a_report_is_one_file(tmp_path):
    path, edges = tmp_path / "mask.html", tmp_path / "graph.csv"
    edges.write_text("0,1\n1,2\n2,0\n2,3\n")
    options = ["--set", "num_walks=5", "--set", "f=1,0.5,0.25", "--set", "max_length=2"]
    main(["mask", "walk", "--graph", str(edges), "--output", str(path), *options])
    page = path.read_text()
    assert page.count("data:image/png;base64") == 3
    assert "http" not in page
    assert "WalkMask" in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["walks", "--graph", "grid:4x4"], "Did you mean walk"),
        (["walk", "--graph", "gird:4x4"], "There is no graph"),
        (["walk", "--graph", "grid:4x"], "as in grid"),
        (["walk", "--graph", "grid:4x4", "--set", "num_walk=3"], "Did you mean `num_walks`"),
        (["toeplitz", "--graph", "knn:9"], "grid"),
        (["hypercube", "--graph", "grid:4x4"], "hypercube"),
        (["forest", "--graph", "cycle:4"], "cycle of 4 edges"),
        (["forest", "--graph", "cycle:4"], "topomask mask spanning-forest"),
        (["walk", "--graph", "nowhere.csv"], "nowhere.csv"),
        (["walk", "--graph", "path:4", "--set", "num_walks"], "form name=value"),
        (["walk", "--graph", "path:4", "--set", "num_walks=0"], "num_walks"),
        (["walk", "--graph", "path:4", "--directed"], "directed"),
        (["walk", "--graph", "path:4", "--node", "4"], "num_nodes=4), but is 4"),
        (["walk", "--graph", "path:4", "--head", "1"], "num_heads=1"),
        (["walk", "--graph", "path:4", "--output", "mask.gif"], "must end in .png"),
        (["walk", "--graph", "path:3000", "--show", "heat"], "up to 2,000 nodes"),
        (["walk", "--graph", "path:30000"], "30,000 nodes, but at most 20,000 can be drawn"),
        (["walk", "--graph", "path:4", "--show", "cube"], "spectrum"),
    ],
)
def test_mistakes_are_named(tmp_path, capsys, arguments, message):
    with pytest.raises(SystemExit) as error:
        main(["mask", "--output", str(tmp_path / "mask.png"), *arguments])
    assert message in str(error.value) + capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_without_matplotlib_the_message_says_what_to_install(monkeypatch):
    for name in list(sys.modules):
        if name.startswith("topomask.pictures.") and name != "topomask.pictures.named_masks":
            monkeypatch.delitem(sys.modules, name)
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SystemExit, match=r"needs matplotlib.*topomask\[plot\]"):
        main(["mask", "walk", "--graph", "path:4"])


def refused(tmp_path, graph, output="mask.png"):
    """The one line of an error; nothing is written."""
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(SystemExit) as stop:
        main(["mask", "neighbor", "--graph", str(graph), "--show", "rows", "--output", str(tmp_path / output)])
    assert isinstance(stop.value.code, str)
    assert "\n" not in stop.value.code
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    return stop.value.code


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("edges.txt", b"0 4000000000\n", "4,000,000,001 nodes, but at most 20,000 can be drawn"),
        ("edges.csv", b"\xff\xfe0\x00", "it is not text in UTF-8"),
        ("edges.tsv", b"", "it has no edges"),
        ("graph.npz", b"", "it is not an .npz archive"),
        ("graph.mtx", b"%%MatrixMarket matrix coordinate real general\n9 9 999999999999\n", "999,999,999,999 entries"),
        ("graph.gml", b"graph [ " + b"a [ " * 50_000, "networkx cannot read it"),
        ("graph.graphml", b"\0", "networkx cannot read it"),
        (
            "mesh.obj",
            b"v 0 0 0\nf 1 1 99999999999999999999\n",
            "refers to vertex 99999999999999999999, but the last one is 1",
        ),
    ],
)
def test_hostile_files_are_one_line(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    found = refused(tmp_path, tmp_path / name)
    assert message in found
    assert name in found


def test_headers_that_lie_are_one_line(tmp_path):
    write_npz(tmp_path / "graph.npz", edges=npy(header("(2, 1000000000000)")))
    with little_memory(32 * MIB):
        assert "edges.npy is damaged: its header says" in refused(tmp_path, tmp_path / "graph.npz")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EIO])
@pytest.mark.parametrize("suffix", [".png", ".html"])
def test_a_picture_that_cannot_be_written_leaves_what_was_there(tmp_path, monkeypatch, number, suffix):
    (tmp_path / f"mask{suffix}").write_bytes(b"of yesterday")

    def half(self, *arguments, **options):
        if suffix == ".png":
            arguments[0].write_bytes(b"half")
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", half)
    assert os.strerror(number) in refused(tmp_path, "path:4", f"mask{suffix}")


def test_an_output_that_cannot_be_is_one_line(tmp_path):
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "folder.png").mkdir()
    assert "file" in refused(tmp_path, "path:4", "file/mask.png")
    assert "folder.png" in refused(tmp_path, "path:4", "folder.png")


def test_names_of_files_are_no_formulas(tmp_path):
    (tmp_path / r"$\x$.txt").write_text("0 1\n1 2\n")
    main(["mask", "neighbor", "--graph", str(tmp_path / r"$\x$.txt"), "--output", str(tmp_path / "mask.png")])
    assert (tmp_path / "mask.png").stat().st_size > 1000


def test_a_mesh_of_one_vertex_is_drawn(tmp_path):
    (tmp_path / "mesh.obj").write_text("v 1 2 3\n")
    main(["mask", "neighbor", "--graph", str(tmp_path / "mesh.obj"), "--output", str(tmp_path / "mask.png")])
    assert (tmp_path / "mask.png").is_file()
