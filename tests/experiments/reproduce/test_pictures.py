import json
from dataclasses import replace

from experiments.reproduce.pictures import draw_study
from experiments.reproduce.study import run_study
from experiments.reproduce.summary import summarize
from helpers.toy_study import STUDY


def test_pictures_show_the_rows_and_the_runs_of_their_own(tmp_path, monkeypatch):
    run_study(STUDY, [0, 1], tmp_path / "results", tmp_path / "runs", say=lambda _: None)
    section = summarize(STUDY, tmp_path / "results")
    without = draw_study(STUDY, section, tmp_path / "results", tmp_path / "runs")
    assert [picture.about for picture in without.pictures] == ["Every seed, and the mean"]
    assert without.table == section.table
    for name, loss in (("grf-0", 1.0), ("grf-1", 3.0), ("grf-100-0", 100.0)):
        lines = [{"event": "train", "step": step, "epoch": step / 2, "loss": loss} for step in range(1, 4)]
        # The seeds may be at different steps; those that all have are shown.
        lines = lines[:2] if name == "grf-1" else lines
        lines.append({"event": "eval", "step": 3, "epoch": 1.5, "loss": 0.5})
        (tmp_path / "runs" / name / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    drawn = []
    monkeypatch.setattr(
        "experiments.reproduce.pictures.draw_picture",
        lambda figure, about, width: drawn.append({line.get_label(): line for line in figure.axes[0].lines}),
    )
    assert len(draw_study(STUDY, section, tmp_path / "results", tmp_path / "runs").pictures) == 1
    curves = drawn[1]
    assert curves.keys() == {"masked", "masked more"}
    assert curves["masked"].get_xydata().tolist() == [[0.5, 2.0], [1.0, 2.0]]
    assert curves["masked more"].get_ydata().tolist() == [100.0] * 3


def test_a_table_without_results_is_still_drawn(tmp_path):
    section = summarize(STUDY, tmp_path)
    assert len(draw_study(STUDY, section, tmp_path, tmp_path).pictures) == 1


def test_published_values_of_the_same_data_are_drawn(tmp_path, monkeypatch):
    run_study(STUDY, [0], tmp_path / "results", tmp_path / "runs", say=lambda _: None)
    drawn = []
    monkeypatch.setattr(
        "experiments.reproduce.pictures.draw_picture", lambda figure, about, width: drawn.append((figure, about))
    )

    def diamonds(study):
        draw_study(study, summarize(study, tmp_path / "results"), tmp_path / "results", None)
        figure, about = drawn[-1]
        axes = figure.axes[0]
        labels = [label.get_text() for label in axes.get_yticklabels()]
        points = [line.get_xydata()[0].tolist() for line in axes.lines if line.get_marker() == "D"]
        return {labels[round(y)]: x for x, y in points}, labels, about

    own = [cell.label for cell in STUDY.cells]
    assert diamonds(STUDY) == ({}, own, "Every seed, and the mean")
    named = replace(STUDY, published=[("A", "75.9 ± 1"), ("B", "OOM"), ("C", "80")])
    about = "Every seed, and the mean; orange: published"
    assert diamonds(named) == ({"A": 75.9, "C": 80.0}, ["A", "C", *own], about)
    beside = replace(STUDY, void_below=1.0)
    assert diamonds(beside)[0] == {"unmasked": 0.693, "masked": 0.73}
