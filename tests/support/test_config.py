import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest
from tyro.conf import Suppress

from topomask.support.config import ConfigError, UsageError, apply_overrides, flat, from_dict, names_set, to_dict


@dataclass(frozen=True)
class Mask:
    """A mask.

    Args:
        num_walks: Walkers per node.
        kind: Which one, in a text
            of two lines.
    """

    num_walks: int = 20
    kind: Literal["walk", "exact", None] = "walk"


@dataclass(frozen=True)
class Optim:
    lr: float = 1e-3
    final_lr: float = 1e-5
    betas: tuple[float, float] = (0.9, 0.999)
    clip: float | None = None

    def __post_init__(self):
        if self.final_lr > self.lr:
            raise ValueError("`final_lr` must be at most `lr`.")


@dataclass
class Recipe:
    optim: Optim = field(default_factory=Optim)
    mask: Mask = field(default_factory=Mask)
    steps: int = 10
    name: str = "digits"
    shuffle: bool = True
    sizes: tuple[int, ...] = (1, 2)
    grids: list[tuple[int, int]] = field(default_factory=list)
    root: Path | None = None
    seed: int | str = 0
    patch: int | tuple[int, int] | None = 3
    made: int = field(init=False, default=3)


def test_none_is_a_choice_where_one_has_that_name():
    @dataclass(frozen=True)
    class Data:
        degree: Literal["none", "log"] | None = None

    assert apply_overrides(Data(), ["--degree", "none"]).degree == "none"
    assert apply_overrides(Data("log"), ["--degree", "None"]).degree is None
    with pytest.raises(UsageError, match=r"Invalid choice 'default' for argument '--degree'. Expected one of"):
        apply_overrides(Data(), ["--degree", "default"])
    for degree in (None, "none"):
        assert from_dict(Data, to_dict(Data(degree))).degree == degree


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("--optim.lr 3e-4", 3e-4),
        ("--optim.lr=2", 2.0),
        ("--optim.betas 0.5 0.6", (0.5, 0.6)),
        ("--optim.clip None", None),
        ("--optim.clip inf", float("inf")),
        ("--steps 1_000", 1000),
        ("--steps -3", -3),
        ("--name a=b,c", "a=b,c"),
        ("--name None", "None"),
        ("--shuffle False", False),
        ("--shuffle True", True),
        ("--sizes 3", (3,)),
        ("--sizes 3 4", (3, 4)),
        ("--sizes", ()),
        ("--grids 1 2 3 4", [(1, 2), (3, 4)]),
        ("--grids", []),
        ("--root a/b", Path("a/b")),
        ("--root None", None),
        ("--seed 7", 7),
        ("--seed seven", "seven"),
        ("--patch 7", 7),
        ("--patch 7 8", (7, 8)),
        ("--patch None", None),
        ("--mask.num_walks 5", 5),
        ("--mask.num-walks 5", 5),
        ("--mask.kind exact", "exact"),
        ("--mask.kind None", None),
    ],
)
def test_a_value_is_read_by_the_type_of_its_field(words, value):
    before = Recipe()
    found = after = apply_overrides(before, words.split())
    (name,) = names_set(words.split())
    for part in name.split("."):
        found = getattr(found, part)
    assert found == value
    assert type(found) is type(value)
    assert before == Recipe()
    assert from_dict(Recipe, json.loads(json.dumps(to_dict(after), allow_nan=False))) == after


def test_overrides_count_together_and_the_last_counts():
    # The first alone would be refused.
    words = "--optim.final_lr 0.5 --optim.lr 1 --steps 1 --steps 2 --mask.num_walks 3"
    changed = apply_overrides(Recipe(), words.split())
    assert (changed.optim.lr, changed.optim.final_lr, changed.steps, changed.mask) == (1.0, 0.5, 2, Mask(3))
    with pytest.raises(UsageError, match=r"^Error parsing optim: `final_lr` must be at most `lr`\."):
        apply_overrides(Recipe(), ["--optim.final_lr", "0.5"])
    assert apply_overrides(Recipe(), []) == Recipe()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--optin.lr 1", "Unrecognized options: --optin.lr, 1. Did you mean --optim.lr?"),
        ("--optim.lrr=1", "Unrecognized options: --optim.lrr=1. Did you mean --optim.lr?"),
        ("--lr 1", "Did you mean --optim.lr?"),
        ("--stesp 1", "Did you mean --steps?"),
        ("--xyzzy 1", "Unrecognized options: --xyzzy, 1. Run topomask --help."),
        ("--mask.walks 1", "Did you mean --mask.num_walks?"),
        ("steps=3", "Unrecognized options: steps=3."),
        ("--optim.lr fast", "Error parsing --optim.lr: could not convert string to float: 'fast'."),
        ("--optim.clip no", "Error parsing --optim.clip: no type matching {None}|FLOAT could be instantiated from"),
        ("--steps 1.5", "Error parsing --steps: invalid literal for int() with base 10: '1.5'."),
        ("--steps", "Missing value for argument '--steps'."),
        ("--shuffle maybe", "Invalid choice 'maybe' for argument '--shuffle'. Expected one of ('True', 'False')."),
        ("--shuffle true", "Did you mean 'True'?"),
        ("--mask.kind wlak", "Did you mean 'walk'?"),
        ("--optim.betas 0.5", "Missing value for argument '--optim.betas'. Expected 2 values."),
        ("--sizes 1 two", "Error parsing --sizes: Could not find valid parse for arguments: ['1', 'two']."),
        ("--optim 3", "Unrecognized options: --optim, 3."),
    ],
)
def test_a_bad_override_is_refused_with_the_way_out(words, message):
    with pytest.raises(UsageError) as found:
        apply_overrides(Recipe(), words.split())
    assert message in str(found.value)
    assert str(found.value).isprintable()


def test_a_config_goes_to_json_and_back():
    config = Recipe(Optim(clip=float("inf")), Mask(3, None), root=Path("x"), grids=[(1, 2)])
    assert from_dict(Recipe, json.loads(json.dumps(to_dict(config), allow_nan=False))) == config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data.pop("steps"), "Recipe must have the fields optim, mask, steps, "),
        (lambda data: data.pop("steps"), "; missing: steps. Add them."),
        (lambda data: data.update(xyzzy=1), "Recipe has no field `xyzzy`. Rename or delete it. Fields: optim, mask, "),
        (lambda data: data.update(stesp=1), "Recipe has no field `stesp`. Did you mean `steps`? Rename or delete it."),
        (lambda data: data["optim"].pop("lr"), "`optim` must have the fields lr, final_lr, betas, clip; missing: lr"),
        (lambda data: data["optim"].update(lrr=1), "`optim` has no field `lrr`. Did you mean `lr`?"),
        (lambda data: data["optim"].update(final_lr=1), "`optim`: `final_lr` must be at most `lr`."),
        (lambda data: data.update(optim=3), "`optim` must be a group of fields, but is 3."),
        (lambda data: data.update(steps="3"), "`steps` must be int, but is '3'."),
        (lambda data: data.update(steps=True), "`steps` must be int, but is True"),
        (lambda data: data.update(steps=None), "`steps` must be int, but is None"),
        (lambda data: data.update(name=3), "`name` must be str, but is 3"),
        (lambda data: data.update(shuffle=1), "`shuffle` must be bool"),
        (lambda data: data.update(root=3), "`root` must be Path, but is 3"),
        (lambda data: data.update(seed=[]), "`seed` must be int | str, but is []"),
        (lambda data: data.update(patch=[1]), "`patch` must be int | tuple[int, int] | None, but is [1]"),
        (lambda data: data["optim"].update(lr="fast"), "`optim.lr` must be float, but is 'fast'"),
        (lambda data: data["optim"].update(lr=10**400), "`optim.lr` must be float, but is 1000"),
        (lambda data: data["optim"].update(betas=[1.0]), "`optim.betas` must be tuple[float, float], but is [1.0]"),
        (lambda data: data.update(sizes=[1, "2"]), "`sizes` must be int, but is '2'"),
        (lambda data: data.update(sizes="12"), "`sizes` must be tuple[int, ...], but is '12'"),
        (lambda data: data.update(grids={"a": 1}), "`grids` must be list[tuple[int, int]], but is {'a': 1}"),
        (lambda data: data.update(mask={"num_walks": 1}), "`mask` must have the fields num_walks, kind; missing: kind"),
        (lambda data: data["mask"].update(kind="wlak"), "`mask.kind` must be Literal['walk', 'exact', None], but is"),
    ],
)
def test_json_that_does_not_fit_is_refused(change, message):
    data = to_dict(Recipe())
    change(data)
    with pytest.raises(ConfigError) as found:
        from_dict(Recipe, data)
    assert message in str(found.value)


def test_json_from_before_a_field_came_is_read():
    data = to_dict(Recipe())
    del data["optim"]["clip"]
    assert from_dict(Recipe, data) == Recipe()
    del data["optim"]["betas"]
    with pytest.raises(ConfigError, match="missing: betas"):
        from_dict(Recipe, data)


def test_what_is_no_config_is_refused():
    with pytest.raises(ConfigError, match="must be a dataclass"):
        to_dict({"steps": 3})
    for data in (3, [], None, "x"):
        with pytest.raises(ConfigError, match=r"^Recipe must be a group of fields, but is "):
            from_dict(Recipe, data)

    @dataclass
    class Odd:
        thing: object = object()

    with pytest.raises(ConfigError, match="`thing` cannot be written as JSON"):
        to_dict(Odd())


@dataclass(frozen=True)
class Shape:
    width: int
    height: int = 3


@dataclass(frozen=True)
class Filled:
    name: Suppress[str]
    steps: int = 3
    found: Suppress[Shape | None] = None


@pytest.mark.parametrize("found", [None, Shape(1)])
@pytest.mark.parametrize("words", ["--name a", "--found.width 3", "--found None", "found:none"])
def test_what_the_program_fills_in_cannot_be_set(found, words):
    with pytest.raises(UsageError, match="Unrecognized options"):
        apply_overrides(Filled("a", found=found), words.split())


def test_what_the_program_fills_in_goes_to_json_but_is_not_listed(capsys):
    config = Filled("a", found=Shape(1))
    assert to_dict(config)["found"] == {"width": 1, "height": 3}
    assert from_dict(Filled, json.loads(json.dumps(to_dict(config)))) == config
    assert apply_overrides(config, ["--steps", "5"]) == Filled("a", 5, Shape(1))
    with pytest.raises(SystemExit):
        apply_overrides(config, ["--help"])
    out = capsys.readouterr().out
    assert "--steps" in out
    assert "found" not in out


def test_groups_are_flattened_to_the_names_of_the_command_line():
    names = [f"--{name}" for name in flat(to_dict(Recipe()))]
    assert names[:3] == ["--optim.lr", "--optim.final_lr", "--optim.betas"]
    assert names_set(names) == list(flat(to_dict(Recipe())))


def test_configs_are_read_without_torch():
    code = (
        "import sys, topomask.support.config, topomask.train; topomask.train.TrainConfig(); "
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
