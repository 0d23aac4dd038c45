"""Reports of measurements: tables, bars and JSON files."""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

OUTPUT = Path("bench_output")


def save(name: str, results: dict[str, Any]) -> None:
    """Write results as JSON, with the versions of the software."""
    OUTPUT.mkdir(exist_ok=True)
    versions = {"python": platform.python_version(), "torch": torch.__version__, "threads": torch.get_num_threads()}
    path = OUTPUT / f"{name}.json"
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps({"versions": versions} | results, indent=2))
    temporary.replace(path)
    print(f"wrote {path}")


def table(header: list[str], rows: list[list[str]]) -> None:
    """Print a Markdown table."""
    widths = [max(len(row[k]) for row in [header, *rows]) for k in range(len(header))]
    for row in [header, ["-" * width for width in widths], *rows]:
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |")
    print()


@dataclass(frozen=True)
class Bar:
    """A measured value, and its upper or lower limit, if any."""

    what: str
    measured: float
    relation: Literal["<=", ">=", ""] = ""
    limit: float = float("nan")
    shown: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the limit is met; None if there is none."""
        if not self.relation:
            return None
        return self.measured <= self.limit if self.relation == "<=" else self.measured >= self.limit


def bars(found: list[Bar], *, quick: bool = False) -> dict[str, Any]:
    """Print measured values with their bars, and return them for the JSON file. Quick runs are not judged."""
    verdicts = {True: "yes", False: "NO", None: ""}
    rows = [
        [
            bar.what,
            bar.shown or f"{bar.measured:.3g}",
            f"{bar.relation} {bar.limit:g}" if bar.relation else "",
            "quick" if quick and bar.relation else verdicts[bar.met],
        ]
        for bar in found
    ]
    table(["what", "measured", "bar", "met"], rows)
    return {
        bar.what: {"measured": bar.measured, "bar": rows[k][2], "met": None if quick else bar.met}
        for k, bar in enumerate(found)
    }
