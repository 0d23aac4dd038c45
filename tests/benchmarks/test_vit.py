import pytest

from benchmarks import report, vit


@pytest.mark.parametrize(("quick", "sizes"), [(True, (4, 8)), (False, (14, 64))])
def test_labels_are_the_sizes_that_were_measured(quick, sizes, monkeypatch):
    measured, saved = [], {}

    def measure_grid(size, batch, names, repeats):
        measured.append(size)
        return {name: [1.0] * repeats for name in names}

    monkeypatch.setattr(vit, "measure_grid", measure_grid)
    monkeypatch.setattr(report, "save", lambda _, results: saved.update(results))
    vit.main(quick=quick)
    few, many = (f"{size} x {size}" for size in sizes)
    assert measured == list(sizes)
    assert list(saved["seconds"]) == [few, many]
    assert [name.split(":")[0] for name in saved["bars"]] == [few, few, many]
