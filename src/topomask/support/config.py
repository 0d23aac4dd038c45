"""Typed configs: dataclasses that can be set on the command line (tyro) and stored as JSON (cattrs).

A field of type ``tyro.conf.Suppress[...]`` is filled in by the program: it is stored, but cannot be set.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import io
import math
import re
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import repeat, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Self, TypeVar, Union, get_args, get_origin

from topomask.support.checks import did_you_mean

if TYPE_CHECKING:
    from cattrs import Converter

_Config = TypeVar("_Config")
_Model = TypeVar("_Model")
# What the models of different recipes call the choice of their attention.
_CHOICES = [f"--model.{name}" for name in ("attention", "mask", "neighbors", "layer")]
_COLOR = re.compile(r"\x1b\[[0-9;]*m")


class ConfigError(ValueError):
    """JSON that is not a config: an unknown or missing field, or a value of the wrong type."""


class UsageError(ValueError):
    """An invalid command line."""


def apply_overrides(config: _Config, arguments: Sequence[str]) -> _Config:
    """Return a copy of a config with fields set as on the command line.

    All fields are set at once, so checks across fields see only the final values.

    Args:
        config: A dataclass, whose fields may be dataclasses.
        arguments: ``"--group.field", "value"``; the last value of a field wins.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Optim:
        ...     lr: float = 1e-3
        ...     betas: tuple[float, float] = (0.9, 0.999)
        >>> apply_overrides(Optim(), ["--lr", "3e-4", "--betas", "0.9", "0.95"])
        Optim(lr=0.0003, betas=(0.9, 0.95))
    """
    from tyro.conf import AvoidSubcommands, FlagConversionOff

    return read_arguments(type(config), arguments, default=config, config=(AvoidSubcommands, FlagConversionOff))


def read_arguments(kind: Callable[..., Any], arguments: Sequence[str], prog: str = "topomask", **how: Any) -> Any:
    """Call :func:`tyro.cli` on a dataclass or function; on bad arguments, raise a UsageError instead of exiting."""
    import tyro

    output = io.StringIO()
    try:
        with contextlib.redirect_stderr(output):
            return tyro.cli(kind, prog=prog, args=arguments, use_underscores=True, **how)
    except SystemExit as stop:
        # Code 0 follows --help.
        if not stop.code:
            raise
    usage = io.StringIO()
    with contextlib.redirect_stdout(usage), contextlib.suppress(SystemExit):
        tyro.cli(kind, prog=prog, args=["--help"], use_underscores=True, **how)
    raise UsageError(f"{_one_line(output.getvalue(), usage.getvalue())} Run {prog} --help.")


def _one_line(box: str, usage: str) -> str:
    """Return the first paragraph of tyro's error box, with a hint about the nearest name in it or in the help."""
    # The first line is the title; a rule may follow it.
    _, *lines = (line.strip("│| ") for line in _COLOR.sub("", box).splitlines())
    is_rule = re.compile("[─-]*").fullmatch
    text = " ".join(takewhile(lambda line: not is_rule(line), lines[bool(is_rule(lines[0])) :])).removesuffix(".")
    hint = ""
    if text.startswith("Unrecognized options"):
        offers = [line.split()[0] for line in lines if line.startswith("--")]
        name = text.split()[2].rstrip(",").partition("=")[0]
        own = [choice for choice in _CHOICES if name in _CHOICES and f"{choice} " in usage]
        hint = f" Here it is {own[0]}." if own else did_you_mean(name, offers, quote=str)
    elif text.startswith("invalid choice"):
        value, _, *choices = re.findall("'(.*?)'", text)
        hint = did_you_mean(value, choices)
    return f"{text[:1].upper()}{text[1:]}.{hint}"


def names_set(arguments: Sequence[str]) -> list[str]:
    """Return the names of the fields set on the command line."""
    return [word[2:].partition("=")[0].replace("-", "_") for word in arguments if word.startswith("--")]


def to_dict(config: Any) -> dict[str, Any]:
    """Convert a config to dicts, lists, numbers and strings, for JSON; :func:`from_dict` is the inverse."""
    if not dataclasses.is_dataclass(config):
        raise ConfigError(f"A config must be a dataclass, but {config!r} is a {type(config).__name__}.")
    found: dict[str, Any] = _converter().unstructure(config)
    for name, value in flat(found).items():
        if not (value is None or isinstance(value, bool | int | float | str | list)):
            raise ConfigError(f"`{name}` cannot be written as JSON: it is a {type(value).__name__}.")
    return found


def from_dict(kind: type[_Config], data: Mapping[str, Any]) -> _Config:
    """Restore a config of class ``kind`` from :func:`to_dict`, or raise a ConfigError.

    Fields whose default is None may be missing, so configs stored before such a field was added can still be read.
    """
    from cattrs import BaseValidationError, transform_error

    try:
        return _converter().structure(data, kind)
    except (BaseValidationError, ConfigError) as error:
        text, _, path = transform_error(error, "", _format)[0].rpartition(" @ ")
        raise ConfigError((f"`{path[1:]}`" if path else kind.__name__) + text) from None


def flat(record: Any, prefix: str = "") -> dict[str, Any]:
    """Flatten nested dicts, with names as on the command line, such as ``"optim.lr"``."""
    if not isinstance(record, dict):
        return {prefix[:-1]: record}
    return {name: value for key, part in record.items() for name, value in flat(part, f"{prefix}{key}.").items()}


def _format(error: BaseException, _: type | None) -> str:
    # A ConfigError continues the name of its field; other errors, from checks in dataclasses, are sentences.
    return f" {error}" if isinstance(error, ConfigError) else f": {error}"


@functools.cache
def _converter() -> Converter:
    from cattrs import Converter

    converter = Converter(unstruct_collection_overrides={tuple: list})
    converter.register_unstructure_hook(Path, str)
    # JSON has no infinity or NaN.
    converter.register_unstructure_hook(float, lambda value: value if math.isfinite(value) else str(value))
    for kind in (bool, int, str):
        converter.register_structure_hook(kind, lambda value, kind: _check(type(value) is kind, value, kind))
    converter.register_structure_hook(Path, lambda value, kind: Path(_check(type(value) is str, value, kind)))
    converter.register_structure_hook(float, _read_float)
    converter.register_structure_hook_func(lambda kind: _is(kind, Literal), _read_literal)
    converter.register_structure_hook_factory(dataclasses.is_dataclass, _group_reader)
    converter.register_structure_hook_func(lambda kind: _is(kind, tuple, list), _read_sequence)
    converter.register_structure_hook_factory(lambda kind: _is(kind, dict), _dict_reader)
    # cattrs itself reads a union of one type and None.
    converter.register_structure_hook_func(lambda kind: len(_members(kind)) > 1, _read_union)
    return converter


def _check(fits: bool, value: Any, kind: Any) -> Any:
    if not fits:
        name = kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", "")
        raise ConfigError(f"must be {name}, but is {value!r}.")
    return value


def _read_float(value: Any, kind: type[float]) -> float:
    try:
        return float(_check(type(value) in (int, float) or value in ("inf", "-inf", "nan"), value, kind))
    except OverflowError:
        return _check(False, value, kind)


def _read_literal(value: Any, kind: Any) -> Any:
    return _check(any(type(value) is type(choice) and value == choice for choice in get_args(kind)), value, kind)


def _group_reader(kind: Any, converter: Converter) -> Callable[[Any, Any], Any]:
    from cattrs.gen import make_dict_structure_fn

    structure = make_dict_structure_fn(kind, converter)
    fields = {field.name: field.default for field in dataclasses.fields(kind) if field.init}

    def read(data: Any, kind: Any) -> Any:
        if not isinstance(data, Mapping):
            raise ConfigError(f"must be a group of fields, but is {data!r}.")
        for name in data:
            if name not in fields:
                hint = did_you_mean(name, fields, quote="`{}`".format)
                raise ConfigError(f"has no field `{name}`.{hint} Rename or delete it. Fields: {', '.join(fields)}.")
        missing = [name for name, default in fields.items() if name not in data and default is not None]
        if missing:
            raise ConfigError(f"must have the fields {', '.join(fields)}; missing: {', '.join(missing)}. Add them.")
        return structure(data, kind)

    return read


def _read_sequence(value: Any, kind: Any) -> Any:
    make: Any = get_origin(kind)
    kinds = get_args(kind)
    any_length = make is list or kinds[-1] is ...
    _check(isinstance(value, list) and (any_length or len(value) == len(kinds)), value, kind)
    return make(map(_converter().structure, value, repeat(kinds[0]) if any_length else kinds))


def _dict_reader(kind: Any, converter: Converter) -> Callable[[Any, Any], Any]:
    structure = converter.gen_structure_mapping(kind)
    return lambda value, kind: structure(_check(isinstance(value, dict), value, kind), kind)


def _is(kind: Any, *origins: Any) -> bool:
    return get_origin(kind) in origins


def _members(kind: Any) -> list[Any]:
    """Return the types in a union other than None."""
    members = get_args(kind) if _is(kind, Union, types.UnionType) else ()
    return [member for member in members if member is not type(None)]


def _read_union(value: Any, kind: Any) -> Any:
    if value is None and type(None) in get_args(kind):
        return None
    if isinstance(value, Mapping) and all(map(dataclasses.is_dataclass, _members(kind))):
        # The group that has most of these fields, so that errors are about that one.
        found = max(_members(kind), key=lambda group: sum(field.name in value for field in dataclasses.fields(group)))
        return _converter().structure(value, found)
    for member in _members(kind):
        with contextlib.suppress(Exception):
            return _converter().structure(value, member)
    return _check(False, value, kind)


class Options:
    """Base class of dataclasses whose fields are None by default."""

    def given(self) -> dict[str, Any]:
        """Return the fields that are not None."""
        fields = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}  # type: ignore[arg-type]
        return {name: value for name, value in fields.items() if value is not None}

    def only(self, names: Collection[str]) -> Self:
        """Return a copy with only these fields."""
        return type(self)(**{name: value for name, value in self.given().items() if name in names})


class ModelConfig(Options, Generic[_Model]):
    """Base class of the arguments of a model as data. A subclass is a dataclass, whose fields the model describes."""

    _model: ClassVar[type[Any]]

    def __init_subclass__(cls) -> None:
        """Describe the fields, for ``help`` and the command line, with the arguments of the model."""
        super().__init_subclass__()
        (cls._model,) = get_args(cls.__orig_bases__[0])  # type: ignore[attr-defined]
        text = (inspect.getdoc(cls._model) or "").partition("Args:\n")[2].partition("\n\n")[0]
        # Without the markup of Sphinx.
        cls.__doc__ = re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`|``", r"\1", f"{cls.__doc__}\n\nAttributes:\n{text}")

    def build(self) -> _Model:
        """Build the model; fields that are None take its defaults."""
        arguments = self.given()
        for name, parameter in inspect.signature(self._model).parameters.items():
            if parameter.default is parameter.empty and name not in arguments:
                raise ValueError(f"`{name}` is None. Set it, or train with a recipe, which takes it from the data.")
        return self._model(**arguments)
