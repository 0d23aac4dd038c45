"""``topomask mask``: draw a mask on a graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from tyro.conf import Positional, UseAppendAction

from topomask.pictures.named_masks import parse_settings
from topomask.support.imports import need


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
    """Draw a mask: rows on the graph, all entries, and the spectrum. See topomask list masks.

    For example: topomask mask walk --graph grid:16x16 --node 120 --set num_walks=50 --output mask.png

    Args:
        mask: Name of the mask.
        graph: grid:16x16, path:64, cycle:32, hypercube:6, knn:200:4, tree:100, ba:100:2; or a file: edge list (.txt,
            .csv, .tsv, .edges), .npz, .mtx, .gml, .graphml or mesh (.obj).
        directed: Whether the edges in the file are directed.
        output: File to write: .png, .svg or .pdf, or .html for a report.
        node: Show the row of this node.
        set: An option of the mask, as NAME=VALUE.
        show: What to draw. Default: everything.
        head: Head to show.
        seed: Seed of random graphs, walks and layout.
    """
    settings = parse_settings(list(set))
    need("matplotlib", "A picture of a mask")
    from topomask.pictures.mask_pictures import draw_mask

    how: dict[str, Any] = {"nodes": list(node), "show": list(show), "head": head, "seed": seed, "directed": directed}
    facts = draw_mask(mask, graph, output, settings=settings, **how)
    facts.append(("written", str(output)))
    width = max(len(name) for name, _ in facts)
    for name, value in facts:
        print(f"{name:{width}s}  {value}")
