"""Constants of the cost model behind ``strategy="auto"``: nanoseconds per call, multiply-add, pair, and so on.

The defaults were measured on two cores with AVX-512. ``topomask bench calibrate`` measures those of a machine and keeps
them in the user's cache folder, or where the environment variable ``TOPOMASK_COSTS`` says; they are read once.
"""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Mapping
from functools import cache
from pathlib import Path

# What topomask/planning.py counts, in nanoseconds each.
DEFAULTS: dict[str, float] = {
    "features: call": 850000.0,
    "features: multiply-add": 0.067,
    "features: element": 1.9,
    "features: refresh": 9.4,
    "dense: call": 350000.0,
    "dense: multiply-add": 0.012,
    "dense: weight": 0.7,
    "dense: power": 8.1,
    "dense: entry": 1.9,
    "dense: formed": 0.012,
    "rows: call": 420000.0,
    "rows: multiply-add": 0.0,
    "rows: pair": 6.0,
    "rows: power": 3.1,
    "rows: query": 1.2,
    "rows: refresh": 8.6,
    "tiles: call": 570000.0,
    "tiles: multiply-add": 0.025,
    "tiles: pair": 0.29,
    "tiles: power": 0.0,
    "tiles: query": 1.7,
    "tiles: refresh": 0.93,
}


def path() -> Path:
    """Where the constants of this machine are kept."""
    if "TOPOMASK_COSTS" in os.environ:
        return Path(os.environ["TOPOMASK_COSTS"])
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return folder / "topomask" / "costs.json"


@cache
def load() -> Mapping[str, float]:
    """The constants of this machine where they were measured, else the defaults."""
    file = path()
    try:
        found = json.loads(file.read_text())
        check(found)
    except FileNotFoundError:
        return DEFAULTS
    except (OSError, ValueError) as error:
        warnings.warn(
            f"The cost constants in {file} cannot be used, so the defaults are: {error} "
            "Measure them anew with `topomask bench calibrate`, or delete the file.",
            stacklevel=2,
        )
        return DEFAULTS
    return found


def save(constants: Mapping[str, float]) -> Path:
    """Keep the constants of this machine for later processes, and use them in this one."""
    check(constants)
    file = path()
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(json.dumps(dict(constants), indent=2))
    temporary.replace(file)
    load.cache_clear()
    return file


def check(constants: object) -> None:
    """A ValueError unless there is one number of at least 0 for every term."""
    if not isinstance(constants, dict) or set(constants) != set(DEFAULTS):
        raise ValueError(f"There must be one number for each of {sorted(DEFAULTS)}.")
    for term, value in constants.items():
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value) or value < 0:
            raise ValueError(f"The constant of {term!r} must be a number of at least 0, but is {value!r}.")
