"""What the command line says where it refuses."""

import contextlib
import io

import pytest

from topomask.cli import main


def refused(*arguments: str, status: int | None = None) -> str:
    """The line that a user sees; its exit status is 2 for a command line that cannot be read, and otherwise 1."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), pytest.raises(SystemExit) as stop:
        main(arguments)
    # Python prints a text that it exits with, and takes 1 for its status.
    text, found = (stop.value.code, 1) if isinstance(stop.value.code, str) else (said.getvalue(), stop.value.code)
    assert status in (None, found)
    assert found in (1, 2)
    assert "\n" not in text.removesuffix("\n"), text
    assert text.isprintable() or text.removesuffix("\n").isprintable(), text
    assert not set("╭│╰─") & set(text), text
    return text.removesuffix("\n")
