"""Compiled kernels in real programs: processes, threads, folders that cannot be written, and no Numba at all."""

import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import topomask as tm

WORK = """
import torch, topomask as tm
def work(_=None):
    torch.manual_seed(0)
    mask = tm.WalkMask(tm.grid_graph(12, 12), seed=3, max_length=4)
    q, k, v = torch.randn(3, 1, 1, 144, 8)
    out = tm.masked_attention(q, k, v, mask, strategy="pairs")
    return mask.walks[0].fingerprint, round(float(out.double().sum()), 3)
"""


def run(script: str, **environment: str) -> str:
    """Standard output of a script in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", WORK + textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def expected() -> str:
    return run("print(work())")


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_worker_processes(expected, method, tmp_path):
    """A parallel kernel has already run in the parent when workers start."""
    path = tmp_path / "program.py"
    path.write_text(
        WORK
        + textwrap.dedent(f"""
        class Samples(torch.utils.data.Dataset):
            def __len__(self):
                return 4

            def __getitem__(self, index):
                return str(work())

        if __name__ == "__main__":
            torch.set_num_threads(2)
            work()
            loader = torch.utils.data.DataLoader(Samples(), num_workers=2, multiprocessing_context="{method}")
            found = {{item for batch in loader for item in batch}}
            assert len(found) == 1, found
            print(found.pop())
        """)
    )
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == expected


def test_python_threads():
    graph = tm.grid_graph(20, 20)
    expected = tm.sample_features(graph, seed=1).fingerprint
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with ThreadPoolExecutor(4) as pool:
            found = set(pool.map(lambda _: tm.sample_features(graph, seed=1).fingerprint, range(16)))
    finally:
        torch.set_num_threads(before)
    assert found == {expected}


def test_thread_settings_of_both_libraries(expected):
    assert run("print(work())", NUMBA_NUM_THREADS="1") == expected
    assert run("torch.set_num_threads(7); print(work())") == expected


def test_no_folder_for_the_cache(expected):
    assert run("print(work())", NUMBA_CACHE_DIR="/proc/no/such/folder") == expected


def test_without_numba(expected):
    """The reference takes over, says so once, and gives the same."""
    script = """
    import importlib.util, warnings
    find = importlib.util.find_spec
    importlib.util.find_spec = lambda name, *args: None if name == "numba" else find(name, *args)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = work()
        work()
    assert [str(w.message) for w in caught if "Numba is not installed" in str(w.message)].__len__() == 1
    import sys
    assert "numba" not in sys.modules
    print(result)
    """
    assert run(script) == expected


def test_unknown_backends_are_refused(monkeypatch):
    monkeypatch.setenv("TOPOMASK_BACKEND", "fast")
    with pytest.raises(ValueError, match="'fast'"):
        tm.sample_features(tm.path_graph(3))


def test_switched_off(expected):
    assert run("import sys; print(work()); assert 'numba' not in sys.modules", TOPOMASK_BACKEND="reference") == expected
