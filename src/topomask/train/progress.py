"""Progress on the terminal: a bar with the time left where there is a terminal and rich, else plain lines."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping
from typing import Any

# Logs of long runs should stay readable; all lines of training are in the metrics anyway.
_SECONDS_BETWEEN_LINES = 5.0


class Progress:
    """Shows how far a run is.

    Args:
        total: Steps in all.
        step: The step that the run goes on from.
        enabled: Whether to show anything.
    """

    def __init__(self, total: int, step: int = 0, enabled: bool = True) -> None:
        self.total, self.first, self.enabled = total, step, enabled
        self.start = time.perf_counter()
        self.shown = -math.inf
        self._bar = _bar(total, step) if enabled and sys.stdout.isatty() else None

    def advance(self, step: int) -> None:
        """Move on to a step."""
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=step)

    def line(self, event: str, step: int, values: Mapping[str, float]) -> None:
        """Show the metrics of an event."""
        text = f"{event:5s} " + "  ".join(f"{name} {value:.4g}" for name, value in values.items())
        if self._bar is None:
            now = time.perf_counter()
            if event == "train" and now - self.shown < _SECONDS_BETWEEN_LINES:
                return
            self.shown = now
            left = (now - self.start) / max(1, step - self.first) * (self.total - step)
            self.note(f"step {step}/{self.total}  {text}  ({_clock(left)} left)")
        elif event == "train":
            self._bar.update(self._bar.task_ids[0], description=text)
        else:
            self.note(f"step {step}  {text}")

    def note(self, text: str) -> None:
        """Show a line of text."""
        if self._bar is not None:
            self._bar.console.print(text, highlight=False, markup=False)
        elif self.enabled:
            print(text, flush=True)

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()


def _bar(total: int, step: int) -> Any:
    try:
        from rich import progress
    except ModuleNotFoundError:
        return None
    columns = (
        progress.BarColumn(bar_width=24),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TextColumn("left"),
        progress.TimeRemainingColumn(),
        progress.TextColumn("{task.description}", markup=False),
    )
    bar = progress.Progress(*columns)
    bar.add_task("", total=total, completed=step)
    return bar


def _clock(seconds: float) -> str:
    """Seconds as h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
