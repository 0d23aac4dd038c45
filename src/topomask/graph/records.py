"""What is computed of a graph once: records, which live in the graph and go with it; its matrix is one of them."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self
from weakref import WeakKeyDictionary, WeakValueDictionary, ref

import torch
from torch import Tensor

from topomask.ops.sparse_heads import multiply
from topomask.ops.sparse_product import Pattern, make_pattern, suggest_order

if TYPE_CHECKING:
    from topomask.graph.graph import Graph, Normalization


@dataclass(eq=False)
class Record:
    """What is computed of a graph.

    Attributes:
        operators: The operators of masks on it, by mask, while nothing is learnt.
        costs: What operators of a kind cost.
    """

    operators: WeakKeyDictionary[Any, Any] = field(default_factory=WeakKeyDictionary, init=False, repr=False)
    costs: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)


@dataclass(eq=False)
class TensorRecord(Record):
    """A record of one tensor."""

    tensor: Tensor


class Recipe(ABC):
    """How a record is computed of a graph.

    A subclass is a frozen dataclass: its fields are all that the record depends on apart from the graph. Recipes with
    equal fields are one object once they went through :meth:`shared`, so that masks of one kind share the records of a
    graph. A record is forgotten when its graph is, or when nobody holds its recipe.
    """

    # Whether records in other precisions differ.
    by_precision: ClassVar[bool] = False
    _name: str

    @abstractmethod
    def make(self, graph: Graph, device: torch.device, dtype: torch.dtype) -> Any:
        """The record of a graph, with its tensors on a device, and those that products take in a precision."""

    def shared(self) -> Self:
        """The recipe of equal fields that others hold already, or this one."""
        text = f"{type(self).__module__}.{self!r}"
        digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        object.__setattr__(self, "_name", f"{type(self).__name__}_{digest}")
        return _shared.setdefault(self._name, self)  # type: ignore[return-value]

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """The recipe itself: it never changes."""
        return self

    def __reduce__(self) -> Any:
        """The shared recipe of equal fields, in another process too."""
        return _restore, (type(self), {entry.name: getattr(self, entry.name) for entry in fields(self)})  # type: ignore[arg-type]


def _restore(kind: type[Recipe], settings: dict[str, Any]) -> Recipe:
    return kind(**settings).shared()


_shared: WeakValueDictionary[str, Recipe] = WeakValueDictionary()


class Records:
    """The records of a graph, as attributes.

    Attributes rather than a dictionary: ``torch.compile`` reads them one by one, so what stands in a record is an input
    of compiled code, which then serves any graph.
    """

    def __init__(self) -> None:
        self._recipes: dict[str, ref[Recipe]] = {}

    def put(self, name: str, recipe: Recipe, record: Any) -> None:
        """Keep a record as long as its recipe is."""
        setattr(self, name, record)
        self._recipes[name] = ref(recipe, partial(_forget, ref(self), name))


def _forget(records: ref[Records], name: str, _: ref[Recipe]) -> None:
    found = records()
    if found is not None:
        found.__dict__.pop(name, None)
        found._recipes.pop(name, None)


def find_record(graph: Graph, recipe: Recipe, device: torch.device, dtype: torch.dtype) -> Any:
    """The record of a graph by a shared recipe, computed at first use.

    Inside ``torch.compile``, a record that is not there yet becomes a constant of the compiled code, which then serves
    this graph alone.
    """
    precision = dtype.itemsize if recipe.by_precision else 0
    name = f"{recipe._name}_{device.type}{device.index or 0}_{precision}"
    found = getattr(graph._records, name, None)
    if found is not None:
        return found
    if torch.compiler.is_compiling():
        return _constant_record(graph, recipe, device, dtype)
    record = _make(graph, recipe, device, dtype)
    graph._records.put(name, recipe, record)
    return record


def _make(graph: Graph, recipe: Recipe, device: torch.device, dtype: torch.dtype) -> Any:
    # A record serves training too, whatever mode asks for it first.
    with torch.inference_mode(False), torch.no_grad(), torch.device("cpu"):
        return recipe.make(graph, device, dtype)


_constant_record = torch.compiler.assume_constant_result(_make)


@dataclass(eq=False)
class SparseMatrix(Record):
    """A sparse matrix on the nodes of a graph.

    Attributes:
        pattern: Where it has entries, [N, N].
        values: Its entries, [P].
    """

    pattern: Pattern
    values: Tensor

    def multiply(self, x: Tensor, *, transpose: bool = False) -> Tensor:
        """The matrix, or its transpose, times x [..., N, C]; differentiable, summed in at least float32."""
        values = self.values.to(torch.promote_types(x.dtype, torch.float32))
        return multiply(self.pattern, values[None], x, 1, transpose)


@dataclass(frozen=True)
class MatrixRecipe(Recipe):
    """The weighted adjacency matrix W."""

    by_precision = True
    normalization: Normalization | None

    def make(self, graph: Graph, device: torch.device, dtype: torch.dtype) -> SparseMatrix:
        """W as torch has it."""
        tensors = graph.tensors
        pattern = make_pattern(tensors.row_ptr, tensors.columns, graph.num_nodes)
        suggest_order(pattern.columns, graph, lambda graph: graph.node_groups)
        values = torch.from_numpy(graph.adjacency(self.normalization).data).to(device, dtype)
        return SparseMatrix(pattern.to(device), values)


@dataclass(frozen=True)
class GroupsRecipe(Recipe):
    """Which graph of a batch every node belongs to, [N]."""

    def make(self, graph: Graph, device: torch.device, dtype: torch.dtype) -> Tensor:  # noqa: ARG002
        """The numbers of the graphs."""
        return torch.tensor(graph.graph_index).to(device)


GROUPS = GroupsRecipe().shared()
MATRICES = {name: MatrixRecipe(name).shared() for name in (None, "sym", "row", "none")}
