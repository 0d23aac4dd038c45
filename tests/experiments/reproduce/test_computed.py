import pytest

from experiments import flops
from experiments.reproduce import computed, registry
from experiments.reproduce.registry import reproduce


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(computed, "TOKENS", (64, 128, 256, 512))
    monkeypatch.setattr(computed, "WALKERS", (4, 16, 64))


def test_operations_are_counted_and_judged(small, tmp_path):
    section = reproduce("fig3", tmp_path / "results", tmp_path / "runs")
    assert [row[0] for row in section.table.rows] == ["64", "128", "256", "512"]
    # Scores, values and the denominator of N^2 pairs, in millions of operations.
    assert section.table.rows[-1][1] == f"{2 * 512**2 * (8 + 8 + 1) / 1e6:.4g}"
    assert "not available" in section.text[0]
    assert "that of softmax 2.000" in section.notes[0]
    assert section.pictures[0].png.startswith(b"\x89PNG")


@pytest.mark.parametrize(("slope", "verdict"), [(1.01, ": holds here"), (1.2, "does not hold here")])
def test_the_slope_decides(slope, verdict):
    point = {"nodes": 64, "softmax": 4.0, "linear": 2.0, "masked": 3.0, "features": 8.0}
    found = {"points": [point], "slopes": {"softmax": 2.0, "linear": 1.0, "masked": slope, "features": 1.0}}
    section = computed.fig3().present(found)
    assert verdict in section.notes[0]
    assert "1.50 at 64 tokens; by features 4.00" in section.notes[1]


def test_errors_are_beside_their_bounds(small, tmp_path):
    section = reproduce("theory", tmp_path / "results", tmp_path / "runs")
    assert [row[0] for row in section.table.rows] == ["4", "16", "64"]
    errors = [float(row[1]) for row in section.table.rows]
    assert errors == sorted(errors, reverse=True)
    assert "Theorem 3.1: holds here" in section.notes[1]
    assert "Lemma 3.2 says: holds here" in section.notes[2]


def test_bounds_that_are_broken_are_told():
    sparsity = [{"walks": 4, "halt": 0.5, "bound": 10, "measured": 11.0}]
    known = {"num_walks": [4], "errors": [0.5], "bounds": [1.0], "quantiles": [2.0], "slope": -0.5}
    notes = computed.theorems().present(known | {"sparsity": sparsity}).notes
    assert "Theorem 3.1: does not hold here" in notes[1]
    assert "Lemma 3.2 says: does not hold here, 4 walks, halt 0.5: 11 of 10 allowed" in notes[2]


def test_what_was_computed_is_kept(small, tmp_path, monkeypatch):
    first = reproduce("fig3", tmp_path, tmp_path)
    assert (tmp_path / "fig3.jsonl").is_file()

    def fail():
        raise AssertionError("computed twice")

    config = computed.fig3().config
    monkeypatch.setitem(registry.STUDIES, "fig3", lambda: computed.Computation(fail, computed._present_fig3, config))
    assert reproduce("fig3", tmp_path, tmp_path).table == first.table


@pytest.mark.parametrize(
    ("name", "module", "constant", "value"),
    [
        ("fig3", flops, "COUNTING", 99),
        ("fig3", computed, "TOKENS", (64, 128)),
        ("theory", computed, "WALKERS", (4, 8)),
        ("theory", computed, "SPARSITY", ((4, 0.5),)),
    ],
)
def test_what_was_computed_with_other_constants_is_not_shown(
    small, tmp_path, monkeypatch, name, module, constant, value
):
    reproduce(name, tmp_path, tmp_path)
    reproduce(name, tmp_path, tmp_path, show=True)
    monkeypatch.setattr(module, constant, value)
    with pytest.raises(FileNotFoundError, match="no result yet"):
        reproduce(name, tmp_path, tmp_path, show=True)


def test_nothing_is_computed_to_show(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"fig3\.jsonl has no result yet. Leave out --show"):
        reproduce("fig3", tmp_path, tmp_path, show=True)


@pytest.mark.parametrize("options", [{"overrides": ["--train.steps", "1"]}, {"seeds": [0]}, {"only": ["grf"]}])
def test_what_is_computed_has_no_options(tmp_path, options):
    with pytest.raises(ValueError, match="theory is computed without training, so it takes no fields, rows or seeds"):
        reproduce("theory", tmp_path, tmp_path, **options)
