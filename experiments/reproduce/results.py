"""Results on disk: one file per study, with one line of JSON per run."""

from __future__ import annotations

import json
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from topomask.support.files import explained, flush_to_disk, parse_json


@dataclass(frozen=True)
class RunResult:
    """The result of one run.

    Args:
        cell: Name of what was run, such as ``"grf"``.
        seed: The seed.
        metrics: The metrics.
        seconds: Duration.
        config: Everything that the metrics depend on, as JSON.
        versions: Versions of the software that affects the metrics.
    """

    cell: str
    seed: int
    metrics: dict[str, Any]
    seconds: float
    config: dict[str, Any]
    versions: dict[str, str]

    def __post_init__(self) -> None:
        kinds = {"cell": str, "seed": int, "metrics": dict, "seconds": int | float, "config": dict, "versions": dict}
        for name, kind in kinds.items():
            value = getattr(self, name)
            if not isinstance(value, kind) or isinstance(value, bool):
                raise TypeError(f"`{name}` is {value!r}")

    def metric(self, name: str) -> float:
        """Return a metric by name; raise a ValueError if it is missing or not a number."""
        value = self.metrics.get(name)
        if not isinstance(value, int | float):
            raise ValueError(
                f"The result of {self.cell}, seed {self.seed}, is damaged: its metric {name!r} is {value!r}. "
                "Delete its line from the results to run it again."
            )
        return float(value)

    def has(self, config: dict[str, Any]) -> bool:
        """Whether the run had this config. It may have more fields, and lack newer ones whose value is None."""
        return _covers(self.config, config)


def _covers(whole: Any, part: Any) -> bool:
    """Whether a record contains everything that another contains."""
    if isinstance(whole, dict) and isinstance(part, dict):
        return all(_covers(whole.get(name), value) for name, value in part.items())
    return bool(whole == part)


class ResultFile:
    """The results of a study, one line of JSON each; several processes may append to the same file.

    If several lines have the same cell and seed, the last one counts. An incomplete last line, left by a killed
    process, is ignored with a warning, and removed when the next result is added.

    Args:
        results: Folder of the results of all studies.
        name: Name of the study, or the name that studies with the same runs share.
    """

    def __init__(self, results: Path, name: str) -> None:
        self.path = results / f"{name}.jsonl"

    def runs(self) -> list[RunResult]:
        """All results, by cell and seed."""
        whole, torn = self._content()
        if torn:
            warnings.warn(
                f"The last line of {self.path} was cut off while it was written. It is ignored, and removed when the "
                "next result is added.",
                stacklevel=2,
            )
        found: dict[tuple[str, int], RunResult] = {}
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                run = _parse(line)
            except (ValueError, TypeError) as error:
                raise ValueError(
                    f"Line {number} of {self.path} is not the result of a run ({error}). Delete the line to run "
                    "it again."
                ) from None
            found[run.cell, run.seed] = run
        return [found[key] for key in sorted(found)]

    def find(self, cell: str, seed: int, config: dict[str, Any]) -> RunResult | None:
        """The result of this cell and seed, if it had this config."""
        named = (run for run in self.runs() if (run.cell, run.seed) == (cell, seed))
        return next((run for run in named if run.has(config)), None)

    def add(self, run: RunResult) -> None:
        """Append a result; it replaces an earlier one of the same cell and seed."""
        line = (json.dumps(asdict(run)) + "\n").encode()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(self.path.with_name(f".{self.path.name}.lock")):
            whole, torn = self._content()
            try:
                with self.path.open("ab") as file:
                    if torn:
                        file.truncate(len(whole))
                    file.write(line if whole.endswith(b"\n") or not whole else b"\n" + line)
                flush_to_disk(self.path)
                flush_to_disk(self.path.parent)
            except OSError as error:
                raise explained(error, self.path) from None

    def _content(self) -> tuple[bytes, bytes]:
        """The complete lines, and the rest of an incomplete last line."""
        content = self.path.read_bytes() if self.path.is_file() else b""
        start = content.rfind(b"\n") + 1
        try:
            # An editor may have saved the file without the last newline.
            _parse(content[start:])
        except (ValueError, TypeError):
            return content[:start], content[start:]
        return content, b""


def _parse(line: bytes) -> RunResult:
    return RunResult(**parse_json(line))
