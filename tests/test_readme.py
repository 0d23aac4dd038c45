"""README and docs: examples run as they are, and links lead somewhere."""

import re
from pathlib import Path

import pytest
import torch

from topomask.cli import main

ROOT = Path(__file__).parents[1]
README, DOCS = ROOT / "README.md", ROOT / "docs"


def examples(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


def run(code: str) -> dict:
    names: dict = {}
    exec(code, names)
    return names


def test_the_first_example_runs_as_it_stands():
    code = examples(README)[0]
    assert len(code.splitlines()) <= 8
    names = run(code)
    assert names["out"].shape == (1, 4, 32768, 32)
    assert names["y"].shape == (1, 32768, 128)


def test_a_mask_of_your_own_takes_less_than_40_lines():
    code, _ = examples(DOCS / "own_mask.md")
    assert len(code.splitlines()) < 40
    names = run(code)
    assert names["out"].shape == (1, 2, 20, 8)
    # What the page says it is.
    restart, transition = names["mask"].logit.detach().sigmoid()[0], names["mask"].graph.adjacency("row").toarray()
    eye = names["torch"].eye(20)
    exact = restart * names["torch"].linalg.inv(eye - (1 - restart) * names["torch"].from_numpy(transition).float())
    assert names["torch"].allclose(names["mask"].to_dense()[0], exact, atol=1e-5)


def test_a_mask_of_your_own_uses_types_of_edges_and_positions():
    _, code = examples(DOCS / "own_mask.md")
    names = run(code)
    assert names["out"].shape == (4, 8)
    places, mask = names["POSITIONS"][names["graph"]], names["layer"].mask
    with names["torch"].no_grad():
        mask.bias += names["torch"].tensor([[0.5, -0.5], [0.0, 1.0]])
        dense = mask.on(names["graph"]).to_dense()
    for (i, j), kind in zip(zip(*names["edges"], strict=True), names["types"], strict=True):
        expected = (mask.bias[:, kind] - (places[i] - places[j]).norm()).exp()
        for found in (dense[:, i, j], dense[:, j, i]):
            names["torch"].testing.assert_close(found, expected.detach())
    assert int((dense[0] != 0).sum()) == 10


def test_positions_of_a_batch_from_pyg_are_those_of_the_whole_batch():
    from torch_geometric.data import Batch, Data

    names = run(examples(DOCS / "own_mask.md")[1])
    torch, tm, positions, mask = names["torch"], names["tm"], names["POSITIONS"], names["layer"].mask
    edges = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    singles = [Data(edge_index=edges, edge_weight=torch.ones(4), pos=torch.rand(3, 3)) for _ in range(2)]
    together = Batch.from_data_list(singles)
    blocks = []
    for each in (*singles, together):
        graph = tm.Graph.from_pyg(each)
        positions[graph] = each.pos
        blocks.append(mask.on(graph).to_dense()[0])
    assert (graph.num_graphs, graph.parts) == (2, ())
    torch.testing.assert_close(blocks[2], torch.block_diag(*blocks[:2]))


def test_the_examples_of_the_page_on_graphs_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    *codes, predicts = examples(DOCS / "graphs.md")
    first, nodes, rings, cycles = map(run, codes)
    assert first["logits"].shape == (2, 2)
    for names, folder in ((nodes, "ring"), (rings, "rings"), (cycles, "cycles")):
        assert 0 <= names["result"].best["accuracy"] <= 1
        assert (tmp_path / "runs" / folder / "config.json").exists()
    assert nodes["classes"].shape == (60,)
    assert rings["result"].best["accuracy"] > 0.9
    assert rings["classes"].tolist() == [0, 1]
    (command,) = re.findall(r"`topomask (train graphs [^`]*--output runs/mine)`", (DOCS / "graphs.md").read_text())
    main([*command.split(), "--train.epochs=10", "--model.dim=16", "--train.progress=False"])
    # Without the scale of the training graphs, both are of one class.
    assert run(predicts)["classes"].tolist() == [0, 1]


@pytest.mark.slow
def test_the_example_of_the_page_on_training_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (code,) = examples(DOCS / "training.md")
    names = run(code)
    assert names["result"].metrics["accuracy"] > 0.3
    right = names["classes"] == next(iter(names["valid"].epoch(0)))[1]
    assert right.float().mean() > 0.3


def test_the_overview_of_results_quotes_the_whole_page():
    whole = (DOCS / "internal" / "results.md").read_text()
    quoted = re.findall(r"[+-][\d.]+ \[[+-][\d.]+, [+-][\d.]+\]", (DOCS / "results.md").read_text())
    assert len(quoted) > 20
    assert [number for number in quoted if number not in whole] == []


def test_pictures_and_pages_exist():
    for page in (*ROOT.glob("*.md"), *DOCS.rglob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), (page, target)
