import pytest
import torch

from topomask.data import Augment, normalize, random_crop, random_flip


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def images(*shape):
    return torch.randint(1, 256, shape, dtype=torch.uint8, generator=generator(9))


def test_flips_mirror_about_half_of_the_pictures_left_to_right():
    batch = images(400, 3, 4, 5)
    flipped = random_flip(batch, generator())
    is_flipped = (flipped == batch.flip(-1)).flatten(1).all(dim=1)
    is_same = (flipped == batch).flatten(1).all(dim=1)
    assert bool((is_flipped ^ is_same).all())
    # 400 fair draws lie this far from 200 with a chance below 1e-7.
    assert abs(int(is_flipped.sum()) - 200) < 55


def test_probabilities_of_flips_are_obeyed():
    batch = images(5, 1, 4, 4)
    assert torch.equal(random_flip(batch, generator(), 0.0), batch)
    assert torch.equal(random_flip(batch, generator(), 1.0), batch.flip(-1))


@pytest.mark.parametrize("shape", [(300, 3, 6, 7), (300, 2, 3, 6, 7)])
def test_crops_are_windows_of_the_padded_picture(shape):
    batch, padding = images(*shape), 2
    cropped = random_crop(batch, padding, generator())
    assert cropped.shape == batch.shape
    assert cropped.dtype == batch.dtype
    padded = torch.nn.functional.pad(batch, (padding,) * 4)
    matches = torch.stack(
        [
            (cropped == padded[..., top : top + 6, left : left + 7]).flatten(1).all(dim=1)
            for top in range(5)
            for left in range(5)
        ]
    )
    assert bool((matches.sum(dim=0) == 1).all())
    # Each of 25 windows is missed by 300 uniform draws with a chance of 5e-6.
    assert bool(matches.any(dim=1).all())


def test_frames_of_a_video_share_their_draw():
    video = images(20, 1, 3, 6, 6).expand(-1, 5, -1, -1, -1)
    for changed in (random_flip(video, generator()), random_crop(video, 2, generator())):
        assert torch.equal(changed, changed[:, :1].expand_as(changed))


def test_draws_repeat_with_the_generator_and_leave_torch_s_own_state_alone():
    augment, batch = Augment((0.5,) * 3, (0.5,) * 3, flip=True, padding=2), images(16, 3, 8, 8)
    state = torch.random.get_rng_state()
    one, same, other = (augment(batch, generator(seed)) for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_the_input_is_not_changed():
    for batch in (images(4, 1, 5, 5), torch.rand(4, 1, 5, 5)):
        before = batch.clone()
        Augment((0.5,), (0.5,), flip=True, padding=1)(batch, generator())
        assert torch.equal(batch, before)


def test_normalisation_takes_bytes_and_fractions():
    batch = images(4, 2, 5, 5)
    expected = (batch.float() / 255 - torch.tensor([0.2, 0.4]).view(2, 1, 1)) / torch.tensor([0.5, 2.0]).view(2, 1, 1)
    for found in (normalize(batch, (0.2, 0.4), (0.5, 2.0)), normalize(batch.double() / 255, (0.2, 0.4), (0.5, 2.0))):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, expected)


def test_evaluation_draws_nothing_and_forgotten_generators_are_noticed():
    augment, batch = Augment((0.5,), (0.5,), flip=True, padding=2), images(4, 1, 5, 5)
    torch.testing.assert_close(augment.without_draws()(batch), normalize(batch, (0.5,), (0.5,)))
    torch.testing.assert_close(augment.without_draws()(batch, generator()), normalize(batch, (0.5,), (0.5,)))
    with pytest.raises(ValueError, match="needs `generator`"):
        augment(batch)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: random_flip(images(3, 5, 5), generator()), r"`images` must have shape \[B, ..., C, H, W\]"),
        (lambda: random_crop(images(3, 5, 5), 1, generator()), "`images` must have shape"),
        (lambda: random_crop(images(2, 3, 5, 5), -1, generator()), "`padding` must be at least 0"),
        (lambda: normalize(images(2, 3, 5, 5), (0.5,), (0.5,)), "each of 3 channels"),
        (lambda: normalize(images(2, 1, 5, 5), (0.5,), (0.0,)), "positive"),
    ],
)
def test_what_cannot_be_done_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_videos_leave_with_channels_before_frames():
    video = images(2, 5, 3, 6, 7)
    augment = Augment((0.1, 0.2, 0.3), (1.0, 1.0, 2.0))
    found = augment(video)
    assert found.shape == (2, 3, 5, 6, 7)
    torch.testing.assert_close(found[1, 2, 4], (video[1, 4, 2].float() / 255 - 0.3) / 2)
