import argparse
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

import topomask
from topomask import cli
from topomask.cli import bench, checkout, demo, evaluate, listing, mask, plain_failures, predict, reproduce, train
from topomask.train import CheckpointError, NonFiniteError

ROOT = Path(__file__).parents[2]


def run_python(code, folder=ROOT):
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    return subprocess.run([sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True)


def test_help_does_not_wait_for_torch():
    """Neither for anything else that is large: it answers in under half a second, most of which is Python's start."""
    code = f"""
import sys, time
start = time.process_time()
from topomask.cli import main
for arguments in [["--help"], *([verb, "--help"] for verb in {tuple(cli.VERBS)}), ["bench", "--list"], ["--version"]]:
    try:
        main(arguments)
    except SystemExit as stop:
        assert stop.code == 0
    heavy = {{"torch", "numba", "numpy", "scipy", "matplotlib", "rich", "PIL"}} & set(sys.modules)
    assert not heavy, (arguments, heavy)
print("seconds", time.process_time() - start)
"""
    done = run_python(code)
    assert done.returncode == 0, done.stderr
    assert all(f"usage: topomask {verb}" in done.stdout for verb in cli.VERBS)
    # Processor time of all the pages above, with room for a slow machine; importing torch alone takes longer.
    assert float(done.stdout.split()[-1]) < 0.5


def test_the_module_runs_as_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "topomask", "--version"],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
    )
    assert done.stdout == f"topomask {topomask.__version__}\n"


def test_a_verb_is_needed(capsys):
    with pytest.raises(SystemExit):
        cli.main([])
    assert "verb" in capsys.readouterr().err


def test_the_demo_writes_where_it_is_told(monkeypatch, tmp_path):
    from experiments import demo

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


@pytest.mark.parametrize("arguments", [["bench"], ["demo"], ["reproduce", "fig3"], ["list", "studies"]])
def test_without_a_checkout_the_message_says_what_to_do(without_checkout, arguments):
    with pytest.raises(SystemExit, match=r"is not installed with it.*Change into a checkout"):
        cli.main(arguments)


def test_without_a_checkout_everything_else_is_listed(without_checkout, capsys):
    cli.main(["list"])
    listed = capsys.readouterr().out
    assert "recipes:\n" in listed
    assert "studies" not in listed


@pytest.fixture
def without_checkout(monkeypatch, tmp_path):
    """As after `pip install topomask`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(checkout.topomask, "__file__", str(tmp_path / "lib" / "topomask" / "__init__.py"))


def stopped(error, **options):
    @partial(plain_failures, **options)
    def run(options):
        raise error

    with pytest.raises(SystemExit) as stop:
        run(argparse.Namespace())
    # Python itself would show the error that this one came from.
    assert stop.value.__suppress_context__
    return stop.value.code


@pytest.mark.parametrize(
    "error", [ValueError("wrong"), FileNotFoundError("wrong"), CheckpointError("wrong"), NonFiniteError("wrong")]
)
def test_what_a_user_can_mend_is_one_line(error):
    assert stopped(error) == "wrong"


def test_a_missing_package_says_how_to_install_it():
    plain = ModuleNotFoundError("No module named 'rich'", name="rich")
    assert "pip install 'topomask[train,data,plot]'" in stopped(plain)
    told = ModuleNotFoundError("Videos need PyAV: pip install 'topomask[video]'")
    assert stopped(told) == str(told)


def test_stopping_by_hand_is_no_fault():
    assert stopped(KeyboardInterrupt()) == "Stopped."
    assert stopped(KeyboardInterrupt(), go_on="Go on.") == "Stopped. Go on."


class Stops:
    """Options in which a verb is stopped as soon as it looks at one."""

    def __getattribute__(self, name):
        raise KeyboardInterrupt


VERBS = [verb.run for verb in (bench, demo, evaluate, listing, mask, predict, reproduce, train)]


@pytest.mark.parametrize("run", VERBS, ids=lambda run: f"{run.__module__}.{run.__name__}")
def test_every_verb_says_how_it_goes_on(run):
    with pytest.raises(SystemExit) as stop:
        run(Stops())
    told = {
        train.run: "Stopped. What was saved is whole; the same command goes on with --resume.",
        reproduce.run: "Stopped. What was saved is whole; the same command goes on where it was.",
    }
    assert stop.value.code == told.get(run, "Stopped.")


@pytest.mark.parametrize("error", [ValueError("x"), OSError("x"), CheckpointError("x"), KeyboardInterrupt()])
def test_the_traceback_is_there_for_who_asks(error, monkeypatch):
    for value in ("", "0", "false"):
        monkeypatch.setenv("TOPOMASK_DEBUG", value)
        stopped(error)
    monkeypatch.setenv("TOPOMASK_DEBUG", "1")

    @plain_failures
    def run(options):
        raise error

    with pytest.raises(type(error)) as found:
        run(argparse.Namespace())
    assert found.value is error


@pytest.mark.parametrize("error", [RuntimeError("fault"), TypeError("fault"), ZeroDivisionError("fault")])
def test_faults_of_the_program_keep_their_traceback(error):
    @plain_failures
    def run(options):
        raise error

    with pytest.raises(type(error), match="fault"):
        run(argparse.Namespace())
