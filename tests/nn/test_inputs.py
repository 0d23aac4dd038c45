"""Inputs that do not fit a layer are named, with what was expected and the fix."""

import pytest
import torch
from torch import nn

import topomask as tm
from topomask.nn import AnchorLists

GRAPH = tm.grid_graph(3, 3)
LISTS = AnchorLists(torch.tensor([0, 2]), torch.tensor([[1, 2], [3, 1]]), torch.tensor([0, 0, 1, 1, 0, 0, 0, 0, 0]))


def masked(graph=GRAPH, **options) -> tm.nn.MaskedAttention:
    return tm.nn.MaskedAttention(8, 2, tm.PowerSeriesMask(graph, order=2, num_heads=2), **options)


def block() -> tm.nn.TransformerBlock:
    return tm.nn.TransformerBlock(masked(), tm.nn.MLP(8, 16), nn.LayerNorm(8), nn.LayerNorm(8))


# Layers that map tokens of width 8 on `GRAPH`.
LAYERS = {
    "attention": lambda: tm.nn.Attention(8, 2),
    "softmax attention": lambda: tm.nn.Attention(8, 2, kind="softmax"),
    "masked attention": masked,
    "masked softmax attention": lambda: masked(kind="softmax"),
    "block": block,
    "MLP": lambda: tm.nn.MLP(8, 16),
    "convolution": lambda: _with(tm.nn.GraphConvolution(8, 4), GRAPH),
    "readout": lambda: _with(tm.nn.GraphReadout("attention", 8), GRAPH),
    "message passing": lambda: _with(tm.nn.MessagePassing(8), torch.randn(9, 3), LISTS),
    "graph transformer": lambda: _with(tm.models.GraphTransformer(8, 2, dim=16, num_heads=2), GRAPH),
}


def _with(layer, *more):
    return lambda x: layer(x, *more)


@pytest.mark.parametrize("name", LAYERS)
def test_another_width_is_named(name):
    with pytest.raises(ValueError, match=r"`x` must have shape \[.*=8\], but has shape \(9, 7\)\. Pass "):
        LAYERS[name]()(torch.randn(9, 7))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
@pytest.mark.parametrize("name", LAYERS)
def test_another_precision_is_named(name, dtype):
    fix = rf"Convert it with x\.to\(torch\.float32\), or the layer with layer\.to\({dtype}\)"
    with pytest.raises(
        ValueError, match=f"`x` must have the dtype of the layer, torch.float32, but has {dtype}. {fix}"
    ):
        LAYERS[name]()(torch.randn(9, 8, dtype=dtype))


@pytest.mark.parametrize("name", LAYERS)
def test_integers_are_named(name):
    with pytest.raises(ValueError, match=r"`x` must have .*dtype.*torch.int64.*x\.(to|float)\("):
        LAYERS[name]()(torch.ones(9, 8, dtype=torch.int64))


@pytest.mark.parametrize("name", LAYERS)
def test_autocast_and_converted_layers_are_served(name):
    layer = LAYERS[name]()
    expected = layer(x := torch.randn(9, 8))
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x).shape == layer(x.bfloat16()).shape == expected.shape
        with pytest.raises(ValueError, match="`x` must have the dtype of the layer"):
            layer(x.double())
    if isinstance(layer, nn.Module):
        assert layer.double()(x.double()).dtype == torch.float64
        assert layer.bfloat16()(x.bfloat16()).dtype == torch.bfloat16
        with pytest.raises(ValueError, match=r"the dtype of the layer, torch\.bfloat16, but has torch.float32"):
            layer(x)


def test_images_and_particles_of_another_precision_are_named():
    vision = tm.models.VisionTransformer(8, 4, 1, 10, dim=8, depth=1, num_heads=2, attention="linear")
    particles = tm.models.Interlacer(feature_dim=4, dim=16, depth=1, num_heads=2)
    for model, inputs in ((vision, [(1, 1, 8, 8)]), (particles, [(1, 9, 3), (1, 9, 4)])):
        with pytest.raises(
            ValueError, match=r"must have the dtype of the layer, torch\.float32, but has torch.float64"
        ):
            model(*(torch.randn(shape, dtype=torch.float64) for shape in inputs))
    with pytest.raises(ValueError, match=r"`positions` must have shape \[..., dim=3\], but has shape \(9, 2\)"):
        tm.nn.MessagePassing(8)(torch.randn(9, 8), torch.randn(9, 2), LISTS)


@pytest.mark.parametrize("layer", [masked(), masked(kind="softmax"), block()])
def test_tokens_of_another_graph_are_told_how_to_pass_it(layer):
    x = torch.randn(2, 10, 8)
    with pytest.raises(ValueError, match=r"num_tokens=9, dim=8\], but has shape \(2, 10, 8\).*layer\(x, graph\)"):
        layer(x)
    with pytest.raises(ValueError, match=r"num_tokens=4, dim=8\], but has shape \(2, 10, 8\).*layer\(x, graph\)"):
        layer(x, tm.path_graph(4))
    assert layer(x, tm.path_graph(10)).shape == x.shape


def test_what_is_no_tensor_or_no_graph_is_named():
    with pytest.raises(ValueError, match=r"`x` must be a tensor, but is a Graph"):
        masked()(GRAPH)
    for layer in (tm.nn.GraphConvolution(8, 4), tm.nn.GraphReadout("mean", 8), masked()):
        with pytest.raises(ValueError, match=r"`graph` must be a topomask.Graph, but is a torch.Tensor.*from_edges"):
            layer(torch.randn(9, 8), torch.zeros(2, 3, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"`x` must have shape \[num_nodes=9, .*but has shape \(8, 8\)"):
        tm.nn.GraphReadout("mean", 8)(torch.randn(8, 8), GRAPH)


def test_errors_about_the_mask_of_a_layer_say_what_to_do_with_the_layer():
    with pytest.raises(ValueError, match=r"PowerSeriesMask has no default graph\. .* or layer\(x, graph\)"):
        masked(None)(torch.randn(9, 8))
    toeplitz = tm.nn.MaskedAttention(8, 2, tm.ToeplitzMask((3, 3)))
    with pytest.raises(ValueError, match=r"`graph` was given, but ToeplitzMask does not take a graph. Leave it out"):
        toeplitz(torch.randn(9, 8), GRAPH)
    for wrong, fix in ((GRAPH, r"Build one: tm\.WalkMask"), (tm.WalkMask(GRAPH).on(), r"layer\(x, graph\)")):
        with pytest.raises(ValueError, match=rf"`mask` must be a topomask.Mask, but is a \w+\. .*{fix}"):
            tm.nn.MaskedAttention(8, 2, wrong)


def test_layers_without_a_weight_of_their_own_check_themselves():
    """A parametrised layer must not compute its weight once more, nor a layer of another kind be refused."""
    layer = masked()
    layer.query = nn.utils.parametrizations.weight_norm(layer.query)
    assert layer(torch.randn(9, 8)).shape == (9, 8)
    layer.query = nn.Sequential(nn.Linear(8, 8))
    assert layer(torch.randn(9, 8)).shape == (9, 8)
