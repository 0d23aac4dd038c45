"""Index arrays that are wrong, in a process of their own: an error that says what is wrong, or the right answer.

``python -m helpers.index_attacks FIRST COUNT`` runs attacks number FIRST, FIRST + 1, ...; the last line that a crash
leaves behind names the attack. What fails without a crash is printed at the end, and the exit code is 1.
"""

import contextlib
import dataclasses
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

import topomask as tm
from topomask.nn import SparseRows
from topomask.ops.feature_attention import FeatureValues, feature_attention
from topomask.ops.feature_values import feature_values
from topomask.ops.forest_sums import forest_sums
from topomask.ops.forest_table import decompose, forest_table
from topomask.ops.pair_attention import pair_attention
from topomask.ops.pair_values import pair_pattern, pair_values
from topomask.ops.rooted_forest import root_forest
from topomask.ops.sample_walks import WalkSettings, sample_walks
from topomask.ops.sparse_product import make_pattern, sddmm, spmm

REFUSED = ValueError, IndexError, TypeError
# What may stand in the place of a number.
NUMBERS = (-1, -5, 1, 7, 10**6, 2**31 - 1, -(2**31), 2**40, 2**63 - 1, -(2**63))


class SilentError(Exception):
    """Nothing was said, and the answer is wrong."""


def random_graph(random: np.random.Generator) -> tm.Graph:
    kind, size = random.integers(5), int(random.integers(2, 40))
    if kind == 0:
        return tm.grid_graph(int(random.integers(1, 6)), int(random.integers(2, 7)))
    if kind == 1:
        return tm.path_graph(size)
    if kind == 2:
        return tm.Graph.batch([tm.cycle_graph(5), tm.path_graph(3)])
    pairs = np.unique(random.integers(0, size, (2, 3 * size)), axis=1)
    weights = None if kind == 3 else random.random(pairs.shape[1]) + 0.1
    return tm.Graph.from_edges(pairs, size, weights, directed=bool(random.integers(2)), duplicates="first")


def damage(random: np.random.Generator, array: Any) -> Any:
    """A tensor or an array that is like this one but for something."""
    is_tensor = isinstance(array, torch.Tensor)
    values = array.detach().cpu().numpy().copy() if is_tensor else np.array(array)
    kind = random.integers(10)
    if kind <= 3 and len(values):
        place = random.integers(len(values), size=1 if kind < 3 else len(values))
        number = NUMBERS[random.integers(len(NUMBERS))]
        if values.dtype.kind == "f":
            values[place] = (np.nan, np.inf, -1.0, 0.0)[random.integers(4)]
        else:
            values = values.astype(np.int64)
            values[place] = number
    elif kind == 4:
        values = values[:-1]
    elif kind == 5:
        values = np.concatenate([values, values[-1:]])
    elif kind == 6:
        values = np.repeat(values, 2)[::2] if random.integers(2) else values[::-1]
    elif kind == 7:
        types = (np.float64, np.float32, np.int16, np.uint8, np.int64, np.bool_, np.complex64, np.uint64)
        with np.errstate(all="ignore"):
            values = values.astype(types[random.integers(len(types))])
    elif kind == 8:
        values = values[:0] if random.integers(2) else values[None]
    else:
        values = random.permutation(values)
    if not is_tensor:
        return values
    try:
        return torch.as_tensor(np.ascontiguousarray(values))
    except TypeError:
        return torch.as_tensor(values.astype(np.int64))


def write(random: np.random.Generator, tensor: torch.Tensor) -> None:
    """Write wrong numbers to a tensor in place."""
    number = NUMBERS[random.integers(len(NUMBERS))]
    if not tensor.is_floating_point():
        bounds = torch.iinfo(tensor.dtype)
        number = min(max(number, bounds.min), bounds.max)
    kind = random.integers(3)
    if kind == 0 or not len(tensor):
        tensor.fill_(number)
    elif kind == 1:
        tensor[int(random.integers(len(tensor)))] = number
    else:
        tensor.copy_(tensor.flip(0).clone())


def write_unnoticed(random: np.random.Generator, tensor: torch.Tensor) -> None:
    """The same, half of the time in ways that torch does not count."""
    target = (tensor, tensor, tensor.data, torch.from_numpy(tensor.numpy()))[random.integers(4)]
    write(random, target)


def same(found: torch.Tensor, wanted: torch.Tensor) -> None:
    if found.shape != wanted.shape or not torch.allclose(found.double(), wanted.double(), rtol=1e-3, atol=1e-4):
        raise SilentError("routes disagree")


def agree(mask: tm.Mask) -> None:
    """All routes of a mask, forward and backward, against its dense matrix."""
    with torch.no_grad():
        dense = mask.on().to_dense()
        x = torch.randn(dense.shape[0], dense.shape[2], 3)
        same(mask @ x, dense @ x)
        if not torch.isfinite(dense).all():
            raise SilentError("not finite")
    q, k, v = (
        torch.randn(2, dense.shape[0], size, 4, requires_grad=True) for size in dense.shape[1:2] + dense.shape[2:] * 2
    )
    cotangent = torch.randn_like(q)
    results = []
    for name in ("dense", "pairs", "product"):
        out = tm.masked_attention(q, k, v, mask, strategy=name)
        # Gradients of sums: those of quotients by small normalisers differ by their rounding.
        sums = tm.masked_attention(q, k, v, mask, strategy=name, normalizer="none")
        results.append((out, *torch.autograd.grad(sums, (q, k, v), cotangent)))
    for found in results[1:]:
        for part, wanted in zip(found, results[0], strict=True):
            same(part, wanted)
    same(
        tm.masked_softmax_attention(q, k, v, mask, strategy="pairs"),
        tm.masked_softmax_attention(q, k, v, mask, strategy="dense"),
    )


def sampled(random: np.random.Generator, graph: tm.Graph) -> tuple[tm.WalkFeatures, dict[str, Any]]:
    heads, walks, length = int(random.integers(1, 3)), int(random.integers(1, 9)), int(random.integers(0, 4))
    settings = {"num_walks": walks, "max_length": length, "num_heads": heads, "seed": 1}
    return tm.sample_features(graph, **settings), settings


FIELDS = ("row_ptr", "columns", "entry_ptr", "lengths", "loads")
SIZES = ("num_heads", "num_columns", "max_length")


def walks_replaced(random: np.random.Generator) -> None:
    graph = random_graph(random)
    walks, settings = sampled(random, graph)
    if random.integers(5):
        name = FIELDS[random.integers(5)]
        changes: dict[str, Any] = {name: damage(random, getattr(walks, name))}
    else:
        changes = {SIZES[random.integers(3)]: (*NUMBERS, 0, 2.5, None, "3", True)[random.integers(len(NUMBERS) + 5)]}
    walks = dataclasses.replace(walks, **changes)
    mask = tm.WalkMask(graph, **settings, symmetric=False, walks=walks)
    agree(mask)


def walks_written(random: np.random.Generator) -> None:
    """Users see copies, so nothing comes of it; patterns, which operators hand out, notice."""
    graph = random_graph(random)
    walks, settings = sampled(random, graph)
    f = torch.rand(settings["max_length"] + 1)
    expected = walks.to_dense(f)
    shared = bool(random.integers(2)) and not graph.directed
    mask = tm.WalkMask(graph, **settings, symmetric=shared, shared_walks=shared, walks=walks)
    if random.integers(2):
        agree(mask)
    target = walks if random.integers(2) else mask.walks
    assert isinstance(target, tm.WalkFeatures)
    name = FIELDS[random.integers(5)]
    write_unnoticed(random, (getattr(target, name), target.state()[name])[random.integers(2)])
    agree(mask)
    same(walks.rows(range(graph.num_nodes)).to_dense(f), expected)
    if random.integers(2):
        with torch.no_grad():
            pattern, values, _ = mask.on().entries()
        write(random, (pattern.columns, pattern.rows, pattern.order)[random.integers(3)])
        # Routes that do not read the pattern still give the right answer; what reads it refuses.
        with contextlib.suppress(ValueError):
            agree(mask)
        spmm(pattern, values[0], torch.ones(pattern.shape[1], 2))
        raise SilentError("written to")


def uses(graph: tm.Graph) -> list[Callable[[], Any]]:
    def masked(make: Callable[[], tm.Mask]) -> Callable[[], Any]:
        return lambda: agree(make())

    return [
        masked(lambda: tm.WalkMask(graph, num_walks=4, max_length=3, symmetric=False, seed=0)),
        masked(lambda: tm.NeighborMask(graph)),
        masked(lambda: tm.PowerSeriesMask(graph, order=3)),
        masked(lambda: tm.ShortestPathMask(graph, num_heads=4)),
        masked(lambda: tm.ForestMask(graph)),
        masked(lambda: tm.DiffusionMask(graph)),
        lambda: tm.random_walks(graph, 3, 4),
        lambda: graph.neighborhood([0], 2).adjacency(),
        lambda: (graph.fingerprint, graph.num_edges, graph.to_edge_index(), graph.node_groups),
        lambda: tm.Graph.batch([graph, graph]),
        lambda: graph.matrix().multiply(torch.ones(graph.num_nodes, 2)),
    ]


def graph_built(random: np.random.Generator) -> None:
    graph = random_graph(random)
    given = {field.name: getattr(graph, field.name) for field in dataclasses.fields(graph) if field.init}
    arrays = ("indptr", "indices", "weights", "ids", "degrees", "graph_index")
    name = arrays[random.integers(6)]
    if random.integers(8):
        given[name] = damage(random, given[name])
    else:
        given["num_graphs"] = (*NUMBERS, 0, 2.5, None, "3")[random.integers(len(NUMBERS) + 4)]
    built = tm.Graph(**given) if random.integers(2) else dataclasses.replace(graph, **given)
    chosen = uses(built)
    chosen[random.integers(len(chosen))]()


def graph_written(random: np.random.Generator) -> None:
    graph = random_graph(random)
    chosen = uses(graph)
    use = chosen[random.integers(len(chosen))]
    if random.integers(2):
        with contextlib.suppress(*REFUSED):
            use()
    kind = random.integers(2)
    if kind == 0:
        write(random, graph.matrix().pattern[random.integers(5)])
    else:
        array = getattr(graph, ("indptr", "indices", "ids")[random.integers(3)])
        if random.integers(2):
            array.flags.writeable = True
        array[:] = NUMBERS[random.integers(len(NUMBERS))]
    # Some uses do not look at what was written; what they give is the answer of before.
    use()


def pattern_of(random: np.random.Generator) -> Any:
    size = int(random.integers(1, 30))
    matrix = sp.random_array((size, size), density=0.3, rng=random, format="csr")
    pattern = make_pattern(torch.from_numpy(matrix.indptr).long(), torch.from_numpy(matrix.indices).long(), size)
    return pattern, torch.from_numpy(matrix.data).float()


def ops_called(random: np.random.Generator) -> None:
    pattern, values = pattern_of(random)
    number = random.integers(6)
    if number < 5:
        fields = list(pattern)
        fields[number] = damage(random, fields[number])
        damaged = type(pattern)(*fields)
    else:
        damaged, values = pattern, damage(random, values).float()
    if values.ndim != 1 or not values.isfinite().all() or damaged.shape != pattern.shape:
        # Another matrix, where nothing is wrong: it must not crash.
        spmm(damaged, values, torch.ones(max(0, len(damaged.column_ptr) - 1), 2))
        return
    size = len(pattern.row_ptr) - 1
    x = torch.randn(size + int(random.integers(10) == 0), 3)
    kind = random.integers(7)
    dense = torch.zeros(size, size).index_put(
        (torch.repeat_interleave(pattern.row_ptr.diff()), pattern.columns.long()),
        values if len(values) == len(pattern.columns) else values.new_zeros(()),
    )
    if kind == 0:
        same(spmm(damaged, values, x), dense @ x)
    elif kind == 1:
        same(spmm(damaged, values, x, transpose=True), dense.T @ x)
    elif kind == 2:
        sddmm(damaged, x, x)
    elif kind == 3:
        q, k, v = (torch.randn(1, size, 3, requires_grad=True) for _ in range(3))
        pair_attention(damaged, values, None, q, k, v, softmax=bool(random.integers(2))).out.sum().backward()
    elif kind == 4:
        same(SparseRows(damaged, values) @ x, dense @ x)
    elif kind == 5:
        pairs = pair_pattern(damaged, pattern)
        pair_values(pairs, damaged, pattern, values, values)
    else:
        q, k, v = (torch.randn(1, size, 3, requires_grad=True) for _ in range(3))
        feature_attention(damaged, pattern, FeatureValues(values, values), q, k, v).out.sum().backward()


def other_ops_called(random: np.random.Generator) -> None:
    graph = tm.path_graph(int(random.integers(2, 20)))
    kind = random.integers(4)
    if kind == 0:
        tensors = graph._tensors
        name = ("row_ptr", "columns", "cumulative", "degrees", "ids")[random.integers(5)]
        damaged = tensors._replace(**{name: damage(random, getattr(tensors, name))})
        start = torch.tensor([0, 1]) if random.integers(2) else damage(random, torch.tensor([0, 1]))
        sample_walks(damaged, start, WalkSettings(3, 3, 0.0, "iid", "sym", 0, 0), range(1), torch.float32)
    elif kind == 1:
        walks = tm.sample_features(graph, 4, 3, num_heads=2)
        given = {
            "head_ptr": walks._head_ptr,
            "entry_ptr": walks.entry_ptr,
            "lengths": walks.lengths,
            "loads": walks.loads,
        }
        name = list(given)[random.integers(4)]
        given[name] = damage(random, given[name])
        f = torch.randn(int(random.integers(1, 4)), int(random.integers(1, 6)), requires_grad=True)
        feature_values(f, **given).sum().backward()
    elif kind == 2:
        forest = root_forest(graph.indptr, graph.indices)
        name = ("nodes", "above", "kinds", "depths")[random.integers(4)]
        forest = forest._replace(**{name: damage(random, getattr(forest, name))})
        size = graph.num_nodes
        logs = -torch.rand(1, 1, size).requires_grad_()
        forest_sums(
            forest, logs, torch.ones(1, 1), torch.randn(1, 1, size, 2), growing=bool(random.integers(2))
        ).sum().backward()
    else:
        cuts = decompose(graph.indptr, graph.indices)
        name = cuts._fields[random.integers(8)]
        if name in ("slots", "runs"):
            values = getattr(cuts, name).clone()
            values.view(-1)[random.integers(max(1, values.numel()))] = NUMBERS[random.integers(6)]
            cuts = cuts._replace(**{name: values})
        else:
            cuts = cuts._replace(**{name: damage(random, getattr(cuts, name))})
        f = torch.randn(1, max(1, graph.num_nodes + int(random.integers(-3, 2))), requires_grad=True)
        forest_table(cuts, f, torch.randn(1, 1, graph.num_nodes, 2)).sum().backward()


def scipy_given(random: np.random.Generator) -> None:
    matrix = tm.grid_graph(4, 4).to_scipy()
    if random.integers(2):
        name = ("indptr", "indices", "data")[random.integers(3)]
        setattr(matrix, name, damage(random, getattr(matrix, name)))
    else:
        matrix = sp.coo_array(matrix)
        coords = [np.array(x) for x in matrix.coords]
        which = random.integers(2)
        coords[which] = damage(random, coords[which])
        matrix.coords = tuple(coords)
    if random.integers(2):
        SparseRows.from_scipy(matrix) @ torch.ones(16, 2)
    else:
        tm.Graph.from_scipy(matrix, directed=True, signed=True, duplicates=("sum", "mean", "first")[random.integers(3)])


ATTACKS = (walks_replaced, walks_written, graph_built, graph_written, ops_called, other_ops_called, scipy_given)


def main(first: int, count: int) -> int:
    failures = []
    outcomes = {"refused": 0, "answered": 0}
    for number in range(first, first + count):
        attack = ATTACKS[number % len(ATTACKS)]
        print(number, attack.__name__, flush=True)
        torch.manual_seed(number)
        try:
            attack(np.random.default_rng(number))
            outcomes["answered"] += 1
        except REFUSED as error:
            if len(str(error)) < 20:
                failures.append(f"{number} {attack.__name__}: only says {error!r}")
            outcomes["refused"] += 1
        except Exception as error:
            failures.append(f"{number} {attack.__name__}: {type(error).__name__}: {str(error)[:300]}")
    print(outcomes, *failures, sep="\n")
    return int(bool(failures))


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
