import json

import pytest
import torch

from experiments.reproduce import computed
from experiments.reproduce.registry import GROUPS, STUDIES
from helpers.refusals import refused
from helpers.small_runs import SMALL
from topomask.cli import main


def folders(tmp_path):
    return ["--results", str(tmp_path / "results"), "--runs", str(tmp_path / "runs")]


def test_rows_are_run_once_and_put_on_a_page(tmp_path, capsys):
    command = ["reproduce", "digits", "--only", "linear,softmax", "--seeds", "0"]
    command += [*folders(tmp_path), "--train.steps", "1", *SMALL["digits"]]
    main([*command, "--report", str(tmp_path / "report.html")])
    out = capsys.readouterr().out
    assert "[1/2] unmasked linear (linear), seed 0" in out
    assert "unmasked softmax better than unmasked linear (the paper: +4.8 points on ImageNet): " in out
    page = (tmp_path / "report.html").read_text()
    assert page.count("<h1>Digits: Tables 1 and 3 in minutes</h1>") == 1
    assert "<h2>" not in page
    assert page.count("data:image/png;base64,") == 2
    assert "http" not in page

    path = tmp_path / "results" / "digits.jsonl"
    linear, softmax = path.read_text().splitlines(keepends=True)
    kept = json.loads(softmax)
    assert kept["seed"] == 0
    assert kept["config"]["model"]["attention"] == "softmax"
    assert {"accuracy", "loss"} <= kept["metrics"].keys()
    assert {"topomask", "torch"} <= kept["versions"].keys()
    main(command)
    assert "[1/2]" not in capsys.readouterr().out

    # A run whose result was not written yet is not started again.
    path.write_text(linear)
    journal = tmp_path / "runs" / "digits" / "softmax-0" / "metrics.jsonl"
    before = journal.read_bytes()
    main(command)
    assert journal.read_bytes() == before
    again = json.loads(path.read_text().splitlines()[1])
    assert again["metrics"] == kept["metrics"]


def test_showing_runs_nothing(tmp_path, monkeypatch, capsys):
    threads = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    main(["reproduce", "table4", "--show", "--threads", "3", *folders(tmp_path)])
    assert threads == [3]
    out = capsys.readouterr().out
    assert "0.754" in out
    assert out.count("not run") == 3
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("given", [[], ["--results"], ["--runs"]])
def test_own_fields_need_own_folders(tmp_path, monkeypatch, given):
    """Otherwise runs that do not count would block those that do."""
    monkeypatch.chdir(tmp_path)
    options = [part for name in given for part in (name, str(tmp_path / "own"))]
    assert "need folders of their own. Pass --results" in refused("reproduce", "digits", "--train.steps", "1", *options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["digit"], "There is no study 'digit'. Did you mean digits?"),
        (["digits", "--only", "grff"], "There is no cell 'grff' in this table. Cells: "),
        (["digits", "--only", "grf", "--show"], "Leave out --only and --seeds"),
        (["digits", "--seeds", "0", "--show"], "Leave out --only and --seeds"),
        (["digits", "--train.seed", "7"], "`train.seed` cannot be set"),
        (["digits", "--model.attention", "linear"], "`model.attention` cannot be set"),
        (["digits", "--seeds", "one"], "`--seeds` must be integers separated by commas"),
        (["digits", "--seeds", "-1"], "`seed` must be in [0, 2**63), but is -1"),
        (["digits", "--threads", "0"], "`--threads` must be at least 1"),
        (["digits", "--train.stpes", "3"], "Did you mean --train.steps?"),
        (["digits", "--onyl", "grf"], "There is no option --onyl. Did you mean --only?"),
        (["fig3", "--train.steps", "3"], "fig3 is computed without training, so it takes no fields, rows or seeds"),
        (["theory", "--seeds", "1"], "theory is computed without training, so it takes no fields, rows or seeds"),
        (["theory", "--only", "grf"], "theory is computed without training, so it takes no fields, rows or seeds"),
        (["fig3", "--show"], "has no result yet. Leave out --show"),
    ],
)
def test_mistakes_are_named(tmp_path, arguments, message):
    assert message in refused("reproduce", *arguments, *folders(tmp_path))
    assert not list(tmp_path.iterdir())


def test_missing_data_says_where_it_should_be(tmp_path, monkeypatch):
    # What the option sets is taken back after the test.
    monkeypatch.setenv("TOPOMASK_DATA", "elsewhere")
    message = refused("reproduce", "table1", "--data", str(tmp_path / "sets"), *folders(tmp_path), "--seeds", "0")
    assert str(tmp_path / "sets" / "fashion-mnist") in message
    assert "TOPOMASK_DATA" in message


def test_a_figure_is_computed_once(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(computed, "TOKENS", (64, 128, 256))
    main(["reproduce", "fig3", *folders(tmp_path)])
    first = capsys.readouterr().out
    assert "256" in first
    monkeypatch.setattr(computed, "_count", None)
    main(["reproduce", "fig3", "--show", *folders(tmp_path)])
    assert capsys.readouterr().out == first
    path = tmp_path / "results" / "fig3.jsonl"
    found = json.loads(path.read_text())
    for metrics in ({}, found["metrics"] | {"points": []}, found["metrics"] | {"slopes": 3}):
        path.write_text(json.dumps(found | {"metrics": metrics}) + "\n")
        assert f"The result of fig3 in {path} is damaged" in refused("reproduce", "fig3", "--show", *folders(tmp_path))


def test_the_help_names_all_studies(capsys):
    with pytest.raises(SystemExit):
        main(["reproduce", "--help"])
    out = " ".join(capsys.readouterr().out.split())
    tables = [name for name in STUDIES if not any(name in parts for parts in GROUPS.values())]
    assert ", ".join((*tables, *GROUPS)) in out
