import json
from functools import partial

import numpy as np
import pytest

from helpers.data_files import write_video
from helpers.hostile_files import EPS, MIB, header, little_memory, npy, png, write_npz
from helpers.small_runs import SMALL, write_particles, write_picture
from topomask.cli import main
from topomask.data import motifs
from topomask.recipes import graphs


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    for recipe, fields in SMALL.items():
        main(["train", recipe, "--output", str(folder / recipe), "--train.steps=1", *fields])
    return folder


def predict(run, *arguments):
    main(["predict", str(run), *map(str, arguments)])


def refused(*arguments):
    with pytest.raises(SystemExit) as stop:
        predict(*arguments)
    assert isinstance(stop.value.code, str)
    return stop.value.code


def test_pictures_are_classified(runs, tmp_path, capsys):
    # Larger, wider, and in colour: they are brought to what the model knows.
    files = [write_picture(tmp_path / f"{place}.png", size) for place, size in enumerate([(8, 8), (50, 20)])]
    predict(runs / "digits", *files, "--top", 2)
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(": ")[0] for line in lines] == [str(file) for file in files]
    assert all(line.count("%") == 2 for line in lines)
    predict(runs / "digits", *files, "--json", "--top", 99)
    for line, file in zip(capsys.readouterr().out.splitlines(), files, strict=True):
        found = json.loads(line)
        assert found["file"] == str(file)
        chances = [each["probability"] for each in found["classes"]]
        assert chances == sorted(chances, reverse=True)
        assert sum(chances) == pytest.approx(1.0)
        assert sorted(each["name"] for each in found["classes"]) == [str(digit) for digit in range(10)]


def test_a_video_is_classified(runs, tmp_path, capsys):
    predict(runs / "moving-digits", write_video(tmp_path / "ball.mp4"), "--json", "--top", 10)
    names = {each["name"] for each in json.loads(capsys.readouterr().out)["classes"]}
    assert {"clockwise", "down left"} < names


def test_particles_are_followed(runs, tmp_path, capsys):
    file = write_particles(tmp_path / "body.npz")
    predict(runs / "particles", file, "--steps", 3, "--json")
    found = json.loads(capsys.readouterr().out)
    assert found["written"] == str(tmp_path / "body-predicted.npz")
    with np.load(file) as before, np.load(found["written"]) as after:
        assert after["positions"].shape == (3, 20, 3)
        assert after["features"].shape == (3, 20, 6)
        moved = np.linalg.norm(after["positions"][-1] - before["positions"], axis=-1).mean()
    assert found["mean_distance"] == pytest.approx(moved, rel=1e-4)
    predict(runs / "particles", file, "--output", tmp_path / "new" / "way.npz")
    with np.load(tmp_path / "new" / "way.npz") as after:
        assert after["positions"].shape == (6, 20, 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"positions": np.ones((20, 2))}, "does not fit the model: `positions` and `features` must have shapes"),
        ({"features": np.ones((19, 6))}, "does not fit the model"),
        ({"positions": np.full((20, 3), np.nan)}, "must be finite"),
        ({"positions": np.array(["here"])}, "cannot be read"),
        ({"positions": np.ones((20, 3)) * 1j}, "cannot be read"),
        ({"positions": np.array([{}], dtype=object)}, "cannot be read"),
    ],
)
def test_particles_that_do_not_suit_are_named(runs, tmp_path, changes, message):
    file = write_particles(tmp_path / "body.npz", **changes)
    found = refused(runs / "particles", file)
    assert str(file) in found
    assert message in found
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("damage", ["empty", "text", "cut", "bit", "array", "lacking"])
def test_particles_in_a_damaged_file_are_named(runs, tmp_path, damage):
    file = write_particles(tmp_path / "body.npz")
    content = file.read_bytes()
    if damage == "array":
        with file.open("wb") as out:
            np.save(out, np.ones((20, 3)))
    elif damage == "lacking":
        np.savez(file, positions=np.ones((20, 3)))
    else:
        flipped = content[:200] + bytes([content[200] ^ 0xFF]) + content[201:]
        file.write_bytes({"empty": b"", "text": b"no particles", "cut": content[:300], "bit": flipped}[damage])
    found = refused(runs / "particles", file)
    assert f"{file} cannot be read" in found
    assert "positions [N, 3] and features [N, F]" in found


def test_pictures_and_videos_that_cannot_be_read_are_named(runs, tmp_path):
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"no picture")
    assert refused(runs / "digits", bad) == (
        f"{bad} cannot be read as an image: it is damaged, or not in a supported format: PNG, JPEG, BMP, GIF, WEBP, "
        "TIFF."
    )
    assert f"{bad} cannot be read as a video" in refused(runs / "moving-digits", bad)
    for recipe in SMALL:
        found = refused(runs / recipe, tmp_path / "gone.file")
        assert f"There is no file {tmp_path / 'gone.file'}" in found


@pytest.mark.parametrize(
    ("recipe", "options", "message"),
    [
        ("digits", ["--top", 0], "`top` and `steps` must be at least 1"),
        ("particles", ["--steps", 0], "`top` and `steps` must be at least 1"),
        ("digits", ["--output", "out.npz"], "`output` is for particles"),
        ("particles", ["again.npz", "--output", "out.npz"], "`output` is a single file, but there are 2"),
    ],
)
def test_options_that_cannot_be_obeyed_are_refused(runs, tmp_path, recipe, options, message):
    assert message in refused(runs / recipe, tmp_path / "file", *options)


def test_what_is_no_run_is_refused(tmp_path):
    assert "is not a run folder" in refused(tmp_path, "file.png")


@pytest.mark.usefixtures("forget_data")
def test_models_of_graphs_read_no_files(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(graphs, "motifs", partial(motifs, num_pairs=3))
    main(
        [
            "train",
            "motif",
            "--output",
            str(tmp_path / "run"),
            "--train.steps",
            "1",
            "--train.epochs",
            "None",
            "--model.dim",
            "8",
        ]
    )
    out = capsys.readouterr().out
    assert f"topomask eval {tmp_path / 'run'}" in out
    assert "predict" not in out, "what cannot be asked is not suggested"
    message = refused(tmp_path / "run", tmp_path / "graph.npz")
    assert "the model of recipe 'motif' takes graphs" in message
    assert "load_run" in message
    assert "standardised as in training" in message
    main(["train", "digits", "--output", str(tmp_path / "digits"), "--train.steps=1", *SMALL["digits"]])
    assert f"topomask predict {tmp_path / 'digits'} FILE" in capsys.readouterr().out


def test_hostile_files_are_one_line(runs, tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *arguments: started.append("gs"))
    files = {"cat.png": EPS, "large.png": png(100_000, 100_000), "nul.jpg": bytes(1000)}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        found = refused(runs / "digits", tmp_path / name)
        assert f"{name} cannot be read as an image" in found
        assert "\n" not in found
    assert not started
    lies = {"rows": npy(header("(1000000000000, 3)", "'<f4'")), "objects": npy(header("(1,)", "'|O'"), b"\x80\x04N.")}
    for name, content in lies.items():
        file = write_npz(tmp_path / f"{name}.npz", positions=content, features=np.ones((20, 6)))
        with little_memory(32 * MIB):
            found = refused(runs / "particles", file)
        assert f"{file} cannot be read (positions.npy" in found
        assert "\n" not in found
    for recipe in SMALL:
        found = refused(runs / recipe, tmp_path)
        assert str(tmp_path) in found
        assert "\n" not in found
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*files, "rows.npz", "objects.npz"])
