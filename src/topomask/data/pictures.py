"""Pictures and videos of files as tensors."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from topomask.data.limits import how_to_raise, limit_of, read_bounded
from topomask.support.imports import need

# A picture is told by its content, whatever its name is. Other formats that Pillow knows start programs, such as
# Ghostscript for EPS, or are seldom read, so that their faults stay unknown.
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF")
# Likewise of videos: without lists of other files.
_CONTAINERS = "mov,mp4,matroska,webm,avi,mpeg,mpegvideo,mpegts,m4v"
# Pixels that a decoder adds around a small frame.
_MARGINS = 1 << 16
Size = int | tuple[int, int]


def read_image(path: Path, size: Size | None = None, channels: int = 3, *, max_pixels: int | None = None) -> Tensor:
    """A picture, scaled so that it covers the size and cut to it, uint8, [channels, H, W].

    Args:
        path: The file: PNG, JPEG, BMP, GIF (its first picture), WebP or TIFF by its content.
        size: Height and width, or one number for both. Default: as it is.
        channels: 3 for colours, 1 for grey.
        max_pixels: Largest number of pixels. Default: the environment variable ``TOPOMASK_MAX_PIXELS``, else 2^26.
            Pillow has a limit of its own, ``PIL.Image.MAX_IMAGE_PIXELS``.
    """
    try:
        return decode_image(read_bounded(path), size, channels, max_pixels=max_pixels)
    except ValueError as error:
        raise ValueError(f"{path} cannot be read as a picture: {error}") from error


def decode_image(
    content: bytes, size: Size | None = None, channels: int = 3, *, max_pixels: int | None = None
) -> Tensor:
    """The picture that the bytes of a file hold, see :func:`read_image`."""
    image_module = need("PIL.Image", "Reading pictures")
    if channels not in (1, 3):
        raise ValueError(f"`channels` must be 1 or 3, but is {channels}.")
    bound = limit_of("max_pixels", max_pixels)
    try:
        with _quiet(), image_module.open(io.BytesIO(content), formats=FORMATS) as picture:
            _check_pixels(picture.width, picture.height, bound)
            picture = picture.convert("RGB" if channels == 3 else "L")
            if size is not None:
                picture = _scale_and_cut(picture, size, bound)
            pixels = np.array(picture).reshape(picture.height, picture.width, channels)
    except image_module.UnidentifiedImageError:
        raise ValueError(f"it is damaged, or in no format that is read: {', '.join(FORMATS)}.") from None
    except image_module.DecompressionBombError:
        raise ValueError(
            f"it has more pixels than `max_pixels`={bound:,} or twice PIL.Image.MAX_IMAGE_PIXELS, Pillow's own limit, "
            f"allows. {how_to_raise('max_pixels')}"
        ) from None
    # A damaged picture raises nearly anything inside Pillow.
    except Exception as error:
        raise ValueError(str(error) or type(error).__name__) from error
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()


def read_video(path: Path, num_frames: int, size: Size, channels: int = 3, *, max_pixels: int | None = None) -> Tensor:
    """Frames of a video at even distances, each scaled to cover the size and cut to it, uint8, [T, channels, H, W].

    Args:
        path: The file. A video with fewer frames repeats some.
        num_frames: How many frames T.
        size: Height and width, or one number for both.
        channels: 3 for colours, 1 for grey.
        max_pixels: Largest number of pixels of a frame. Default: the environment variable ``TOPOMASK_MAX_PIXELS``,
            else 2^26.
    """
    av = need("av", "Reading videos")
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path}.")
    try:
        bound = limit_of("max_pixels", max_pixels)
        frames = _sample_frames(av, path, num_frames, size, "rgb24" if channels == 3 else "gray", bound)
    except (av.error.FFmpegError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as a video: {error}") from error
    return torch.from_numpy(frames.reshape(*frames.shape[:3], channels)).permute(0, 3, 1, 2).contiguous()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Pillow warns about odd metadata, which do not concern the pixels, and about sizes, which are judged here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _check_pixels(width: int, height: int, max_pixels: int, when: str = "") -> None:
    if width * height > max_pixels:
        raise ValueError(
            f"{when}it has {width} x {height} pixels, more than `max_pixels`={max_pixels:,} in all. "
            f"{how_to_raise('max_pixels')}"
        )


def _pair(size: Size) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else size


def _cover(width: int, height: int, size: Size, max_pixels: int) -> tuple[int, int, int, int]:
    """Width and height that cover the size in the same proportion, and where the middle of that size begins."""
    rows, columns = _pair(size)
    scale = max(rows / height, columns / width)
    width, height = max(columns, round(width * scale)), max(rows, round(height * scale))
    # A long strip grows a great deal before it covers.
    _check_pixels(width, height, max_pixels, "scaled to cover the size, ")
    return width, height, (width - columns) // 2, (height - rows) // 2


def _scale_and_cut(picture: Any, size: Size, max_pixels: int) -> Any:
    rows, columns = _pair(size)
    if picture.size == (columns, rows):
        return picture
    width, height, left, top = _cover(picture.width, picture.height, size, max_pixels)
    return picture.resize((width, height), resample=2).crop((left, top, left + columns, top + rows))


def _sample_frames(
    av: Any, path: Path, num_frames: int, size: Size, colours: str, max_pixels: int
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Frames at the middles of `num_frames` equal stretches, uint8, [T, H, W, ...]."""
    # A playlist that calls itself a video may name addresses; only files are opened.
    options = {"protocol_whitelist": "file", "format_whitelist": _CONTAINERS}
    with av.open(str(path), options=options) as container:
        if not container.streams.video:
            raise ValueError("it has no pictures.")
        codec = container.streams.video[0].codec_context
        _check_pixels(codec.width, codec.height, max_pixels)
        count = container.streams.video[0].frames or _count_frames(container)
    if not count:
        raise ValueError("it has no pictures.")
    wanted = ((np.arange(num_frames) + 0.5) * count / num_frames).astype(int)
    taken: list[np.ndarray[Any, np.dtype[np.uint8]]] = []
    end = None
    with av.open(str(path), options=options) as container:
        stream = container.streams.video[0]
        # Frames may be larger than the header says; the decoder refuses those before it makes room for them.
        # It counts margins too.
        stream.codec_context.options = {"max_pixels": str(2 * max_pixels + _MARGINS)}
        for number, frame in enumerate(container.decode(stream)):
            repeats = int((wanted == number).sum())
            # Turning a frame into colours costs time, so only those that are wanted are.
            taken += [_cut_frame(frame, size, colours, max_pixels)] * repeats if repeats else []
            end = frame
            if len(taken) == num_frames:
                break
    if end is None:
        raise ValueError("none of its pictures can be decoded.")
    if len(taken) < num_frames:
        # The file holds fewer frames than it says.
        taken += [_cut_frame(end, size, colours, max_pixels)] * (num_frames - len(taken))
    return np.stack(taken)


def _count_frames(container: Any) -> int:
    """Packets of the first video stream: one per frame, and cheap to count."""
    return sum(packet.size > 0 for packet in container.demux(container.streams.video[0]))


def _cut_frame(frame: Any, size: Size, colours: str, max_pixels: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    _check_pixels(frame.width, frame.height, max_pixels)
    rows, columns = _pair(size)
    width, height, left, top = _cover(frame.width, frame.height, size, max_pixels)
    pixels = frame.reformat(width=width, height=height, format=colours).to_ndarray()
    return pixels[top : top + rows, left : left + columns]
