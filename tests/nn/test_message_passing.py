import torch
from torch.nn import functional as F

from topomask.nn import MessagePassing
from topomask.nn.message_passing import AnchorLists


def example() -> tuple[MessagePassing, torch.Tensor, torch.Tensor, AnchorLists]:
    torch.manual_seed(0)
    layer = MessagePassing(6, hidden_dim=5, num_axes=2).double()
    x, positions = torch.randn(7, 6, dtype=torch.float64), torch.randn(7, 2, dtype=torch.float64)
    lists = AnchorLists(
        torch.tensor([1, 4, 6]),
        torch.tensor([[0, 2], [6, 1], [3, 3]]),
        torch.tensor([0, 0, 2, 1, 1, 0, 2]),
    )
    return layer, x, positions, lists


def particle_by_particle(layer: MessagePassing, x: torch.Tensor, positions: torch.Tensor, lists: AnchorLists):
    """The formula, with perceptrons on concatenated inputs and loops."""
    first = torch.cat([layer.receiver.weight, layer.sender.weight, layer.offset.weight], dim=1)
    third = torch.cat([layer.particle.weight, layer.from_anchor.weight, layer.anchor_offset.weight], dim=1)
    updates = {}
    for a, neighbors in zip(lists.anchors.tolist(), lists.neighbors.tolist(), strict=True):
        messages = []
        for j in neighbors:
            seen = torch.cat([x[a], x[j], positions[j] - positions[a]])
            messages.append(layer.message(F.relu(first @ seen + layer.receiver.bias)))
        heard = torch.stack(messages).mean(dim=0)
        updates[a] = layer.anchor_out(F.relu(layer.anchor_hidden(torch.cat([x[a], heard]))))
    out = []
    for i in range(len(x)):
        a = int(lists.anchors[lists.nearest[i]])
        seen = torch.cat([x[i], x[a] + updates[a], positions[i] - positions[a]])
        out.append(updates[i] if i in updates else layer.particle_out(F.relu(third @ seen + layer.particle.bias)))
    return torch.stack(out)


def test_equals_the_formula_with_gradients():
    layer, x, positions, lists = example()
    leaves = [x.requires_grad_(), positions.requires_grad_(), *layer.parameters()]
    found, expected = layer(x, positions, lists), particle_by_particle(layer, x, positions, lists)
    torch.testing.assert_close(found, expected)
    gradients = [torch.autograd.grad(out.square().sum(), leaves) for out in (found, expected)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_depends_on_offsets_alone():
    layer, x, positions, lists = example()
    torch.testing.assert_close(layer(x, positions + 3.0, lists), layer(x, positions, lists))
