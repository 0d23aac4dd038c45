import sys

import numpy as np
import pytest
from benchmarks.processes import ProcessError, forget_peak, peak_bytes, resident_bytes, run_fresh


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
    assert 10**7 < resident_bytes() < 10**12


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux forgets a peak")
def test_a_peak_is_forgotten_and_what_is_held_is_not():
    held = np.ones(2**23)
    with_held = resident_bytes()
    np.ones(2**25).sum()
    assert peak_bytes() - with_held > 0.9 * 2**28
    if not forget_peak():
        pytest.skip("this system does not let a process forget its peak")
    assert peak_bytes() - with_held < 0.5 * 2**28
    assert resident_bytes() > with_held - held.nbytes / 2
    assert held[-1] == 1
