import sys

import pytest

from topomask.data import ImageFolder, VideoFolder
from topomask.data.digits import digits
from topomask.support.extras import need


def test_a_missing_package_is_named_with_its_extra():
    with pytest.raises(ModuleNotFoundError, match=r"Juggling needs Balls.*pip install 'topomask\[circus\]'"):
        need("no_such_module", "Balls", "circus", "Juggling")


def test_a_package_that_is_broken_inside_keeps_its_own_message(tmp_path, monkeypatch):
    (tmp_path / "broken_package.py").write_text("import also_not_there")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="also_not_there"):
        need("broken_package", "Broken", "data", "Anything")


@pytest.mark.parametrize(
    ("module", "make", "message"),
    [
        ("sklearn", lambda folder: digits(), r"'digits' needs scikit-learn.*topomask\[data\]"),
        ("PIL", lambda folder: ImageFolder(folder), r"pictures needs Pillow.*topomask\[data\]"),
        ("av", lambda folder: VideoFolder(folder), r"videos needs PyAV.*topomask\[video\]"),
    ],
)
def test_sets_say_which_extra_they_need(tmp_path, monkeypatch, module, make, message):
    (tmp_path / "train" / "cat").mkdir(parents=True)
    (tmp_path / "train" / "cat" / "1.png").write_bytes(b"")
    for name in [name for name in sys.modules if name.partition(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [_Refuse(module), *sys.meta_path])
    with pytest.raises(ModuleNotFoundError, match=message):
        make(tmp_path)


class _Refuse:
    def __init__(self, module):
        self.module = module

    def find_spec(self, name, *_):
        if name.partition(".")[0] == self.module:
            raise ModuleNotFoundError(f"No module named {self.module!r}", name=self.module)
