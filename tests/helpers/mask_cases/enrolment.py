"""What every law is tested on. A new mask is enrolled by one decorated factory."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

import topomask as tm


class Case(NamedTuple):
    """A mask, or some rows and columns of it."""

    mask: tm.Mask
    query_nodes: Tensor | None = None
    key_nodes: Tensor | None = None

    def on(self) -> tm.Operator:
        """The operator, with the values that parameters have now."""
        operator = self.mask.on()
        if self.query_nodes is None and self.key_nodes is None:
            return operator
        return operator.select(self.query_nodes, self.key_nodes)

    def parameters(self) -> list[Tensor]:
        """What is learnt."""
        return [parameter for parameter in self.mask.parameters() if parameter.requires_grad]


MaskFactory = Callable[[], tm.Mask]
CaseFactory = Callable[[], Case]

MASKS: dict[str, MaskFactory] = {}
# Those of all masks, and of selections, which are made for one call and never saved.
CASES: dict[str, CaseFactory] = {}


def enrol(factory: MaskFactory) -> MaskFactory:
    MASKS[factory.__name__] = factory
    CASES[factory.__name__] = lambda: Case(factory())
    return factory


def enrol_selection(factory: CaseFactory) -> CaseFactory:
    CASES[factory.__name__] = factory
    return factory
