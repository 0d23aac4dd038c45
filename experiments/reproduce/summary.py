"""The table of a study: means, differences, which claims hold; and summaries of several tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.reproduce.statistics import Difference, paired_difference, spread
from experiments.reproduce.study import Cell, Claim, Study, chosen_runs, collect
from experiments.reproduce.targets import Target, published
from topomask.pictures.pages import Section, Table


def summarize(study: Study, results: Path) -> Section:
    """Build the table of all runs, with the paper's values next to ours, and which claims hold."""
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
    notes += [_rank(study, cell, values[cell.name]) for cell in study.cells if _is_ranked(study, cell, values)]
    lacking = _lacking(study, values)
    if lacking:
        notes.append(f"Not complete yet: {'; '.join(lacking)}.")
    return Section(study.title, study.about, Table(headings, rows), notes)


def _lacking(study: Study, values: dict[str, dict[int, float]]) -> list[str]:
    return [
        f"{cell.label}: {len(values[cell.name])} of {study.seeds} {study.repeats}"
        for cell in study.cells
        if len(values[cell.name]) < study.seeds
    ]


def _mean_seconds(study: Study, results: Path) -> dict[str, str]:
    times = {cell: [run.seconds for run in runs.values()] for cell, runs in chosen_runs(study, results).items()}
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


def _better_by(study: Study, first: dict[int, float], second: dict[int, float]) -> Difference | None:
    """How much better the first is than the second."""
    return _gap(study, first, second) if study.higher_is_better else _gap(study, second, first)


def _num_parameters(cell: Cell, shape: tuple[int, int]) -> str:
    """Number of parameters of the model, which is built for this."""
    model: Any = cell.experiment.model  # type: ignore[attr-defined]
    try:
        built = replace(model, in_features=shape[0], num_classes=shape[1]).build()
    except ModuleNotFoundError:
        # Results can be shown without the package that the model needs.
        return "unknown"
    return f"{sum(parameter.numel() for parameter in built.parameters()):,}"


def _judge(study: Study, claim: Claim, values: dict[str, dict[int, float]]) -> str:
    labels = {cell.name: cell.label for cell in study.cells}
    source = "" if claim.paper is None else f" (the paper: {claim.paper})"
    text = f"{labels[claim.better]} better than {labels[claim.worse]}{source}"
    better, worse = values[claim.better], values[claim.worse]
    gap = _better_by(study, better, worse)
    if gap is None:
        return f"{text}: not run."
    # No verdict before all runs are done: that would be peeking.
    verdict = gap.verdict if gap.count >= study.seeds else "open"
    pairs = f"{gap.count} {study.repeats if gap.count > 1 else study.repeats.removesuffix('s')}"
    compared = [cell for cell in study.cells if cell.name in (claim.better, claim.worse)]
    short = "".join(_beside_paper(study, cell, values[cell.name]) for cell in compared)
    if any(_is_void(study, cell, values[cell.name]) for cell in compared):
        verdict = "void"
    return f"{text}: {verdict} here, by {_interval(study, gap)} {study.gap_unit}, paired over {pairs}{short}."


def _shortfall(study: Study, cell: Cell, own: dict[int, float]) -> float | None:
    """How far a row falls short of the paper's value; negative if it is better, None if it is incomplete."""
    known = published(cell.paper)
    if study.void_below is None or known is None or len(own) < study.seeds:
        return None
    short = known[0] - study.scale * spread(own).mean
    return short if study.higher_is_better else -short


def _is_void(study: Study, cell: Cell, own: dict[int, float]) -> bool:
    """Whether comparisons with a row are void: it falls short of the paper's value for no known reason."""
    short = _shortfall(study, cell, own)
    return short is not None and short > (study.void_below or 0.0) and not cell.short_because


def _beside_paper(study: Study, cell: Cell, own: dict[int, float]) -> str:
    """Say that a row is far from the paper's value, and why."""
    short = _shortfall(study, cell, own)
    if short is None or abs(short) <= (study.void_below or 0.0):
        return ""
    where = "below" if (short > 0) == study.higher_is_better else "above"
    why = f": {cell.short_because}" if short > 0 and cell.short_because else ""
    return f"; {cell.label} is {abs(short):.2f} {study.gap_unit} {where} its published value{why}"


def _judge_target(study: Study, target: Target, own: dict[int, float]) -> str:
    label = next(cell.label for cell in study.cells if cell.name == target.cell)
    reached = _reached(study, target, own)
    verdict = "open" if reached is None else "holds" if reached else "does not hold"
    found = f"{verdict} here, with {_describe(study, own)}" if own else "not run"
    return f"{label} {target.name}, {target.value} {study.unit}: {found}."


def _is_ranked(study: Study, cell: Cell, values: dict[str, dict[int, float]]) -> bool:
    """Whether a row is complete and is compared with published rows."""
    named = any(target.cell == cell.name for target in study.targets)
    return named and bool(study.published) and len(values[cell.name]) >= study.seeds


def _rank(study: Study, cell: Cell, own: dict[int, float]) -> str:
    above = _published_above(study, own)
    which = f": {', '.join(above)}" if above else ""
    count = sum(published(value) is not None for _, value in study.published)
    return f"Published rows with a better mean than {cell.label}: {len(above)} of {count}{which}."


def _published_above(study: Study, own: dict[int, float]) -> list[str]:
    """Published rows with a better mean than ours."""
    mean = study.scale * spread(own).mean
    known = [(label, found[0]) for label, value in study.published if (found := published(value)) is not None]
    return [label for label, value in known if (value > mean if study.higher_is_better else value < mean)]


def _reached(study: Study, target: Target, own: dict[int, float]) -> bool | None:
    return target.reached([study.scale * value for value in own.values()], study.seeds)


def count_targets(studies: Sequence[Study], results: Path) -> list[str]:
    """Count how many tables reach the targets that several of them share.

    Args:
        studies: The tables.
        results: Folder of the results of all studies.
    """
    found: dict[str, list[bool | None]] = {}
    for study in studies:
        values = collect(study, results) if study.targets else {}
        for target in study.targets:
            found.setdefault(target.name, []).append(_reached(study, target, values[target.cell]))
    return [
        f"Tables in which our row is {name}: {reached.count(True)} of {len(reached)}"
        + (f"; not complete yet: {reached.count(None)}." if None in reached else ".")
        for name, reached in found.items()
        if len(reached) > 1
    ]


def pool(studies: Sequence[Study], results: Path, ours: str) -> list[str]:
    """Compare our row with the others on average over tables with the same rows, once all are complete.

    Runs of the same seed may share their first weights from table to table, so differences are averaged over tables,
    seed by seed, and the interval is over seeds.

    Args:
        studies: The tables.
        results: Folder of the results of all studies.
        ours: Name of our row.
    """
    tables = [(study, collect(study, results)) for study in studies]
    first = studies[0]
    if (
        len(tables) < 2
        or any(_frame(study) != _frame(first) for study, _ in tables)
        or any(_lacking(study, values) for study, values in tables)
    ):
        return []
    # More draws may have been added to one table than to another.
    seeds = sorted(set.intersection(*(set(own) for _, values in tables for own in values.values())))
    means = {
        cell.name: {seed: sum(values[cell.name][seed] for _, values in tables) / len(tables) for seed in seeds}
        for cell in first.cells
    }
    notes = []
    for cell in first.cells:
        gap = None if cell.name == ours else _better_by(first, means[ours], means[cell.name])
        void = any(
            _is_void(study, own, values[cell.name]) for study, values in tables for own in study.pick([cell.name])
        )
        if gap is None or void:
            continue
        pairs = [(values[ours][seed], values[cell.name][seed]) for _, values in tables for seed in seeds]
        ahead = sum(one > two if first.higher_is_better else one < two for one, two in pairs)
        notes.append(
            f"over all {len(tables)} tables, our row better than {cell.label}: {gap.verdict} here, by "
            f"{_interval(first, gap)} {first.gap_unit} on average, over {gap.count} {first.repeats}; ahead in "
            f"{ahead} of {len(pairs)} runs."
        )
    return notes


def _frame(study: Study) -> tuple[Any, ...]:
    """What tables must have in common for means over them to make sense."""
    rows = [cell.name for cell in study.cells]
    how = (study.seeds, study.repeats, study.test_share)
    return rows, study.metric, study.scale, study.gap_unit, study.higher_is_better, *how


def overview(studies: Sequence[Study], results: Path, ours: str) -> Table:
    """Summarise tables: our row, published values, what the mask adds, and which rows ours is better or worse than.

    Args:
        studies: The tables.
        results: Folder of the results of all studies.
        ours: Name of our row.
    """
    rows = []
    for study in studies:
        values = collect(study, results)
        if not values[ours]:
            continue
        known = ", ".join(f"{target.source} {target.value}" for target in study.targets)
        gap = _gap(study, values[ours], values[study.baseline])
        added = "" if gap is None else _interval(study, gap)
        verdicts: dict[str, list[str]] = {"holds": [], "does not hold": [], "undecided": []}
        for cell in study.cells:
            between = None if cell.name == ours else _better_by(study, values[ours], values[cell.name])
            if between is not None and between.count >= study.seeds:
                if _is_void(study, cell, values[cell.name]):
                    verdicts["undecided"].append(f"{cell.label} (void)")
                else:
                    verdicts[between.verdict].append(cell.label)
        listed = ["; ".join(labels) for labels in verdicts.values()]
        above = ", ".join(_published_above(study, values[ours])) if len(values[ours]) >= study.seeds else ""
        rows.append([study.title, _describe(study, values[ours]), known, above, added, *listed])
    headings = [
        "",
        "ours, %",
        "published, %",
        "published means above ours",
        "mask adds, points",
        "better than",
        "worse than",
        "undecided",
    ]
    return Table(headings, rows)
