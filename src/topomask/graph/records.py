"""Records: results computed once per graph, stored in the graph and freed with it. The matrix W is one of them."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial, wraps
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar, Self
from uuid import uuid4
from weakref import WeakKeyDictionary, WeakValueDictionary, ref

import numpy as np
import scipy.sparse as sp
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
    """A result computed from a graph."""

    # Operators of masks on the graph, cached by mask while no parameter changes.
    operators: WeakKeyDictionary[Any, Any] = field(default_factory=WeakKeyDictionary, init=False, repr=False)
    # Costs of operators, by kind.
    costs: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)


@dataclass(eq=False)
class TensorRecord(Record):
    """A record that holds one tensor."""

    tensor: Tensor


class Recipe(ABC):
    """How a record is computed from a graph.

    A subclass is a frozen dataclass whose fields, together with the graph, determine the record. :meth:`shared` returns
    one object for equal fields, so masks of one kind share the records of a graph. A record lives as long as both its
    graph and its recipe.
    """

    # Whether the record depends on the precision.
    by_precision: ClassVar[bool] = False
    _name: str

    @abstractmethod
    def make(self, graph: Graph, device: torch.device, dtype: torch.dtype) -> Any:
        """Compute the record of a graph on a device, with the tensors used in products in ``dtype``."""

    def shared(self) -> Self:
        """Return the existing recipe with equal fields, or this one."""
        text = f"{type(self).__module__}.{self!r}"
        digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        object.__setattr__(self, "_name", f"{type(self).__name__}_{digest}")
        return _shared.setdefault(self._name, self)  # type: ignore[return-value]

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return the recipe itself: it never changes."""
        return self

    def __reduce__(self) -> Any:
        """Unpickle as the shared recipe with equal fields."""
        return _restore, (type(self), {entry.name: getattr(self, entry.name) for entry in fields(self)})  # type: ignore[arg-type]


def _restore(kind: type[Recipe], settings: dict[str, Any]) -> Recipe:
    return kind(**settings).shared()


_shared: WeakValueDictionary[str, Recipe] = WeakValueDictionary()

# The records of all live graphs, by a unique number.
_live: WeakValueDictionary[int, Records] = WeakValueDictionary()
_numbers = count()


class Records:
    """The records of a graph, as attributes that are computed when first read.

    ``torch.compile`` traces attribute reads, so the tensors of a record become inputs of the compiled code. It also
    reads the attributes before running that code, to check its guards, which computes the record of a new graph.
    """

    def __init__(self, graph: Graph) -> None:
        # Weak, so that there is no cycle to delay freeing the graph.
        self._graph = ref(graph)
        self._recipes: dict[str, ref[Recipe]] = {}
        # Identifies the records inside compiled code, which treats a tensor as an input, not as a constant.
        number = next(_numbers)
        with plainly():
            self._number = torch.tensor(number, device="cpu")
        _live[number] = self

    def __getattr__(self, name: str) -> Any:
        """Compute the record of that name, see :func:`find_record`."""
        recipe_name, _, place = name.partition("__")
        graph, recipe = self.__dict__["_graph"](), _shared.get(recipe_name)
        if not place or graph is None or recipe is None:
            raise AttributeError(name)
        device_type, number, precision = place.split("_")
        # Devices "cpu" and "meta" have no number.
        device = torch.device(device_type) if device_type in ("cpu", "meta") else torch.device(device_type, int(number))
        dtype = torch.float64 if precision == "8" else torch.float32
        # The record may be first needed in inference mode, and then used in training.
        with plainly(), torch.device("cpu"):
            record = on_device(device, lambda device: recipe.make(graph, device, dtype))
        self.put(name, recipe, record)
        return record

    def put(self, name: str, recipe: Recipe, record: Any) -> None:
        """Store a record for as long as its recipe lives."""
        setattr(self, name, record)
        self._recipes[name] = ref(recipe, partial(_forget, ref(self), name))


def _forget(records: ref[Records], name: str, _: ref[Recipe]) -> None:
    found = records()
    if found is not None:
        found.__dict__.pop(name, None)
        found._recipes.pop(name, None)


def find_record(graph: Graph, recipe: Recipe, device: torch.device, dtype: torch.dtype) -> Any:
    """Return the record of a graph for a shared recipe, computed at first use."""
    precision = dtype.itemsize if recipe.by_precision else 0
    name = f"{recipe._name}__{device.type}_{device.index or 0}_{precision}"
    if torch.compiler.is_dynamo_compiling():
        _prepare(graph._records._number, name)
    return as_traced(getattr(graph._records, name))


@constant_when_compiled
def _prepare(number: Tensor, name: str) -> None:
    """Compute a record during compilation, which treats it as an input only if it already exists.

    The result is not used. ``number`` must be a tensor: anything else would specialise the code to this graph.
    """
    getattr(_live[int(number)], name)


@dataclass(frozen=True)
class _FunctionRecipe(Recipe):
    by_precision = True
    function: Callable[[Graph], Any] = field(repr=False)
    # Functions may look alike.
    key: str = field(default_factory=lambda: uuid4().hex)

    def make(self, graph: Graph, device: torch.device, dtype: torch.dtype) -> Any:
        result = self.function(graph)
        if not isinstance(result, Tensor | tuple | dict) and not is_dataclass(result):
            name = getattr(self.function, "__name__", "The function")
            raise ValueError(
                f"`{name}` must return a tensor, or a tuple, dict or dataclass of tensors, but returned a "
                f"{type(result).__name__}. Convert an array with torch.tensor."
            )
        return map_tensors(result, lambda x: x.to(device, dtype if x.is_floating_point() else x.dtype))


def per_graph(function: Callable[[Graph], Any]) -> Callable[..., Any]:
    """Decorate a function of a graph, for masks of one's own, so that it is called once per graph.

    The function takes a graph, or a batch of graphs, and returns tensors: one, or a tuple, dict or dataclass of them.
    It may use NumPy and SciPy, also in a mask that is compiled. The decorated function also takes the precision of
    floating tensors and the device, as in ``function(graph, *mask.kind)``. Results live as long as the graph and the
    function; do not write to them.

    Example:
        >>> import torch, topomask as tm
        >>> @tm.per_graph
        ... def hubs(graph):
        ...     print("computing")
        ...     return torch.tensor(graph.degrees > 2)
        >>> graph = tm.grid_graph(2, 3)
        >>> hubs(graph), hubs(graph)
        computing
        (tensor([False,  True, False, False,  True, False]), tensor([False,  True, False, False,  True, False]))
    """
    recipe = _FunctionRecipe(function).shared()

    @wraps(function)
    def find(graph: Graph, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Any:
        if not isinstance(dtype, torch.dtype) or not isinstance(device, str | torch.device):
            name = getattr(function, "__name__", "function")
            raise ValueError(
                f"`{name}` takes a graph, a dtype and a device, as in {name}(graph, *mask.kind), but got {dtype!r:.40} "
                f"and {device!r:.40}. Give settings with tm.per_graph(functools.partial({name}, size=size))."
            )
        return find_record(graph, recipe, torch.device(device), dtype)

    return find


def as_traced(record: Any) -> Any:
    """Return the record, converted to fake tensors if a fake mode is active."""
    mode = fake_mode()
    return record if mode is None else map_tensors(record, mode.from_tensor)


def on_device(device: torch.device, make: Callable[[torch.device], Any]) -> Any:
    """Call ``make`` with the device; for the meta device, call it with the CPU and convert the result."""
    if device.type != "meta":
        return make(device)
    return map_tensors(make(torch.device("cpu")), lambda tensor: tensor.to("meta"))


def map_tensors(record: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Copy a record and map its tensors; shared objects stay shared, and cached operators are dropped."""
    copies: dict[int, Any] = {}

    def convert(x: Any) -> Any:
        if id(x) in copies:
            return copies[id(x)]
        new: Any = x
        if isinstance(x, Tensor):
            new = function(x)
        elif isinstance(x, tuple):
            parts = [convert(part) for part in x]
            new = type(x)(*parts) if hasattr(x, "_fields") else tuple(parts)
        elif isinstance(x, WeakKeyDictionary):
            new = WeakKeyDictionary()
        elif isinstance(x, dict):
            new = {key: convert(value) for key, value in x.items()}
        elif is_dataclass(x) and not isinstance(x, Recipe):
            new = object.__new__(type(x))
            # Fields and cached properties.
            new.__dict__.update({name: convert(value) for name, value in vars(x).items()})
        copies[id(x)] = new
        return new

    return convert(record)


@dataclass(eq=False)
class SparseMatrix(Record):
    """A sparse matrix on the nodes of a graph."""

    pattern: Pattern  # [N, N]
    values: Tensor  # [P]

    def multiply(self, x: Tensor, *, transpose: bool = False) -> Tensor:
        """Multiply the matrix or its transpose by x [..., N, C]; differentiable, accumulates in at least float32."""
        values = self.values.to(torch.promote_types(x.dtype, torch.float32))
        return multiply(self.pattern, values[None], x, 1, transpose)


def pattern_of(matrix: sp.csr_array) -> Pattern:
    """Return the positions of the entries of a SciPy matrix with sorted rows."""
    row_ptr, columns = (torch.from_numpy(x.astype(np.int64)) for x in (matrix.indptr, matrix.indices))
    return make_pattern(row_ptr, columns, matrix.shape[1])


def with_self_loops(matrix: sp.csr_array) -> sp.csr_array:
    """Return an adjacency matrix with a self-loop of weight 1 at every node that has none."""
    matrix = matrix + sp.diags_array((matrix.diagonal() == 0).astype(np.float64), format="csr")
    matrix.sort_indices()
    return matrix


@dataclass(frozen=True)
class MatrixRecipe(Recipe):
    """The weighted adjacency matrix W."""

    by_precision = True
    normalization: Normalization | None

    def make(self, graph: Graph, device: torch.device, dtype: torch.dtype) -> SparseMatrix:
        """Build W as a :class:`SparseMatrix`."""
        tensors = graph._tensors
        pattern = make_pattern(tensors.row_ptr, tensors.columns, graph.num_nodes)
        suggest_order(pattern.columns, graph, lambda graph: graph.node_groups)
        values = torch.from_numpy(graph.adjacency(self.normalization).data).to(device, dtype)
        return SparseMatrix(pattern.to(device), values)


@dataclass(frozen=True)
class GroupsRecipe(Recipe):
    """The graph of the batch that each node belongs to, [N]."""

    def make(self, graph: Graph, device: torch.device, dtype: torch.dtype) -> Tensor:  # noqa: ARG002
        """Return the ``graph_index`` of the graph as a tensor."""
        return torch.tensor(graph.graph_index).to(device)


GROUPS = GroupsRecipe().shared()
MATRICES = {name: MatrixRecipe(name).shared() for name in (None, "sym", "row", "none")}
