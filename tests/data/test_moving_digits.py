import math

import pytest
import torch

from topomask.data import InMemorySet, MovingDigits, load

CLEAR = dict(noise=0.0, num_frames=8, size=48)


def centres(video):
    """Centre of mass of every frame, right and down, [T, 2]."""
    mass = video[:, 0].double()
    places = torch.arange(mass.shape[-1], dtype=torch.float64)
    total = mass.sum(dim=(1, 2))
    return torch.stack([(mass.sum(dim=1) * places).sum(1) / total, (mass.sum(dim=2) * places).sum(1) / total], dim=1)


def axis_angles(video):
    """Direction of the longest axis of every frame, clockwise from the right, modulo pi, [T]."""
    mass = video[:, 0].double()
    place = torch.arange(mass.shape[-1], dtype=torch.float64)
    centre = centres(video)
    x, y = place - centre[:, :1], place - centre[:, 1:]  # [T, W], [T, H]
    xx, yy = (mass.sum(1) * x**2).sum(1), (mass.sum(2) * y**2).sum(1)
    xy = torch.einsum("thw,tw,th->t", mass, x, y)
    return 0.5 * torch.atan2(2 * xy, xx - yy)


def guess(video):
    """The class, by hand: the way of the centre of mass, or the sense in which the long axis turns."""
    way = centres(video)[-1] - centres(video)[0]
    if float(way.norm()) > 5:
        return round(math.degrees(math.atan2(way[1], way[0])) / 45) % 8
    turns = axis_angles(video).diff()
    turns = (turns + math.pi / 2) % math.pi - math.pi / 2
    return 8 if float(turns.sum()) > 0 else 9


def test_motions_can_be_told_apart_by_hand():
    videos = MovingDigits("train", num_videos=100, **CLEAR)
    right = sum(guess(video) == label for video, label in videos)
    # Round digits have no long axis, so a turn may be misread; the eight directions may not.
    assert all(guess(video) == label for video, label in videos if label < 8)
    assert right >= 98


def test_the_way_is_straight_even_and_starts_where_it_should():
    videos = MovingDigits("train", num_videos=40, **CLEAR)
    for video, label in videos:
        steps = centres(video).diff(dim=0)
        if label < 8:
            assert float((steps - steps.mean(dim=0)).abs().max()) < 0.15
        else:
            assert float(steps.abs().max()) < 1.5
        middle = centres(video).mean(dim=0)
        assert float((middle - 23.5).abs().max()) < 48 * (0.08 + 0.06)


@pytest.mark.parametrize("seed", range(3))
def test_digits_stay_on_the_canvas(seed):
    for video, _ in MovingDigits("test", num_videos=50, seed=seed, **CLEAR):
        edges = torch.cat([video[:, :, 0], video[:, :, -1], video[..., 0], video[..., -1]])
        assert int(edges.max()) == 0
        mass = video.double().sum(dim=(1, 2, 3))
        assert float((mass / mass.mean() - 1).abs().max()) < 0.03


def test_a_video_depends_on_seed_split_and_index_only():
    state = torch.random.get_rng_state()
    one = MovingDigits("train", num_videos=100)[7][0]
    assert torch.equal(MovingDigits("train", num_videos=8)[7][0], one)
    assert not torch.equal(MovingDigits("train", num_videos=8, seed=1)[7][0], one)
    assert not torch.equal(MovingDigits("test", num_videos=8)[7][0], one)
    assert not torch.equal(MovingDigits("train", num_videos=100)[17][0], one)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_classes_are_balanced():
    assert torch.bincount(MovingDigits(num_videos=50).labels).tolist() == [5] * 10
    assert MovingDigits().num_classes == 10
    assert (len(MovingDigits()), len(MovingDigits("val"))) == (2000, 500)


def test_still_digits_do_not_move_and_noise_is_there():
    alone, among = (MovingDigits(num_videos=3, still_digits=count, **CLEAR)[0][0] for count in (0, 2))
    assert bool((among >= alone).all())
    other = (among > alone).any(dim=0)
    assert int(other.sum()) > 20
    noisy = MovingDigits(num_videos=3, noise=0.2, num_frames=8, size=48)[0][0]
    assert float(noisy[alone == 0].double().std()) > 20


def test_mean_and_std_are_those_of_the_defaults():
    kept = load("moving-digits", num_videos=100)
    assert isinstance(kept, InMemorySet)
    assert kept.image_shape == (1, 64, 64)
    values = kept.inputs.double() / 255
    assert kept.mean[0] == pytest.approx(float(values.mean()), abs=0.003)
    assert kept.std[0] == pytest.approx(float(values.std()), abs=0.005)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(split="all"), "`split` of moving-digits"),
        (dict(num_frames=1), "`num_frames` at least 2"),
        (dict(size=8), "`size` at least 16"),
        (dict(num_videos=0), "`num_videos` must be at least 1"),
        (dict(noise=-1.0), "`still_digits` and `noise`"),
    ],
)
def test_what_cannot_be_drawn_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        MovingDigits(**options)


def test_indices_count_from_the_end_and_end():
    videos = MovingDigits(num_videos=12, num_frames=2, size=16)
    assert torch.equal(videos[-1][0], videos[11][0])
    with pytest.raises(IndexError, match=r"must lie in \[0, 12\)"):
        videos[12]
