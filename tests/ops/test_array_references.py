"""Functions that do not count references to arrays must not return arrays to functions that do."""

import os
import subprocess
import sys

import pytest

# Compiles all kernels anew, since helpers have no types where a kernel comes from the cache.
CHECK = """
import gc
from numba import njit, types
from numba.core.dispatcher import Dispatcher
from topomask import warm_up
from topomask.ops.backend import EXACT, Kernel

def called(code, names):
    for constant in code.co_consts:
        if hasattr(constant, "co_names"):
            yield from called(constant, names)
    for name in code.co_names:
        if isinstance(names.get(name), Dispatcher):
            yield names[name]

def has_array(kind):
    return isinstance(kind, types.Array) or any(map(has_array, kind)) if isinstance(kind, types.BaseTuple) else (
        isinstance(kind, types.Array)
    )

def visit(function, counts, path):
    for helper in called(function.__code__, function.__globals__):
        own = helper.targetoptions.get("_nrt", True)
        if (helper, counts) in seen:
            continue
        seen.add((helper, counts))
        kinds = [signature.return_type for signature in helper.nopython_signatures]
        if helper.targetoptions.get("inline") == "always":
            own, kinds = counts, []
        if counts and not own:
            print("checked", helper.py_func.__name__, kinds)
            if any(map(has_array, kinds)):
                print("WRONG:", " > ".join([*path, helper.py_func.__name__]), "returns", kinds)
        visit(helper.py_func, own, [*path, helper.py_func.__name__])

@njit(**EXACT)
def two_rows(x):
    return x[0], x[1]

def planted(x, out):
    first, second = two_rows(x)
    out[0] = first[0] + second[0]

# Compiled only: running it would free memory twice.
control = Kernel(planted, allocates=True)
control.compiled.compile((types.float64[:, ::1], types.float64[::1]))

seen = set()
warm_up.warm_up(progress=False)
for kernel in gc.get_objects():
    if isinstance(kernel, Kernel):
        print("kernel", kernel.function.__name__)
        visit(kernel.function, kernel.allocates, [kernel.function.__name__])
"""


@pytest.mark.slow
def test_no_uncounted_function_returns_arrays_to_one_that_counts(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", CHECK],
        capture_output=True,
        text=True,
        timeout=900,
        env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert sum(line.startswith("kernel") for line in lines) >= 20
    assert sum(line.startswith("checked") and not line.endswith("[]") for line in lines) >= 10
    wrong = [line for line in lines if line.startswith("WRONG")]
    assert [line for line in wrong if "planted > two_rows" in line], "the check does not find what is planted"
    assert len(wrong) == 1, wrong
