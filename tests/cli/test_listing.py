import pytest

from experiments.reproduce.registry import GROUPS, STUDIES
from helpers.refusals import refused
from topomask.cli import main
from topomask.cli.listing import KINDS
from topomask.data import ENTRIES, MOTIFS, NODE_SETS, TU_SETS
from topomask.masks.registry import ON_GRAPHS
from topomask.models.attention_variants import VARIANTS
from topomask.pictures.named_graphs import BUILDERS
from topomask.recipes.registry import RECIPES

DATA = (*ENTRIES, *TU_SETS, *MOTIFS, *NODE_SETS)
ALL = dict(zip(KINDS, (RECIPES, VARIANTS, DATA, ON_GRAPHS, BUILDERS, (*STUDIES, *GROUPS)), strict=True))


def listed(capsys, *arguments):
    main(["list", *arguments])
    kinds = {}
    for block in capsys.readouterr().out.strip().split("\n\n"):
        heading, *lines = block.splitlines()
        kinds[heading.removesuffix(":")] = [line.split(maxsplit=1) for line in lines]
    return kinds


def test_everything_is_listed_with_what_it_is(capsys):
    found = listed(capsys)
    assert list(found) == list(KINDS)
    assert listed(capsys, "all") == found
    for kind, names in ALL.items():
        # The name of a graph is followed by an example of its sizes.
        assert [line[0].partition(":")[0] for line in found[kind]] == list(names), kind
        assert all(len(line) == 2 for line in found[kind]), kind


@pytest.mark.parametrize("kind", KINDS)
def test_one_kind_is_listed_alone(capsys, kind):
    assert list(listed(capsys, kind)) == [kind]


def test_an_unknown_kind_is_refused():
    assert "Expected one of ('recipes', 'attention', " in refused("list", "models", status=2)
