import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_the_first_example_runs_as_it_stands():
    code = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)[0]
    assert len(code.splitlines()) <= 8
    names: dict = {}
    exec(code, names)
    assert names["out"].shape == (1, 4, 32768, 32)
    assert names["y"].shape == (1, 32768, 128)


def test_the_examples_of_the_page_on_graphs_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = README.parent / "docs" / "graphs.md"
    first, second = ({}, {})
    for code, names in zip(
        re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL), (first, second), strict=True
    ):
        exec(code, names)
    assert first["logits"].shape == (2, 2)
    assert 0 <= second["result"].best["accuracy"] <= 1
    assert (tmp_path / "runs" / "cycles" / "config.json").exists()


def test_pictures_and_pages_exist():
    for page in (README, *(README.parent / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), (page, target)
