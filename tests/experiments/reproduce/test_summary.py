from dataclasses import replace

import pytest

from experiments.reproduce import registry
from experiments.reproduce.results import ResultFile, RunResult
from experiments.reproduce.study import NOT_AVAILABLE, numbers_config
from experiments.reproduce.summary import count_targets, overview, pool, summarize
from experiments.reproduce.targets import Target
from helpers.toy_study import STUDY, Toy, run
from topomask.pictures.pages import to_text


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
        "Not complete yet: unmasked: 0 of 3 seeds; masked: 0 of 3 seeds; masked more: 0 of 3 seeds.",
    ]
    run(tmp_path, seeds=[0], only=["linear", "grf"])
    section = summarize(STUDY, tmp_path / "results")
    assert section.table.rows[1] == ["masked", "0.730", "75.00 (1 seed)", "+25.00", "2"]
    assert section.notes[0].endswith("open here, by +25.00 points, paired over 1 seed.")
    assert section.notes[2] == (
        "Not complete yet: unmasked: 1 of 3 seeds; masked: 1 of 3 seeds; masked more: 0 of 3 seeds."
    )


def test_seconds_are_those_of_runs_that_count(tmp_path):
    run(tmp_path, seeds=[0])
    ResultFile(tmp_path / "results", STUDY.folder).add(
        RunResult("grf", 5, {"accuracy": 0.0}, 9999.0, {"old": True}, {})
    )
    assert summarize(STUDY, tmp_path / "results").table.rows[1][4] == "2"


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
    kept = ResultFile(tmp_path / "results", STUDY.folder)
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
    assert "void" not in "".join(summarize(study, tmp_path / "results").notes), "rows are not complete yet"
    run(tmp_path)
    notes = summarize(study, tmp_path / "results").notes
    # The mean of the first row is 50.17, and that of the second is above its value.
    assert all(": void here, by " in note for note in notes)
    assert [note.endswith("; unmasked is 1.33 points below its published value.") for note in notes] == [True] * 2
    above = replace(study, cells=[replace(cells[0], paper="48.0"), *cells[1:]])
    notes = summarize(above, tmp_path / "results").notes
    assert [(": holds here" in note, ": does not hold here" in note) for note in notes] == [
        (True, False),
        (False, True),
    ]
    assert all(note.endswith("; unmasked is 2.17 points above its published value.") for note in notes)
    explained = replace(study, cells=[replace(cells[0], short_because="it is known why"), *cells[1:]])
    notes = summarize(explained, tmp_path / "results").notes
    expected = "; unmasked is 1.33 points below its published value: it is known why."
    assert [note.endswith(expected) for note in notes] == [True] * 2
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
    begun = replace(study, seeds=9)
    assert count_targets([study, begun], results) == [
        "Tables in which our row is within one standard deviation of, or above, GKAT's value: 1 of 4; not complete "
        "yet: 2.",
        "Tables in which our row is at least the least: 1 of 2; not complete yet: 1.",
    ]
    for value, within in (("OOM", False), ("96.2", True)):
        with pytest.raises(ValueError, match="`value` must be a number"):
            Target("grf", value, "x", within)


def test_tables_at_a_glance(tmp_path):
    target = Target("grf", "76.0 ± 1.0", "somebody's value", within_deviation=True)
    study = replace(STUDY, targets=[target], void_below=1.0)
    other = replace(study, folder="other")
    run(tmp_path, study)
    glance = overview([study, other], tmp_path / "results", ours="grf")
    ((title, ours, known, above, added, better, worse, undecided),) = glance.rows
    assert above == ""
    known_rows = replace(study, published=[("A", "75.9 ± 1"), ("B", "75.1"), ("C", "OOM"), ("D", "80")])
    assert overview([known_rows], tmp_path / "results", ours="grf").rows[0][3] == "A, D"
    assert summarize(known_rows, tmp_path / "results").notes[-1] == (
        "Published rows with a better mean than masked: 2 of 3: A, D."
    )
    smaller = replace(known_rows, higher_is_better=False)
    assert overview([smaller], tmp_path / "results", ours="grf").rows[0][3] == "B"
    assert not any("Published" in note for note in summarize(replace(known_rows, seeds=4), tmp_path / "results").notes)
    assert (title, ours, known) == ("Table 9: toys", "75.17 ± 0.21 (3 seeds)", "somebody's value 76.0 ± 1.0")
    assert added.startswith("+25.00")
    # Of 69.3 published the first has 50.17.
    published = replace(study, cells=[replace(study.cells[0], paper="69.3"), *study.cells[1:]])
    found = overview([published], tmp_path / "results", ours="grf").rows[0]
    assert (better, worse, undecided) == ("unmasked; masked more", "", "")
    assert (found[5], found[7]) == ("masked more", "unmasked (void)")
    known_why = replace(published, cells=[replace(published.cells[0], short_because="why"), *study.cells[1:]])
    assert overview([known_why], tmp_path / "results", ours="grf").rows[0][5] == "unmasked; masked more"
    turned = overview([study], tmp_path / "results", ours="grf-100").rows[0]
    assert turned[5:] == ["", "unmasked; masked", ""]
    # Incomplete rows are not compared.
    begun = replace(study, seeds=4)
    assert overview([begun], tmp_path / "results", ours="grf").rows[0][5:] == ["", "", ""]


def test_tables_are_averaged_seed_by_seed_once_they_are_whole(tmp_path):
    """Two tables whose differences are -1, 0, 1 and 5, 6, 10 points: means of 2, 3 and 5.5."""
    tables = [replace(STUDY, folder=name, cells=STUDY.cells[:2]) for name in ("one", "two")]

    def add(count):
        for study, gaps in zip(tables, ([-1, 0, 1], [5, 6, 10]), strict=True):
            for seed, gap in enumerate(gaps[:count]):
                for cell, value in zip(study.cells, (0.5, 0.5 + gap / 100), strict=True):
                    config = numbers_config(cell.experiment.with_seed(seed))
                    ResultFile(tmp_path, study.folder).add(
                        RunResult(cell.name, seed, {"accuracy": value}, 1.0, config, {})
                    )

    add(2)
    assert pool(tables, tmp_path, ours="grf") == [], "not complete yet"
    add(3)
    # The deviation is 1.802776 points, and the 0.975 quantile of Student's t with two degrees of freedom 4.302653.
    (note,) = pool(tables, tmp_path, ours="grf")
    assert note == (
        "over all 2 tables, our row better than unmasked: undecided here, by +3.50 [-0.98, +7.98] points on average, "
        "over 3 seeds; ahead in 4 of 6 runs."
    )
    # Seeds that one table has more than the other do not count.
    study = tables[1]
    for cell in study.cells:
        config = numbers_config(cell.experiment.with_seed(7))
        ResultFile(tmp_path, study.folder).add(RunResult(cell.name, 7, {"accuracy": 0.9}, 1.0, config, {}))
    assert pool(tables, tmp_path, ours="grf") == [note]
    turned = [replace(study, higher_is_better=False) for study in tables]
    assert (
        "by -3.50 [-7.98, +0.98] points on average, over 3 seeds; ahead in 1 of 6"
        in pool(turned, tmp_path, ours="grf")[0]
    )
    # With overlapping training sets, 1/3 + 1/6 in place of 1/3.
    wider = [replace(study, test_share=1 / 6) for study in tables]
    assert "by +3.50 [-1.98, +8.98]" in pool(wider, tmp_path, ours="grf")[0]
    # Of 69.3 published, the unmasked row has 50.
    void = [
        replace(study, void_below=1.0, cells=[replace(study.cells[0], paper="69.3"), *study.cells[1:]])
        for study in tables
    ]
    assert pool(void, tmp_path, ours="grf") == []


@pytest.mark.parametrize(
    "change", [{"metric": "loss"}, {"cells": STUDY.cells[:2]}, {"scale": 1.0}, {"repeats": "folds"}]
)
def test_tables_of_other_kinds_are_not_averaged(tmp_path, change):
    run(tmp_path)
    tables, results = [STUDY, replace(STUDY, **change)], tmp_path / "results"
    assert pool(tables, results, ours="grf") == []
    assert pool(tables[:1], results, ours="grf") == [], "one table is judged by itself"
    assert len(pool([tables[0], tables[0]], results, ours="grf")) == 2


def test_groups_show_means_over_their_tables(tmp_path, monkeypatch):
    run(tmp_path)
    monkeypatch.setattr(registry, "STUDIES", {name: lambda: STUDY for name in ("a", "b")})
    monkeypatch.setattr(registry, "GROUPS", {"toys": ("a", "b")})
    section = registry.compare("", ["toys"], tmp_path / "results")
    assert section.notes[0].startswith("toys: over all 2 tables, our row better than unmasked: holds here, by +25.00")
    assert "means over the tables" in section.text[-1]
    monkeypatch.setattr(registry, "GROUPS", {"toys": ("a",)})
    assert len(registry.compare("", ["toys"], tmp_path / "results").text) == 1
