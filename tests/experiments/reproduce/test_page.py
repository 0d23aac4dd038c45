from dataclasses import replace

from experiments.reproduce import computed, page, registry
from experiments.reproduce.study import run_study
from experiments.reproduce.targets import Target
from helpers.toy_study import STUDY

OTHER = replace(STUDY, folder="others")


def test_the_page_has_what_there_are_results_of(tmp_path, monkeypatch):
    # What was not computed is left out.
    for module in (page, registry):
        monkeypatch.setattr(module, "STUDIES", {"toys": lambda: STUDY, "rest": lambda: OTHER, "fig3": computed.fig3})
    results, runs, docs = (tmp_path / name for name in ("results", "runs", "docs"))
    run_study(STUDY, [0, 1], results, runs / "toys", say=lambda _: None)
    page.write_page(results, docs)
    text = (docs / "internal" / "results.md").read_text()
    assert text.count("## ") == 1
    assert "| masked | 0.730 | 75.05 ± 0.07 (2 seeds) |" in text
    assert "- seeds: weights and order" in text
    assert "folds" not in text
    assert "![Every seed, and the mean](../figures/results/toys-0.png)" in text
    assert (docs / "figures" / "results" / "toys-0.png").read_bytes().startswith(b"\x89PNG")


def test_the_page_says_what_its_intervals_are_over_and_counts_over_tables(tmp_path, monkeypatch):
    target = Target("grf", "76.0 ± 1.0", "GKAT's value", within_deviation=True)
    parts = {
        name: replace(STUDY, title=name, folder=name, repeats="folds", test_share=0.1, targets=[target])
        for name in ("one", "two")
    }
    for module in (page, registry):
        monkeypatch.setattr(module, "STUDIES", {name: lambda name=name: parts[name] for name in parts})
        monkeypatch.setattr(module, "GROUPS", {"gkat-social": tuple(parts)})
    results, runs = tmp_path / "results", tmp_path / "runs"
    run_study(parts["one"], range(3), results, runs / "one", say=lambda _: None)
    page.write_page(results, tmp_path)
    text = (tmp_path / "internal" / "results.md").read_text()
    assert "- folds: parts of a set" in text
    assert "Nadeau and Bengio (2003)" in text
    assert "one and the same test set" not in text
    assert "or above, GKAT's value: 1 of 2; not complete yet: 1." in text
    assert "REDDIT-MULTI-5K" in text


def test_the_page_leaves_out_what_was_computed_with_other_constants(tmp_path, monkeypatch):
    for module in (page, registry):
        monkeypatch.setattr(module, "STUDIES", {"fig3": computed.fig3})
    monkeypatch.setattr(computed, "TOKENS", (64, 128, 256, 512))
    registry.reproduce("fig3", tmp_path / "results", tmp_path / "runs")
    for tokens, count in (((64, 128, 256, 512), 1), ((64, 128, 256, 1024), 0)):
        monkeypatch.setattr(computed, "TOKENS", tokens)
        page.write_page(tmp_path / "results", tmp_path / "docs")
        assert (tmp_path / "docs" / "internal" / "results.md").read_text().count("## ") == count
