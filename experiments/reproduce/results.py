"""Results on disk: a JSON file per run, with its config, seed, versions and duration."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from topomask.support.files import write_atomically


@dataclass(frozen=True)
class RunResult:
    """What one run gave.

    Args:
        cell: What was run, such as ``"grf"``.
        seed: Its seed.
        metrics: What was measured.
        seconds: Time taken.
        config: All that the numbers depend on, as JSON.
        versions: Versions of what decides the numbers.
    """

    cell: str
    seed: int
    metrics: dict[str, Any]
    seconds: float
    config: dict[str, Any]
    versions: dict[str, str]

    def has(self, config: dict[str, Any]) -> bool:
        """Whether it had this config. It may have more fields, and lack those that are None: they came later."""
        return _covers(self.config, config)


def _covers(whole: Any, part: Any) -> bool:
    """Whether a record has all that another has."""
    if isinstance(whole, dict) and isinstance(part, dict):
        return all(_covers(whole.get(name), value) for name, value in part.items())
    return bool(whole == part)


class ResultFolder:
    """The runs of a study, ``<cell>-<seed>.json``; several processes may add to the same folder.

    Args:
        path: The folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def runs(self) -> list[RunResult]:
        """All runs, by cell and seed."""
        return [self._read(path) for path in sorted(self.path.glob("*.json"))]

    def find(self, cell: str, seed: int, config: dict[str, Any]) -> RunResult | None:
        """The run of this cell and seed, if it had this config."""
        path = self._file(cell, seed)
        run = self._read(path) if path.is_file() else None
        return run if run is not None and run.has(config) else None

    def add(self, run: RunResult) -> None:
        """Keep a run; one of the same cell and seed is replaced."""
        self.path.mkdir(parents=True, exist_ok=True)
        text = json.dumps(asdict(run), indent=1) + "\n"
        write_atomically(self._file(run.cell, run.seed), lambda path: path.write_text(text))

    def _file(self, cell: str, seed: int) -> Path:
        return self.path / f"{cell}-{seed}.json"

    def _read(self, path: Path) -> RunResult:
        try:
            return RunResult(**json.loads(path.read_text()))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path} is no result of a run ({error}). Move it away to run it anew.") from None
