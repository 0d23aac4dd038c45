"""What is computed of a graph once: records, which live in the graph and go with it; its matrix is one of them."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar, Self
from weakref import WeakKeyDictionary, WeakValueDictionary, ref

import torch
from torch import Tensor

from topomask.ops.derived import constant_when_compiled, plainly
from topomask.ops.registration import fake_mode
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

# The records of all graphs by a number of their own.
_live: WeakValueDictionary[int, Records] = WeakValueDictionary()
_numbers = count()


class Records:
    """The records of a graph, as attributes that are computed when they are first read.

    ``torch.compile`` reads attributes one by one, so what stands in a record is an input of compiled code. It reads
    them before it runs that code, too, to see whether it fits: by then, a graph that is new has the record.

    Args:
        graph: The graph.
    """

    def __init__(self, graph: Graph) -> None:
        # Weak: a graph goes as soon as nobody holds it.
        self._graph = ref(graph)
        self._recipes: dict[str, ref[Recipe]] = {}
        # Stands for the records where code is compiled: a tensor may have another value in the next call.
        number = next(_numbers)
        with plainly():
            self._number = torch.tensor(number, device="cpu")
        _live[number] = self

    def __getattr__(self, name: str) -> Any:
        """The record of that name, see :func:`find_record`."""
        recipe_name, _, place = name.partition("__")
        graph, recipe = self.__dict__["_graph"](), _shared.get(recipe_name)
        if not place or graph is None or recipe is None:
            raise AttributeError(name)
        device, _, precision = place.partition("_")
        dtype = torch.float64 if precision == "8" else torch.float32
        # A record serves training too, whatever mode asks for it first.
        with plainly(), torch.device("cpu"):
            record = on_device(_device(device), lambda place: recipe.make(graph, place, dtype))
        self.put(name, recipe, record)
        return record

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
    """The record of a graph by a shared recipe, computed at first use."""
    precision = dtype.itemsize if recipe.by_precision else 0
    name = f"{recipe._name}__{device.type}{device.index or 0}_{precision}"
    if torch.compiler.is_dynamo_compiling():
        _prepare(graph._records._number, name)
    return as_traced(getattr(graph._records, name))


@constant_when_compiled
def _prepare(number: Tensor, name: str) -> None:
    """Compute a record while code is compiled, which takes it for an input only if it is there already.

    Nothing comes of the result. Any other argument than a tensor would bind the code to this graph.
    """
    getattr(_live[int(number)], name)


def as_traced(record: Any) -> Any:
    """The record; one of fake tensors, where all tensors are."""
    mode = fake_mode()
    return record if mode is None else map_tensors(record, mode.from_tensor)


def on_device(device: torch.device, make: Callable[[torch.device], Any]) -> Any:
    """What ``make`` makes on a device; on the meta device, the shapes of what it makes on the CPU."""
    if device.type != "meta":
        return make(device)
    return map_tensors(make(torch.device("cpu")), lambda tensor: tensor.to("meta"))


def map_tensors(record: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """A copy of a record with other tensors; what was one object is one, and operators are not copied."""
    known: dict[int, Any] = {}

    def copy(x: Any) -> Any:
        if id(x) not in known:
            known[id(x)] = convert(x)
        return known[id(x)]

    def convert(x: Any) -> Any:
        if isinstance(x, Tensor):
            return function(x)
        if isinstance(x, tuple):
            parts = [copy(part) for part in x]
            return type(x)(*parts) if hasattr(x, "_fields") else tuple(parts)
        if isinstance(x, WeakKeyDictionary):
            return WeakKeyDictionary()
        if isinstance(x, dict):
            return {key: copy(value) for key, value in x.items()}
        if not is_dataclass(x) or isinstance(x, Recipe):
            return x
        # Fields, and what is computed of them at first use.
        other = object.__new__(type(x))
        for name, value in vars(x).items():
            object.__setattr__(other, name, copy(value))
        return other

    return copy(record)


def _device(name: str) -> torch.device:
    kind = name.rstrip("0123456789")
    return torch.device(kind) if kind in ("cpu", "meta") else torch.device(kind, int(name[len(kind) :]))


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
        tensors = graph._tensors
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
