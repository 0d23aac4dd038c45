"""Write the page of all results, ``docs/internal/results.md``, from ``results/``; run from a checkout."""

from __future__ import annotations

from pathlib import Path

from experiments.reproduce.registry import GROUPS, STUDIES, compare, reproduce
from experiments.reproduce.results import ResultFile
from experiments.reproduce.study import Study, collect
from topomask.pictures.pages import Section, to_markdown
from topomask.support.files import write_content

_HEAD = """# All results

What the papers claim, and what came out here; [../results.md](../results.md) has the overview. Each table is made by
`topomask reproduce NAME` from single runs in [../../results](../../results), which record config, seed, versions and
duration. This page is made from them by `python -m experiments.reproduce.page`.

Everything is scaled to two cores, so the numbers are not the paper's; the question is whether its ordering appears. A
claim "holds" if the 95 % interval of the difference, paired by seed (Student's t), lies above 0, "does not hold" if it
lies below, and is "undecided" otherwise; it is "open" while seeds are missing. Intervals are not corrected for multiple
comparisons: one in twenty is expected to miss. The brackets after each mean say what was repeated:

{repeats}

Accuracies are those of the last step, and nothing was chosen by them; where weights were chosen on validation examples,
the table says so.

Seconds are those of one thread on a busy machine, pauses included, and do not measure speed: see [speed.md](speed.md).
"""
# What the runs of a table are repeated over, and so what its intervals are over.
_REPEATS = {
    "seeds": "weights and order of training on one and the same test set, whose choice they do not cover.",
    "folds": "parts of a set, each tested on once, with weights of their own. Training sets overlap, so the variance "
    "is the corrected one of Nadeau and Bengio (2003), with 1/n + n_test/n_train in place of 1/n.",
    "splits": "published splits of the nodes of one graph, with weights of their own. These overlap, too, and the "
    "variance is corrected likewise.",
    "draws": "generated sets for training and test, with weights of their own.",
}


def write_page(results: Path, docs: Path) -> None:
    """Write the page and its pictures from results only; a checkout does not contain the runs.

    Args:
        results: Folder of the results.
        docs: Folder of the docs.
    """
    parts: list[str] = []
    tables: dict[str, Study] = {}
    for name, make in STUDIES.items():
        study = make()
        if isinstance(study, Study):
            begun = any(collect(study, results).values())
        else:
            begun = ResultFile(results, name).find(name, 0, study.config) is not None
        if begun and isinstance(study, Study):
            tables[name] = study
        if begun:
            parts.append(_to_part(name, reproduce(name, results, None, show=True), docs))
    begun_groups = any(name in group for group in GROUPS.values() for name in tables)
    together = compare("All tables on graphs", list(GROUPS), results) if begun_groups else None
    if together is not None:
        parts.append(to_markdown(together))
    kinds = {study.repeats for study in tables.values()}
    listed = "\n".join(f"- {kind}: {text}" for kind, text in _REPEATS.items() if kind in kinds)
    text = "\n".join([_HEAD.format(repeats=listed), *parts])
    write_content(docs / "internal" / "results.md", text.encode())


def _to_part(name: str, section: Section, docs: Path) -> str:
    text = to_markdown(section) + f"\n`topomask reproduce {name}`\n"
    for number, picture in enumerate(section.pictures):
        path = docs / "figures" / "results" / f"{name}-{number}.png"
        write_content(path, picture.png)
        text += f"\n![{picture.about}](../{path.relative_to(docs)})\n"
    return text


if __name__ == "__main__":
    write_page(Path("results"), Path("docs"))
