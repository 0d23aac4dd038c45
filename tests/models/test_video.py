import inspect

import pytest
import torch
from torch.nn import functional as F

from topomask.models import AttentionOptions, VideoTransformer, VideoTransformerConfig


def small(attention: str = "grf-softmax", **options) -> VideoTransformer:
    torch.manual_seed(0)
    arguments = dict(num_frames=6, image_size=(8, 12), tubelet_size=(2, 4, 4), in_channels=2, num_classes=5)
    arguments |= dict(dim=16, depth=2, temporal_depth=1, num_heads=2)
    return VideoTransformer(**(arguments | options), attention=attention)


def videos() -> torch.Tensor:
    return torch.randn(3, 2, 6, 8, 12, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("attention", ["softmax", "grf-softmax", "grf", "linear", "toeplitz"])
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_gradients_reach_every_parameter(attention, pooling):
    model = small(attention, pooling=pooling)
    logits = model(videos())
    assert logits.shape == (3, 5)
    F.cross_entropy(logits, torch.tensor([0, 1, 2])).backward()
    names = [name for name, _ in model.named_parameters()]
    last = ("spatial.blocks.1.attention.mask", "temporal.blocks.0.attention.mask")
    # Softmax does not see what all keys share, and the token that is looked at in the end has no mask.
    blind = {name for name in names if "softmax" in attention and name.endswith("key.bias")}
    blind |= {name for name in names if pooling == "cls" and name.startswith(last)}
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert name in blind or parameter.grad.abs().sum() > 0, name


def test_space_is_encoded_frame_by_frame_and_then_time():
    model = small().double()
    x = videos().double()
    tokens = model.embedding(x)
    assert tokens.shape == (3, 3, 2, 3, 16)
    frames = torch.stack([model.spatial(tokens[:, time]) for time in range(3)], dim=1)
    torch.testing.assert_close(model(x), model.head(model.temporal(frames)))


def test_masks_are_on_the_grid_and_on_the_path():
    model = small(pooling="mean", attention_options=AttentionOptions(seed=5))
    masks = [block.attention.mask for encoder in (model.spatial, model.temporal) for block in encoder.blocks]
    assert [mask.graph.num_nodes for mask in masks] == [6, 6, 3]
    assert [mask.seed for mask in masks] == [5, 6, 7]


def test_state_dict_round_trip():
    trained, fresh = small(), small()
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    fresh.load_state_dict(trained.state_dict())
    assert torch.equal(fresh(videos()), trained(videos()))


def test_config_and_model_have_the_same_fields_and_defaults():
    defaults = {name: each.default for name, each in inspect.signature(VideoTransformer).parameters.items()}
    # What the config leaves to the data is None there.
    own = {name: defaults[name] if value is None else value for name, value in vars(VideoTransformerConfig()).items()}
    assert defaults | {"attention_options": AttentionOptions()} == own
    small_config = VideoTransformerConfig(4, 16, (2, 8, 8), 1, 3, 8, 1, 1, 2)
    assert small_config.build()(torch.randn(2, 1, 4, 16, 16)).shape == (2, 3)


def test_sizes_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match="multiple of `tubelet_size`"):
        small(num_frames=5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(tubelet_size=(8, 8)), r"`tubelet_size` must be \(frames, height, width\), but is \(8, 8\)"),
        (dict(tubelet_size=8), r"`tubelet_size` must be \(frames, height, width\), but is 8"),
        (dict(image_size=(2, 8, 12)), "`image_size` must be one number or"),
        (dict(num_frames=None), "`num_frames` must be one number"),
        (dict(attention_options={"seed": 1}), "`attention_options` must be a topomask.models.AttentionOptions"),
    ],
)
def test_bad_arguments_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        small(**options)


def test_videos_of_another_size_are_named():
    model = small()
    for shape in ((1, 2, 8, 8, 12), (1, 2, 5, 8, 12), (1, 2, 6, 8, 8), (2, 6, 8, 12)):
        with pytest.raises(ValueError, match=r"`videos` must have shape \[B, 2, 6, 8, 12\], but has .* `num_frames`"):
            model(torch.randn(shape))
