from PIL import Image

from experiments.mask_gallery import GALLERY, draw_family


def test_gallery(tmp_path):
    for name in ("forests", "composition"):
        draw_family(name, tmp_path / f"{name}.png")
        with Image.open(tmp_path / f"{name}.png") as picture:
            assert picture.width > 300 * len(GALLERY[name])
