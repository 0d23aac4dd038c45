"""A table of trained models: its runs, seeds, and the claims of the papers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from experiments.reproduce.results import ResultFile, RunResult
from experiments.reproduce.targets import Target
from topomask.recipes.experiment import Experiment
from topomask.support.config import apply_overrides, flat, names_set, to_dict
from topomask.train import FolderInUse
from topomask.train.config import FREE_FIELDS
from topomask.train.run_folder import versions

NOT_AVAILABLE = "not available"
# Heading of published values on the same data.
PUBLISHED = "published"
OVERLAP = (
    "Training sets overlap from one to the next, so intervals of differences have the corrected variance of Nadeau and "
    "Bengio (2003)."
)
# Fields in which the runs of one row differ.
_REPEATED = ("train.seed", "data.fold", "data.split")
# Repeats of which there is a limited number.
FIXED_REPEATS = ("folds", "splits")


@dataclass(frozen=True)
class Cell:
    """A row of a table.

    Args:
        name: A short name, also used in results and for run folders.
        label: A description.
        experiment: The experiment to run.
        paper: The paper's value, on the paper's data.
        alternatives: Other configurations; for every seed, the study's ``chosen_by`` selects one of all.
        short_because: Why it may miss the paper's value, if known: comparisons with it then still count.
    """

    name: str
    label: str
    experiment: Experiment
    paper: str = NOT_AVAILABLE
    alternatives: Sequence[Experiment] = ()
    short_because: str = ""

    def runs(self) -> dict[str, Experiment]:
        """All experiments of this row, by their names in the results."""
        others = {f"{self.name}.{number + 1}": each for number, each in enumerate(self.alternatives)}
        return {self.name: self.experiment} | others


@dataclass(frozen=True)
class Claim:
    """A claim of the paper that one cell is better than another.

    Args:
        better: Name of the cell that should be better.
        worse: Name of the other cell.
        paper: The paper's difference, or where the paper claims it; empty if no paper does.
    """

    better: str
    worse: str
    paper: str | None = None


@dataclass(frozen=True)
class Study:
    """A table of the papers, at our scale.

    Args:
        title: The title.
        folder: Name of the folder of its runs and of its file of results; shared by studies that share runs.
        about: How it is run here, and what the paper did.
        cells: The rows.
        claims: The paper's claims about the rows.
        baseline: The row that the others are compared with.
        seeds: Number of seeds of the complete table.
        metric: The metric to compare.
        scale: Factor of the metric in print: 100 for per cent.
        unit: Unit of the metric in print.
        gap_unit: Unit of a difference.
        higher_is_better: Whether higher values of the metric are better.
        paper_heading: Heading of the paper's values.
        also: Other metrics to show, with their headings.
        published: Rows that are not run here: labels and values.
        repeats: What the runs of a row are repeated over: "seeds" of training, "folds" or "splits" of the data, or
            "draws" of generated data.
        test_share: Test examples per training example if the training sets of repeats overlap, which widens the
            intervals; see :func:`paired_difference`.
        targets: Known values that rows should reach.
        void_below: How far the mean of a row may fall below the paper's value before comparisons with it are void; None
            if the paper's values are on other data.
        shape: Features and classes of the data; if given, the number of parameters of every row is shown.
        chosen_by: The metric that selects one of the alternatives of a cell, higher is better; ties are broken by the
            validation loss.
    """

    title: str
    folder: str
    about: Sequence[str]
    cells: Sequence[Cell]
    claims: Sequence[Claim]
    baseline: str
    seeds: int
    metric: str = "accuracy"
    scale: float = 100.0
    unit: str = "%"
    gap_unit: str = "points"
    higher_is_better: bool = True
    paper_heading: str = "the paper, its data"
    also: Sequence[tuple[str, str]] = ()
    published: Sequence[tuple[str, str]] = ()
    repeats: str = "seeds"
    chosen_by: str = "val_accuracy"
    test_share: float = 0.0
    targets: Sequence[Target] = ()
    void_below: float | None = None
    shape: tuple[int, int] | None = None

    def changed(self, overrides: Sequence[str]) -> Study:
        """Return a copy with fields of all experiments set as on the command line; rows must not differ in them."""
        if not overrides:
            return self
        runs = [each for cell in self.cells for each in cell.runs().values()]
        repeated = [name for name in _REPEATED if name in flat(to_dict(runs[0]))]
        # Rows may be trained in different ways, but that is not what they compare.
        told_apart = {name for name in _differing(runs) if not name.startswith("train.")}.union(repeated)
        for name in names_set(overrides):
            if name == "data.name":
                raise ValueError(
                    f"`{name}` cannot be set: the published values and titles of this table are for its own data."
                )
            if name in told_apart:
                how = "Pass --seeds." if name in repeated else "Pass --only to choose rows."
                raise ValueError(f"`{name}` cannot be set: the runs of this table differ in it. {how}")

        def change(cell: Cell) -> Cell:
            first, *others = (apply_overrides(each, overrides) for each in cell.runs().values())
            return replace(cell, experiment=first, alternatives=others)

        return replace(self, cells=[change(cell) for cell in self.cells])

    def pick(self, names: Collection[str]) -> list[Cell]:
        """The cells with these names, or all."""
        known = [cell.name for cell in self.cells]
        for name in names:
            if name not in known:
                raise ValueError(f"There is no cell {name!r} in this table. Cells: {', '.join(known)}.")
        return [cell for cell in self.cells if not names or cell.name in names]


def run_study(
    study: Study,
    seeds: Sequence[int],
    results: Path,
    runs: Path,
    *,
    only: Collection[str] = (),
    say: Callable[[str], None] = print,
) -> None:
    """Run what has no result yet, seed by seed; interrupted runs are resumed.

    Several processes may do so at once: each skips the runs that another is working on.

    Args:
        study: The table.
        seeds: The seeds.
        results: Folder of the results of all studies.
        runs: Folder of the runs of this study, with their checkpoints.
        only: Names of the cells to run. Default: all.
        say: Prints progress.
    """
    if study.repeats in FIXED_REPEATS and not all(0 <= seed < study.seeds for seed in seeds):
        raise ValueError(f"`seeds` must be in [0, {study.seeds}), the {study.repeats}, but are {list(seeds)}.")
    kept = ResultFile(results, study.folder)
    todo = [
        (cell, name, each.with_seed(seed), seed)
        for seed in dict.fromkeys(seeds)
        for cell in study.pick(only)
        for name, each in cell.runs().items()
    ]
    for place, (cell, name, experiment, seed) in enumerate(todo):
        config = numbers_config(experiment)
        if kept.find(name, seed, config) is not None:
            continue
        say(f"[{place + 1}/{len(todo)}] {cell.label} ({name}), {study.repeats.removesuffix('s')} {seed}")
        try:
            found = experiment.run(runs / f"{name}-{seed}", resume=True, fallback=True)
        except FolderInUse:
            say("Another process is working on it; continuing with the next.")
            continue
        metrics = experiment.measure(found)
        kept.add(RunResult(name, seed, metrics, round(found.seconds, 1), config, versions()))


def numbers_config(experiment: Experiment) -> dict[str, Any]:
    """The config without fields that do not affect the results, such as the folder of the data."""
    config = to_dict(experiment)
    for path in FREE_FIELDS:
        group, _, name = path.partition(".")
        config[group].pop(name, None)
    return config


def _differing(experiments: Sequence[Experiment]) -> set[str]:
    """Names of the fields in which experiments differ, as on the command line."""
    found = [flat(to_dict(experiment)) for experiment in experiments]
    names = set().union(*found)
    return {name for name in names if any(name not in each or each[name] != found[0].get(name) for each in found)}


def collect(study: Study, results: Path, metric: str | None = None) -> dict[str, dict[int, float]]:
    """The metric of every cell and seed whose runs have the config of the study."""
    return {
        cell: {seed: run.metric(metric or study.metric) for seed, run in runs.items()}
        for cell, runs in chosen_runs(study, results).items()
    }


def chosen_runs(study: Study, results: Path) -> dict[str, dict[int, RunResult]]:
    """The selected run of every cell and seed for which all alternatives have run."""
    found: dict[str, dict[int, list[RunResult]]] = {cell.name: {} for cell in study.cells}
    homes = {name: cell for cell in study.cells for name in cell.runs()}
    for run in _runs(study, results):
        found[homes[run.cell].name].setdefault(run.seed, []).append(run)
    return {
        cell.name: {
            seed: runs[0] if len(runs) == 1 else max(runs, key=partial(_merit, study.chosen_by))
            for seed, runs in found[cell.name].items()
            if len(runs) == len(cell.runs())
        }
        for cell in study.cells
    }


def _merit(chosen_by: str, run: RunResult) -> tuple[float, float]:
    """What selects an alternative: the metric, then the lowest validation loss."""
    return run.metric(chosen_by), -(run.metric("val_loss") if "val_loss" in run.metrics else math.inf)


def _runs(study: Study, results: Path) -> list[RunResult]:
    """The runs that have the config of the study."""
    experiments = {name: each for cell in study.cells for name, each in cell.runs().items()}
    # There are no more folds and splits than the study has seeds.
    limit = study.seeds if study.repeats in FIXED_REPEATS else math.inf
    return [
        run
        for run in ResultFile(results, study.folder).runs()
        if run.cell in experiments
        and run.seed < limit
        and run.has(numbers_config(experiments[run.cell].with_seed(run.seed)))
    ]


def variant(experiment: Any, attention: str, **options: Any) -> Any:
    """Return the experiment with another attention."""
    changed = dataclasses.replace(experiment.model.attention_options, **options)
    return replace(experiment, model=replace(experiment.model, attention=attention, attention_options=changed))
