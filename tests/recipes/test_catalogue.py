import pytest

from topomask.cli.listing import KINDS
from topomask.pictures.named_graphs import load_graph
from topomask.recipes.catalogue import catalogue


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "studies"])
def test_every_name_has_a_line(kind):
    lines = list(catalogue(kind))
    assert len({name for name, _ in lines}) == len(lines) > 3
    assert all(about and "\n" not in about for _, about in lines)


def test_the_examples_of_graphs_can_be_used():
    for name, _ in catalogue("graphs"):
        assert load_graph(name).graph.num_nodes > 1
