"""Run cases, compare with the plain formula, and count."""

from __future__ import annotations

import re
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

import topomask as tm
from fuzz.cases import Call, Case, draw_call, draw_case
from fuzz.compare import check_dense, check_product, compare_call
from fuzz.graphs import MismatchError
from fuzz.plain import PlainMask

# What may be refused, and nothing else: combinations that the documentation excludes.
REFUSALS = {
    "softmax by products": r"softmax attention needs the entries of the mask",
    "pairs of a mask that is not sparse": r"has no sparse entries",
    "symmetric features of a matrix that is not": r"Symmetric features estimate sums of W\^k",
    "sym on a directed graph": r"`normalization` must be 'row' or 'none' for a directed graph, but is 'sym'",
    "no forest": r"must be a forest|must be an undirected forest",
    "no path": r"must be a path through the tokens",
    "diffusion on a directed graph": r"`graph` must be undirected, but is directed: the series of DiffusionMask",
    "diffusion beyond float32": r"exp\(-?\w* ?.*overflow|e\^80|exceeds",
    "growth beyond float32": r"exp of more than 80 overflows",
    "table of lengths that are no whole numbers": r"A table needs integer lengths of edges",
    "table of a long diameter": r"The diameter .* is more than",
    "negative lengths": r"has negative weights, which cannot be lengths",
    "no nodes": r"`num_nodes` must be|needs at least one node",
    "different tokens": r"must be for the same|agree in",
}


@dataclass
class Report:
    """What came of some cases."""

    cases: int = 0
    calls: int = 0
    gradients: int = 0
    skipped: int = 0  # queries that rounding does not let compare
    queries: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    counts: dict[str, Counter[str]] = field(default_factory=dict)
    failures: list[tuple[int, str]] = field(default_factory=list)

    def count(self, what: str, name: str) -> None:
        """Add one to a count."""
        self.counts.setdefault(what, Counter())[name] += 1

    def add(self, other: Report) -> None:
        """Add another report."""
        for name in ("cases", "calls", "gradients", "skipped", "queries"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.refused.update(other.refused)
        for what, counter in other.counts.items():
            self.counts.setdefault(what, Counter()).update(counter)
        self.failures.extend(other.failures)


def refusal(error: ValueError) -> str | None:
    """Which documented refusal an error is; None for any other."""
    return next((name for name, text in REFUSALS.items() if re.search(text, str(error))), None)


def run_case(seed: int, index: int, name: str | None = None, kind: str | None = None) -> Report:
    """Draw and run one case, which follows from its arguments alone."""
    report = Report(cases=1)
    rng = np.random.default_rng([seed, index])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            case = draw_case(rng, name, kind)
            operator = _operator(case.plain)
        except ValueError as error:
            _refused_or_failed(report, index, error, f"building mask {name or ''}")
            return report
        except Exception as error:
            report.failures.append((index, f"building mask {name or ''}: {_describe(error)}"))
            return report
        report.count("mask", case.name)
        report.count("graph", case.graph_kind)
        report.count("mask dtype", str(case.dtype)[6:])
        _attempt(report, index, case, "dense", lambda: check_dense(case))
        _attempt(report, index, case, "product", lambda: check_product(case, rng))
        for number in range(3):
            call = draw_call(rng, case, operator.num_queries, operator.num_keys)
            _attempt(report, index, case, str(call), lambda call=call: compare_call(case, call, report))
            if number == 1 and rng.random() < 0.3:
                _change(case.plain, rng)
    return report


def _operator(plain: PlainMask) -> tm.Operator:
    argument = plain.argument()
    return argument.on() if isinstance(argument, tm.Mask) else argument


def _change(plain: PlainMask, rng: np.random.Generator) -> None:
    """Change parameters in place, as an optimiser does: what was kept of them must be forgotten."""
    with torch.no_grad():
        for parameter in plain.parameters().values():
            factor = 1.0 + 0.3 * torch.from_numpy(rng.random(parameter.shape)).to(parameter.dtype)
            # Changes of ``.data`` are noticed up to 4,096 numbers, as documented.
            if rng.random() < 0.5 or parameter.numel() > 4096:
                parameter.mul_(factor)
            else:
                parameter.data.copy_(parameter * factor)


def _attempt(report: Report, index: int, case: Case, what: str, work: object) -> None:
    what = f"{case.name} on {case.graph_kind} ({str(case.dtype)[6:]}{', extreme' if case.extreme else ''}): {what}"
    try:
        work()
    except MismatchError as error:
        report.failures.append((index, f"{what}: {error}"))
    except ValueError as error:
        _refused_or_failed(report, index, error, what)
    except Exception as error:
        report.failures.append((index, f"{what}: {_describe(error)}"))


def _refused_or_failed(report: Report, index: int, error: ValueError, what: str) -> None:
    reason = refusal(error)
    if reason is None:
        report.failures.append((index, f"{what}: unexpected refusal: {_describe(error)}"))
    else:
        report.refused[reason] += 1


def _describe(error: Exception) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "site-packages" not in frame.filename]
    place = f" at {frames[-1].filename.split('/src/')[-1]}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{place}: {str(error)[:300]}"


__all__ = ["Call", "Report", "Tensor", "run_case"]
