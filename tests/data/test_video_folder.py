import av
import numpy as np
import pytest
import torch

from helpers.data_files import write_video
from topomask.data import Batches, MissingDataError, VideoFolder, load


@pytest.fixture
def folder(tmp_path):
    for split in ("train", "val"):
        for name in ("jump", "run"):
            for number in range(2):
                write_video(tmp_path / split / name / f"{number}.mp4", 20)
    return tmp_path


def levels(video):
    """The grey value of the middle of every frame, as the number of the frame it was."""
    height, width = video.shape[-2:]
    return (video[:, 0, height // 2, width // 2].float() / 10).tolist()


def test_frames_come_at_even_distances(folder):
    videos = VideoFolder(folder, num_frames=4, size=16)
    assert (len(videos), videos.classes, videos.image_shape, videos.num_frames) == (4, ("jump", "run"), (3, 16, 16), 4)
    video, label = videos[3]
    assert (video.dtype, video.shape, label) == (torch.uint8, (4, 3, 16, 16), 1)
    assert levels(video) == pytest.approx([2, 7, 12, 17], abs=0.35)
    assert levels(VideoFolder(folder, num_frames=20, size=16)[0][0]) == pytest.approx(list(range(20)), abs=0.35)


@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".avi"])
def test_short_videos_repeat_frames_and_other_containers_work(tmp_path, suffix):
    write_video(tmp_path / "train" / "run" / f"0{suffix}", 3)
    video, _ = VideoFolder(tmp_path, num_frames=6, size=16)[0]
    assert levels(video) == pytest.approx([0, 0, 1, 1, 2, 2], abs=0.35)


def test_the_middle_is_kept(tmp_path):
    write_video(tmp_path / "train" / "run" / "0.mp4", 4, size=(64, 32), wide_middle=True)
    video, _ = VideoFolder(tmp_path, num_frames=2, size=16)[0]
    assert levels(video) == pytest.approx([1, 3], abs=0.35)
    assert int(video[..., 2:-2].max()) < 60


def test_videos_are_batched_by_workers_and_kept_in_memory(folder):
    batches = Batches(VideoFolder(folder, num_frames=2, size=16), 4, num_workers=1)
    ((videos, labels),) = batches.epoch(0)
    assert videos.shape == (4, 2, 3, 16, 16)
    kept = load("video-folder", path=folder, split="val", num_frames=2, size=16, in_memory=True)
    assert kept.inputs.shape == (4, 2, 3, 16, 16)
    assert labels.sort().values.tolist() == kept.labels.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("content", [b"", b"no video", b"#EXTM3U\n#EXTINF:1,\nhttp://127.0.0.1:9/a.ts\n"])
def test_a_damaged_video_is_named(folder, content):
    (folder / "train" / "run" / "1.mp4").write_bytes(content)
    with pytest.raises(ValueError, match=r"train/run/1.mp4 cannot be read as a video"):
        VideoFolder(folder)[3]


def test_a_video_that_is_cut_short_gives_its_frames_or_an_error(tmp_path):
    file = tmp_path / "train" / "run" / "0.mkv"
    write_video(file, 20)
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    video, _ = VideoFolder(tmp_path, num_frames=4, size=16)[0]
    assert video.shape == (4, 3, 16, 16)
    file.write_bytes(content[:300])
    with pytest.raises(ValueError, match="cannot be read as a video"):
        VideoFolder(tmp_path, num_frames=4, size=16)[0]


def test_sound_alone_is_no_video(tmp_path):
    file = tmp_path / "train" / "run" / "0.mkv"
    file.parent.mkdir(parents=True)
    with av.open(str(file), "w") as container:
        stream = container.add_stream("pcm_s16le", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), format="s16", layout="mono")
        frame.sample_rate = 8000
        for packet in [*stream.encode(frame), *stream.encode()]:
            container.mux(packet)
    with pytest.raises(ValueError, match="has no video frames"):
        VideoFolder(tmp_path)[0]


def test_what_is_not_there_is_said(tmp_path):
    with pytest.raises(MissingDataError, match="nothing at"):
        VideoFolder(tmp_path / "gone")
    (tmp_path / "train").mkdir()
    with pytest.raises(MissingDataError, match=r"no videos .*\.mp4"):
        VideoFolder(tmp_path)
    (tmp_path / "file.zip").write_bytes(b"")
    with pytest.raises(ValueError, match="not read from archives"):
        VideoFolder(tmp_path / "file.zip")
    with pytest.raises(ValueError, match="`num_frames` and `size`"):
        VideoFolder(tmp_path, num_frames=0)
