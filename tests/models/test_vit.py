import inspect

import pytest
import torch
from torch.nn import functional as F

import topomask as tm
from topomask.models import AttentionOptions, VisionTransformer, VisionTransformerConfig
from topomask.models.attention_variants import VARIANTS
from topomask.models.vit import PRESETS


def small(attention: str = "grf", **options) -> VisionTransformer:
    torch.manual_seed(0)
    arguments = dict(image_size=(8, 12), patch_size=2, in_channels=3, num_classes=5, dim=16, depth=2, num_heads=2)
    return VisionTransformer(**(arguments | dict(attention=attention) | options))


def images(batch: int = 3) -> torch.Tensor:
    return torch.randn(batch, 3, 8, 12, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("attention", VARIANTS)
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_gradients_reach_every_parameter(attention, pooling):
    model = small(attention, pooling=pooling)
    logits = model(images())
    assert logits.shape == (3, 5)
    F.cross_entropy(logits, torch.tensor([0, 1, 2])).backward()
    names = [name for name, _ in model.named_parameters()]
    # Softmax does not see what all keys share, and the token that is looked at in the end has no mask.
    blind = {name for name in names if "softmax" in attention and name.endswith("key.bias")}
    blind |= {name for name in names if pooling == "cls" and "blocks.1.attention.mask" in name}
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert name in blind or parameter.grad.abs().sum() > 0, name


def test_softmax_equals_an_independent_computation():
    model = small("softmax", pooling="cls").double()
    x = images().double()
    encoder = model.encoder
    patches = F.unfold(x, 2, stride=2).mT
    tokens = F.linear(patches, model.embedding.projection.weight, model.embedding.projection.bias) + encoder.position
    tokens = torch.cat([encoder.cls.expand(3, 1, -1), tokens], dim=1)
    for block in encoder.blocks:
        y, layer = block.attention_norm(tokens), block.attention
        q, k, v = (part(y).view(3, 25, 2, 8).transpose(1, 2) for part in (layer.query, layer.key, layer.value))
        tokens = tokens + layer.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(3, 25, 16))
        tokens = tokens + block.mlp.out(F.gelu(block.mlp.hidden(block.mlp_norm(tokens))))
    torch.testing.assert_close(model(x), model.head(encoder.norm(tokens)[:, 0]))


def test_linear_equals_a_mask_of_ones():
    def ones(grid, dim, num_heads, options):
        size = grid.num_nodes + grid.num_prefix
        return tm.nn.MaskedAttention(dim, num_heads, tm.DenseMask(torch.ones(size, size, dtype=torch.float64)))

    model, masked = small("linear").double(), small(ones).double()
    masked.load_state_dict(model.state_dict(), strict=False)
    torch.testing.assert_close(model(images().double()), masked(images().double()))


def test_masks_differ_from_layer_to_layer_and_head_to_head():
    model = small("grf", pooling="mean")
    first, second = (block.attention.mask.to_dense() for block in model.encoder.blocks)
    assert not torch.allclose(first, second)
    assert not torch.allclose(first[0], first[1])


def test_the_mask_matters():
    """Without positions and masks a permutation of the patches changes nothing; with masks it does."""
    order = torch.randperm(24, generator=torch.Generator().manual_seed(0))
    for attention, invariant in (("linear", True), ("grf", False), ("toeplitz", False), ("exact", False)):
        model = small(attention, pooling="mean").double()
        model.encoder.position.data.zero_()
        tokens = torch.randn(2, 24, 16, dtype=torch.float64)
        plain, permuted = (model.encoder(x.view(2, 4, 6, 16)) for x in (tokens, tokens[:, order]))
        assert torch.allclose(plain, permuted) == invariant


@pytest.mark.parametrize("attention", VARIANTS)
def test_a_batch_equals_one_by_one(attention):
    model = small(attention, pooling="cls").double()
    x = images().double()
    torch.testing.assert_close(model(x), torch.cat([model(x[[k]]) for k in range(3)]))


@pytest.mark.parametrize("attention", ["grf", "grf-paper", "visits"])
def test_walks_are_drawn_once(attention, monkeypatch):
    model = small(attention)

    def refuse(*_, **__):
        raise AssertionError("Walks are drawn again.")

    monkeypatch.setattr("topomask.walks.recipe.sample_features", refuse)
    before = [block.attention.mask.to_dense().detach() for block in model.encoder.blocks]
    model(images()).square().sum().backward()
    model.eval()(images())
    for block, mask in zip(model.encoder.blocks, before, strict=True):
        assert torch.equal(block.attention.mask.to_dense(), mask)
        assert {name for name, _ in block.attention.mask.named_parameters()} == {"modulation.weight"}


def test_a_seed_fixes_the_walks():
    options = AttentionOptions(seed=3)
    models = [small("grf", attention_options=options) for _ in range(2)]
    seeds = [[block.attention.mask.seed for block in model.encoder.blocks] for model in models]
    assert seeds == [[3, 4], [3, 4]]


@pytest.mark.parametrize("attention", ["grf", "grf-paper", "grf-softmax", "exact", "learned"])
def test_state_dict_round_trip(attention):
    trained, fresh = small(attention), small(attention)
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    fresh.load_state_dict(trained.state_dict())
    assert torch.equal(fresh(images()), trained(images()))


@pytest.mark.parametrize("attention", ["grf", "linear"])
def test_compiles(attention):
    model = small(attention)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    found, expected = compiled(images()), model(images())
    torch.testing.assert_close(found, expected)
    parameters = list(model.parameters())
    gradients = [torch.autograd.grad(out.square().sum(), parameters) for out in (found, expected)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_autocast():
    model = small("grf")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(images())
    torch.testing.assert_close(out.float(), model(images()), rtol=0.05, atol=0.05)


def test_config_and_model_have_the_same_fields_and_defaults():
    parameters = inspect.signature(VisionTransformer).parameters
    config = VisionTransformerConfig()
    assert list(parameters) == list(vars(config))
    defaults = {name: parameter.default for name, parameter in parameters.items()}
    # What the config leaves to the data is None there.
    own = {name: defaults[name] if value is None else value for name, value in vars(config).items()}
    assert defaults | {"attention_options": AttentionOptions()} == own


@pytest.mark.parametrize("name", PRESETS)
def test_presets_build(name):
    config = VisionTransformerConfig.preset(name, image_size=32, patch_size=16, depth=1)
    assert config.build()(torch.randn(1, config.in_channels, 32, 32)).shape == (1, config.num_classes)


def test_presets_with_another_attention_leave_out_what_it_does_not_obey():
    preset = VisionTransformerConfig.preset
    assert preset("paper-imagenet", attention="linear").attention_options == AttentionOptions()
    assert preset("paper-imagenet", attention="exact").attention_options == AttentionOptions(max_length=100)
    # Walks of their own default halt or do not; the paper's probability stays with the paper's walks.
    walks = AttentionOptions(num_walks=100, max_length=100)
    for attention in ("grf", "grf-softmax", "visits"):
        assert preset("paper-imagenet", attention=attention).attention_options == walks
    assert preset("paper-imagenet", attention="grf-paper") == preset("paper-imagenet")
    model = preset("paper-imagenet", attention="grf", image_size=32, depth=1).build()
    assert model.encoder.blocks[0].attention.mask.recipe.halt_prob == 0
    assert preset("paper-imagenet", attention="grf", attention_options=AttentionOptions(seed=1)) == preset(
        "base", image_size=256, attention_options=AttentionOptions(seed=1)
    )


def test_paper_presets_are_table_2():
    columns = {"paper-imagenet": (100, 100), "paper-inaturalist": (20, 10), "paper-places": (20, 10)}
    for name, (num_walks, max_length) in columns.items():
        config = VisionTransformerConfig.preset(name)
        assert (config.depth, config.num_heads, config.dim, config.mlp_ratio * config.dim) == (12, 12, 768, 3072)
        assert config.image_size // config.patch_size == 16
        assert config.attention == "grf-paper"
        options = config.attention_options
        assert (options.num_walks, options.max_length, options.halt_prob) == (num_walks, max_length, 0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(image_size=9), "multiple of `patch_size`"),
        (dict(patch_size=(2, 2, 2)), r"`patch_size` must be one number or \(height, width\), but is \(2, 2, 2\)"),
        (dict(image_size=28.0), "`image_size` must be one number"),
        (dict(attention=None), "`attention` must be one of .* or a function that makes a layer, but is None"),
        (dict(attention_options={"seed": 1}), "`attention_options` must be a topomask.models.AttentionOptions"),
        (dict(patch_size=0), "positive"),
        (dict(pooling="max"), "pooling"),
        (dict(depth=0), "depth"),
        (dict(dim=15), "num_heads"),
    ],
)
def test_bad_arguments_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        small(**options)


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="Did you mean 'linear'"):
        small("linnear")
    with pytest.raises(ValueError, match="paper-places"):
        VisionTransformerConfig.preset("huge")


def test_images_of_another_size_are_named():
    model = small()
    for shape in ((1, 3, 12, 12), (1, 3, 9, 12), (1, 1, 8, 12), (3, 8, 12)):
        with pytest.raises(ValueError, match=r"`images` must have shape \[B, 3, 8, 12\], but has .* `image_size`"):
            model(torch.randn(shape))


def test_attention_that_is_passed_in_keeps_its_weights():
    made = []

    def factory(grid, dim, num_heads, options):
        layer = tm.nn.MaskedAttention(dim, num_heads, tm.NeighborMask(grid.graph))
        made.append({name: value.clone() for name, value in layer.state_dict().items()})
        return layer

    model = small(factory)
    for block, before in zip(model.encoder.blocks, made, strict=True):
        for name in ("query.weight", "query.bias", "out.bias"):
            assert torch.equal(block.attention.state_dict()[name], before[name]), name
        # Perceptrons are the encoder's own.
        assert block.mlp.hidden.bias.eq(0).all()


@pytest.mark.parametrize("shape", [(2, 4, 4, 1), (2, 4, 4, 8), (2, 16, 16), (2, 4, 5, 16)])
def test_tokens_of_another_width_or_grid_are_named(shape):
    encoder = tm.models.GridEncoder((4, 4), dim=16, depth=1, num_heads=2)
    with pytest.raises(ValueError, match=r"`x` must have shape \[B, 4, 4, 16\], but has shape"):
        encoder(torch.randn(shape))
