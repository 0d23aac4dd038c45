"""Constants of the cost model behind ``strategy="auto"``: nanoseconds per call, multiply-add, pair, and so on.

The defaults were measured on two cores with AVX-512. ``topomask bench calibrate`` measures the constants of your
machine and saves them in the user's cache folder, or in the file that the environment variable ``TOPOMASK_COSTS``
names. They are read on import.
"""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Mapping
from pathlib import Path

from topomask.support.files import cache_folder, write_content

# Nanoseconds of everything that topomask/attention/plan.py counts.
DEFAULTS: dict[str, float] = {
    "product: call": 960000.0,
    "product: multiply-add": 0.1,
    "product: element": 1.7,
    "product: refresh": 6.2,
    "dense: call": 380000.0,
    "dense: multiply-add": 0.0093,
    "dense: weight": 0.59,
    "dense: power": 6.6,
    "dense: large weight": 15.0,
    "dense: entry": 1.3,
    "dense: formed": 0.012,
    "rows: call": 420000.0,
    "rows: multiply-add": 0.019,
    "rows: pair": 3.4,
    "rows: power": 5.3,
    "rows: query": 0.66,
    "rows: refresh": 8.2,
    "tiles: call": 550000.0,
    "tiles: key": 2.7,
    "tiles: key, per width": 0.1,
    "tiles: alone": 6.8,
    "tiles: alone, per width": 0.066,
    "tiles: power": 20.0,
    "tiles: query": 1.1,
    "tiles: refresh": 0.89,
}


def path() -> Path:
    """Return the file that holds the constants of this machine."""
    return Path(os.environ["TOPOMASK_COSTS"]) if "TOPOMASK_COSTS" in os.environ else cache_folder() / "costs.json"


def load() -> Mapping[str, float]:
    """Return the constants of this machine if they were measured, else the defaults."""
    file = path()
    try:
        found = json.loads(file.read_text())
        check(found)
    except FileNotFoundError:
        return DEFAULTS
    except (OSError, ValueError) as error:
        warnings.warn(
            f"Using the default cost constants, because those in {file} are invalid: {error} "
            "Measure them again with `topomask bench calibrate`, or delete the file.",
            stacklevel=2,
        )
        return DEFAULTS
    return found


def save(measured: Mapping[str, float]) -> Path:
    """Save the constants of this machine for later processes, and use them in this one."""
    check(measured)
    file = path()
    write_content(file, json.dumps(dict(measured), indent=2).encode())
    global constants
    constants = load()
    return file


def check(found: object) -> None:
    """Raise a ValueError unless there is one finite number >= 0 for every term."""
    if not isinstance(found, dict) or set(found) != set(DEFAULTS):
        raise ValueError(f"Expected one number for each of {sorted(DEFAULTS)}.")
    for term, value in found.items():
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value) or value < 0:
            raise ValueError(f"The constant {term!r} must be a finite number >= 0, but is {value!r}.")


# The constants in use: a plain dictionary, which torch.compile can read.
constants: Mapping[str, float] = load()
