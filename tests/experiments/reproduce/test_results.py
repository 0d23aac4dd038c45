import errno
import json
import os
import select
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from filelock import FileLock

import topomask as tm
from experiments.reproduce.results import ResultFile, RunResult

CUT_OFF = r"The last line of .*digits\.jsonl was cut off"
# Waits for a line, and adds results of the seeds from one number up to another.
ADDER = """
import sys
from pathlib import Path
from experiments.reproduce.results import ResultFile, RunResult

file = ResultFile(Path(sys.argv[1]), "digits")
print("ready", flush=True)
sys.stdin.readline()
for seed in range(int(sys.argv[2]), int(sys.argv[3])):
    file.add(RunResult("grf", seed, {"accuracy": seed / 7, "more": "x" * 20_000}, 1.5, {"lr": 0.1}, {"torch": "2"}))
    print(seed, flush=True)
"""


def result(cell="grf", seed=0, **changes):
    known = {"metrics": {"accuracy": 0.5}, "seconds": 1.5, "config": {"lr": 0.1}, "versions": {"torch": "2"}}
    return RunResult(cell, seed, **known | changes)


def to_line(run):
    return (json.dumps(asdict(run)) + "\n").encode()


@pytest.fixture
def file(tmp_path):
    return ResultFile(tmp_path / "results", "digits")


@pytest.fixture
def start_adder(file):
    """Starts processes that add results of a range of seeds, and wait for a line before the first."""
    started = []

    def start(first, last):
        folders = [Path(tm.__file__).parents[1], Path(__file__).parents[3]]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, folders))}
        command = [sys.executable, "-c", ADDER, str(file.path.parent), str(first), str(last)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(command, env=environment, **pipes))
        assert started[-1].stdout.readline() == "ready\n"
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_results_come_back(file):
    assert file.runs() == []
    assert not file.path.parent.exists(), "reading writes nothing"
    runs = [result("grf", 0), result("grf", 2), result("grf", 10), result("linear", 0)]
    for run in reversed(runs):
        file.add(run)
    assert file.runs() == runs
    assert file.path.name == "digits.jsonl"
    assert file.path.read_bytes() == b"".join(map(to_line, reversed(runs)))
    assert {path.name for path in file.path.parent.iterdir()} == {"digits.jsonl", ".digits.jsonl.lock"}


def test_a_result_is_found_by_cell_seed_and_config(file):
    file.add(result())
    assert file.find("grf", 0, {"lr": 0.1}) == result()
    assert file.find("grf", 0, {"lr": 0.2}) is None
    assert file.find("grf", 1, {"lr": 0.1}) is None
    assert file.find("linear", 0, {"lr": 0.1}) is None


def test_a_new_result_replaces_the_old(file):
    file.add(result())
    file.add(result(seed=1))
    new = result(metrics={"accuracy": 0.75}, config={"lr": 0.2})
    file.add(new)
    assert file.runs() == [new, result(seed=1)]
    assert file.find("grf", 0, {"lr": 0.1}) is None, "as if the old one had never been there"
    assert file.path.read_bytes().startswith(to_line(result())), "what was written is not written again"


@pytest.mark.parametrize("text", ["", '{"cell": "grf", "se', "[]", "3", '{"cell": "grf"}', "null", "\xff"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_line_that_is_no_result_is_named(file, text, place):
    lines = [to_line(result(seed=seed)) for seed in range(2)]
    lines.insert(place, text.encode("latin-1") + b"\n")
    file.path.parent.mkdir()
    file.path.write_bytes(b"".join(lines))
    for look in (file.runs, lambda: file.find("grf", 0, {})):
        with pytest.raises(
            ValueError, match=rf"Line {place + 1} of .*digits\.jsonl is not the result of a run .*Delete the line"
        ):
            look()


def test_a_last_line_that_was_cut_off_is_ignored_and_then_removed(file):
    """Wherever it was cut."""
    kept, last, new = result(), result(seed=1), result(seed=2)
    for length in range(1, len(to_line(last)) - 1):
        file.path.unlink(missing_ok=True)
        file.add(kept)
        with file.path.open("ab") as open_file:
            open_file.write(to_line(last)[:length])
        with pytest.warns(UserWarning, match=CUT_OFF):
            assert file.runs() == [kept]
        with pytest.warns(UserWarning, match=CUT_OFF):
            assert file.find("grf", 1, {}) is None
        file.add(new)
        assert file.path.read_bytes() == to_line(kept) + to_line(new)
        assert file.runs() == [kept, new]


def test_a_first_line_that_was_cut_off(file):
    file.path.parent.mkdir()
    file.path.write_bytes(to_line(result())[:30])
    with pytest.warns(UserWarning, match=CUT_OFF):
        assert file.runs() == []
    file.add(result())
    assert file.path.read_bytes() == to_line(result())


def test_only_the_newline_may_be_missing(file):
    """As where an editor saved the file."""
    file.path.parent.mkdir()
    file.path.write_bytes(to_line(result())[:-1])
    assert file.runs() == [result()]
    file.add(result(seed=1))
    assert file.path.read_bytes() == to_line(result()) + to_line(result(seed=1))


def test_a_full_disk_loses_nothing_that_was_there(file, monkeypatch):
    file.add(result())

    def fail(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match=r"digits\.jsonl could not be written: No space left .* content is intact"):
            file.add(result(seed=1))
    assert file.runs()[0] == result()


def test_a_line_that_another_process_is_writing_is_waited_for(file, start_adder):
    file.add(result("linear", 0))
    line = to_line(result("linear", 1))
    with FileLock(file.path.with_name(".digits.jsonl.lock")):
        other = start_adder(0, 1)
        with file.path.open("ab", buffering=0) as open_file:
            open_file.write(line[:20])
            other.stdin.write("go\n")
            other.stdin.flush()
            assert not select.select([other.stdout], [], [], 1.0)[0], "it has to wait"
            open_file.write(line[20:])
    assert other.communicate()[0] == "0\n"
    assert [(run.cell, run.seed) for run in file.runs()] == [("grf", 0), ("linear", 0), ("linear", 1)]


def test_two_processes_add_to_one_file(file, start_adder):
    processes = [start_adder(0, 150), start_adder(150, 300)]
    outputs = []
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        outputs.append(process.communicate()[0].split())
        assert process.returncode == 0
    assert outputs == [[str(seed) for seed in range(first, first + 150)] for first in (0, 150)]
    written = [json.loads(line)["seed"] for line in file.path.read_bytes().splitlines()]
    assert sorted(written) == list(range(300)), "every line once"
    assert [(run.seed, run.metrics["accuracy"]) for run in file.runs()] == [(seed, seed / 7) for seed in range(300)]


@pytest.mark.filterwarnings(f"ignore:{CUT_OFF}")
def test_a_kill_loses_no_result_that_was_added(file, start_adder):
    """One process is killed while it adds; the other goes on, and so does one that comes later."""
    killed, other = start_adder(0, 10_000), start_adder(10_000, 10_040)
    for process in (killed, other):
        process.stdin.write("go\n")
        process.stdin.flush()
    said = [int(killed.stdout.readline()) for _ in range(20)]
    killed.send_signal(signal.SIGKILL)
    said += [int(line) for line in killed.communicate()[0].split()]
    assert other.communicate()[0].split() == [str(seed) for seed in range(10_000, 10_040)]
    assert other.returncode == 0
    file.add(result("linear", 0))
    found = [run.seed for run in file.runs() if run.cell == "grf"]
    assert set(found) >= {*said, *range(10_000, 10_040)}
    # At most the one that was being added.
    assert len(set(found) - {*said, *range(10_000, 10_040)}) <= 1
    assert file.path.read_bytes().endswith(to_line(result("linear", 0)))
