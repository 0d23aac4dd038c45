import os
import subprocess
import sys
from pathlib import Path

import pytest

from topomask import cli
from topomask.cli import bench

ROOT = Path(__file__).parents[2]


def run_python(code, folder=ROOT):
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    return subprocess.run([sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("arguments", [["--help"], ["bench", "--help"], ["bench", "--list"]])
def test_help_does_not_wait_for_torch(arguments):
    code = f"""
import sys
from topomask.cli import main
try:
    main({arguments})
except SystemExit as stop:
    assert stop.code == 0
assert "torch" not in sys.modules and "numba" not in sys.modules
"""
    done = run_python(code)
    assert done.returncode == 0, done.stderr
    assert "bench" in done.stdout or "attention" in done.stdout


def test_a_verb_is_needed(capsys):
    with pytest.raises(SystemExit):
        cli.main([])
    assert "verb" in capsys.readouterr().err


def test_the_demo_writes_where_it_is_told(monkeypatch, tmp_path):
    from topomask.recipes import demo

    folders = []
    monkeypatch.setattr(demo, "main", folders.append)
    cli.main(["demo", "--output", str(tmp_path)])
    assert folders == [tmp_path]


def test_every_benchmark_is_listed_with_what_it_is_about(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    cli.main(["bench", "--list"])
    lines = capsys.readouterr().out.splitlines()
    assert {"attention", "scaling"} <= {line.split()[0] for line in lines}
    assert all(len(line.split()) > 3 for line in lines)


def test_an_unknown_benchmark_is_named(monkeypatch):
    monkeypatch.chdir(ROOT)
    with pytest.raises(SystemExit, match="no benchmark nonsense"):
        cli.main(["bench", "nonsense"])


def test_without_a_checkout_the_message_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench.topomask, "__file__", str(tmp_path / "lib" / "topomask" / "__init__.py"))
    with pytest.raises(SystemExit, match="Change into a checkout"):
        cli.main(["bench"])
