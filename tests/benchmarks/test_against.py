import subprocess

import pytest

from benchmarks import against


def test_answers_may_differ_by_rounding_only():
    old = [[0.001, 100.0], [3.0, 3.0]]
    assert against.differ([[0.002, 100.001], [3.0, 3.0]], old) == ""
    assert "tensor 1 has sum 3.1" in against.differ([[0.001, 100.0], [3.1, 3.1]], old)
    assert "tensor 0" in against.differ([[float("nan"), 100.0], [3.0, 3.0]], old)
    assert "1 and 2 tensors" in against.differ([[0.001, 100.0]], old)


class Worker:
    def __init__(self, seconds, log, sums=((1.0, 1.0),), error=None):
        self.each, self.log, self.sums, self.error = seconds, log, sums, error

    def prepare(self, _):
        if self.error:
            raise against.WorkerError(self.error)
        return self.sums

    def seconds(self, calls):
        self.log.append((self.each, calls))
        return self.each


def test_versions_take_turns_and_short_cases_are_called_often(monkeypatch):
    monkeypatch.setattr(against, "PAUSE", 0.0)
    log = []
    found = against.compare("case", Worker(2e-3, log), Worker(1e-3, log), repeats=2, warm_ups=1)
    assert log == [(2e-3, 1), (1e-3, 1)] + 2 * [(2e-3, 5), (1e-3, 5)]
    assert found.ratio.value == 2.0
    assert found.is_slower
    assert "SLOWER" in str(found)


def test_nothing_is_timed_where_answers_differ_or_a_version_fails():
    log = []
    found = against.compare("case", Worker(1.0, log), Worker(1.0, log, sums=((2.0, 2.0),)), 2, 1)
    assert "answers differ" in found.problem
    found = against.compare("case", Worker(1.0, log), Worker(1.0, log, error="AttributeError: no such name"), 2, 1)
    assert found.problem == "The old version raises AttributeError: no such name"
    assert not found.is_slower
    assert log == []


def test_cases_are_selected_by_how_they_begin():
    assert against.case_names(["small call"]) == ["small call: frozen", "small call: forward + backward"]
    with pytest.raises(SystemExit, match="No case starts with 'tiny'"):
        against.case_names(["tiny"])


def test_a_commit_is_extracted_once_and_kept_where_asked(tmp_path):
    inside = subprocess.run(["git", "rev-parse", "HEAD"], cwd=against.CHECKOUT, capture_output=True, text=True)
    if inside.returncode:
        pytest.skip("not in a git checkout")
    commit = against.full_name("HEAD")
    with against.extracted(commit, tmp_path) as source:
        assert (source / "topomask" / "__init__.py").is_file()
    assert source == tmp_path / commit / "src"
    (source / "mark").touch()
    with against.extracted(commit, tmp_path) as again:
        assert (again / "mark").exists()
    with against.extracted(commit, None) as temporary:
        assert (temporary / "topomask").is_dir()
    assert not temporary.exists()
    with pytest.raises(SystemExit, match="There is no commit 'nowhere'"):
        against.full_name("nowhere")
