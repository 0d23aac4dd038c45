import json
import os
import re
import shutil
import signal
from pathlib import Path

import pytest
import torch

from helpers.data_files import write_pictures, write_video
from helpers.refusals import refused
from helpers.small_runs import MODEL, SMALL, write_particles, write_picture
from topomask.cli import main
from topomask.train import read_checkpoint, read_metrics
from topomask.train.step import Stepper

DIGITS = SMALL["digits"]
INPUTS = {
    "digits": (write_picture, "8.png"),
    "moving-digits": (write_video, "ball.mp4"),
    "particles": (write_particles, "body.npz"),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Digits after 4 steps of two epochs, with checkpoints at 2 and 4."""
    folder = tmp_path_factory.mktemp("trained") / "digits"
    main(["train", "digits", "--output", str(folder), "--train.steps", "4", *DIGITS])
    return folder


@pytest.fixture
def run(trained, tmp_path):
    """A copy to spoil."""
    return shutil.copytree(trained, tmp_path / "run")


@pytest.mark.parametrize("recipe", SMALL)
def test_a_recipe_trains_resumes_is_evaluated_and_predicts(recipe, tmp_path, capsys):
    folder, fields = tmp_path / "run", [*SMALL[recipe], "--train.steps", "2"]
    command = ["train", recipe, "--output", str(folder)]
    main([*command, *fields, "--train.checkpoint_every", "1"])
    out = capsys.readouterr().out
    assert "After 2 steps" in out
    assert f"topomask eval {folder}" in out
    assert {"config.json", "metrics.jsonl", "loss.png", "modulation.png"} <= {path.name for path in folder.iterdir()}
    before = read_metrics(folder / "metrics.jsonl")

    # As if killed after the first step.
    (folder / "checkpoints" / "step-000000002.safetensors").unlink()
    (folder / "checkpoints" / "best.safetensors").unlink()
    main([*command, *fields, "--resume"])
    after = read_metrics(folder / "metrics.jsonl")
    assert [{**line, "time": None} for line in after] == [{**line, "time": None} for line in before]
    capsys.readouterr()

    main(["eval", str(folder), "--json"])
    found = json.loads(capsys.readouterr().out)
    last = next(line for line in reversed(after) if line["event"] == "eval")
    assert found["step"] == 2
    assert found["loss"] == pytest.approx(last["loss"])

    write, name = INPUTS[recipe]
    main(["predict", str(folder), str(write(tmp_path / name))])
    assert capsys.readouterr().out.startswith(f"{tmp_path / name}: ")


def test_fields_may_stand_behind_options(tmp_path):
    for place, fields in enumerate((["--train.steps", "1", *DIGITS], [])):
        behind = [] if fields else ["--train.steps", "1", *DIGITS]
        main(["train", "digits", *fields, "--output", str(tmp_path / str(place)), *behind])
    configs = [json.loads((tmp_path / name / "config.json").read_text()) for name in ("0", "1")]
    assert configs[0] == configs[1]
    assert configs[0]["train"]["steps"] == 1
    assert configs[0]["model"]["image_size"] == 8
    assert configs[0]["facts"]["classes"] == [str(digit) for digit in range(10)]


def test_the_folder_of_a_run_is_named_after_the_recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main(["train", "digits", "--train.steps", "1", *DIGITS])
    assert (tmp_path / "runs" / "digits" / "checkpoints" / "best.safetensors").is_file()


def test_own_pictures_are_trained_on(tmp_path, capsys):
    write_pictures(tmp_path / "pets")
    options = [
        "--data.size",
        "8",
        "--data.batch_size",
        "4",
        "--data.shift",
        "1",
        "--model.patch_size",
        "4",
        "--train.steps",
        "1",
        *MODEL,
    ]
    main(["train", "image-folder", f"--data.path={tmp_path / 'pets'}", *options, "--output", str(tmp_path / "run")])
    main(["predict", str(tmp_path / "run"), str(tmp_path / "pets" / "val" / "red" / "0.png"), "--top", "9"])
    line = capsys.readouterr().out.splitlines()[-1]
    assert "red " in line
    assert "blue " in line


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (["--steps", "3"], "Did you mean --train.steps?"),
        (["--train.steps", "0"], "Error parsing config.train: `steps` must be at least 1, but is 0."),
        (["--train", "3"], "Unrecognized options: --train, 3. Did you mean --train."),
        (["train.steps=3"], "Unrecognized options: train.steps=3."),
        (["--recipe", "particles"], "Unrecognized options: --recipe, particles."),
        (["--facts.mean", "0.5"], "Unrecognized options: --facts.mean, 0.5."),
        (["--model.attention", "grff"], "Did you mean 'grf'?"),
        (["--model.patch_size", "3"], "`image_size` must be a multiple of `patch_size`"),
        (["--model.image_size", "9"], "`model.image_size` is 9, but the data has 8"),
        (["--model.num_classes", "3"], "`model.num_classes` is 3, but the data has 10"),
        (["--data.name", "digit"], "There is no data set 'digit'. Did you mean digits?"),
        (["--data.name", "particles", "--data.limit", "None"], "has no classes"),
        (
            ["--data.name", "moving-digits", "--data.limit", "None", "--data.num_videos", "2", "--data.size", "16"],
            "Use a recipe for videos",
        ),
        (
            ["--data.name", "image-folder", "--data.limit", "None"],
            "needs the option 'path'. Pass path=... (on the command line",
        ),
        (["--data.size", "16"], "data set 'digits' has no option `size`. It takes: limit, val_fraction."),
        (["--data.limit", "0"], "`limit` must lie between 1 and"),
        (["--data.batch_size", "0"], "`batch_size` must be at least 1"),
        (["--train.device", "gpu"], "`device` must be a torch device, such as 'cpu' or 'cuda', but is 'gpu'"),
        (["--start", "nowhere.safetensors"], "There is no checkpoint nowhere.safetensors"),
    ],
)
def test_mistakes_are_named(tmp_path, fields, message):
    assert message in refused("train", "digits", "--output", str(tmp_path / "run"), *DIGITS, *fields)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["digits", "--train.stpes", "3"], "Unrecognized options: --train.stpes, 3. Did you mean --train.steps?"),
        (["digits", "--resum"], "Unrecognized options: --resum. Did you mean --resume?"),
        (["digits", "--train.steps=many"], "--train.steps: no type matching {None}|INT could be instantiated from"),
        (["digits", "--train.epochs", "none"], "--train.epochs: no type matching {None}|INT could be instantiated"),
        (["digits", "--train.optim.lr", "fast"], "--train.optim.lr: could not convert string to float: 'fast'"),
        (["digits", "--data.flip=perhaps"], "Invalid choice 'perhaps' for argument '--data.flip'. Expected one of"),
        (["digits", "--model.pooling", "men"], "Expected one of ('cls', 'mean'). Did you mean 'mean'?"),
        (["digits", "--train.steps"], "Missing value for argument '--train.steps'."),
        (["digits", "--train.optim.betas", "0.5"], "Missing value for argument '--train.optim.betas'. Expected 2"),
        (["digits", "--resume", "--train.steps", "0"], "`steps` must be at least 1, but is 0"),
        (["digitz"], "There is no recipe 'digitz'. Did you mean digits?"),
        (["--resume", "digits"], "Name the recipe first, as in topomask train digits."),
        ([], "Name the recipe first"),
    ],
)
def test_a_command_line_that_cannot_be_read_is_one_line_and_status_2(arguments, message):
    assert message in refused("train", *arguments, status=2)


@pytest.mark.parametrize(
    ("recipe", "option", "own"),
    [
        ("graphs", "--model.attention", "--model.mask"),
        ("nodes", "--model.attention=grf", "--model.mask"),
        ("graphs-baseline", "--model.mask", "--model.layer"),
        ("particles", "--model.attention", "--model.neighbors"),
        ("digits", "--model.mask", "--model.attention"),
    ],
)
def test_the_name_that_other_recipes_have_for_attention_leads_to_that_of_this_one(recipe, option, own):
    message = refused("train", recipe, option, "grf", status=2)
    assert f"Here it is {own}. Run topomask train {recipe} --help." in message


def test_errors_have_no_colours_on_a_terminal(monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    message = refused("train", "digits", "--train.stpes", "3", status=2)
    assert message == (
        "Unrecognized options: --train.stpes, 3. Did you mean --train.steps? Run topomask train digits --help."
    )


@pytest.mark.parametrize("recipe", ["fashion-mnist", "mnist", "cifar10", "tiny-imagenet-50"])
def test_missing_data_says_where_it_should_be(recipe, tmp_path, monkeypatch):
    monkeypatch.setenv("TOPOMASK_DATA", str(tmp_path / "sets"))
    message = refused("train", recipe, "--output", str(tmp_path / "run"))
    assert str(tmp_path / "sets") in message
    assert "TOPOMASK_DATA" in message
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("recipe", "folder"), [("image-folder", "images"), ("video-folder", "videos")])
def test_missing_folders_say_where_they_should_be(recipe, folder, tmp_path, monkeypatch):
    monkeypatch.setenv("TOPOMASK_DATA", str(tmp_path / "sets"))
    message = refused("train", recipe, "--output", str(tmp_path / "run"))
    assert f"There is nothing at {tmp_path / 'sets' / folder}" in message
    assert "TOPOMASK_DATA" in message


@pytest.mark.parametrize(
    ("recipe", "fields"), [("particles", ["--train.epochs", "1"]), ("digits", ["--train.steps", "3"])]
)
def test_a_run_has_one_length(recipe, fields, tmp_path):
    message = refused("train", recipe, "--output", str(tmp_path / "run"), *fields)
    assert message.startswith("Error parsing config.train: `epochs` is ")
    assert "but only one can be set. Set the other to None, as in --train.epochs None." in message
    assert not (tmp_path / "run").exists()


def test_a_run_is_not_overwritten(run):
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    message = refused("train", "digits", "--output", str(run), "--train.steps", "4", *DIGITS)
    assert f"{run} already contains a run" in message
    assert "--resume" in message
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_another_config_is_not_resumed(run):
    message = refused("train", "digits", "--output", str(run), "--resume", *DIGITS, "--train.steps", "5")
    assert "--train.steps", "4 is now 5" in message


def test_a_damaged_checkpoint_is_named_and_an_older_one_taken(run, capsys):
    command = ["train", "digits", "--output", str(run), "--resume", "--train.steps", "4", *DIGITS]
    damaged = run / "checkpoints" / "step-000000004.safetensors"
    content = bytearray(damaged.read_bytes())
    content[-7] ^= 0xFF
    damaged.write_bytes(content)
    before = read_metrics(run / "metrics.jsonl")
    message = refused(*command)
    assert f"{damaged} is damaged" in message
    assert "the one before it is step-000000002.safetensors" in message
    assert "--fallback" in message
    with pytest.warns(UserWarning, match=r"step-000000004.safetensors is damaged.*renamed to \.damaged"):
        main([*command, "--fallback"])
    assert read_checkpoint(damaged).info["step"] == 4
    after = read_metrics(run / "metrics.jsonl")
    assert [{**line, "time": None} for line in after] == [{**line, "time": None} for line in before]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_the_run_and_says_how_to_go_on(number, trained, tmp_path, monkeypatch, capsys):
    step, folder = Stepper.step, tmp_path / "run"

    def step_and_signal(*arguments):
        os.kill(os.getpid(), number)
        return step(*arguments)

    command = ["train", "digits", "--output", str(folder), "--train.steps", "4", *DIGITS]
    monkeypatch.setattr(Stepper, "step", step_and_signal)
    with pytest.raises(SystemExit) as stop:
        main(command)
    monkeypatch.undo()
    assert stop.value.code == 128 + number
    saved, how = capsys.readouterr().err.splitlines()
    path = folder / "checkpoints" / "step-000000001.safetensors"
    assert saved.startswith(f"{number.name} at step 1 of 4: saved {path}. ")
    assert how == "Stopped. Saved checkpoints are intact; run the same command with --resume to continue."
    main([*command, "--resume"])
    lines = [read_metrics(path / "metrics.jsonl") for path in (trained, folder)]
    assert lines[0]
    assert [{**line, "time": None} for line in lines[0]] == [{**line, "time": None} for line in lines[1]]


def test_an_older_checkpoint_is_for_runs_that_go_on(tmp_path):
    assert "Pass --resume too" in refused("train", "digits", "--output", str(tmp_path), "--fallback")


def test_fine_tuning_takes_all_but_the_head(trained, tmp_path):
    start = trained / "checkpoints" / "best.safetensors"
    folder = tmp_path / "tuned"
    # At a rate of nearly zero the weights stay what they were.
    still = ["--train.steps", "1", "--train.optim.lr", "1e-12", "--train.optim.final_lr", "0", "--train.seed", "7"]
    main(["train", "digits", f"--start={start}", "--output", str(folder), *DIGITS, *still])
    before = read_checkpoint(start).weights
    after = read_checkpoint(folder / "checkpoints" / "best.safetensors").weights
    assert before.keys() == after.keys()
    for name, value in before.items():
        same = torch.allclose(after[name].double(), value.double(), atol=1e-6)
        assert same != name.startswith("head."), name


def test_fine_tuning_goes_on_without_the_file_it_started_from(trained, tmp_path):
    start = Path(shutil.copy(trained / "checkpoints" / "best.safetensors", tmp_path))
    fields = [f"--start={start}", *DIGITS, "--train.steps", "2", "--train.checkpoint_every", "1"]
    command = ["train", "digits", "--output", str(tmp_path / "run"), "--resume", *fields]
    main(command)
    checkpoints = tmp_path / "run" / "checkpoints"
    whole = read_checkpoint(checkpoints / "step-000000002.safetensors").weights
    (checkpoints / "step-000000002.safetensors").unlink()
    start.unlink()
    main(command)
    after = read_checkpoint(checkpoints / "step-000000002.safetensors").weights
    assert all(torch.equal(value, whole[name]) for name, value in after.items())
    # If no checkpoint is intact, the run starts again and needs it.
    for path in checkpoints.glob("step-*"):
        path.write_bytes(path.read_bytes()[:-1])
    assert f"There is no checkpoint {start}" in refused(*command, "--fallback")


def test_fine_tuning_from_another_model_says_what_does_not_fit(trained, tmp_path):
    start = trained / "checkpoints" / "best.safetensors"
    message = refused("train", "digits", f"--start={start}", "--output", str(tmp_path), *DIGITS, "--model.dim", "16")
    assert f"{start} does not fit the model" in message


def test_a_loss_that_is_not_finite_stops_with_one_message(tmp_path):
    wild = ["--train.optim.lr", "1e30", "--train.optim.clip", "None", "--train.steps", "5"]
    message = refused("train", "digits", "--output", str(tmp_path), *DIGITS, *wild)
    assert "Training stopped at step" in message
    assert "not finite" in message


def test_help_lists_the_fields_and_nothing_is_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(["train", "digits", "--train.epochs", "7", "--help"])
    assert stop.value.code == 0
    lines = [line.strip("│ ") for line in capsys.readouterr().out.splitlines()]
    words = " ".join(lines)
    assert "--train.epochs {None}|INT Passes over the data; " in words
    assert "--output PATH Folder of the run. (default: runs/digits)" in words
    fields = [place for place, line in enumerate(lines) if re.match(r"--\w", line)]
    assert len(fields) > 50
    assert all(lines[place + 1][:1].isalnum() or lines[place + 1][:1] == '"' for place in fields), "all are explained"
    assert "--recipe" not in words, "what a run fills in is not listed"
    assert "facts" not in words
    assert not list(tmp_path.iterdir())
