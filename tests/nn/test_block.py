import torch
from torch import nn

from topomask.nn import MLP, Attention, TransformerBlock


def test_forward_is_two_residuals():
    torch.manual_seed(0)
    block = TransformerBlock(Attention(8, 2), MLP(8, 16), nn.LayerNorm(8), nn.LayerNorm(8)).double()
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    middle = x + block.attention(block.attention_norm(x))
    expected = middle + block.mlp.out(nn.functional.gelu(block.mlp.hidden(block.mlp_norm(middle))))
    torch.testing.assert_close(block(x), expected)


def test_options_reach_the_attention():
    block = TransformerBlock(Attention(8, 2), MLP(8, 16), nn.LayerNorm(8), nn.LayerNorm(8)).double()
    x = torch.randn(1, 5, 8, dtype=torch.float64)
    padded = torch.tensor([[False, False, False, True, True]])
    torch.testing.assert_close(block(x, key_padding_mask=padded)[:, :3], block(x[:, :3]))
