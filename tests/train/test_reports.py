import errno
import io
import json
import sys
from dataclasses import replace

import pytest
from matplotlib.figure import Figure
from torch import nn

from helpers import training
from topomask.train import plot_metric, plot_modulations, plot_run, read_metrics
from topomask.train.reports import Journal, Progress, _clock

SHORT = replace(training.CONFIG, epochs=None, steps=6, progress=True)


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_plain_lines_where_there_is_no_terminal(tmp_path, capsys):
    training.run(tmp_path, SHORT)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines] == [
        ["step", "3/6", "train"],
        ["step", "5/6", "eval"],
        ["step", "6/6", "eval"],
    ]
    assert all("loss" in line and line.endswith("left)") for line in lines)


def test_a_bar_with_the_time_left_on_a_terminal(tmp_path, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "140")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    training.run(tmp_path, SHORT)
    shown = terminal.getvalue()
    assert "6/6" in shown
    assert "left" in shown
    assert "eval  loss" in shown


def test_plain_lines_without_rich(monkeypatch):
    monkeypatch.setitem(sys.modules, "rich", None)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    with Progress(10) as progress:
        progress.advance(5)
        progress.line("train", 5, {"loss": 0.5})
    assert "step 5/10  train loss 0.5  (0:00:00 left)" in terminal.getvalue()
    assert _clock(3725.4) == "1:02:05"


def test_numbers_that_json_does_not_have_become_null(tmp_path):
    journal = Journal(tmp_path / "metrics.jsonl")
    journal.write("eval", 1, 0.5, {"loss": float("nan"), "accuracy": 0.5}, {"seconds": float("inf")})
    journal.close()
    (line,) = read_metrics(tmp_path / "metrics.jsonl")
    assert (line["loss"], line["accuracy"], line["time"]) == (None, 0.5, {"seconds": None})


GOOD = {"event": "train", "step": 1, "epoch": 0.5, "loss": 0.25, "time": {"seconds": 1.0}}


@pytest.mark.parametrize(
    "line",
    [
        *("", "{}", "[]", "null", "NaN", "[" * 900 + "]" * 900, "[" * 100_000 + "]" * 100_000, '{"event": "tra'),
        *(json.dumps({name: value for name, value in GOOD.items() if name != gone}) for gone in GOOD if gone < "l"),
        json.dumps(GOOD | {"event": []}),
        json.dumps(GOOD | {"step": "1"}),
        json.dumps(GOOD | {"step": True}),
        json.dumps(GOOD | {"step": 1.0}),
        json.dumps(GOOD | {"step": -1}),
        json.dumps(GOOD | {"epoch": None}),
        json.dumps(GOOD | {"epoch": [1]}),
        json.dumps(GOOD | {"loss": "x"}),
        json.dumps(GOOD | {"loss": {"x": 1}}),
        json.dumps(GOOD | {"loss": float("inf")}),
        json.dumps(GOOD | {"loss": 10**400}),
        json.dumps(GOOD | {"time": []}),
        json.dumps(GOOD | {"time": {"seconds": "x"}}),
    ],
    ids=lambda line: line[:60],
)
def test_a_damaged_line_is_left_out_and_the_others_stay(line, tmp_path):
    path, last = tmp_path / "metrics.jsonl", GOOD | {"step": 2}
    path.write_text(f"{json.dumps(GOOD)}\n{line}\n{json.dumps(last)}\n")
    assert read_metrics(path) == [GOOD, last]
    journal = Journal(path, step=2)
    assert (journal.kept, journal.damaged, journal.beyond) == ([GOOD, last], 1, 0)
    journal.write("eval", 3, 1.5, {"loss": 0.5}, {})
    journal.close()
    assert [line["step"] for line in read_metrics(path)] == [1, 2, 3]
    assert len(path.read_text().splitlines()) == 3


def test_a_line_is_written_in_parts_where_the_disk_takes_no_more(tmp_path):
    class Nearly(io.BytesIO):
        """Takes 7 bytes at a time, until the disk is full."""

        left = 30

        def write(self, text):
            if not self.left:
                raise OSError(errno.ENOSPC, "No space left on device")
            taken = min(7, self.left, len(text))
            self.left -= taken
            return super().write(text[:taken])

    journal = Journal(tmp_path / "metrics.jsonl")
    journal._file.close()
    journal._file = file = Nearly()
    with pytest.raises(OSError, match=r"metrics\.jsonl could not be written: No space left on device\. Any previous"):
        journal.write("eval", 1, 0.5, {"loss": 1.0}, {})
    assert file.getvalue() == b'{"event": "eval", "step": 1, "'
    journal._file = file = Nearly()
    file.left = 1000
    journal.write("eval", 1, 0.5, {"loss": 1.0}, {})
    assert json.loads(file.getvalue())["loss"] == 1.0


def test_plots_are_pictures(tmp_path):
    result = training.run(tmp_path, replace(training.CONFIG, epochs=2))
    pictures = plot_run(tmp_path, result.model)
    assert [path.name for path in pictures] == ["loss.png", "accuracy.png", "modulation.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5000 for path in pictures)
    with pytest.raises(ValueError, match="no mask with a learnt modulation, so there is nothing to plot"):
        plot_modulations(nn.Linear(1, 1), tmp_path / "none.png")
    assert plot_run(tmp_path, nn.Linear(1, 1)) == pictures[:2]


def test_a_picture_that_breaks_off_leaves_the_one_before(tmp_path, monkeypatch):
    lines = [{"event": "train", "epoch": epoch, "loss": 1.0 / (1 + epoch)} for epoch in range(3)]
    path = tmp_path / "loss.png"
    plot_metric(lines, "loss", path)
    before = path.read_bytes()

    def break_off(figure, target, **options):
        target.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(Figure, "savefig", break_off)
    with pytest.raises(OSError, match="disk full"):
        plot_metric(lines, "loss", path)
    assert path.read_bytes() == before
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_has_the_same_numbers(tmp_path):
    training.run(tmp_path, replace(SHORT, tensorboard=True, progress=False))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    found = [(event.step, pytest.approx(event.value, rel=1e-6)) for event in events.Scalars("eval/loss")]
    lines = read_metrics(tmp_path / "metrics.jsonl")
    assert [(line["step"], line["loss"]) for line in lines if line["event"] == "eval"] == found
    assert "train/examples_per_second" in events.Tags()["scalars"]
