"""A table of trained models: what is run, over which seeds, and what the papers claim of it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from topomask.config import apply_overrides, to_dict
from topomask.recipes.experiment import Experiment
from topomask.recipes.pages import Section, Table
from topomask.recipes.reproduce.results import ResultFolder, RunResult
from topomask.recipes.reproduce.statistics import Difference, paired_difference, spread
from topomask.recipes.reproduce.targets import Target, published
from topomask.train import FolderInUse
from topomask.train.config import FREE_FIELDS
from topomask.train.run_folder import versions

NOT_AVAILABLE = "not available"
OVERLAP = (
    "Training sets overlap from one to the next, so intervals of differences have the corrected variance of Nadeau and "
    "Bengio (2003)."
)
# Fields that runs of one row differ in.
_REPEATED = ("train.seed", "data.fold", "data.split")
# Fields that numbers do not depend on, by group.
FREE: dict[str, tuple[str, ...]] = {"data": ("root", "download"), "train": FREE_FIELDS}


@dataclass(frozen=True)
class Cell:
    """A row of a table.

    Args:
        name: A short name, also of its files.
        label: What it is.
        experiment: What is run for it.
        paper: The paper's value, on the paper's data.
        alternatives: Other configurations of it; for every seed, the study says by what one of all is chosen.
    """

    name: str
    label: str
    experiment: Experiment
    paper: str = NOT_AVAILABLE
    alternatives: Sequence[Experiment] = ()

    def runs(self) -> dict[str, Experiment]:
        """All that is run for it, by the names of its files."""
        others = {f"{self.name}.{number + 1}": each for number, each in enumerate(self.alternatives)}
        return {self.name: self.experiment} | others


@dataclass(frozen=True)
class Claim:
    """That one cell is better than another, as the paper has it.

    Args:
        better: Name of the cell that should be better.
        worse: Name of the other.
        paper: The paper's difference, or where it says so; none where no paper claims it.
    """

    better: str
    worse: str
    paper: str | None = None


@dataclass(frozen=True)
class Study:
    """A table of the papers, at our scale.

    Args:
        title: Its title.
        folder: Name of the folder of its results; studies that share runs share it.
        about: How it is run here, and what the paper did.
        cells: Its rows.
        claims: What the paper claims of them.
        baseline: The row that the others are compared with.
        seeds: How many seeds make it whole.
        metric: What is compared.
        scale: Factor of the metric in print: 100 for per cent.
        unit: Its unit in print.
        gap_unit: The unit of a difference.
        higher_is_better: Whether a larger metric is better.
        paper_heading: Heading of the paper's values.
        also: Other metrics to show, with a heading each.
        published: Rows that are not run here: a label and its value.
        repeats: What the runs of a row are repeated over: "seeds" of training, "folds" or "splits" of the data, or
            "draws" of generated data.
        test_share: Test examples per training example where training sets of repeats overlap, by which intervals are
            widened; see :func:`paired_difference`.
        targets: Known values that rows should reach.
        void_below: By how much the mean of a row may miss its paper's value before comparisons with it are void; none
            where the paper's values are of other data.
        shape: Features and classes of the data; where given, the parameters of every row are shown.
        chosen_by: The metric by which one of the alternatives of a cell is chosen, larger is better; ties are broken
            by the validation loss.
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
        """The same with fields of every experiment set from text; not those that the rows are told apart by."""
        runs = [each for cell in self.cells for each in cell.runs().values()]
        repeated = [name for name in _REPEATED if name in _flat(to_dict(runs[0]))]
        # Rows may be trained in different ways, but are not told apart by that.
        told_apart = {name for name in _differing(runs) if not name.startswith("train.")}.union(repeated)
        for override in overrides:
            name = override.partition("=")[0].strip()
            if name in told_apart:
                how = "Pass --seeds." if name in repeated else "Pass --only to choose rows."
                raise ValueError(f"`{name}` cannot be set: the runs of this table differ in it. {how}")

        def change(cell: Cell) -> Cell:
            first, *others = (apply_overrides(each, overrides) for each in cell.runs().values())
            return replace(cell, experiment=first, alternatives=others)

        return replace(self, cells=[change(cell) for cell in self.cells])

    def pick(self, names: Collection[str]) -> list[Cell]:
        """The cells of these names, or all."""
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
    """Run what has no result yet, seed by seed; a run that was stopped goes on where it was.

    Several processes may do so at once: what another is at is left to it.

    Args:
        study: The table.
        seeds: Which seeds.
        results: Folder of the results.
        runs: Folder of the runs, with their checkpoints.
        only: Names of the cells to run. Default: all.
        say: Where to say what happens.
    """
    kept = ResultFolder(results)
    todo = [
        (cell, name, each, seed) for seed in seeds for cell in study.pick(only) for name, each in cell.runs().items()
    ]
    for place, (cell, name, each, seed) in enumerate(todo):
        experiment = each.with_seed(seed)
        config = numbers_config(experiment)
        if kept.find(name, seed, config) is not None:
            continue
        say(f"[{place + 1}/{len(todo)}] {cell.label} ({name}), {study.repeats.removesuffix('s')} {seed}")
        try:
            found = experiment.run(runs / f"{name}-{seed}", resume=True)
        except FolderInUse:
            say("Another process is at it; going on with the next.")
            continue
        metrics = experiment.measure(found)
        kept.add(RunResult(name, seed, metrics, round(found.seconds, 1), config, versions()))


def numbers_config(experiment: Experiment) -> dict[str, Any]:
    """What the numbers depend on: not where data lives, nor what is shown on the way."""
    config = to_dict(experiment)
    for group, names in FREE.items():
        for name in names:
            config[group].pop(name, None)
    return config


def _differing(experiments: Sequence[Experiment]) -> set[str]:
    """Names of the fields in which some experiments differ, as on the command line."""
    flat = [_flat(to_dict(experiment)) for experiment in experiments]
    return {name for name in flat[0] if any(each.get(name) != flat[0][name] for each in flat)}


def _flat(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in config.items():
        found |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return found


def summarize(study: Study, results: Path) -> Section:
    """The table with all runs that there are, the paper's values beside ours, and what of its claims holds."""
    values, seconds = collect(study, results), _mean_seconds(study, results)
    others = [collect(study, results, metric) for metric, _ in study.also]
    sizes = {} if study.shape is None else {cell.name: [_num_parameters(cell, study.shape)] for cell in study.cells}
    rows = [[label, value, *[""] * (3 + len(others) + bool(sizes))] for label, value in study.published]
    for cell in study.cells:
        own = values[cell.name]
        gap = None if cell.name == study.baseline else _gap(study, own, values[study.baseline])
        more = [_describe(study, other[cell.name]) for other in others]
        found = [_describe(study, own), "" if gap is None else _interval(study, gap), *more]
        rows.append([cell.label, cell.paper, *sizes.get(cell.name, []), *found, seconds.get(cell.name, "")])
    base = next(cell.label for cell in study.cells if cell.name == study.baseline)
    better = "higher" if study.higher_is_better else "lower"
    ours = [f"ours, {study.unit} ({better} is better)", f"minus {base}, {study.gap_unit}"]
    headings = [
        "",
        study.paper_heading,
        *["parameters"] * bool(sizes),
        *ours,
        *(heading for _, heading in study.also),
        "seconds",
    ]
    notes = [_judge(study, claim, values) for claim in study.claims]
    notes += [_judge_target(study, target, values[target.cell]) for target in study.targets]
    lacking = _lacking(study, values)
    if lacking:
        notes.append(f"Not whole yet: {'; '.join(lacking)}.")
    return Section(study.title, study.about, Table(headings, rows), notes)


def _lacking(study: Study, values: dict[str, dict[int, float]]) -> list[str]:
    return [
        f"{cell.label}: {len(values[cell.name])} of {study.seeds} {study.repeats}"
        for cell in study.cells
        if len(values[cell.name]) < study.seeds
    ]


def collect(study: Study, results: Path, metric: str | None = None) -> dict[str, dict[int, float]]:
    """The metric of every cell and seed whose runs had the config of the study."""
    return {
        cell: {seed: run.metrics[metric or study.metric] for seed, run in runs.items()}
        for cell, runs in _chosen(study, results).items()
    }


def _chosen(study: Study, results: Path) -> dict[str, dict[int, RunResult]]:
    """For every cell and seed, the run that counts; none where an alternative is still to be run."""
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
    """What alternatives are chosen by; of several with the same metric, the least validation loss is best."""
    return float(run.metrics[chosen_by]), -float(run.metrics.get("val_loss", math.inf))


def _runs(study: Study, results: Path) -> list[RunResult]:
    """The runs that had the config of the study."""
    experiments = {name: each for cell in study.cells for name, each in cell.runs().items()}
    return [
        run
        for run in ResultFolder(results).runs()
        if run.cell in experiments and run.has(numbers_config(experiments[run.cell].with_seed(run.seed)))
    ]


def _mean_seconds(study: Study, results: Path) -> dict[str, str]:
    times = {cell: [run.seconds for run in runs.values()] for cell, runs in _chosen(study, results).items()}
    return {name: f"{sum(own) / len(own):,.0f}" for name, own in times.items() if own}


def _describe(study: Study, own: dict[int, float]) -> str:
    if not own:
        return "not run"
    found = spread(own)
    mean = f"{study.scale * found.mean:.2f}"
    if found.count == 1:
        return f"{mean} (1 {study.repeats.removesuffix('s')})"
    return f"{mean} ± {study.scale * found.deviation:.2f} ({found.count} {study.repeats})"


def _interval(study: Study, gap: Difference) -> str:
    mean = f"{study.scale * gap.mean:+.2f}"
    return mean if gap.count < 2 else f"{mean} [{study.scale * gap.low:+.2f}, {study.scale * gap.high:+.2f}]"


def _gap(study: Study, first: dict[int, float], second: dict[int, float]) -> Difference | None:
    return paired_difference(first, second, test_share=study.test_share)


def _num_parameters(cell: Cell, shape: tuple[int, int]) -> str:
    """Of the model, which is built once for this."""
    model: Any = cell.experiment.model  # type: ignore[attr-defined]
    try:
        built = replace(model, in_features=shape[0], num_classes=shape[1]).build()
    except ModuleNotFoundError:
        # Results are shown without the package that the model is from, too.
        return "unknown"
    return f"{sum(parameter.numel() for parameter in built.parameters()):,}"


def _judge(study: Study, claim: Claim, values: dict[str, dict[int, float]]) -> str:
    labels = {cell.name: cell.label for cell in study.cells}
    source = "" if claim.paper is None else f" (the paper: {claim.paper})"
    text = f"{labels[claim.better]} better than {labels[claim.worse]}{source}"
    better, worse = values[claim.better], values[claim.worse]
    gap = _gap(study, better, worse) if study.higher_is_better else _gap(study, worse, better)
    if gap is None:
        return f"{text}: not run."
    # A verdict that could change with the next run would be a peek.
    verdict = gap.verdict if gap.count >= study.seeds else "open"
    pairs = f"{gap.count} {study.repeats if gap.count > 1 else study.repeats.removesuffix('s')}"
    compared = [cell for cell in study.cells if cell.name in (claim.better, claim.worse)]
    void = "".join(_void(study, cell, values[cell.name]) for cell in compared)
    return f"{text}: {verdict} here, by {_interval(study, gap)} {study.gap_unit}, paired over {pairs}{void}."


def _void(study: Study, cell: Cell, own: dict[int, float]) -> str:
    """That comparisons with a row do not count, where it is whole and misses its paper's value."""
    known = published(cell.paper)
    if study.void_below is None or known is None or len(own) < study.seeds:
        return ""
    short = known[0] - study.scale * spread(own).mean
    missed = short if study.higher_is_better else -short
    if missed <= study.void_below:
        return ""
    where = "below" if study.higher_is_better else "above"
    return f"; void: {cell.label} is {missed:.2f} {study.gap_unit} {where} its published value"


def _judge_target(study: Study, target: Target, own: dict[int, float]) -> str:
    label = next(cell.label for cell in study.cells if cell.name == target.cell)
    reached = _reached(study, target, own)
    verdict = "open" if reached is None else "holds" if reached else "does not hold"
    found = f"{verdict} here, with {_describe(study, own)}" if own else "not run"
    return f"{label} {target.name}, {target.value} {study.unit}: {found}."


def _reached(study: Study, target: Target, own: dict[int, float]) -> bool | None:
    return target.reached([study.scale * value for value in own.values()], study.seeds)


def count_targets(studies: Sequence[tuple[Study, Path]]) -> list[str]:
    """How many tables reach the values that several of them are held against.

    Args:
        studies: Tables, and the folders of their results.
    """
    found: dict[str, list[bool | None]] = {}
    for study, results in studies:
        values = collect(study, results) if study.targets else {}
        for target in study.targets:
            found.setdefault(target.name, []).append(_reached(study, target, values[target.cell]))
    return [
        f"Tables in which our row is {name}: {reached.count(True)} of {len(reached)}"
        + (f"; {reached.count(None)} are not whole yet." if None in reached else ".")
        for name, reached in found.items()
        if len(reached) > 1
    ]


def variant(experiment: Any, attention: str, **options: Any) -> Any:
    """The experiment with another attention."""
    changed = dataclasses.replace(experiment.model.attention_options, **options)
    return replace(experiment, model=replace(experiment.model, attention=attention, attention_options=changed))
