import dataclasses
import json

import pytest
import torch

from helpers.data_files import write_mnist, write_pictures, write_video
from helpers.small_runs import SMALL
from topomask.recipes.registry import RECIPES, load_run, recipe
from topomask.support.config import apply_overrides, from_dict, to_dict

# The shapes that the data would say.
SHAPES = {
    "digits": (1, 8, 8),
    "fashion-mnist": (1, 28, 28),
    "mnist": (1, 28, 28),
    "cifar10": (3, 32, 32),
    "tiny-imagenet-50": (3, 64, 64),
    "image-folder": (3, 64, 64),
    "imagenet-paper": (3, 256, 256),
    "moving-digits": (1, 16, 64, 64),
    "video-folder": (3, 16, 64, 64),
}


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_says_all_of_it_in_json(name):
    experiment = recipe(name)
    assert experiment.recipe == name
    assert from_dict(type(experiment), json.loads(json.dumps(to_dict(experiment)))) == experiment


@pytest.mark.parametrize("name", SHAPES)
def test_every_recipe_builds_a_model_for_its_data(name):
    experiment = recipe(name)
    channels, *frames, height, _ = SHAPES[name]
    known = {"in_channels": channels, "image_size": height, "num_classes": 1000 if name == "imagenet-paper" else 10}
    known |= {"num_frames": frames[0]} if frames else {}
    # All but the width and depth, which cost time only.
    slim = {"dim": 4 * experiment.model.num_heads, "depth": 1}
    model = dataclasses.replace(experiment.model, **known, **slim)
    with torch.no_grad():
        logits = dataclasses.replace(experiment, model=model).build()(torch.zeros(1, *SHAPES[name]))
    assert logits.shape == (1, known["num_classes"])


def test_the_paper_is_followed_where_it_says_so():
    paper = recipe("imagenet-paper")
    assert paper.data.batch_size == 4096
    assert (paper.model.dim, paper.model.depth, paper.model.num_heads, paper.model.patch_size) == (768, 12, 12, 16)
    assert (paper.train.optim.name, paper.train.optim.lr, paper.train.optim.final_lr) == ("adam", 3e-3, 1e-5)
    assert recipe("video-folder").data.batch_size == 32
    optim = recipe("particles").train.optim
    assert (optim.weight_decay, optim.clip) == (1e-3, 0.01)


def test_recipes_on_files_find_their_data(tmp_path):
    write_mnist(tmp_path / "fashion-mnist")
    write_pictures(tmp_path / "pets", size=(12, 12))
    for split in ("train", "val"):
        (tmp_path / "films" / split / "run").mkdir(parents=True)
        write_video(tmp_path / "films" / split / "run" / "0.mp4")
    root = f"--data.root={tmp_path}"
    clothes = apply_overrides(recipe("fashion-mnist"), [root, "--data.limit=20"]).fitted()
    assert (clothes.model.image_size, clothes.model.num_classes) == (28, 10)
    assert len(clothes.batches("train").dataset) == 20
    assert len(clothes.batches(clothes.held_out).dataset) == 10
    pets = apply_overrides(recipe("image-folder"), [root, "--data.path=pets", "--data.size=16"]).fitted()
    assert (pets.model.image_size, pets.facts.classes, pets.held_out) == (16, ("blue", "red"), "val")
    films = apply_overrides(recipe("video-folder"), [root, "--data.path=films", "--data.num_frames=4"]).fitted()
    assert (films.model.num_frames, films.model.image_size, films.facts.classes) == (4, 64, ("run",))


def test_a_run_is_loaded_with_its_best_weights(tmp_path):
    experiment = apply_overrides(recipe("digits"), [*SMALL["digits"], "--train.steps=4", "--data.val_fraction=0.2"])
    result = experiment.run(tmp_path)
    found = load_run(tmp_path)
    assert found.experiment == experiment.fitted()
    assert found.step == result.best["step"]
    assert not found.model.training
    assert found.evaluate()["accuracy"] == pytest.approx(result.best["accuracy"])


def test_a_run_that_saw_the_test_set_is_loaded_with_its_last_weights(tmp_path):
    experiment = apply_overrides(recipe("digits"), [*SMALL["digits"], "--train.steps=4"])
    result = experiment.run(tmp_path)
    assert result.best["step"] < 4, "otherwise this shows nothing"
    found = load_run(tmp_path)
    assert found.step == 4
    assert found.evaluate()["accuracy"] == pytest.approx(result.metrics["accuracy"])


def test_data_may_have_moved(tmp_path):
    experiment = apply_overrides(recipe("digits"), [*SMALL["digits"], "--train.steps=1"])
    experiment.run(tmp_path / "run")
    moved = load_run(tmp_path / "run").on_data(tmp_path)
    assert moved.experiment.data.root == tmp_path
    assert "accuracy" in moved.evaluate()


def test_an_unknown_recipe_gets_the_nearest():
    with pytest.raises(ValueError, match=r"no recipe 'cifar'. Did you mean cifar10\? There are: digits, fashion-mnist"):
        recipe("cifar")


def test_a_seed_changes_nothing_else():
    experiment = recipe("digits")
    assert experiment.with_seed(3).with_seed(experiment.train.seed) == experiment
    assert experiment.with_seed(3).train == dataclasses.replace(experiment.train, seed=3)
