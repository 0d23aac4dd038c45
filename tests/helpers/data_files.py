"""Small files in the formats of the data sets, for tests."""

import gzip
import struct
import zipfile
from pathlib import Path

import av
import numpy as np
from PIL import Image


def write_idx(path: Path, array: np.ndarray) -> None:
    """An IDX file of unsigned bytes, compressed where the name says so."""
    header = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
    content = header + array.astype(np.uint8).tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def write_mnist(folder: Path, num_train: int = 30, num_test: int = 10) -> None:
    """The four files of MNIST, with random pictures whose first pixel is their number."""
    rng = np.random.default_rng(0)
    for prefix, count in (("train", num_train), ("t10k", num_test)):
        images = rng.integers(0, 256, size=(count, 28, 28))
        images[:, 0, 0] = np.arange(count)
        write_idx(folder / f"{prefix}-images-idx3-ubyte.gz", images)
        write_idx(folder / f"{prefix}-labels-idx1-ubyte.gz", np.arange(count) % 10)


def picture(color: tuple[int, int, int], size: tuple[int, int] = (8, 8)) -> Image.Image:
    """A picture of one colour; the size is width, height."""
    return Image.new("RGB", size, color)


def write_pictures(folder: Path, per_class: int = 4, size: tuple[int, int] = (8, 8)) -> None:
    """train/ and val/ with the classes `blue` and `red`, whose pictures have that colour."""
    for split in ("train", "val"):
        for name, color in (("red", (255, 0, 0)), ("blue", (0, 0, 255))):
            place = folder / split / name
            place.mkdir(parents=True)
            for number in range(per_class):
                picture(color, size).save(place / f"{number}.png")


def write_video(
    path: Path, num_frames: int = 6, size: tuple[int, int] = (32, 24), codec: str = "mpeg4", wide_middle: bool = False
) -> Path:
    """A video whose frame t is grey of value 10 t."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=10)
        stream.width, stream.height = size
        stream.pix_fmt = "yuv420p"
        stream.bit_rate = 4_000_000
        for number in range(num_frames):
            pixels = np.full((size[1], size[0], 3), 10 * number, np.uint8)
            if wide_middle:
                margin = (size[0] - size[1]) // 2
                pixels[:, :margin] = pixels[:, -margin:] = 255
            for packet in stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    return path


def zip_folder(folder: Path, archive: Path, prefix: str = "") -> Path:
    """All files of a folder in a zip archive."""
    with zipfile.ZipFile(archive, "w") as out:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                out.write(path, f"{prefix}{path.relative_to(folder).as_posix()}")
    return archive
