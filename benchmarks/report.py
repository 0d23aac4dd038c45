"""Writing down what was measured."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

import torch

OUTPUT = Path("bench_output")


def save(name: str, results: dict[str, Any]) -> None:
    """Write results as JSON, with the versions that they belong to."""
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
