import pytest
import torch

from topomask.models import VisionTransformer, resize_positions


def make(image_size=8, attention: str = "grf", **options) -> VisionTransformer:
    arguments = dict(in_channels=1, num_classes=3, dim=8, depth=2, num_heads=2, attention=attention)
    return VisionTransformer(image_size, 2, **(arguments | options))


@pytest.mark.parametrize("attention", ["grf", "grf-paper", "visits", "exact", "softmax"])
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_weights_load_at_another_size(attention, pooling):
    torch.manual_seed(0)
    old, new = make(8, attention, pooling=pooling), make((12, 16), attention, pooling=pooling)
    with torch.no_grad():
        for parameter in old.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    walks = {name: value.clone() for name, value in new.state_dict().items() if name.endswith("_extra_state")}
    new.load_state_dict(resize_positions(old.state_dict(), new))
    learnt = dict(old.named_parameters())
    for name, parameter in new.named_parameters():
        assert name == "encoder.position" or torch.equal(parameter, learnt[name]), name
    for name, value in walks.items():
        assert torch.equal(new.state_dict()[name], value)
    assert new(torch.randn(2, 1, 12, 16)).isfinite().all()


def test_positions_are_resampled_bilinearly():
    old, new = make((8, 16), "linear"), make((16, 32), "linear")
    rows, columns = torch.meshgrid(torch.arange(4.0), torch.arange(8.0), indexing="ij")
    weights = old.state_dict()
    weights["encoder.position"] = (rows + 10 * columns).flatten()[:, None].expand(-1, 8)
    found = resize_positions(weights, new, shape=(4, 8))["encoder.position"].view(8, 16, 8)
    # Centres of pixels, half as far apart; beyond the outermost ones nothing is known.
    fine_rows, fine_columns = torch.meshgrid(torch.arange(8.0), torch.arange(16.0), indexing="ij")
    expected = (fine_rows / 2 - 0.25).clamp(0, 3) + 10 * (fine_columns / 2 - 0.25).clamp(0, 7)
    torch.testing.assert_close(found, expected[..., None].expand(-1, -1, 8))


def test_the_same_grid_changes_nothing():
    old, new = make(), make()
    new.load_state_dict(resize_positions(old.state_dict(), new))
    images = torch.randn(2, 1, 8, 8)
    assert torch.equal(new(images), old(images))


def test_what_does_not_fit_is_named():
    with pytest.raises(ValueError, match=r"`weights` must have 'encoder\.position'"):
        resize_positions({}, make())
    with pytest.raises(ValueError, match="grid of 32 patches, but is None"):
        resize_positions(make((8, 16)).state_dict(), make())
    with pytest.raises(ValueError, match="only positions are resampled"):
        resize_positions(make(8, "toeplitz").state_dict(), make(16, "toeplitz"))
    with pytest.raises(ValueError, match="only positions are resampled"):
        resize_positions(make(8).state_dict(), make(16, dim=16))
