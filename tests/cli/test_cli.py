import importlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import topomask
from helpers.refusals import refused
from topomask import cli
from topomask.cli import checkout, plain_failures
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Name a verb. Verbs: demo, train, "),
        (["trian", "digits"], "There is no verb 'trian'. Did you mean train? Verbs: demo, train, "),
        (["list", "recipe"], "Invalid choice 'recipe' for argument 'kind'."),
        (["list", "recipe"], "Did you mean 'recipes'? Run topomask list --help."),
        (["eval"], "Missing from topomask eval: RUN_FOLDER"),
        (["eval", "run", "--splt", "val"], "Unrecognized options: --splt, val. Did you mean --split?"),
        (["predict", "run"], "Missing from topomask predict: FILE"),
        (["predict", "run", "a.png", "--top", "many"], "--top: invalid literal for int() with base 10: 'many'"),
        (["mask", "walk"], "Missing from topomask mask: --graph"),
        (["doctor", "--now"], "Unrecognized options: --now. Run topomask doctor --help."),
    ],
)
def test_a_command_line_that_cannot_be_read_is_one_line_and_status_2(arguments, message):
    assert message in refused(*arguments, status=2)


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_errors_are_plain_text_in_any_encoding(encoding):
    done = subprocess.run(
        [sys.executable, "-m", "topomask", "eval", "run", "--splt", "val"],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "PYTHONIOENCODING": encoding},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "Unrecognized options: --splt, val. Did you mean --split? Run topomask eval --help.\n"


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
    with pytest.raises(SystemExit) as stop, plain_failures(**options):
        raise error
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


def test_stopping_by_hand_is_no_fault(capsys):
    assert stopped(KeyboardInterrupt()) == 130
    assert capsys.readouterr().err == "Stopped.\n"
    assert stopped(KeyboardInterrupt(), go_on="Go on.") == 130
    assert capsys.readouterr().err == "Stopped. Go on.\n"


def test_being_terminated_is_no_fault(capsys):
    before = signal.getsignal(signal.SIGTERM)

    @plain_failures(go_on="Go on.")
    def run():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)

    with pytest.raises(SystemExit) as stop:
        run()
    assert stop.value.code == 143
    assert capsys.readouterr().err == "Stopped. Go on.\n"
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize(("verb", "home"), [(verb, home) for verb, (home, _) in cli.VERBS.items()])
def test_every_verb_says_how_it_goes_on(verb, home, monkeypatch, capsys):
    def stop(*arguments):
        raise KeyboardInterrupt

    home, _, function = home.partition(":")
    module = importlib.import_module(f"topomask.cli.{home}")
    if hasattr(module, "command"):
        monkeypatch.setattr(module, "command", lambda arguments: stop)
    else:
        monkeypatch.setattr(module, function or "run", lambda: stop())
    with pytest.raises(SystemExit) as stopped:
        cli.main([verb])
    told = {
        "train": "Stopped. Saved checkpoints are intact; run the same command with --resume to continue.",
        "reproduce": "Stopped. Saved results are intact; run the same command again to continue.",
    }
    assert stopped.value.code == 130
    assert capsys.readouterr().err == told.get(verb, "Stopped.") + "\n"


@pytest.mark.parametrize("error", [ValueError("x"), OSError("x"), CheckpointError("x"), KeyboardInterrupt()])
def test_the_traceback_is_there_for_who_asks(error, monkeypatch):
    for value in ("", "0", "false"):
        monkeypatch.setenv("TOPOMASK_DEBUG", value)
        stopped(error)
    monkeypatch.setenv("TOPOMASK_DEBUG", "1")

    with pytest.raises(type(error)) as found, plain_failures():
        raise error
    assert found.value is error


@pytest.mark.parametrize("error", [RuntimeError("fault"), TypeError("fault"), ZeroDivisionError("fault")])
def test_faults_of_the_program_keep_their_traceback(error):
    with pytest.raises(type(error), match="fault"), plain_failures():
        raise error
