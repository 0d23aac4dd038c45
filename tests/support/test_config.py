import json
import subprocess
import sys
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Literal

import pytest

from topomask.support.config import ConfigError, apply_overrides, field_table, from_dict, to_dict


class Colour(Enum):
    RED = 1
    DARK_BLUE = 2


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
    mask: Mask | None = None
    steps: int = 10
    name: str = "digits"
    shuffle: bool = True
    colour: Colour = Colour.RED
    sizes: tuple[int, ...] = (1, 2)
    grids: list[tuple[int, int]] = field(default_factory=list)
    root: Path | None = None
    seed: int | str = 0
    made: int = field(init=False, default=3)


def test_none_is_a_choice_where_one_has_that_name():
    @dataclass(frozen=True)
    class Data:
        """Data.

        Args:
            degree: Degrees.
        """

        degree: Literal["none", "log"] | None = None

    assert apply_overrides(Data(), ["degree=none"]).degree == "none"
    assert apply_overrides(Data("log"), ["degree=default"]).degree is None
    with pytest.raises(ConfigError, match=r"`degree` must be none \| log \| default, e.g. degree=none, but is 'None'"):
        apply_overrides(Data(), ["degree=None"])
    (line,) = (line for line in field_table(Data()).splitlines() if "degree" in line)
    assert line.split()[:7] == ["degree", "none", "|", "log", "|", "default", "default"]


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("optim.lr=3e-4", 3e-4),
        ("optim.lr=2", 2.0),
        ("optim.betas=0.5,0.6", (0.5, 0.6)),
        ("optim.betas=(0.5, 0.6)", (0.5, 0.6)),
        ("optim.clip=none", None),
        ("optim.clip=null", None),
        ("optim.clip=default", None),
        ("optim.clip=inf", float("inf")),
        ("steps=1_000", 1000),
        ("steps=1e4", 10000),
        ("steps=-3", -3),
        ("name=a=b, c", "a=b, c"),
        ("name=none", "none"),
        ("shuffle=False", False),
        ("shuffle=on", True),
        ("shuffle=0", False),
        ("colour=dark_blue", Colour.DARK_BLUE),
        ("sizes=3", (3,)),
        ("sizes=[3,4,]", (3, 4)),
        ("sizes=()", ()),
        ("grids=(1,2),(3,4)", [(1, 2), (3, 4)]),
        ("grids=[(1,2)]", [(1, 2)]),
        ("grids=[]", []),
        ("root=a/b", Path("a/b")),
        ("root=None", None),
        ("seed=7", 7),
        ("seed=seven", "seven"),
        ("mask.num_walks=5", 5),
        ("mask.kind=exact", "exact"),
        ("mask.kind=none", None),
        ("mask=none", None),
    ],
)
def test_a_value_is_read_by_the_type_of_its_field(override, value):
    before = Recipe()
    found = after = apply_overrides(before, [override])
    for name in override.partition("=")[0].split("."):
        found = getattr(found, name)
    assert found == value
    assert type(found) is type(value)
    assert before == Recipe()
    assert from_dict(Recipe, json.loads(json.dumps(to_dict(after), allow_nan=False))) == after


def test_overrides_count_together_and_the_last_counts():
    # The first alone would be refused.
    changed = apply_overrides(Recipe(), ["optim.final_lr=0.5", "optim.lr=1", "steps=1", "steps=2", "mask.num_walks=3"])
    assert (changed.optim.lr, changed.optim.final_lr, changed.steps, changed.mask) == (1.0, 0.5, 2, Mask(3))
    with pytest.raises(ConfigError, match=r"^In `optim`: .*final_lr"):
        apply_overrides(Recipe(), ["optim.final_lr=0.5"])
    assert apply_overrides(Recipe(), ["mask.num_walks=3", "mask.kind=exact"]).mask == Mask(3, "exact")
    assert apply_overrides(Recipe(), ["mask.num_walks=3", "mask=none"]).mask is None
    assert apply_overrides(Recipe(), []) == Recipe()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optin.lr=1", "no field `optin`. Did you mean `optim.lr`?"),
        ("optim.lrr=1", "no field `optim.lrr`. Did you mean `optim.lr`? Fields in `optim`: lr, final_lr, betas, clip"),
        ("lr=1", "no field `lr`. Did you mean `optim.lr`?"),
        ("stesp=1", "Did you mean `steps`?"),
        ("xyzzy=1", "no field `xyzzy`. Fields: optim, mask"),
        ("made=1", "no field `made`"),
        ("mask.walks=1", "Did you mean `mask.num_walks`?"),
        ("steps", "must be field=value, e.g. optim.lr=0.001, but is 'steps'"),
        ("=3", "must be field=value"),
        ("optim.lr=fast", "`optim.lr` must be float, e.g. optim.lr=0.001, but is 'fast'"),
        ("optim.lr=nan", "`optim.lr` must be float"),
        ("optim.clip=no", "`optim.clip` must be float | none, e.g. optim.clip=0.1, but is 'no'"),
        ("steps=1.5", "`steps` must be int, e.g. steps=10, but is '1.5'"),
        ("steps=", "`steps` must be int"),
        ("shuffle=maybe", "`shuffle` must be bool, e.g. shuffle=true, but is 'maybe'"),
        ("colour=green", "`colour` must be RED | DARK_BLUE, e.g. colour=RED, but is 'green'"),
        ("mask.kind=wlak", "`mask.kind` must be walk | exact | none, e.g. mask.kind=walk, but is 'wlak'"),
        ("optim.betas=0.5", "`optim.betas` must be tuple[float, float], e.g. optim.betas=0.9,0.999, but is '0.5'"),
        ("sizes=1,two", "`sizes` must be tuple[int, ...], e.g. sizes=1,2, but is '1,two'"),
        ("optim=3", "`optim` is a group of fields. Set one of them, as in optim.lr=..."),
        ("mask=3", "`mask` is a group of fields. Set one of them, as in mask.num_walks=..."),
        ("steps.more=3", "`steps` is no group, so it has no field `more`"),
    ],
)
def test_a_bad_override_is_refused_with_the_way_out(override, message):
    with pytest.raises(ConfigError) as found:
        apply_overrides(Recipe(), [override])
    assert message in str(found.value)


def test_a_config_goes_to_json_and_back():
    config = Recipe(Optim(clip=float("inf")), Mask(3, None), colour=Colour.DARK_BLUE, root=Path("x"), grids=[(1, 2)])
    assert from_dict(Recipe, json.loads(json.dumps(to_dict(config), allow_nan=False))) == config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data.pop("steps"), "missing: steps"),
        (lambda data: data.update(more=1), "unknown: more"),
        (lambda data: data["optim"].pop("lr"), "`optim` must have the fields lr, final_lr, betas, clip; missing: lr"),
        (lambda data: data.update(optim=3), "`optim` must be"),
        (lambda data: data.update(steps="3"), "`steps` must be int, but is '3'"),
        (lambda data: data.update(steps=True), "`steps` must be int, but is True"),
        (lambda data: data.update(shuffle=1), "`shuffle` must be bool"),
        (lambda data: data.update(colour="green"), "`colour` must be RED"),
        (lambda data: data["optim"].update(betas=[1.0]), "`optim.betas` must be tuple"),
        (lambda data: data.update(sizes=[1, "2"]), "`sizes` must be tuple"),
        (lambda data: data.update(mask={"num_walks": 1}), "`mask` must have the fields num_walks, kind; missing: kind"),
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
        apply_overrides({"steps": 3}, ["steps=4"])

    @dataclass
    class Odd:
        thing: object = object()

    with pytest.raises(ConfigError, match="`thing` cannot be written as JSON"):
        to_dict(Odd())
    with pytest.raises(TypeError, match="cannot be set from text"):
        apply_overrides(Odd(), ["thing=3"])


def test_the_table_shows_types_values_and_docs():
    lines = field_table(Recipe(mask=Mask())).splitlines()
    assert lines[0].split() == ["field", "type", "value"]
    assert "mask.num_walks  int                    20         Walkers per node." in lines
    assert any(line.endswith("Which one, in a text of two lines.") for line in lines)
    assert any(line.split()[:3] == ["shuffle", "bool", "true"] for line in lines)


@dataclass(frozen=True)
class Shape:
    width: int
    height: int = 3


@dataclass(frozen=True)
class Whole:
    lower: int = 0

    def __post_init__(self):
        if not self.lower:
            raise ValueError("`lower` must be positive.")


@dataclass(frozen=True)
class Filled:
    name: str = field(metadata={"settable": False})
    steps: int = 3
    found: Shape | None = field(default=None, metadata={"settable": False})
    shape: Shape | None = None
    whole: Whole | None = None


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("name=a", "`name` is filled in by the run and cannot be set. Leave it out."),
        ("found.width=3", "`found` is filled in by the run"),
        ("found=none", "`found` is filled in by the run"),
        ("width=3", "There is no field `width`. Fields: steps, shape, whole."),
        ("nam=b", "There is no field `nam`. Fields: steps"),
        ("shape.width=3", "`shape` is none, and it cannot be made from text: Shape has no default for width."),
        ("whole.lower=3", "`whole` is none, and its defaults cannot be taken: `lower` must be positive."),
        ("steps.more=3", "`steps` is no group"),
    ],
)
@pytest.mark.parametrize("found", [None, Shape(1)])
def test_what_the_program_fills_in_cannot_be_set(found, override, message):
    with pytest.raises(ConfigError) as error:
        apply_overrides(Filled("a", found=found), [override])
    assert message in str(error.value)


def test_what_the_program_fills_in_goes_to_json_but_is_not_listed():
    config = Filled("a", found=Shape(1), shape=Shape(2))
    assert [line.split()[0] for line in field_table(config).splitlines()] == [
        "field",
        "steps",
        "shape.width",
        "shape.height",
        "whole",
    ]
    assert to_dict(config)["found"] == {"width": 1, "height": 3}
    assert from_dict(Filled, json.loads(json.dumps(to_dict(config)))) == config
    changed = apply_overrides(config, ["shape.width=5"])
    assert (changed.name, changed.found, changed.shape) == ("a", Shape(1), Shape(5))


def test_configs_are_read_without_torch():
    code = (
        "import sys, topomask.support.config, topomask.train; topomask.train.TrainConfig(); "
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
