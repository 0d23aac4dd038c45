import json
import shutil

import pytest

from helpers.small_runs import SMALL
from topomask.cli import main


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "digits"
    main(["train", "digits", "--output", str(folder), "--train.steps", "2", *SMALL["digits"]])
    return folder


def refused(*arguments):
    with pytest.raises(SystemExit) as stop:
        main(["eval", *map(str, arguments)])
    return stop.value.code


def test_metrics_are_printed_for_people_and_as_json(trained, capsys):
    main(["eval", str(trained), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found.keys() == {"checkpoint", "step", "loss", "accuracy"}
    main(["eval", str(trained)])
    first, *lines = capsys.readouterr().out.splitlines()
    # Nothing is chosen by a test set, so this is the last.
    assert first == f"{trained / 'checkpoints' / 'step-000000002.safetensors'}, step 2, split test"
    assert {line.split()[0]: float(line.split()[1]) for line in lines} == {
        name: pytest.approx(found[name], rel=1e-5) for name in ("loss", "accuracy")
    }


def test_another_split_gives_other_metrics(trained, capsys):
    losses = {}
    for split in ("train", "test"):
        main(["eval", str(trained), "--json", "--split", split])
        losses[split] = json.loads(capsys.readouterr().out)["loss"]
    assert losses["train"] != losses["test"]
    assert "must be one of train, val, test, but is 'nonsense'" in refused(trained, "--split", "nonsense")


def test_what_is_no_run_is_refused(tmp_path):
    assert f"{tmp_path} is not a run folder: it has no config.json" in refused(tmp_path)
    assert "nowhere is not a run folder" in refused(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is damaged: it is not valid JSON"),
        ('{"recipe": "dig', "is damaged: it is not valid JSON"),
        ("[]", "does not name a recipe"),
        ('{"optim": {}}', "Evaluate a run made in Python with result.evaluate; train.run(..., resume=True) returns"),
        ('{"recipe": 3}', "does not name a recipe"),
        ('{"recipe": "digitz"}', "Did you mean digits?"),
        ('{"recipe": "digits"}', "missing: train, data, label_smoothing"),
    ],
)
def test_a_damaged_config_is_named(tmp_path, text, message):
    path = tmp_path / "config.json"
    path.write_text(text)
    found = refused(tmp_path)
    assert str(path) in found
    assert message in found


def test_checkpoints_that_are_damaged_or_gone_are_named(trained, tmp_path):
    run = shutil.copytree(trained, tmp_path / "run")
    last = run / "checkpoints" / "step-000000002.safetensors"
    last.write_bytes(last.read_bytes()[:-9])
    assert f"{last} is damaged" in refused(run)
    shutil.rmtree(run / "checkpoints")
    assert f"There is no checkpoint in {run}" in refused(run)
