"""``topomask reproduce``: the tables and figures of the papers, at a scale that two cores can bear."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from tyro.conf import Positional, Suppress

from topomask.cli import parse
from topomask.cli.checkout import import_from_checkout
from topomask.support.config import UsageError, names_set
from topomask.support.near_names import nearest

GO_ON = "What was saved is whole; the same command goes on where it was."

_RESULTS, _RUNS = Path("results"), Path("runs")


def command(arguments: Sequence[str]) -> Callable[[], None]:
    """Reproduce a study; what is not one of the options sets fields."""
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
    """Reproduce a table or figure, and print the paper's values beside ours. Needs a checkout.

    What has no result yet is run, and what was stopped goes on. Fields of all its runs may be set too, as those of
    topomask train are (--train.epochs 5); this needs --results and --runs.

    Args:
        study: digits, fig3, table1, table1-tiny-imagenet, table3, fig6, table4, interlacer, theory, gkat-bio,
            gkat-social, motifs, nodes, or one of the tables of the last four: see topomask list studies.
        seeds: Which seeds to run, as in 0,1,2; None is those that the study asks for.
        only: Which rows to run, with commas between them; None is all.
        show: Run nothing, and show what there is.
        results: Folder of the results, one file per study.
        runs: Folder of checkpoints and metrics.
        report: Write an HTML page to this file, too.
        data: Folder of data sets; None is $TOPOMASK_DATA.
        threads: Threads to use; None is as many as there are cores.
        fields: Words of the command line that set fields.
    """
    from topomask.train.config import FREE_FIELDS

    if not FREE_FIELDS.issuperset(names_set(fields)) and (results == _RESULTS or runs == _RUNS):
        raise ValueError("With fields of your own, pass folders of your own, too: --results and --runs.")
    if show and (only or seeds):
        raise ValueError("--show shows all that there is. Leave out --only and --seeds.")
    if threads is not None and threads < 1:
        raise ValueError(f"`--threads` must be at least 1, but is {threads}.")
    if data is not None:
        os.environ["TOPOMASK_DATA"] = str(data.resolve())
    studies = import_from_checkout("experiments.reproduce.registry")
    import torch

    from topomask.pictures.pages import to_html, to_text
    from topomask.pictures.plots import write_content

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
        raise ValueError(
            f"`--seeds` must be whole numbers with commas between them, as in 0,1,2, but is {text!r}."
        ) from None
