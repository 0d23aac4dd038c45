import json
from dataclasses import replace
from pathlib import Path

import pytest

from topomask.recipes.images import digits
from topomask.recipes.pages import to_text
from topomask.recipes.reproduce.registry import STUDIES
from topomask.recipes.reproduce.results import ResultFolder, RunResult
from topomask.recipes.reproduce.study import (
    NOT_AVAILABLE,
    collect,
    count_targets,
    numbers_config,
    run_study,
    summarize,
    variant,
)
from topomask.recipes.reproduce.targets import Target
from topomask.train import FolderInUse, TrainConfig
from toy_study import STUDY, Data, Toy


def runs_of(folder):
    return sorted(path.parent.name for path in folder.glob("*/runs") for _ in path.read_text())


def run(tmp_path, study=STUDY, seeds=(0, 1, 2), **options):
    said = []
    run_study(study, seeds, tmp_path / "results", tmp_path / "runs", say=said.append, **options)
    return said


def test_only_what_has_no_result_is_run(tmp_path):
    assert run(tmp_path, only=["grf"], seeds=[1]) == ["[1/1] masked (grf), seed 1"]
    said = run(tmp_path)
    # Seed by seed, so that a table is useful early.
    assert said == [
        "[1/9] unmasked (linear), seed 0",
        "[2/9] masked (grf), seed 0",
        "[3/9] masked more (grf-100), seed 0",
        "[4/9] unmasked (linear), seed 1",
        "[6/9] masked more (grf-100), seed 1",
        "[7/9] unmasked (linear), seed 2",
        "[8/9] masked (grf), seed 2",
        "[9/9] masked more (grf-100), seed 2",
    ]
    assert run(tmp_path) == []
    assert runs_of(tmp_path / "runs") == sorted(f"{cell.name}-{seed}" for cell in STUDY.cells for seed in (0, 1, 2))


def test_a_study_that_was_stopped_goes_on(tmp_path):
    (tmp_path / "runs").mkdir()
    run(tmp_path, only=["linear"])
    (tmp_path / "runs" / "stop").touch()
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path)
    (tmp_path / "runs" / "stop").unlink()
    assert len(run(tmp_path)) == 6
    assert runs_of(tmp_path / "runs") == sorted(f"{cell.name}-{seed}" for cell in STUDY.cells for seed in (0, 1, 2))


def test_what_another_process_is_at_is_left_to_it(tmp_path, monkeypatch):
    free = Toy.run

    def run_free(self, folder, *, resume):
        if folder.name == "grf-0":
            raise FolderInUse("wait")
        return free(self, folder, resume=resume)

    monkeypatch.setattr(Toy, "run", run_free)
    said = run(tmp_path, seeds=[0])
    assert said[1].startswith("[2/3] masked")
    assert said[2] == "Another process is at it; going on with the next."
    assert said[3].startswith("[3/3] masked more")
    assert {path.name for path in (tmp_path / "results").iterdir()} == {"linear-0.json", "grf-100-0.json"}


def test_a_result_is_kept_with_all_it_depends_on(tmp_path):
    run(tmp_path, seeds=[1], only=["grf"])
    found = json.loads((tmp_path / "results" / "grf-1.json").read_text())
    assert (found["cell"], found["seed"], found["seconds"]) == ("grf", 1, 3.0)
    assert found["metrics"] == {"accuracy": pytest.approx(0.751), "loss": 1.0, "val_accuracy": 0.25}
    assert (found["config"]["level"], found["config"]["train"]["seed"]) == (0.75, 1)
    assert {"topomask", "torch", "numpy", "python", "threads"} <= found["versions"].keys()


def test_a_result_of_another_config_does_not_count(tmp_path):
    run(tmp_path)
    other = replace(STUDY, cells=[STUDY.cells[0], replace(STUDY.cells[1], experiment=Toy(0.8)), STUDY.cells[2]])
    assert collect(other, tmp_path / "results")["grf"] == {}
    table = summarize(other, tmp_path / "results").table
    assert table.rows[1] == ["masked", "0.730", "not run", "", ""]
    assert len(run(tmp_path, other)) == 3
    assert collect(other, tmp_path / "results")["grf"] == pytest.approx({0: 0.8, 1: 0.801, 2: 0.804})


def test_what_is_shown_and_where_data_lives_does_not_count(tmp_path):
    run(tmp_path)
    shown = TrainConfig(progress=False, tensorboard=True, keep=9, checkpoint_every=3, device="cpu")
    moved = [
        replace(cell, experiment=replace(cell.experiment, train=shown, data=Data(root="x"))) for cell in STUDY.cells
    ]
    assert run(tmp_path, replace(STUDY, cells=moved)) == []
    assert numbers_config(Toy(0.5)) != numbers_config(replace(Toy(0.5), train=TrainConfig(epochs=3)))


def test_the_table_has_the_papers_values_ours_and_what_holds(tmp_path):
    run(tmp_path)
    section = summarize(STUDY, tmp_path / "results")
    assert section.title == STUDY.title
    assert section.table.headings[1:] == [
        "the paper, its data",
        "ours, % (higher is better)",
        "minus unmasked, points",
        "seconds",
    ]
    assert section.table.rows == [
        ["unmasked", "0.693", "50.17 ± 0.21 (3 seeds)", "", "3"],
        ["masked", "0.730", "75.17 ± 0.21 (3 seeds)", "+25.00 [+25.00, +25.00]", "3"],
        ["masked more", NOT_AVAILABLE, "25.17 ± 0.21 (3 seeds)", "-25.00 [-25.00, -25.00]", "3"],
    ]
    assert section.notes == [
        "masked better than unmasked (the paper: +3.7 points): holds here, by +25.00 [+25.00, +25.00] points, paired "
        "over 3 seeds.",
        "masked more better than unmasked (the paper: more is better): does not hold here, by -25.00 [-25.00, -25.00] "
        "points, paired over 3 seeds.",
    ]
    assert "0.730" in to_text(section)


def test_where_less_is_better_the_signs_turn(tmp_path):
    study = replace(STUDY, higher_is_better=False, scale=1000.0, unit="mm", gap_unit="mm")
    run(tmp_path)
    section = summarize(study, tmp_path / "results")
    assert section.table.headings[2] == "ours, mm (lower is better)"
    assert section.table.rows[1][3].startswith("+250.00")
    assert "does not hold here, by -250.00 [-250.00, -250.00] mm" in section.notes[0]
    assert "holds here, by +250.00" in section.notes[1]


def test_what_is_not_whole_is_said(tmp_path):
    assert summarize(STUDY, tmp_path / "results").notes == [
        "masked better than unmasked (the paper: +3.7 points): not run.",
        "masked more better than unmasked (the paper: more is better): not run.",
        "Not whole yet: unmasked: 0 of 3 seeds; masked: 0 of 3 seeds; masked more: 0 of 3 seeds.",
    ]
    run(tmp_path, seeds=[0], only=["linear", "grf"])
    section = summarize(STUDY, tmp_path / "results")
    assert section.table.rows[1] == ["masked", "0.730", "75.00 (1 seed)", "+25.00", "2"]
    assert section.notes[0].endswith("open here, by +25.00 points, paired over 1 seed.")
    assert section.notes[2] == "Not whole yet: unmasked: 1 of 3 seeds; masked: 1 of 3 seeds; masked more: 0 of 3 seeds."


def test_seconds_are_those_of_runs_that_count(tmp_path):
    run(tmp_path, seeds=[0])
    ResultFolder(tmp_path / "results").add(RunResult("grf", 5, {"accuracy": 0.0}, 9999.0, {"old": True}, {}))
    assert summarize(STUDY, tmp_path / "results").table.rows[1][4] == "2"


def test_a_damaged_result_stops_the_study_with_its_name(tmp_path):
    run(tmp_path)
    (tmp_path / "results" / "grf-1.json").write_text('{"cell"')
    for look in (lambda: summarize(STUDY, tmp_path / "results"), lambda: run(tmp_path)):
        with pytest.raises(ValueError, match=r"grf-1\.json is no result of a run"):
            look()


def test_rows_are_picked_by_name():
    assert [cell.name for cell in STUDY.pick([])] == ["linear", "grf", "grf-100"]
    assert [cell.name for cell in STUDY.pick(["grf-100", "linear"])] == ["linear", "grf-100"]
    with pytest.raises(ValueError, match=r"no cell 'grfs' in this table. Cells: linear, grf, grf-100"):
        STUDY.pick(["grfs"])


def test_fields_of_all_rows_are_changed():
    changed = STUDY.changed(["train.epochs=3"])
    assert [cell.experiment.train.epochs for cell in changed.cells] == [3, 3, 3]
    assert [cell.experiment.level for cell in changed.cells] == [0.5, 0.75, 0.25]
    assert STUDY.changed([]) == replace(STUDY, cells=[replace(cell, alternatives=[]) for cell in STUDY.cells])


@pytest.mark.parametrize(("override", "how"), [("level=1", "--only"), ("train.seed=3", "--seeds")])
def test_what_tells_rows_apart_is_not_changed(override, how):
    with pytest.raises(ValueError, match=rf"`{override.partition('=')[0]}` cannot be set.*{how}"):
        STUDY.changed([override])


def test_alternatives_are_chosen_by_validation_for_every_seed(tmp_path):
    # The toy's validation accuracy falls as its accuracy rises.
    cell = replace(STUDY.cells[1], alternatives=[Toy(0.6), Toy(0.7)])
    study = replace(STUDY, cells=[STUDY.cells[0], cell], claims=STUDY.claims[:1])
    run(tmp_path, replace(study, cells=[study.cells[0], replace(cell, alternatives=[Toy(0.6)])]))
    assert collect(study, tmp_path / "results")["grf"] == {}, "one of the alternatives is still to be run"
    assert run(tmp_path, study) == [f"[{4 * seed + 4}/12] masked (grf.2), seed {seed}" for seed in range(3)]
    assert collect(study, tmp_path / "results")["grf"] == pytest.approx({0: 0.6, 1: 0.601, 2: 0.604})


def test_alternatives_that_tie_are_chosen_by_their_validation_loss(tmp_path):
    cell = replace(STUDY.cells[1], alternatives=[Toy(0.6), Toy(0.7)])
    study = replace(STUDY, cells=[STUDY.cells[0], cell], claims=STUDY.claims[:1])
    kept = ResultFolder(tmp_path)
    for (name, experiment), loss in zip(cell.runs().items(), (0.5, 0.3, 0.4), strict=True):
        metrics = {"accuracy": experiment.level, "val_accuracy": 0.9, "val_loss": loss}
        kept.add(RunResult(name, 0, metrics, 1.0, numbers_config(experiment.with_seed(0)), {}))
    assert collect(study, tmp_path)["grf"] == {0: 0.6}


def test_published_rows_and_other_metrics_are_shown(tmp_path):
    study = replace(STUDY, published=[("GKAT", "69.7")], also=[("loss", "loss, %")], repeats="folds")
    run(tmp_path, study)
    table = summarize(study, tmp_path / "results").table
    assert table.headings[4:] == ["loss, %", "seconds"]
    assert table.rows[0] == ["GKAT", "69.7", "", "", "", ""]
    assert table.rows[1][4] == "100.00 ± 0.00 (3 folds)"


def test_intervals_are_wider_where_training_sets_overlap(tmp_path):
    other = replace(STUDY.cells[0], name="other", experiment=Toy(0.4))
    study = replace(STUDY, cells=[*STUDY.cells, other], repeats="folds")
    run(tmp_path, study)
    kept = ResultFolder(tmp_path / "results")
    for seed in range(3):
        metrics = {"accuracy": 0.4 + 0.01 * seed}
        kept.add(RunResult("other", seed, metrics, 1.0, numbers_config(Toy(0.4).with_seed(seed)), {}))
    plain, wide = (summarize(replace(study, test_share=share), tmp_path / "results") for share in (0.0, 1.0))
    low, high = (float(section.table.rows[3][3].split("[")[1].split(",")[0]) for section in (wide, plain))
    assert low < high


def test_a_row_that_misses_its_published_value_makes_comparisons_void(tmp_path):
    cells = [replace(cell, paper=paper) for cell, paper in zip(STUDY.cells, ("51.5 ± 0.1", "75.0", "OOM"), strict=True)]
    study = replace(STUDY, cells=cells, void_below=1.0)
    run(tmp_path, seeds=[0, 1])
    assert "void" not in "".join(summarize(study, tmp_path / "results").notes), "rows are not whole yet"
    run(tmp_path)
    notes = summarize(study, tmp_path / "results").notes
    # The mean of the first row is 50.17, and that of the second is above its value.
    assert [note.endswith("; void: unmasked is 1.33 points below its published value.") for note in notes] == [True] * 2
    close = replace(study, cells=[replace(cells[0], paper="51.0"), *cells[1:]])
    assert "void" not in "".join(summarize(close, tmp_path / "results").notes)
    assert "void" not in "".join(summarize(replace(study, void_below=None), tmp_path / "results").notes)


def test_known_values_are_reached_or_not_once_a_row_is_whole(tmp_path):
    targets = [
        Target("grf", "76.0 ± 1.0", "GKAT's value", within_deviation=True),
        Target("grf", "76.0 ± 0.5", "GKAT's value", within_deviation=True),
        Target("grf", "75.1", "the least"),
    ]
    study = replace(STUDY, targets=targets, claims=())
    results = tmp_path / "results"
    named = "masked within one standard deviation of, or above, GKAT's value, 76.0 ± 1.0 %"
    assert summarize(study, results).notes[0] == f"{named}: not run."
    run(tmp_path, seeds=[0])
    assert summarize(study, results).notes[0] == f"{named}: open here, with 75.00 (1 seed)."
    run(tmp_path)
    notes = summarize(study, results).notes
    assert notes[0] == f"{named}: holds here, with 75.17 ± 0.21 (3 seeds)."
    assert ": does not hold here, with 75.17" in notes[1]
    assert notes[2].startswith("masked at least the least, 75.1 %: holds here")
    begun = replace(study, folder="begun", seeds=9)
    assert count_targets([(study, results), (begun, results)]) == [
        "Tables in which our row is within one standard deviation of, or above, GKAT's value: 1 of 4; 2 are not whole "
        "yet.",
        "Tables in which our row is at least the least: 1 of 2; 1 are not whole yet.",
    ]
    for value, within in (("OOM", False), ("96.2", True)):
        with pytest.raises(ValueError, match="`value` must be a number"):
            Target("grf", value, "x", within)


def test_free_fields_may_be_missing_from_a_result():
    config = {"data": {"name": "x"}, "train": {"epochs": 3}}
    kept = RunResult("a", 0, {}, 1.0, {"data": {"name": "x", "download": None}, "train": {"epochs": 3}}, {})
    assert kept.has(config)
    assert not kept.has({"data": {"name": "y"}, "train": {"epochs": 3}})
    assert not kept.has(config | {"model": {}})
    assert kept.has({"data": {"name": "x"}, "train": {"epochs": 3, "patience": None}})
    assert not kept.has({"data": {"name": "x"}, "train": {"epochs": 3, "patience": 5}})


def test_committed_results_are_those_of_the_studies_of_today():
    root = Path(__file__).parents[3] / "results"
    for name in ("digits", "table1"):
        found = collect(STUDIES[name](), root / STUDIES[name]().folder)
        assert all(found[cell].keys() >= {0} for cell in ("linear", "softmax", "grf", "grf-paper", "exact"))


def test_a_variant_differs_in_its_attention_only():
    experiment = digits()
    changed = variant(experiment, "grf-paper", num_walks=7)
    assert changed.model.attention == "grf-paper"
    assert changed.model.attention_options.num_walks == 7
    assert variant(changed, experiment.model.attention, num_walks=None) == experiment
