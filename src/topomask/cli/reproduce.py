"""``topomask reproduce``: tables and figures of the papers, at a scale for two cores."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from tyro.conf import Positional, Suppress

from topomask.cli import parse
from topomask.cli.checkout import import_from_checkout
from topomask.support.checks import nearest
from topomask.support.config import UsageError, names_set

GO_ON = "Saved results are intact; run the same command again to continue."

_RESULTS, _RUNS = Path("results"), Path("runs")


def command(arguments: Sequence[str]) -> Callable[[], None]:
    """Parse the options; all other arguments set fields."""
    bound, fields = parse(run, arguments, "topomask reproduce", return_unknown_args=True)
    options = [f"--{name}" for name in inspect.signature(run).parameters]
    for word in fields:
        close = nearest(word, options, cutoff=0.7) if word.startswith("--") and "." not in word else None
        if close is not None:
            raise UsageError(f"There is no option {word}. Did you mean {close}? Run topomask reproduce --help.")
    return partial(bound, fields=fields)


def run(
    study: Positional[str],
    *,
    seeds: str | None = None,
    only: str | None = None,
    show: bool = False,
    results: Path = _RESULTS,
    runs: Path = _RUNS,
    report: Path | None = None,
    data: Path | None = None,
    threads: int | None = None,
    fields: Suppress[Sequence[str]] = (),
) -> None:
    """Reproduce a table or figure, and print the paper's values next to ours. Needs a checkout.

    Runs what has no result yet, and continues interrupted runs. Fields of all runs can be set as for topomask train
    (--train.epochs 5); this needs --results and --runs.

    Args:
        study: digits, fig3, table1, table1-tiny-imagenet, table3, fig6, table4, interlacer, theory, gkat-bio,
            gkat-social, motifs, nodes, or one of the tables of the last four: see topomask list studies.
        seeds: Seeds to run, as in 0,1,2. Default: those of the study.
        only: Rows to run, separated by commas. Default: all.
        show: Only show existing results.
        results: Folder for results, one file per study.
        runs: Folder for checkpoints and metrics.
        report: Also write an HTML page to this file.
        data: Folder of data sets. Default: $TOPOMASK_DATA.
        threads: Number of threads. Default: the number of cores.
        fields: Arguments that set fields.
    """
    from topomask.train.config import FREE_FIELDS

    if not FREE_FIELDS.issuperset(names_set(fields)) and (results == _RESULTS or runs == _RUNS):
        raise ValueError("Runs with changed fields need folders of their own. Pass --results and --runs too.")
    if show and (only or seeds):
        raise ValueError("--show shows all existing results. Leave out --only and --seeds.")
    if threads is not None and threads < 1:
        raise ValueError(f"`--threads` must be at least 1, but is {threads}.")
    if data is not None:
        os.environ["TOPOMASK_DATA"] = str(data.resolve())
    studies = import_from_checkout("experiments.reproduce.registry")
    import torch

    from topomask.pictures.pages import to_html, to_text
    from topomask.support.files import write_content

    if threads is not None:
        torch.set_num_threads(threads)
    sections = []
    for name in studies.studies_of(study):
        section = studies.reproduce(
            name,
            results,
            runs,
            overrides=fields,
            seeds=None if seeds is None else _seeds(seeds),
            only=[] if only is None else only.split(","),
            show=show,
        )
        print(to_text(section))
        sections.append(section)
    together = studies.compare("All of these tables", [study], results, fields)
    if together is not None:
        print(to_text(together))
        sections.append(together)
    if report is not None:
        page = to_html(sections[0].title if len(sections) == 1 else study, sections)
        write_content(report, page.encode())
        print(f"written: {report}")


def _seeds(text: str) -> list[int]:
    try:
        return [int(seed) for seed in text.split(",")]
    except ValueError:
        raise ValueError(f"`--seeds` must be integers separated by commas, as in 0,1,2, but is {text!r}.") from None
