"""The masks that every law is tested on, one module per family; importing a module enrols its masks."""

from helpers.mask_cases import (
    compositions,
    diffusion,
    forests,
    grids,
    matrices,
    neighbourhoods,
    positions,
    selections,
    walks,
)
from helpers.mask_cases.enrolment import CASES, MASKS, Case, CaseFactory, MaskFactory, enrol, enrol_selection

__all__ = [
    "CASES",
    "MASKS",
    "Case",
    "CaseFactory",
    "MaskFactory",
    "compositions",
    "diffusion",
    "enrol",
    "enrol_selection",
    "forests",
    "grids",
    "matrices",
    "neighbourhoods",
    "positions",
    "selections",
    "walks",
]
