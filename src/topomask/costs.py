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
    "features: call": 830000.0,
    "features: multiply-add": 0.06,
    "features: element": 1.8,
    "features: refresh": 9.1,
    "dense: call": 350000.0,
    "dense: multiply-add": 0.01,
    "dense: weight": 0.55,
    "dense: power": 7.1,
    "dense: large weight": 15.0,
    "dense: entry": 1.2,
    "dense: formed": 0.021,
    "rows: call": 400000.0,
    "rows: multiply-add": 0.029,
    "rows: pair": 6.4,
    "rows: power": 3.1,
    "rows: query": 0.78,
    "rows: refresh": 8.6,
    "tiles: call": 500000.0,
    "tiles: key": 3.2,
    "tiles: key, per width": 0.15,
    "tiles: alone": 11.0,
    "tiles: alone, per width": 0.043,
    "tiles: power": 23.0,
    "tiles: query": 1.3,
    "tiles: refresh": 0.91,
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
