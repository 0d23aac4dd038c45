import copy
import gc
import pickle
import weakref
from dataclasses import dataclass

import pytest
import torch

import topomask as tm
from helpers.graphs import ragged_graph
from topomask.graph.records import Recipe, Record, find_record

CPU = torch.device("cpu")


@dataclass(eq=False)
class Weights(Record):
    values: torch.Tensor


@dataclass(frozen=True)
class WeightsRecipe(Recipe):
    by_precision = True
    factor: float

    def make(self, graph, device, dtype):
        return Weights(self.factor * torch.tensor(graph.weights).to(device, dtype))


@dataclass(frozen=True)
class OtherRecipe(WeightsRecipe):
    by_precision = False


def find(graph: tm.Graph, recipe: Recipe, dtype: torch.dtype = torch.float32) -> Weights:
    return find_record(graph, recipe, CPU, dtype)


def test_recipes_of_equal_fields_are_one_object():
    recipe = WeightsRecipe(2.0).shared()
    assert WeightsRecipe(2.0).shared() is recipe
    assert WeightsRecipe(2.5).shared() is not recipe
    assert OtherRecipe(2.0).shared() is not recipe
    assert copy.deepcopy(recipe) is recipe
    assert pickle.loads(pickle.dumps(recipe)) is recipe


def test_a_pickled_recipe_is_shared_where_it_is_loaded():
    recipe = WeightsRecipe(2.0).shared()
    data = pickle.dumps(recipe)
    del recipe
    gc.collect()
    loaded = pickle.loads(data)
    assert loaded == WeightsRecipe(2.0)
    assert WeightsRecipe(2.0).shared() is loaded


def test_a_record_is_computed_once_per_graph_recipe_and_precision():
    graph, recipe = ragged_graph(), WeightsRecipe(2.0).shared()
    record = find(graph, recipe)
    assert find(graph, recipe) is find(graph, WeightsRecipe(2.0).shared()) is record
    assert find(graph, recipe, torch.float64) is not record
    assert find(graph, recipe, torch.float64).values.dtype == torch.float64
    assert find(graph, OtherRecipe(2.0).shared()) is not record
    assert find(ragged_graph(), recipe) is not record
    other = find(graph, OtherRecipe(2.0).shared())
    assert find(graph, OtherRecipe(2.0).shared(), torch.float64) is not other, "nobody held the recipe"
    recipe_for_all = OtherRecipe(2.0).shared()
    assert find(graph, recipe_for_all, torch.float64) is find(graph, recipe_for_all)
    torch.testing.assert_close(record.values, torch.tensor(2.0 * graph.weights, dtype=torch.float32))


def test_a_record_is_forgotten_when_nobody_holds_its_recipe():
    graph, first, second = ragged_graph(), WeightsRecipe(2.0).shared(), WeightsRecipe(2.0).shared()
    other = WeightsRecipe(3.0).shared()
    gone, kept = weakref.ref(find(graph, first)), weakref.ref(find(graph, other))
    del first
    gc.collect()
    assert gone() is find(graph, second)
    del second
    gc.collect()
    assert gone() is None
    assert kept() is find(graph, other)
    assert find(graph, WeightsRecipe(2.0).shared()) is not None


def test_a_record_is_forgotten_with_its_graph():
    graph, recipe = ragged_graph(), WeightsRecipe(2.0).shared()
    gone = weakref.ref(find(graph, recipe)), weakref.ref(graph)
    del graph
    gc.collect()
    assert [reference() for reference in gone] == [None, None]


def test_a_recipe_that_is_used_after_its_graph_is_gone_does_no_harm():
    recipe = WeightsRecipe(2.0).shared()
    find(ragged_graph(), recipe)
    gc.collect()
    del recipe
    gc.collect()


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_a_record_serves_training_whatever_asks_for_it_first(mode):
    graph, recipe = ragged_graph(), WeightsRecipe(2.0).shared()
    with mode(), torch.device("meta"):
        record = find(graph, recipe)
    assert not record.values.is_inference()
    assert record.values.device.type == "cpu"
    leaf = torch.ones(len(record.values), requires_grad=True)
    (leaf * record.values).sum().backward()


def test_a_graph_copies_to_itself_and_travels_without_records():
    graph, recipe = tm.Graph.batch([ragged_graph(), tm.path_graph(2)]), WeightsRecipe(2.0).shared()
    record = find(graph, recipe)
    assert copy.deepcopy(graph) is graph
    assert copy.deepcopy([graph, graph])[1] is graph
    loaded = pickle.loads(pickle.dumps(graph))
    assert loaded.fingerprint == graph.fingerprint
    assert not loaded.parts
    assert not loaded._records._recipes
    assert torch.equal(find(loaded, recipe).values, record.values)
    assert find(graph, recipe) is record
    with pytest.raises(ValueError, match="read-only"):
        loaded.weights[0] = 3.0


def test_a_batch_knows_its_parts():
    parts = [ragged_graph(), tm.path_graph(2), tm.path_graph(1)]
    assert tm.Graph.batch(parts).parts == tuple(parts)
    assert tm.Graph.batch(parts[:1]).parts == tuple(parts[:1])
    assert ragged_graph().parts == ()
    whole = tm.Graph.batch([tm.Graph.batch(parts), parts[0]])
    assert sum(part.num_nodes for part in whole.parts) == whole.num_nodes


def test_matrices_and_groups_are_records():
    graph = tm.Graph.batch([ragged_graph(), tm.path_graph(2)])
    matrix = graph.matrix("sym", torch.float64, CPU)
    assert graph.matrix("sym", torch.float64, CPU) is matrix
    x = torch.randn(2, 13, 3, dtype=torch.float64)
    dense = torch.from_numpy(graph.adjacency("sym").toarray())
    torch.testing.assert_close(matrix.multiply(x), dense @ x)
    row = graph.matrix("row", torch.float64, CPU)
    dense = torch.from_numpy(graph.adjacency("row").toarray())
    torch.testing.assert_close(row.multiply(x, transpose=True), dense.mT @ x)
    groups = graph.groups_on(CPU)
    assert groups.tolist() == [0] * 11 + [1] * 2
    assert graph.groups_on(CPU) is groups
    assert ragged_graph().groups_on(CPU) is None
