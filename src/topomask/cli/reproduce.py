"""``topomask reproduce``: the tables and figures of the papers, at a scale that two cores can bear."""

from __future__ import annotations

import argparse
import os
from functools import partial
from pathlib import Path

from topomask.cli import plain_failures
from topomask.cli.checkout import import_from_checkout

_RESULTS, _RUNS = Path("results"), Path("runs")
# Fields that do not change the numbers.
_FREE = ("data.download", "data.root")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the verb takes."""
    parser.description = (
        "Reproduce a table or figure: what has no result yet is run, what was stopped goes on, and the paper's values "
        "are printed beside ours. Needs a checkout."
    )
    parser.add_argument(
        "study",
        help="digits, fig3, table1, table1-tiny-imagenet, table3, fig6, table4, interlacer, theory, gkat-bio, "
        "gkat-social, motifs, nodes, or one of the tables of the last four: see topomask list studies",
    )
    parser.add_argument(
        "overrides", nargs="*", metavar="field=value", help="fields to change; needs --results and --runs"
    )
    parser.add_argument("--seeds", metavar="0,1,...", help="which seeds to run; default: those that the study asks for")
    parser.add_argument("--only", metavar="NAME,...", help="which rows to run; default: all")
    parser.add_argument("--show", action="store_true", help="run nothing, and show what there is")
    parser.add_argument("--results", type=Path, default=_RESULTS, help="folder of the results, one JSON per run")
    parser.add_argument("--runs", type=Path, default=_RUNS, help="folder of checkpoints and metrics")
    parser.add_argument("--report", type=Path, help="write an HTML page, too")
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder of data sets; default: $TOPOMASK_DATA")
    parser.add_argument("--threads", type=int, help="threads to use; default: as many as there are cores")


@partial(plain_failures, go_on="What was saved is whole; the same command goes on where it was.")
def run(options: argparse.Namespace) -> None:
    """Run what is missing, and print the table."""
    free = [override for override in options.overrides if override.partition("=")[0].strip() in _FREE]
    if len(free) < len(options.overrides) and (options.results == _RESULTS or options.runs == _RUNS):
        raise ValueError("With fields of your own, pass folders of your own, too: --results and --runs.")
    if options.show and (options.only or options.seeds):
        raise ValueError("--show shows all that there is. Leave out --only and --seeds.")
    if options.threads is not None and options.threads < 1:
        raise ValueError(f"`--threads` must be at least 1, but is {options.threads}.")
    if options.data is not None:
        os.environ["TOPOMASK_DATA"] = str(options.data.resolve())
    studies = import_from_checkout("experiments.reproduce.registry")
    import torch

    from topomask.pictures.pages import to_html, to_text
    from topomask.pictures.plots import write_content

    if options.threads is not None:
        torch.set_num_threads(options.threads)
    sections = []
    for name in studies.studies_of(options.study):
        section = studies.reproduce(
            name,
            options.results,
            options.runs,
            overrides=options.overrides,
            seeds=None if options.seeds is None else _seeds(options.seeds),
            only=[] if options.only is None else options.only.split(","),
            show=options.show,
        )
        print(to_text(section))
        sections.append(section)
    together = studies.compare("All of these tables", [options.study], options.results, options.overrides)
    if together is not None:
        print(to_text(together))
        sections.append(together)
    if options.report is not None:
        page = to_html(sections[0].title if len(sections) == 1 else options.study, sections)
        write_content(options.report, page.encode())
        print(f"written: {options.report}")


def _seeds(text: str) -> list[int]:
    try:
        return [int(seed) for seed in text.split(",")]
    except ValueError:
        raise ValueError(
            f"`--seeds` must be whole numbers with commas between them, as in 0,1,2, but is {text!r}."
        ) from None
