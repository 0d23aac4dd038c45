from topomask.recipes.reproduce import computed, registry
from topomask.recipes.reproduce.page import write_page
from topomask.recipes.reproduce.study import run_study
from toy_study import STUDY


def test_the_page_has_what_there_are_results_of(tmp_path, monkeypatch):
    for name in list(registry.STUDIES):
        monkeypatch.delitem(registry.STUDIES, name)
    monkeypatch.setitem(registry.STUDIES, "toys", lambda: STUDY)
    # What was not computed is left out.
    monkeypatch.setitem(registry.STUDIES, "fig3", computed.fig3)
    results, runs, docs = (tmp_path / name for name in ("results", "runs", "docs"))
    run_study(STUDY, [0, 1], results / "toys", runs / "toys", say=lambda _: None)
    write_page(results, runs, docs)
    text = (docs / "results.md").read_text()
    assert text.count("## ") == 1
    assert "| masked | 0.730 | 75.05 ± 0.07 (2 seeds) |" in text
    assert "![Every seed, and the mean](figures/results/toys-0.png)" in text
    assert (docs / "figures" / "results" / "toys-0.png").read_bytes().startswith(b"\x89PNG")
