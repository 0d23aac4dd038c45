"""Image and video files as tensors."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from topomask.data.limits import how_to_raise, limit_of, read_bounded
from topomask.support.imports import need

# The format is detected from the content, not the name. Other formats of Pillow start programs, such as Ghostscript for
# EPS, or are rarely used, so their vulnerabilities stay unknown.
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF")
# Video containers, without playlists that refer to other files.
_CONTAINERS = "mov,mp4,matroska,webm,avi,mpeg,mpegvideo,mpegts,m4v"
# Pixels by which decoders pad a small frame.
_MARGINS = 1 << 16
Size = int | tuple[int, int]
Pixels = np.ndarray[Any, np.dtype[np.uint8]]


def read_image(path: Path, size: Size | None = None, channels: int = 3, *, max_pixels: int | None = None) -> Tensor:
    """Read an image, resized to cover `size` and cropped to it, uint8, [channels, H, W].

    Args:
        path: A PNG, JPEG, BMP, GIF (its first frame), WebP or TIFF file; detected from the content.
        size: Height and width, or one number for both. Default: the size of the image.
        channels: 3 for colour, 1 for grey.
        max_pixels: Largest number of pixels. Default: the environment variable ``TOPOMASK_MAX_PIXELS``, else 2^26.
            Pillow has a limit of its own, ``PIL.Image.MAX_IMAGE_PIXELS``.
    """
    try:
        return decode_image(read_bounded(path), size, channels, max_pixels=max_pixels)
    except ValueError as error:
        raise ValueError(f"{path} cannot be read as an image: {error}") from error


def decode_image(
    content: bytes, size: Size | None = None, channels: int = 3, *, max_pixels: int | None = None
) -> Tensor:
    """Decode the bytes of an image file, see :func:`read_image`."""
    image_module = need("PIL.Image", "Reading images")
    if channels not in (1, 3):
        raise ValueError(f"`channels` must be 1 or 3, but is {channels}.")
    bound = limit_of("max_pixels", max_pixels)
    try:
        # Pillow warns about odd metadata, which do not affect the pixels, and about sizes, which are checked here.
        with warnings.catch_warnings(action="ignore"), image_module.open(io.BytesIO(content), formats=FORMATS) as image:
            _check_pixels(image.width, image.height, bound)
            image = image.convert("RGB" if channels == 3 else "L")
            if size is not None and (image.height, image.width) != _pair(size):
                rows, columns = _pair(size)
                width, height, left, top = _cover(image.width, image.height, size, bound)
                image = image.resize((width, height), resample=2).crop((left, top, left + columns, top + rows))
            pixels = np.array(image).reshape(image.height, image.width, channels)
    except image_module.UnidentifiedImageError:
        raise ValueError(f"it is damaged, or not in a supported format: {', '.join(FORMATS)}.") from None
    except image_module.DecompressionBombError:
        raise ValueError(
            f"it has more pixels than `max_pixels`={bound:,} or twice PIL.Image.MAX_IMAGE_PIXELS, Pillow's own limit, "
            f"allows. {how_to_raise('max_pixels')}"
        ) from None
    # Pillow raises almost anything on damaged images.
    except Exception as error:
        raise ValueError(str(error) or type(error).__name__) from error
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()


def read_video(path: Path, num_frames: int, size: Size, channels: int = 3, *, max_pixels: int | None = None) -> Tensor:
    """Read evenly spaced frames of a video, resized to cover `size` and cropped to it, uint8, [T, channels, H, W].

    Args:
        path: The file.
        num_frames: Number of frames T; a shorter video repeats frames.
        size: Height and width, or one number for both.
        channels: 3 for colour, 1 for grey.
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


def _check_pixels(width: int, height: int, max_pixels: int, when: str = "") -> None:
    if width * height > max_pixels:
        raise ValueError(
            f"{when}it has {width} x {height} pixels, more than `max_pixels`={max_pixels:,} in all. "
            f"{how_to_raise('max_pixels')}"
        )


def _pair(size: Size) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else size


def _cover(width: int, height: int, size: Size, max_pixels: int) -> tuple[int, int, int, int]:
    """Width and height that cover the size at the same aspect ratio, and left and top of the centre crop."""
    rows, columns = _pair(size)
    scale = max(rows / height, columns / width)
    width, height = max(columns, round(width * scale)), max(rows, round(height * scale))
    # A long strip must grow a lot to cover the size.
    _check_pixels(width, height, max_pixels, "resized to cover the size, ")
    return width, height, (width - columns) // 2, (height - rows) // 2


def _sample_frames(av: Any, path: Path, num_frames: int, size: Size, colours: str, max_pixels: int) -> Pixels:
    """Frames at the middle of `num_frames` equal intervals, uint8, [T, H, W, ...]."""
    # A playlist that pretends to be a video may contain URLs; only files are opened.
    options = {"protocol_whitelist": "file", "format_whitelist": _CONTAINERS}
    with av.open(str(path), options=options) as container:
        count = 0
        for stream in container.streams.video[:1]:
            _check_pixels(stream.codec_context.width, stream.codec_context.height, max_pixels)
            # Else the packets of the stream: one per frame, and cheap to count.
            count = stream.frames or sum(packet.size > 0 for packet in container.demux(stream))
    if not count:
        raise ValueError("it has no video frames.")
    wanted = ((np.arange(num_frames) + 0.5) * count / num_frames).astype(int)
    taken: list[Pixels] = []
    end = None
    with av.open(str(path), options=options) as container:
        stream = container.streams.video[0]
        # Frames may be larger than the header says; the decoder refuses them, padding included, before it allocates.
        stream.codec_context.options = {"max_pixels": str(2 * max_pixels + _MARGINS)}
        for number, frame in enumerate(container.decode(stream)):
            repeats = int((wanted == number).sum())
            # Converting a frame costs time, so only those that are wanted are converted.
            taken += [_cut_frame(frame, size, colours, max_pixels)] * repeats if repeats else []
            end = frame
            if len(taken) == num_frames:
                break
    if end is None:
        raise ValueError("none of its frames can be decoded.")
    if len(taken) < num_frames:
        # The file has fewer frames than its header says.
        taken += [_cut_frame(end, size, colours, max_pixels)] * (num_frames - len(taken))
    return np.stack(taken)


def _cut_frame(frame: Any, size: Size, colours: str, max_pixels: int) -> Pixels:
    _check_pixels(frame.width, frame.height, max_pixels)
    rows, columns = _pair(size)
    width, height, left, top = _cover(frame.width, frame.height, size, max_pixels)
    pixels = frame.reformat(width=width, height=height, format=colours).to_ndarray()
    return pixels[top : top + rows, left : left + columns]
