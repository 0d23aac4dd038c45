import json

import pytest

from topomask.config import from_dict, to_dict
from topomask.recipes.reproduce.computed import Computation
from topomask.recipes.reproduce.registry import STUDIES, reproduce
from topomask.recipes.reproduce.study import NOT_AVAILABLE, Study

TABLES = [name for name, make in STUDIES.items() if isinstance(make(), Study)]


def test_everything_that_was_promised_is_there():
    assert {"digits", "fig3", "table1", "table3", "fig6", "table4", "interlacer", "theory"} <= STUDIES.keys()
    assert all(isinstance(STUDIES[name](), Computation) for name in STUDIES if name not in TABLES)


@pytest.mark.parametrize("name", TABLES)
def test_every_table_is_whole(name):
    study = STUDIES[name]()
    names = [cell.name for cell in study.cells]
    assert len(set(names)) == len(names)
    assert study.baseline in names
    assert all({claim.better, claim.worse} <= set(names) for claim in study.claims)
    assert study.claims
    for cell in study.cells:
        # A value of the paper, or nothing: none is made up.
        assert cell.paper == NOT_AVAILABLE or 0 < float(cell.paper) < 1
        record = json.loads(json.dumps(to_dict(cell.experiment)))
        assert from_dict(type(cell.experiment), record) == cell.experiment


@pytest.mark.parametrize("name", TABLES)
def test_all_rows_have_the_same_budget(name):
    study = STUDIES[name]()
    first = study.cells[0].experiment
    for cell in study.cells:
        assert cell.experiment.train == first.train
        assert cell.experiment.data == first.data
        for part in ("dim", "depth", "num_heads", "mlp_ratio"):
            assert getattr(cell.experiment.model, part) == getattr(first.model, part)


def test_rows_of_the_same_name_in_one_folder_are_the_same_run():
    known = {}
    for name in TABLES:
        study = STUDIES[name]()
        for cell in study.cells:
            assert known.setdefault((study.folder, cell.name), cell.experiment) == cell.experiment, (name, cell.name)


def test_the_values_of_the_paper():
    papers = {
        name: {cell.name: cell.paper for cell in STUDIES[name]().cells} for name in ("table1", "table3", "table4")
    }
    assert papers["table1"] == {
        "softmax": "0.741",
        "toeplitz": "0.733",
        "exact": "0.741",
        "linear": "0.693",
        "grf-paper": "0.730",
        "grf": NOT_AVAILABLE,
        "grf-softmax": NOT_AVAILABLE,
    }
    assert list(papers["table3"].values()) == ["0.730", "0.693", "0.689", "0.696"]
    assert papers["table4"] == {"softmax": "0.754", "grf-softmax": "0.758"}


def test_rows_whose_walks_are_not_the_paper_s_say_so():
    assert [cell.label for cell in STUDIES["table4"]().cells] == ["softmax", "softmax + GRFs, our walks"]


def test_the_settings_that_were_asked_for():
    for cell in STUDIES["table3"]().cells:
        if cell.name.endswith("-100"):
            options = cell.experiment.model.attention_options
            assert (options.num_walks, options.halt_prob) == (100, 0.5)
    walks = [cell.experiment.model.attention_options for cell in STUDIES["fig6"]().cells]
    assert [(each.num_walks, each.halt_prob) for each in walks] == [(1, 0.5), (10, 0.5), (100, 0.5), (1000, 0.5)]
    table1, interlacer = STUDIES["table1"](), STUDIES["interlacer"]()
    assert (table1.cells[0].experiment.data.limit, table1.cells[0].experiment.train.epochs, table1.seeds) == (
        12_000,
        10,
        3,
    )
    assert [cell.experiment.model.neighbors for cell in interlacer.cells] == ["none", "messages", "grf"]
    assert (interlacer.metric, interlacer.higher_is_better, interlacer.seeds) == ("error_6", False, 3)
    assert interlacer.cells[0].experiment.data.num_particles == 4096


def test_an_unknown_study_gets_the_nearest(tmp_path):
    with pytest.raises(ValueError, match=r"no study 'table2'. Did you mean table"):
        reproduce("table2", tmp_path, tmp_path)
