"""``topomask mask``: draw a mask on a graph."""

from __future__ import annotations

import argparse
from pathlib import Path

from topomask.cli import plain_failures
from topomask.masks.registry import ON_GRAPHS
from topomask.pictures.named_masks import parse_settings

_GRAPHS = "grid:16x16, path:64, cycle:32, hypercube:6, knn:200:4, tree:100, ba:100:2"
_FILES = "edge list (.txt, .csv, .tsv, .edges), .npz, .mtx, .gml, .graphml or mesh (.obj)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the verb takes."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = "Draw a mask: rows on the graph, all entries, spectrum."
    listed = "\n".join(f"  {name:20s} {entry.about}, {entry.product}" for name, entry in sorted(ON_GRAPHS.items()))
    parser.epilog = (
        f"masks:\n{listed}\n\nexample:\n"
        "  topomask mask walk --graph grid:16x16 --node 120 --set num_walks=50 --output mask.png"
    )
    parser.add_argument("name", metavar="mask", help="which mask, see below")
    parser.add_argument("--graph", required=True, help=f"{_GRAPHS}; or a file: {_FILES}")
    parser.add_argument("--directed", action="store_true", help="edges of the file have a direction")
    parser.add_argument("--output", type=Path, default=Path("mask.png"), help=".png, .svg, .pdf, or a report .html")
    parser.add_argument("--node", type=int, action="append", default=[], help="show its row; may be repeated")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="an option of the mask")
    parser.add_argument(
        "--show", action="append", default=[], choices=("rows", "heat", "spectrum"), help="default: all"
    )
    parser.add_argument("--head", type=int, default=0, help="which head to show")
    parser.add_argument("--seed", type=int, default=0, help="of random graphs, walks and layout")


@plain_failures
def run(options: argparse.Namespace) -> None:
    """Draw what was asked for, and print what is known of the mask."""
    settings = parse_settings(options.set)
    try:
        from topomask.pictures.mask_pictures import draw_mask
    except ModuleNotFoundError as error:
        message = f"Pictures need {error.name}. Install it with: pip install 'topomask[plot]'"
        raise ModuleNotFoundError(message, name=error.name) from None
    facts = draw_mask(
        options.name,
        options.graph,
        options.output,
        nodes=options.node,
        settings=settings,
        show=options.show,
        head=options.head,
        seed=options.seed,
        directed=options.directed,
    )
    facts.append(("written", str(options.output)))
    width = max(len(name) for name, _ in facts)
    for name, value in facts:
        print(f"{name:{width}s}  {value}")
