import io
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from helpers.data_files import write_video
from helpers.hostile_files import EPS, little_memory, png
from topomask.data import read_image, read_video
from topomask.data.pictures import FORMATS, _cover, decode_image

MAX_PIXELS = 1 << 26


def encoded(pixels, kind="PNG"):
    out = io.BytesIO()
    Image.fromarray(np.asarray(pixels, dtype=np.uint8)).save(out, kind)
    return out.getvalue()


@pytest.mark.parametrize("size", [1, 8, (8, 6), (6, 8), (1, 30), (30, 1), (7, 7)])
@pytest.mark.parametrize("shape", [(8, 8), (1, 50), (50, 1), (33, 100), (100, 33), (7, 9)])
def test_what_is_scaled_covers_the_size_and_no_more(size, shape):
    rows, columns = (size, size) if isinstance(size, int) else size
    width, height, left, top = _cover(*shape, size, MAX_PIXELS)
    assert width >= columns
    assert height >= rows
    # One side fits; the other is cut alike at both ends.
    assert width == columns or height == rows
    assert (left, top) == ((width - columns) // 2, (height - rows) // 2)
    # In proportion, but for rounding to whole pixels.
    scale = max(columns / shape[0], rows / shape[1])
    assert abs(width - shape[0] * scale) <= 0.5 or width == columns
    assert abs(height - shape[1] * scale) <= 0.5 or height == rows


def test_a_strip_that_would_grow_beyond_all_bounds_is_refused():
    with pytest.raises(ValueError, match="resized to cover the size, it has 65536000 x 64 pixels"):
        _cover(1_024_000, 1, 64, MAX_PIXELS)
    with pytest.raises(ValueError, match="resized to cover the size"):
        decode_image(encoded(np.zeros((1, 50_000))), 256)


def test_pictures_without_a_size_stay_as_they_are():
    pixels = np.arange(6 * 5 * 3).reshape(6, 5, 3)
    assert torch.equal(decode_image(encoded(pixels)), torch.from_numpy(pixels).permute(2, 0, 1).to(torch.uint8))
    assert torch.equal(decode_image(encoded(pixels), (6, 5)), decode_image(encoded(pixels)))


def test_the_middle_of_a_wide_picture_is_kept():
    pixels = np.zeros((4, 12))
    pixels[:, 4:8] = 200
    found = decode_image(encoded(pixels), 4, channels=1)
    assert found.shape == (1, 4, 4)
    assert (found == 200).all()
    tall = decode_image(encoded(pixels.T), 4, channels=1)
    assert (tall == 200).all()


def test_sizes_need_not_be_square():
    pixels = np.tile(np.repeat([10, 250], 8), (4, 1))
    found = decode_image(encoded(pixels), (2, 8), channels=1)
    assert found.shape == (1, 2, 8)
    assert found[0, 0, 0] == 10
    assert found[0, 1, -1] == 250


def test_colours_become_grey_and_grey_becomes_colours():
    red = np.zeros((2, 2, 3))
    red[..., 0] = 255
    # The share of red in lightness.
    assert decode_image(encoded(red), channels=1).unique().tolist() == [76]
    grey = decode_image(encoded(np.full((2, 2), 9)), channels=3)
    assert grey.shape == (3, 2, 2)
    assert grey.unique().tolist() == [9]
    with pytest.raises(ValueError, match="`channels` must be 1 or 3, but is 2"):
        decode_image(encoded(red), channels=2)


def test_a_picture_that_cannot_be_read_is_named(tmp_path):
    path = tmp_path / "bad.png"
    cut = encoded(np.random.default_rng(0).integers(0, 256, (40, 40)))[:-500]
    for content, message in (
        (b"", "not in a supported format"),
        (b"text", "not in a supported format"),
        (cut, "truncated"),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=rf"bad.png cannot be read as an image: .*{message}") as found:
            read_image(path)
        assert "object at 0x" not in str(found.value)
    with pytest.raises(FileNotFoundError, match=r"gone\.png"):
        read_image(tmp_path / "gone.png")


@pytest.mark.parametrize(("size", "channels"), [(16, 3), (16, 1), ((8, 20), 3), ((20, 8), 1)])
def test_frames_of_a_video_have_any_size_and_colour(tmp_path, size, channels):
    path = write_video(tmp_path / "ball.mp4", 6, size=(32, 24))
    video = read_video(path, 3, size, channels)
    rows, columns = (size, size) if isinstance(size, int) else size
    assert (video.shape, video.dtype) == ((3, channels, rows, columns), torch.uint8)
    # Frame t is grey of value 10 t.
    assert video.float().mean(dim=(1, 2, 3)).tolist() == pytest.approx([10, 30, 50], abs=5)


def test_a_video_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"There is no file .*gone\.mp4"):
        read_video(tmp_path / "gone.mp4", 2, 8)


@pytest.mark.parametrize("kind", FORMATS)
def test_every_named_format_is_read_whatever_its_name_is(tmp_path, kind):
    pixels = np.full((6, 5, 3), 180, np.uint8)
    (tmp_path / "picture.txt").write_bytes(encoded(pixels, kind))
    found = read_image(tmp_path / "picture.txt")
    assert found.shape == (3, 6, 5)
    assert (found.float() - 180).abs().max() < 4


@pytest.mark.parametrize("kind", ["PPM", "TGA", "PCX", "SGI", "ICO", "EPS", "DDS", "MSP", "SPIDER"])
def test_no_other_format_is_read(tmp_path, kind):
    out = io.BytesIO()
    Image.new({"MSP": "1", "SPIDER": "F"}.get(kind, "RGB"), (16, 16)).save(out, kind)
    # Pillow would know it.
    with Image.open(io.BytesIO(out.getvalue())) as picture:
        assert picture.format == kind
    (tmp_path / "cat.png").write_bytes(out.getvalue())
    with pytest.raises(
        ValueError, match=r"cat.png cannot be read as an image: it is damaged, or not in a supported format"
    ):
        read_image(tmp_path / "cat.png")


def test_no_picture_starts_a_program(tmp_path, monkeypatch):
    """Pillow draws EPS with Ghostscript, which is a language with files."""
    started = []
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *arguments: started.append("gs"))
    monkeypatch.setattr("subprocess.Popen", lambda *arguments, **options: started.append(arguments))
    monkeypatch.setattr("os.system", started.append)
    for content in (EPS, b"\xc5\xd0\xd3\xc6" + EPS, b"\n" + EPS):
        (tmp_path / "cat.png").write_bytes(content)
        with pytest.raises(
            ValueError, match=r"cat.png cannot be read as an image: .*not in a supported format: PNG, JPEG"
        ):
            read_image(tmp_path / "cat.png")
    assert not started


@pytest.mark.parametrize("size", [(10_000, 10_000), (100_000, 100_000), (2**31 - 1, 1), (2**31 - 1, 2**31 - 1)])
def test_pictures_of_too_many_pixels_are_refused(tmp_path, size):
    (tmp_path / "cat.png").write_bytes(png(*size))
    with (
        little_memory(),
        pytest.raises(ValueError, match=r"cat.png .* more .*`max_pixels`=67,108,864 .*TOPOMASK_MAX_PIXELS"),
    ):
        read_image(tmp_path / "cat.png")


def test_the_number_of_pixels_is_limited_by_name(monkeypatch):
    content = encoded(np.zeros((20, 30)))
    message = r"30 x 20 pixels, more than `max_pixels`=599 in all. .*max_pixels=.*TOPOMASK_MAX_PIXELS"
    with pytest.raises(ValueError, match=message):
        decode_image(content, max_pixels=599)
    assert decode_image(content, max_pixels=600).shape == (3, 20, 30)
    monkeypatch.setenv("TOPOMASK_MAX_PIXELS", "599")
    with pytest.raises(ValueError, match=message):
        decode_image(content)


def test_a_file_without_end_is_not_read(tmp_path):
    with (tmp_path / "cat.png").open("wb") as out:
        out.truncate(1 << 40)
    with little_memory():
        for path in (tmp_path / "cat.png", Path("/dev/zero")):
            with pytest.raises(ValueError, match=r"more than `max_bytes`|must be a plain file"):
                read_image(path)


def test_the_pixels_of_a_video_are_limited_by_name(tmp_path, monkeypatch):
    path = write_video(tmp_path / "ball.mp4", 3, size=(64, 48))
    message = r"ball.mp4 cannot be read as a video: it has 64 x 48 pixels, more than `max_pixels`=3,071"
    with pytest.raises(ValueError, match=message):
        read_video(path, 2, 8, max_pixels=3071)
    monkeypatch.setenv("TOPOMASK_MAX_PIXELS", "3071")
    with pytest.raises(ValueError, match=message):
        read_video(path, 2, 8)
    assert read_video(path, 2, 8, max_pixels=20_000).shape == (2, 3, 8, 8)


def test_a_video_that_is_a_list_of_other_files_is_refused(tmp_path):
    write_video(tmp_path / "ball.mp4", 3)
    lists = {
        "hls.mp4": "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nball.mp4\n#EXT-X-ENDLIST\n",
        "concat.mp4": "ffconcat version 1.0\nfile ball.mp4\n",
    }
    for name, text in lists.items():
        (tmp_path / name).write_text(text)
        with pytest.raises(ValueError, match=rf"{name} cannot be read as a video"):
            read_video(tmp_path / name, 2, 8)


def test_pictures_are_opened_in_one_place():
    root = Path(__file__).parents[2]
    users = {
        str(path.relative_to(root))
        for folder in ("src", "experiments", "benchmarks")
        for path in (root / folder).rglob("*.py")
        if re.search(r"\bPIL\b|\bimread\b|\bimageio\b|\bcv2\b", path.read_text())
    }
    # imports.py only knows which extra installs Pillow.
    assert users == {"src/topomask/data/pictures.py", "src/topomask/support/imports.py"}
