import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import topomask as tm
from experiments.reproduce.registry import STUDIES
from experiments.reproduce.results import ResultFile, RunResult
from experiments.reproduce.study import collect, numbers_config, variant
from experiments.reproduce.summary import summarize
from helpers.toy_study import STUDY, Data, Toy, run
from topomask.recipes.images import digits
from topomask.train import FolderInUse, TrainConfig


def runs_of(folder):
    return sorted(path.parent.name for path in folder.glob("*/runs") for _ in path.read_text())


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


def test_seeds_are_checked_before_anything_runs(tmp_path):
    folds = replace(STUDY, repeats="folds")
    with pytest.raises(ValueError, match=r"`seeds` must be in \[0, 3\), the folds, but are \[0, 3\]"):
        run(tmp_path, folds, seeds=[0, 3])
    assert not list(tmp_path.iterdir())
    assert len(run(tmp_path, seeds=[1, 1], only=["grf"])) == 1


def test_what_another_process_is_at_is_left_to_it(tmp_path, monkeypatch):
    free = Toy.run

    def run_free(self, folder, *, resume, fallback):
        if folder.name == "grf-0":
            raise FolderInUse("wait")
        return free(self, folder, resume=resume, fallback=fallback)

    monkeypatch.setattr(Toy, "run", run_free)
    said = run(tmp_path, seeds=[0])
    assert said[1].startswith("[2/3] masked")
    assert said[2] == "Another process is working on it; continuing with the next."
    assert said[3].startswith("[3/3] masked more")
    assert [run.cell for run in ResultFile(tmp_path / "results", "toys").runs()] == ["grf-100", "linear"]


@pytest.mark.slow
def test_two_processes_share_a_study(tmp_path):
    """Each runs seeds of its own."""
    tests = Path(__file__).parents[2]
    folders = [Path(tm.__file__).parents[1], tests, tests.parent]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, folders))}
    code = "import sys; from pathlib import Path; from helpers.toy_study import run; print('ready', flush=True); "
    code += "input(); run(Path(sys.argv[1]), seeds=range(int(sys.argv[2]), int(sys.argv[3])))"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path), *map(str, seeds)], env=environment, **pipes)
        for seeds in ((0, 15), (15, 30))
    ]
    assert [process.stdout.readline() for process in processes] == ["ready\n"] * 2
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        process.communicate()
        assert process.returncode == 0
    found = collect(STUDY, tmp_path / "results")
    assert {cell: list(own) for cell, own in found.items()} == {cell.name: list(range(30)) for cell in STUDY.cells}
    assert len((tmp_path / "results" / "toys.jsonl").read_bytes().splitlines()) == 90


def test_a_result_is_kept_with_all_it_depends_on(tmp_path):
    run(tmp_path, seeds=[1], only=["grf"])
    found = json.loads((tmp_path / "results" / "toys.jsonl").read_text())
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


def test_a_damaged_result_stops_the_study_with_its_name(tmp_path):
    run(tmp_path)
    path = tmp_path / "results" / "toys.jsonl"
    first, *rest = path.read_text().splitlines(keepends=True)
    path.write_text("".join([first, '{"cell"\n', *rest]))
    for look in (lambda: summarize(STUDY, tmp_path / "results"), lambda: run(tmp_path)):
        with pytest.raises(ValueError, match=r"Line 2 of .*toys\.jsonl is not the result of a run"):
            look()


def test_rows_are_picked_by_name():
    assert [cell.name for cell in STUDY.pick([])] == ["linear", "grf", "grf-100"]
    assert [cell.name for cell in STUDY.pick(["grf-100", "linear"])] == ["linear", "grf-100"]
    with pytest.raises(ValueError, match=r"no cell 'grfs' in this table. Cells: linear, grf, grf-100"):
        STUDY.pick(["grfs"])


def test_fields_of_all_rows_are_changed():
    changed = STUDY.changed(["--train.epochs", "3"])
    assert [cell.experiment.train.epochs for cell in changed.cells] == [3, 3, 3]
    assert [cell.experiment.level for cell in changed.cells] == [0.5, 0.75, 0.25]
    assert STUDY.changed([]) == STUDY


@pytest.mark.parametrize(("name", "how"), [("level", "--only"), ("train.seed", "--seeds")])
def test_what_tells_rows_apart_is_not_changed(name, how):
    for words in ([f"--{name}", "1"], [f"--{name}=1"]):
        with pytest.raises(ValueError, match=rf"`{name}` cannot be set.*{how}"):
            STUDY.changed(words)


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
    kept = ResultFile(tmp_path, study.folder)
    for (name, experiment), loss in zip(cell.runs().items(), (0.5, 0.3, 0.4), strict=True):
        metrics = {"accuracy": experiment.level, "val_accuracy": 0.9, "val_loss": loss}
        kept.add(RunResult(name, 0, metrics, 1.0, numbers_config(experiment.with_seed(0)), {}))
    assert collect(study, tmp_path)["grf"] == {0: 0.6}


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
        found = collect(STUDIES[name](), root)
        assert all(found[cell].keys() >= {0} for cell in ("linear", "softmax", "grf", "grf-paper", "exact"))


def test_a_variant_differs_in_its_attention_only():
    experiment = digits()
    changed = variant(experiment, "grf-paper", num_walks=7)
    assert changed.model.attention == "grf-paper"
    assert changed.model.attention_options.num_walks == 7
    assert variant(changed, experiment.model.attention, num_walks=None) == experiment
