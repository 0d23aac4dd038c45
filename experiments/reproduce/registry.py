"""Studies by name."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from experiments.reproduce import computed, dynamics, graph_tables, images, node_tables
from experiments.reproduce.computed import Computation
from experiments.reproduce.pictures import draw_study
from experiments.reproduce.results import ResultFile, RunResult
from experiments.reproduce.study import Study, run_study
from experiments.reproduce.summary import count_targets, overview, pool, summarize
from topomask.data import MOTIFS, NODE_SETS
from topomask.pictures.pages import Section
from topomask.support.checks import look_up
from topomask.train.run_folder import versions

_GRAPHS = {f"gkat-{name.lower()}": partial(graph_tables.gkat, name) for name in graph_tables.BIO + graph_tables.SOCIAL}
_MOTIFS = {f"motif-{name}": partial(graph_tables.motif, name) for name in MOTIFS}
_NODES = {f"nodes-{name}": partial(node_tables.nodes, name) for name in NODE_SETS}

STUDIES: dict[str, Callable[[], Study] | Callable[[], Computation]] = {
    "digits": images.digits,
    "fig3": computed.fig3,
    "table1": images.table1,
    "table1-tiny-imagenet": images.tiny_imagenet,
    "table3": images.table3,
    "fig6": images.fig6,
    "table4": dynamics.table4,
    "interlacer": dynamics.interlacer,
    "theory": computed.theorems,
    **_GRAPHS,
    **_MOTIFS,
    **_NODES,
}
# Groups of studies.
GROUPS: dict[str, tuple[str, ...]] = {
    "gkat-bio": tuple(f"gkat-{name.lower()}" for name in graph_tables.BIO),
    "gkat-social": tuple(f"gkat-{name.lower()}" for name in graph_tables.SOCIAL),
    "motifs": tuple(_MOTIFS),
    "nodes": tuple(_NODES),
}
_GLANCE = (
    "Our row is graph random features. What the mask adds is the difference to the same without a mask. Rows that ours "
    "is better or worse than: the 95 % interval of the difference lies on one side of 0; only complete rows are "
    "compared.",
)
_POOLED = "Below are means over the tables of a group, once all are complete and have the same rows and metric."
# What is missing from a group.
_LACKING = {
    "gkat-social": "REDDIT-MULTI-5K (REDDIT-5K), a row of GKAT's table, is not available here: it has no table."
}


def catalogue() -> list[tuple[str, str]]:
    """Names and one-line descriptions of studies and groups."""
    lines = [(name, _line(make)) for name, make in STUDIES.items()]
    return lines + [(name, ", ".join(parts)) for name, parts in GROUPS.items()]


def _line(make: Callable[[], Study] | Callable[[], Computation]) -> str:
    """Describe a study; tables on many data sets share one function, so their titles say more than its docstring."""
    if isinstance(make, partial):
        return str(make().title)
    return (inspect.getdoc(make) or "").partition("\n")[0]


def studies_of(name: str) -> tuple[str, ...]:
    """The studies of a group, or the single study of this name."""
    look_up(dict.fromkeys((*GROUPS, *STUDIES)), "study", name)
    return GROUPS.get(name, (name,))


def compare(title: str, groups: Sequence[str], results: Path, overrides: Sequence[str] = ()) -> Section | None:
    """Summarise the tables of groups; None if the names are those of single studies.

    Args:
        title: A title.
        groups: Names of the groups.
        results: Folder of the results of all studies.
        overrides: Changed fields of all experiments.
    """
    grouped: dict[str, list[Study]] = {}
    for group in groups:
        made = [STUDIES[part]() for part in GROUPS.get(group, ())]
        grouped[group] = [each.changed(overrides) for each in made if isinstance(each, Study)]
    tables = [table for own in grouped.values() for table in own]
    if not tables:
        return None
    glance = overview(tables, results, ours="grf")
    pooled = [f"{group}: {note}" for group, own in grouped.items() if own for note in pool(own, results, ours="grf")]
    notes = count_targets(tables, results) + pooled + [_LACKING[group] for group in groups if group in _LACKING]
    about = (*_GLANCE, _POOLED) if pooled else _GLANCE
    return Section(title, about if glance.rows else (), glance if glance.rows else None, notes)


def reproduce(
    name: str,
    results: Path,
    runs: Path | None,
    *,
    overrides: Sequence[str] = (),
    seeds: Sequence[int] | None = None,
    only: Sequence[str] = (),
    show: bool = False,
) -> Section:
    """Run what has no result yet, and return the table.

    Args:
        name: Name of the study.
        results: Folder of the results of all studies.
        runs: Folder of the runs of all studies, with their checkpoints, for training curves; None shows the results
            without curves.
        overrides: Fields of all experiments to change, such as ``--train.epochs 1``.
        seeds: Seeds to run. Default: those of the study, from 0.
        only: Names of the rows to run. Default: all.
        show: Only show existing results.
    """
    study = look_up(STUDIES, "study", name)()
    if isinstance(study, Computation):
        if overrides or only or seeds is not None:
            raise ValueError(
                f"{name} is computed without training, so it takes no fields, rows or seeds. Leave them out."
            )
        return _compute(name, study, results, show)
    study = study.changed(overrides)
    study.pick(only)
    own_runs = None if runs is None else runs / study.folder
    if not show:
        if own_runs is None:
            raise ValueError("`runs` is None, but runs need a folder. Pass one, or show=True.")
        chosen = range(study.seeds) if seeds is None else seeds
        run_study(study, chosen, results, own_runs, only=only)
    section = summarize(study, results)
    return draw_study(study, section, results, own_runs)


def _compute(name: str, computation: Computation, results: Path, show: bool) -> Section:
    kept = ResultFile(results, name)
    found = kept.find(name, 0, computation.config)
    if found is None:
        if show:
            raise FileNotFoundError(f"{kept.path} has no result yet. Leave out --show to compute it.")
        start = time.perf_counter()
        metrics = computation.compute()
        seconds = round(time.perf_counter() - start, 1)
        found = RunResult(name, 0, metrics, seconds, computation.config, versions())
        kept.add(found)
        return computation.present(found.metrics)
    try:
        return computation.present(found.metrics)
    except (LookupError, TypeError, ValueError) as error:
        raise ValueError(
            f"The result of {name} in {kept.path} is damaged ({type(error).__name__}: {error}). Delete its line to "
            "compute it again."
        ) from None
