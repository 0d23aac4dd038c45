import pytest
from benchmarks.processes import ProcessError, peak_bytes, run_fresh


def test_a_fresh_process_reports_by_its_last_line(tmp_path):
    (tmp_path / "speaker.py").write_text(
        "import os, json\nprint('noise')\nprint(json.dumps({'is': os.environ['WORD']}))"
    )
    assert run_fresh("speaker", WORD="here", PYTHONPATH=str(tmp_path)) == {"is": "here"}


def test_a_failure_is_told_by_its_last_line(tmp_path):
    (tmp_path / "failer.py").write_text("raise MemoryError('too much')")
    with pytest.raises(ProcessError, match="MemoryError: too much"):
        run_fresh("failer", PYTHONPATH=str(tmp_path))


def test_a_process_holds_some_memory():
    assert 10**7 < peak_bytes() < 10**12
