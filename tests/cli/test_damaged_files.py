"""Files of a run that someone has damaged: every verb comes to its end, or says in one line what is wrong."""

import json
import shutil

import pytest

from helpers import damaged_files
from helpers.damaged_files import FIELDS, STUDY, nested, outcome, read_header, write_header

ROOTS = ["{}", "[]", "null", "3", '"x"', nested(40), nested(900), nested(100_000)]


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sound")
    damaged_files.prepare(folder / "all")
    return folder / "all"


@pytest.fixture
def folder(sound, tmp_path):
    """A copy to spoil."""
    return shutil.copytree(sound, tmp_path / "all")


def resume(folder, *options):
    return outcome("train", "digits", "--output", str(folder / "run"), "--resume", *options, *FIELDS)


def reproduce(folder, *options):
    places = ["--results", str(folder / "results"), "--runs", str(folder / "runs")]
    return outcome("reproduce", *(options or STUDY), *places)


def last(folder):
    return folder / "run" / "checkpoints" / "step-000000004.safetensors"


@pytest.mark.parametrize("text", [*ROOTS, '{"format": 1}', '{"format": [1]}'], ids=lambda text: text[:16])
def test_headers_that_say_nothing(text, folder):
    write_header(last(folder), text)
    for said in (
        resume(folder),
        outcome("eval", str(folder / "run")),
        outcome("predict", str(folder / "run"), str(folder / "digit.png")),
    ):
        assert said.startswith(f"{last(folder)} ")
    assert last(folder).is_file(), "nothing is touched"


def test_headers_that_say_nothing_are_set_aside_where_told(folder):
    write_header(last(folder), nested(100_000))
    assert resume(folder, "--fallback") == ""
    assert last(folder).with_suffix(".damaged").is_file()
    assert outcome("eval", str(folder / "run")) == ""


def change(folder, name, value):
    """Another value in the header of the last checkpoint; its checksum is right."""
    header = json.loads(read_header(last(folder)))
    *groups, field = name.split(".")
    home = header
    for group in groups:
        home = home[int(group)] if group.isdigit() else home[group]
    if value is DROPPED:
        del home[field]
    else:
        home[int(field) if field.isdigit() else field] = value
    write_header(last(folder), json.dumps(header))


DROPPED = object()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("config", None, "does not contain the config of the run"),
        ("state", DROPPED, "State must have the fields step, seconds, "),
        ("state", [], "State must be a group of fields, but is []"),
        ("state.step", DROPPED, "stale; missing: step"),
        ("state.step", "4", "`step` must be int, but is '4'"),
        ("state.step", True, "`step` must be int, but is True"),
        ("state.step", -1, "`step` must be in [0, 2**63), but is -1"),
        ("state.step", 3, "its state is of step 3"),
        ("state.seconds", None, "`seconds` must be float, but is None"),
        ("state.sums", [1], "`sums` must be dict[str, int | float], but is [1]"),
        ("state.metrics", {"loss": None}, "`metrics['loss']` must be int | float, but is None"),
        ("state.metrics", {"loss": "x"}, "`metrics['loss']` must be int | float, but is 'x'"),
        ("random", {}, "does not contain the versions and random states"),
        ("versions", [], "does not contain the versions and random states"),
        ("random.0", None, "its random state cannot be restored"),
        ("random.0.torch", "AAAA", "its random state cannot be restored"),
        ("random.0.torch", "?", "its random state cannot be restored"),
        ("random.0.numpy", [[1], 2, 3, 4], "its random state cannot be restored"),
        ("random.0.python", [3, [1], None], "its random state cannot be restored"),
        ("random.0.python", DROPPED, "its random state cannot be restored"),
        ("length", [], "[] steps per epoch, but there are 2 now"),
    ],
)
def test_headers_with_other_values(name, value, message, folder):
    change(folder, name, value)
    said = resume(folder)
    assert message in said
    assert str(folder / "run") in said


def test_a_position_of_numpys_generator_beyond_its_state(folder):
    """NumPy itself would read there."""
    numpy = json.loads(read_header(last(folder)))["random"][0]["numpy"]
    change(folder, "random.0.numpy", [numpy[0], 10**9, *numpy[2:]])
    assert "position 1000000000 of 624" in resume(folder)


@pytest.mark.parametrize("text", ROOTS, ids=lambda text: text[:16])
def test_configs_that_say_nothing(text, folder):
    path = folder / "run" / "config.json"
    path.write_text(text)
    for said in (
        outcome("eval", str(folder / "run")),
        outcome("predict", str(folder / "run"), str(folder / "digit.png")),
    ):
        assert said.startswith(f"{path} ")


@pytest.mark.parametrize(
    ("group", "field", "value"),
    [("model", "dim", 10**9), ("model", "depth", 2), ("facts", "mean", 0.25), ("train", "seed", 10**15)],
)
def test_configs_of_other_runs(group, field, value, folder):
    """They would take all memory, not fit, or give other numbers without a word."""
    path = folder / "run" / "config.json"
    config = json.loads(path.read_text())
    before = config[group][field]
    config[group][field] = [value] if isinstance(before, list) else value
    path.write_text(json.dumps(config))
    said = outcome("eval", str(folder / "run"))
    assert f"{path} is not the config that {last(folder)} was trained with: {group}.{field}=" in said


def test_a_number_too_large_for_a_float(folder):
    path = folder / "run" / "config.json"
    path.write_text(path.read_text().replace('"label_smoothing": 0.0', f'"label_smoothing": {10**400}'))
    assert "`label_smoothing` must be float, but is 1000" in outcome("eval", str(folder / "run"))


@pytest.mark.parametrize(
    "line", [nested(100_000), pytest.param("{}", marks=pytest.mark.slow)], ids=lambda line: line[:16]
)
def test_lines_of_metrics(line, folder):
    path = folder / "run" / "metrics.jsonl"
    lines = path.read_text().splitlines()
    assert json.loads(lines[0])["step"] == 1
    path.write_text("".join(f"{each}\n" for each in (line, *lines[1:])))
    with pytest.warns(UserWarning, match=r"1 lines from before step 5 are missing: train at step 1\."):
        damaged_files.topomask(["train", "digits", "--output", str(folder / "run"), "--resume", *FIELDS])
    assert path.read_text() == "".join(f"{each}\n" for each in lines[1:])


def test_metrics_are_drawn_in_the_folder(folder):
    path = folder / "run" / "metrics.jsonl"
    path.write_text(path.read_text().replace('"event": "eval", ', '"event": "eval", "../../out": 1, '))
    before = {each.name for each in folder.parent.iterdir()}
    assert resume(folder) == ""
    assert (folder / "run" / "..-..-out.png").is_file()
    assert {each.name for each in folder.parent.iterdir()} == before


@pytest.mark.parametrize("text", ROOTS, ids=lambda text: text[:16])
def test_results_that_say_nothing(text, folder):
    path = folder / "results" / "digits.jsonl"
    path.write_text(f"{text}\n{path.read_text()}")
    assert f"Line 1 of {path} is not the result of a run" in reproduce(folder)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("metrics", [], "`metrics` is []"),
        ("metrics", {}, "its metric 'accuracy' is None. Delete its line from the results"),
        ("metrics", {"accuracy": "x"}, "its metric 'accuracy' is 'x'"),
        ("seed", "0", "`seed` is '0'"),
        ("seconds", None, "`seconds` is None"),
        ("config", [], "`config` is []"),
        ("cell", {}, "`cell` is {}"),
        ("more", 1, "unexpected keyword argument 'more'"),
    ],
)
def test_results_with_other_values(field, value, message, folder):
    path = folder / "results" / "digits.jsonl"
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: value}) + "\n")
    assert message in reproduce(folder)


@pytest.mark.parametrize("seeds", [range(4), pytest.param(range(4, 150), marks=pytest.mark.slow)], ids=len)
def test_drawn_at_random(seeds, sound, tmp_path):
    """`python -m helpers.damaged_files` tries thousands."""
    said = []
    for seed in seeds:
        assert damaged_files.try_case(sound, tmp_path / "case", seed, said.append), "\n".join(said)
