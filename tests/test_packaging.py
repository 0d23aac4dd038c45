"""What is published: typed, and without what only the repository needs."""

import tomllib
from importlib.resources import files
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TARGETS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]


def test_the_package_says_that_it_is_typed():
    assert files("topomask").joinpath("py.typed").is_file()
    assert TARGETS["wheel"]["packages"] == ["src/topomask"]


def test_the_sdist_names_what_it_holds():
    """Only what is listed: no results, no pictures, nothing that somebody leaves in the checkout."""
    assert set(TARGETS["sdist"]) == {"include"}
    included = [pattern.removeprefix("/") for pattern in TARGETS["sdist"]["include"]]
    assert "src" in included
    matched = [path for pattern in included for path in ROOT.glob(pattern)]
    assert {pattern for pattern in included if not list(ROOT.glob(pattern))} == set(), "patterns without a file"
    tops = {path.relative_to(ROOT).parts[0] for path in matched}
    assert not tops & {"results", "runs", "demo_output", "bench_output", ".venv"}
    assert all(path.suffix == ".md" for path in matched if path.relative_to(ROOT).parts[0] == "docs")
    held = [path for top in matched for path in ([top] if top.is_file() else top.rglob("*")) if path.is_file()]
    source = [path for path in held if "__pycache__" not in path.parts]
    assert sum(path.stat().st_size for path in source) < 5_000_000


def test_hatchling_agrees():
    pytest.importorskip("hatchling")
    from hatchling.builders.sdist import SdistBuilder
    from hatchling.builders.wheel import WheelBuilder

    sdist = {file.distribution_path for file in SdistBuilder(str(ROOT)).recurse_included_files()}
    wheel = {file.distribution_path for file in WheelBuilder(str(ROOT)).recurse_included_files()}
    assert {"src/topomask/py.typed", "SECURITY.md", "CHANGELOG.md"} <= sdist
    assert not [path for path in sdist if path.startswith(("results/", "docs/figures/", "runs/"))]
    assert "topomask/py.typed" in wheel
    assert all(path.startswith("topomask/") for path in wheel)
