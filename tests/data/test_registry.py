import re
import subprocess
import sys
from pathlib import Path

import pytest

import topomask
from helpers.data_files import write_mnist
from topomask.data import ENTRIES, load


def test_sets_are_loaded_by_name(tmp_path):
    write_mnist(tmp_path / "fashion-mnist")
    assert len(load("fashion-mnist", root=tmp_path, split="test")) == 10
    assert len(load("fashion-mnist", tmp_path, "train", limit=5)) == 5
    # A root does no harm where none is needed.
    assert len(load("digits", root=tmp_path, split="test")) == 359


@pytest.mark.parametrize(
    ("name", "guess"), [("fashion_mnist", "fashion-mnist"), ("cifar-10", "cifar10"), ("digit", "digits")]
)
def test_unknown_names_get_the_nearest(name, guess):
    with pytest.raises(
        ValueError, match=rf"no data set '{name}'\. Did you mean {guess}\? There are: cifar10, digits, "
    ):
        load(name)


def test_unknown_options_get_the_nearest():
    with pytest.raises(ValueError, match=r"'digits' has no option `tst_fraction`. Did you mean `test_fraction`\?"):
        load("digits", tst_fraction=0.1)
    with pytest.raises(ValueError, match=r"'image-folder' needs the option 'path'. Pass path=.*--data\.path "):
        load("image-folder")


def test_what_is_unlike_anything_gets_the_list():
    with pytest.raises(ValueError, match=r"There is no data set 'xyzzy'\. There are: "):
        load("xyzzy")


def test_every_entry_has_a_summary_and_a_split_to_evaluate_on():
    assert list(ENTRIES) == sorted(ENTRIES)
    for entry in ENTRIES.values():
        assert entry.held_out in ("val", "test")
        assert 10 < len(entry.summary) < 90


def test_the_package_is_imported_without_what_is_optional():
    code = (
        "import sys, topomask.data; assert not {'sklearn', 'PIL', 'av', 'rich'} & set(sys.modules), sys.modules.keys()"
    )
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={"PYTHONPATH": str(Path(topomask.__file__).parents[1])}
    )


def test_nothing_that_runs_code_is_read():
    """No loader unpickles: neither by itself nor through NumPy or torch."""
    for path in (Path(topomask.__file__).parent / "data").glob("*.py"):
        text = path.read_text()
        for word in ("import pickle", "torch.load", "allow_pickle=True", "joblib"):
            assert word not in text, (path, word)
        # NumPy's own format is read, and refuses objects where it is told to.
        assert len(re.findall(r"np\.load\(", text)) == len(re.findall(r"np\.load\(\w+, allow_pickle=False\)", text)), (
            path
        )
