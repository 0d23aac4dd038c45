import pytest
import torch

from topomask.data import InMemorySet, LabelledSet, MovingDigits, to_memory


def make(inputs=None, labels=None, classes=("a", "b")):
    inputs = torch.arange(5, dtype=torch.uint8).view(5, 1, 1, 1).expand(5, 3, 4, 6) if inputs is None else inputs
    return InMemorySet(inputs, torch.tensor([0, 1, 0, 1, 0]) if labels is None else labels, classes, (0.5,), (0.5,))


def test_items_and_attributes():
    pictures = make()
    image, label = pictures[3]
    assert image.shape == (3, 4, 6)
    assert image.dtype == torch.uint8
    assert (int(image[0, 0, 0]), label, type(label)) == (3, 1, int)
    assert isinstance(pictures, LabelledSet)
    assert (len(pictures), pictures.num_classes, pictures.image_shape, pictures.num_frames) == (5, 2, (3, 4, 6), None)
    assert pictures.tensors[0] is pictures.inputs
    with pytest.raises(IndexError):
        pictures[5]


def test_videos_have_frames():
    videos = make(torch.zeros(5, 7, 1, 4, 6, dtype=torch.uint8))
    assert (videos.image_shape, videos.num_frames) == ((1, 4, 6), 7)
    assert "5 videos of 7 frames" in repr(videos)


def test_subset_keeps_the_order_asked_for():
    assert make().subset(torch.tensor([4, 1])).inputs[:, 0, 0, 0].tolist() == [4, 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(inputs=torch.zeros(5, 1, 4, 4)), "`inputs` must be uint8"),
        (dict(inputs=torch.zeros(5, 4, 4, dtype=torch.uint8)), "`inputs` must be uint8"),
        (dict(labels=torch.zeros(4, dtype=torch.long)), r"`labels` must be integers of shape \[N=5\]"),
        (dict(labels=torch.zeros(5)), "`labels` must be integers"),
        (dict(labels=torch.tensor([0, 1, 2, 0, 0])), r"`labels` must lie in \[0, num_classes=2\).*between 0 and 2"),
    ],
)
def test_what_does_not_fit_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        make(**arguments)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_to_memory_reads_everything_once_without_touching_torch_s_random_state(num_workers):
    videos = MovingDigits(num_videos=70, num_frames=2, size=16)
    state, threads = torch.random.get_rng_state(), torch.get_num_threads()
    kept = to_memory(videos, num_workers)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    assert (kept.classes, kept.mean, kept.std, kept.num_frames) == (videos.classes, videos.mean, videos.std, 2)
    for index in (0, 63, 64, 69):
        assert torch.equal(kept[index][0], videos[index][0])
        assert kept[index][1] == videos[index][1]
    assert to_memory(kept) is kept
