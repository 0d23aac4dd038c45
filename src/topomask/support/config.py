"""Typed configs: dataclasses whose fields are set from the command line, and that go to JSON and back.

A recipe is a function that returns a dataclass, usually one of groups: ``optim``, ``model``, ``train``. Fields may be
bool, int, float, str, Path, None, Literal, Enum, tuples and lists of these, unions, and other dataclasses. A field with
the metadata ``{"settable": False}`` is filled in by the program: it goes to JSON and back, but not from text.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import types
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from topomask.support.near_names import nearest

_Config = TypeVar("_Config")
_WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_EXAMPLES: dict[Any, str] = {bool: "true", int: "3", float: "0.1", str: "name", Path: "folder", None: "none"}


class ConfigError(ValueError):
    """A field that does not exist, or a value that it cannot take."""


def apply_overrides(config: _Config, overrides: Iterable[str]) -> _Config:
    """A copy of a config with fields set from text, each read as the type of its field.

    All are set at once, so that a check of fields against each other sees the final values.

    Args:
        config: A dataclass, frozen or not; its fields may be dataclasses.
        overrides: ``"group.field=value"``; of two for the same field the last counts.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Optim:
        ...     lr: float = 1e-3
        ...     betas: tuple[float, float] = (0.9, 0.999)
        >>> apply_overrides(Optim(), ["lr=3e-4", "betas=0.9,0.95"])
        Optim(lr=0.0003, betas=(0.9, 0.95))
        >>> apply_overrides(Optim(), ["lrr=1"])
        Traceback (most recent call last):
        ...
        topomask.support.config.ConfigError: There is no field `lrr`. Did you mean `lr`? Fields: lr, betas.
    """
    draft = _Draft(config)
    for override in overrides:
        path, equals, text = override.partition("=")
        path = path.strip()
        if not equals or not path:
            leaves = ((name, _text(value, kind)) for name, kind, value, _ in _leaves(config))
            example = next((f"{name}={shown}" for name, shown in leaves), "field=value")
            raise ConfigError(f"An override must be field=value, e.g. {example}, but is {override!r}.")
        draft.set(path, text.strip())
    return draft.finish()


def to_dict(config: Any) -> dict[str, Any]:
    """A config as dicts, lists, numbers and strings, for JSON; :func:`from_dict` takes it back."""
    return {field.name: _encode(getattr(config, field.name), field.name) for field in _fields(config)}


def from_dict(kind: type[_Config], data: Mapping[str, Any]) -> _Config:
    """The config that :func:`to_dict` gave, every field of its type; fields whose default is None may be missing.

    So configs of an earlier version are still read: None is how it was before a field came.

    Args:
        kind: The dataclass.
        data: A value for each of its fields.
    """
    return _decode_group(kind, data, "")


def field_table(config: Any) -> str:
    """Fields with types, values and what the docstring of their class says on them, as text in columns."""
    rows = [(name, _name(kind), _text(value, kind), doc) for name, kind, value, doc in _leaves(config)]
    rows.insert(0, ("field", "type", "value", ""))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = ("  ".join([*map(str.ljust, row[:3], widths), row[3]]) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def _fields(config: Any) -> list[dataclasses.Field[Any]]:
    if not dataclasses.is_dataclass(config):
        raise ConfigError(f"A config must be a dataclass, but {config!r} is a {type(config).__name__}.")
    return [field for field in dataclasses.fields(config) if field.init]


def _settable(config: Any) -> list[str]:
    """The names of the fields that are for the user to set."""
    return [field.name for field in _fields(config) if field.metadata.get("settable", True)]


def _kinds(config: Any) -> dict[str, Any]:
    """The types of the fields, by name."""
    hints = get_type_hints(config if isinstance(config, type) else type(config))
    return {field.name: hints[field.name] for field in _fields(config)}


def _is_group(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _members(kind: Any) -> tuple[Any, ...]:
    """The types that a union joins, str and Path last, since any text is one; a type that is no union alone."""
    if get_origin(kind) not in (Union, types.UnionType):
        return (kind,)
    return tuple(sorted(get_args(kind), key=lambda member: member in (str, Path)))


def _leaves(config: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any, str]]:
    """Dotted name, type, value and documentation of all fields that are no group and can be set."""
    docs, kinds = _docs(config), _kinds(config)
    for name in _settable(config):
        kind, value = kinds[name], getattr(config, name)
        if _is_group(value):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", kind, value, docs.get(name, "")


def _docs(config: Any) -> dict[str, str]:
    """What the section Args or Attributes of the docstrings of its classes says on every field."""
    docs: dict[str, str] = {}
    for kind in reversed(type(config).__mro__):
        docs |= _section(inspect.cleandoc(kind.__doc__ or "").splitlines())
    return docs


def _section(lines: list[str]) -> dict[str, str]:
    docs: dict[str, str] = {}
    start = next((i for i, line in enumerate(lines) if line in ("Args:", "Attributes:")), len(lines))
    name = ""
    for line in lines[start + 1 :]:
        if not line.startswith("    "):
            break
        if not line.startswith("     "):
            name, _, line = line.strip().partition(":")
        docs[name] = f"{docs.get(name, '')} {line.strip()}".strip()
    return docs


class _Draft:
    """A group whose fields are being set."""

    def __init__(self, config: Any, prefix: str = "") -> None:
        self.config, self.prefix = config, prefix
        self.kinds = _kinds(config)
        self.changes: dict[str, Any] = {}

    def set(self, path: str, text: str) -> None:
        """Set a field of this group, or of a group in it."""
        name, dot, rest = path.partition(".")
        if name not in self.kinds:
            raise ConfigError(_unknown(self.config, self.prefix, path))
        if name not in _settable(self.config):
            raise ConfigError(f"`{self.prefix}{name}` is filled in by the run and cannot be set. Leave it out.")
        if dot:
            self._group(name, rest).set(rest, text)
            return
        path = f"{self.prefix}{name}"
        value = getattr(self.config, name)
        members = _members(self.kinds[name])
        groups = [member for member in members if dataclasses.is_dataclass(member)]
        if not groups:
            self.changes[name] = _parse(self.kinds[name], text, path, value)
        elif type(None) in members and text.lower() == "none":
            self.changes[name] = None
        else:
            inside = next(iter(_paths(value)), "field") if _is_group(value) else _settable(groups[0])[0]
            raise ConfigError(f"`{path}` is a group of fields. Set one of them, as in {path}.{inside}=...")

    def _group(self, name: str, rest: str) -> _Draft:
        value = self.changes.get(name, getattr(self.config, name))
        if isinstance(value, _Draft):
            return value
        groups = [member for member in _members(self.kinds[name]) if dataclasses.is_dataclass(member)]
        if value is None and len(groups) == 1 and isinstance(groups[0], type):
            # A group that is None is made with its defaults as soon as one of its fields is set.
            value = _make_group(groups[0], f"{self.prefix}{name}")
        if not _is_group(value):
            raise ConfigError(f"`{self.prefix}{name}` is no group, so it has no field `{rest}`.")
        self.changes[name] = _Draft(value, f"{self.prefix}{name}.")
        return self.changes[name]

    def finish(self) -> Any:
        """The config with its changes."""
        changes = {name: value.finish() if isinstance(value, _Draft) else value for name, value in self.changes.items()}
        try:
            return dataclasses.replace(self.config, **changes)
        except ConfigError:
            raise
        except ValueError as error:
            # The check of the dataclass names the field, but does not know which group it is in.
            where = f"In `{self.prefix[:-1]}`: " if self.prefix else ""
            raise ConfigError(f"{where}{error}") from None


def _make_group(kind: type, path: str) -> Any:
    """A group with its defaults; a ConfigError where some of its fields have none."""
    missing = dataclasses.MISSING
    bare = [field.name for field in _fields(kind) if field.default is missing and field.default_factory is missing]
    if bare:
        raise ConfigError(
            f"`{path}` is none, and it cannot be made from text: {kind.__name__} has no default for {', '.join(bare)}. "
            f"Set `{path}` in Python, then change its fields."
        )
    try:
        return kind()
    except ValueError as error:
        raise ConfigError(f"`{path}` is none, and its defaults cannot be taken: {error}") from None


def _unknown(config: Any, prefix: str, path: str) -> str:
    """A message on a field that does not exist, with the one that was probably meant."""
    names = _settable(config)
    name = path.partition(".")[0]
    # A field of another group is likely meant where it has just that name.
    inner = [leaf for leaf, *_ in _leaves(config) if leaf.rpartition(".")[2] == path.rpartition(".")[2]]
    # Fields are short words, many of them alike, so that a guess must be better here.
    close = inner[0] if inner else nearest(name, names, cutoff=0.6) or nearest(path, _paths(config), cutoff=0.6)
    hint = f" Did you mean `{prefix}{close}`?" if close else ""
    where = f" in `{prefix[:-1]}`" if prefix else ""
    return f"There is no field `{prefix}{name}`.{hint} Fields{where}: {', '.join(names)}."


def _paths(config: Any) -> list[str]:
    return [leaf for leaf, *_ in _leaves(config)]


def _parse(kind: Any, text: str, path: str, example: Any = None) -> Any:
    """The value that a text stands for in a field of a type."""
    if type(None) in _members(kind) and text.lower() in _nothings(kind):
        return None
    for member in _members(kind):
        try:
            return _parse_one(member, text)
        except ValueError:
            continue
    if example is None:
        shown = next(_example(member) for member in _members(kind) if member is not type(None))
    else:
        shown = _text(example, kind)
    raise ConfigError(f"`{path}` must be {_name(kind)}, e.g. {path}={shown}, but is {text!r}.")


def _parse_one(kind: Any, text: str) -> Any:
    """The value of a text for a type that is no union; a ValueError where it has none."""
    if kind is type(None):
        raise ValueError(text)
    if kind is bool:
        return _lookup(_WORDS, text.lower())
    if kind is int:
        return _whole(text)
    if kind in (float, str, Path):
        value = kind(text)
        if kind is float and math.isnan(value):
            raise ValueError(text)
        return value
    if get_origin(kind) is Literal:
        return _lookup({_text(choice): choice for choice in get_args(kind)}, text)
    if get_origin(kind) in (tuple, list):
        items = _split(text)
        return get_origin(kind)(map(_parse, _item_kinds(kind, len(items)), items, [""] * len(items)))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _lookup({name.lower(): member for name, member in kind.__members__.items()}, text.lower())
    raise TypeError(f"Fields of type {_name(kind)} cannot be set from text.")


def _lookup(words: Mapping[str, Any], text: str) -> Any:
    if text not in words:
        raise ValueError(text)
    return words[text]


def _whole(text: str) -> int:
    """An integer, also one written as 1e4."""
    try:
        return int(text)
    except ValueError:
        value = float(text)
        if not value.is_integer():
            raise
        return int(value)


def _split(text: str, bracketed: bool = True) -> list[str]:
    """The items of ``1,2``, ``(1, 2)`` or ``[1, 2]``, which may be lists themselves."""
    items, depth = [""], 0
    for letter in text:
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and not depth:
            items.append("")
        else:
            items[-1] += letter
    items = [item.strip() for item in items]
    if bracketed and len(items) == 1 and text[:1] + text[-1:] in ("()", "[]"):
        return _split(text[1:-1], bracketed=False)
    # As in Python, a comma may end the list.
    return items if items[-1] else items[:-1]


def _item_kinds(kind: Any, count: int) -> tuple[Any, ...]:
    """The types of the items of a tuple or list of ``count`` items."""
    kinds = get_args(kind)
    if get_origin(kind) is list or kinds[-1:] == (...,):
        return kinds[:1] * count
    if len(kinds) != count:
        raise ValueError(f"{count} items, where {len(kinds)} are expected")
    return kinds


def _encode(value: Any, path: str) -> Any:
    if _is_group(value):
        return {field.name: _encode(getattr(value, field.name), f"{path}.{field.name}") for field in _fields(value)}
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, tuple | list):
        return [_encode(item, f"{path}[{i}]") for i, item in enumerate(value)]
    # JSON has no infinity.
    if isinstance(value, Path) or (isinstance(value, float) and not math.isfinite(value)):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ConfigError(f"`{path}` cannot be written as JSON: it is a {type(value).__name__}.")


def _decode_group(kind: Any, data: Any, path: str) -> Any:
    where = f"`{path}`" if path else kind.__name__
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where} must be a group of fields, but is {data!r}.")
    kinds = _kinds(kind)
    needed = [field.name for field in _fields(kind) if field.default is not None]
    unknown, missing = [name for name in data if name not in kinds], [name for name in needed if name not in data]
    if unknown or missing:
        parts = [f"unknown: {', '.join(unknown)}"] * bool(unknown) + [f"missing: {', '.join(missing)}"] * bool(missing)
        raise ConfigError(f"{where} must have the fields {', '.join(kinds)}; {'; '.join(parts)}.")
    prefix = f"{path}." if path else ""
    return kind(**{name: _decode(kinds[name], value, f"{prefix}{name}") for name, value in data.items()})


def _decode(kind: Any, value: Any, path: str) -> Any:
    """The value of a field from what JSON has for it."""
    groups = [member for member in _members(kind) if dataclasses.is_dataclass(member)]
    if len(groups) == 1 and isinstance(value, Mapping):
        return _decode_group(groups[0], value, path)
    for member in _members(kind):
        try:
            return _decode_one(member, value, path)
        except (ValueError, TypeError):
            continue
    raise ConfigError(f"`{path}` must be {_name(kind)}, but is {value!r}.")


def _decode_one(kind: Any, value: Any, path: str) -> Any:
    """The value of a field of a type that is no union; a ValueError or TypeError where it has none."""
    if get_origin(kind) is Literal:
        return _lookup({repr(choice): choice for choice in get_args(kind)}, repr(value))
    if get_origin(kind) in (tuple, list) and isinstance(value, tuple | list):
        kinds = _item_kinds(kind, len(value))
        return get_origin(kind)(_decode(*pair, f"{path}[{i}]") for i, pair in enumerate(zip(kinds, value, strict=True)))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _lookup(kind.__members__, value)
    if kind is float and (type(value) in (int, float) or value in ("inf", "-inf", "nan")):
        return float(value)
    if kind is Path and isinstance(value, str):
        return Path(value)
    if type(value) is kind:
        return value
    raise TypeError(path)


def _text(value: Any, kind: Any = None) -> str:
    """A value as one would write it on the command line, for a field of a type."""
    if value is None:
        return _nothings(kind)[0]
    if isinstance(value, tuple | list):
        if not value or isinstance(value[0], tuple | list):
            return f"[{','.join(f'({_text(item)})' for item in value)}]"
        return ",".join(map(_text, value))
    if isinstance(value, Enum):
        return value.name
    return str(value).lower() if isinstance(value, bool) else str(value)


def _example(kind: Any) -> str:
    """A value of a type as one would write it on the command line."""
    if get_origin(kind) is Literal:
        return _text(get_args(kind)[0])
    if get_origin(kind) in (tuple, list):
        kinds = [member for member in get_args(kind) if member is not ...]
        return ",".join(map(_example, kinds if len(kinds) > 1 else kinds * 2))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return next(iter(kind)).name
    return _EXAMPLES.get(kind, "...")


def _name(kind: Any) -> str:
    """A type as one would say it."""
    if get_origin(kind) is Literal:
        return " | ".join(map(_text, get_args(kind)))
    if len(_members(kind)) > 1:
        return " | ".join(_nothings(kind)[0] if member is type(None) else _name(member) for member in get_args(kind))
    if get_origin(kind) in (tuple, list):
        inner = ", ".join("..." if member is ... else _name(member) for member in get_args(kind))
        return f"{get_origin(kind).__name__}[{inner}]"
    if isinstance(kind, type) and issubclass(kind, Enum):
        return " | ".join(kind.__members__)
    return getattr(kind, "__name__", str(kind))


def _nothings(kind: Any) -> list[str]:
    """How None may be written in a field of a type, the usual way first: not as a choice, or text, of that name."""
    members = _members(kind)
    if str in members or Path in members:
        return ["none"]
    choices = [choice for member in members if get_origin(member) is Literal for choice in get_args(member)]
    return [word for word in ("none", "default", "null") if word not in choices]
