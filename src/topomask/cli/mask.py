"""``topomask mask``: draw a mask on a graph."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from tyro.conf import Positional, UseAppendAction

from topomask.pictures.named_masks import parse_settings


def run(
    mask: Positional[str],
    *,
    graph: str,
    directed: bool = False,
    output: Path = Path("mask.png"),
    node: UseAppendAction[tuple[int, ...]] = (),
    set: UseAppendAction[tuple[str, ...]] = (),
    show: UseAppendAction[tuple[Literal["rows", "heat", "spectrum"], ...]] = (),
    head: int = 0,
    seed: int = 0,
) -> None:
    """Draw a mask: rows on the graph, all entries, spectrum. topomask list masks has them all.

    For example: topomask mask walk --graph grid:16x16 --node 120 --set num_walks=50 --output mask.png

    Args:
        mask: Which mask.
        graph: grid:16x16, path:64, cycle:32, hypercube:6, knn:200:4, tree:100, ba:100:2; or a file: edge list (.txt,
            .csv, .tsv, .edges), .npz, .mtx, .gml, .graphml or mesh (.obj).
        directed: Edges of the file have a direction.
        output: A .png, .svg, .pdf, or a report .html.
        node: Show the row of this node.
        set: An option of the mask, as NAME=VALUE.
        show: What to draw; by default all.
        head: Which head to show.
        seed: Seed of random graphs, walks and layout.
    """
    settings = parse_settings(list(set))
    try:
        from topomask.pictures.mask_pictures import draw_mask
    except ModuleNotFoundError as error:
        message = f"Pictures need {error.name}. Install it with: pip install 'topomask[plot]'"
        raise ModuleNotFoundError(message, name=error.name) from None
    facts = draw_mask(
        mask,
        graph,
        output,
        nodes=list(node),
        settings=settings,
        show=list(show),
        head=head,
        seed=seed,
        directed=directed,
    )
    facts.append(("written", str(output)))
    width = max(len(name) for name, _ in facts)
    for name, value in facts:
        print(f"{name:{width}s}  {value}")
