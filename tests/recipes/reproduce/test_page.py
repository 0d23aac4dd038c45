from dataclasses import replace

from topomask.recipes.reproduce import computed, page, registry
from topomask.recipes.reproduce.study import run_study
from toy_study import STUDY

OTHER = replace(STUDY, folder="others")


def test_the_page_has_what_there_are_results_of(tmp_path, monkeypatch):
    # What was not computed is left out.
    for module in (page, registry):
        monkeypatch.setattr(module, "STUDIES", {"toys": lambda: STUDY, "rest": lambda: OTHER, "fig3": computed.fig3})
    results, runs, docs = (tmp_path / name for name in ("results", "runs", "docs"))
    run_study(STUDY, [0, 1], results / "toys", runs / "toys", say=lambda _: None)
    page.write_page(results, runs, docs)
    text = (docs / "results.md").read_text()
    assert text.count("## ") == 1
    assert "| masked | 0.730 | 75.05 ± 0.07 (2 seeds) |" in text
    assert "![Every seed, and the mean](figures/results/toys-0.png)" in text
    assert (docs / "figures" / "results" / "toys-0.png").read_bytes().startswith(b"\x89PNG")


def test_the_page_leaves_out_what_was_computed_with_other_constants(tmp_path, monkeypatch):
    for module in (page, registry):
        monkeypatch.setattr(module, "STUDIES", {"fig3": computed.fig3})
    monkeypatch.setattr(computed, "TOKENS", (64, 128, 256, 512))
    registry.reproduce("fig3", tmp_path / "results", tmp_path / "runs")
    for tokens, count in (((64, 128, 256, 512), 1), ((64, 128, 256, 1024), 0)):
        monkeypatch.setattr(computed, "TOKENS", tokens)
        page.write_page(tmp_path / "results", tmp_path / "runs", tmp_path / "docs")
        assert (tmp_path / "docs" / "results.md").read_text().count("## ") == count
