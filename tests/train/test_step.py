import math

import pytest
import torch
from torch import nn

from helpers import training
from topomask.support.config import to_dict
from topomask.train import OptimConfig, TrainConfig, build_optimizer, learning_rate


@pytest.mark.parametrize("total", [1, 2, 7, 100])
@pytest.mark.parametrize(("warmup", "decay"), [(0.0, 0.0), (0.1, 0.5), (0.5, 0.5), (1.0, 0.0), (0.0, 1.0)])
def test_the_schedule_rises_stays_and_falls(total, warmup, decay):
    config = OptimConfig(lr=0.3, final_lr=0.01, warmup=warmup, decay=decay)
    rates = [learning_rate(config, step, total) for step in range(total)]
    assert all(0 < rate <= 0.3 for rate in rates)
    warm = round(warmup * total)
    falling = min(round(decay * total), total - warm)
    assert rates[:warm] == pytest.approx([0.3 * (step + 1) / warm for step in range(warm)])
    assert set(rates[warm : total - falling]) <= {0.3}
    late = [0.01 + 0.29 * (1 + math.cos(math.pi * (step + 1) / falling)) / 2 for step in range(falling)]
    assert rates[total - falling :] == pytest.approx(late)
    if falling:
        assert rates[-1] == pytest.approx(0.01)


def test_only_matrices_outside_masks_decay():
    model = training.Tiny()
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    first, second = build_optimizer(model, OptimConfig(weight_decay=0.1)).param_groups
    decaying = {names[id(parameter)] for parameter in first["params"]}
    others = {names[id(parameter)] for parameter in second["params"]}
    assert (first["weight_decay"], second["weight_decay"]) == (0.1, 0.0)
    assert decaying == {f"attention.{name}.weight" for name in ("query", "key", "value", "out")} | {"head.weight"}
    assert decaying | others == set(names.values())
    assert "attention.mask.modulation.weight" in others


def test_the_optimiser_is_the_one_asked_for():
    model = nn.Linear(2, 2)
    options = dict(lr=0.1, betas=(0.5, 0.6), eps=1e-3)
    adam = build_optimizer(model, OptimConfig(name="adam", **options))
    assert type(adam) is torch.optim.Adam
    assert {name: adam.defaults[name] for name in options} == options
    assert type(build_optimizer(model, OptimConfig())) is torch.optim.AdamW
    model.weight.requires_grad_(False)
    frozen = build_optimizer(model, OptimConfig())
    assert [parameter for group in frozen.param_groups for parameter in group["params"]] == [model.bias]
    model.bias.requires_grad_(False)
    with pytest.raises(ValueError, match="nothing to train"):
        build_optimizer(model, OptimConfig())


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (OptimConfig, dict(name="sgd"), "`name` must be 'adam' or 'adamw', but is 'sgd'"),
        (OptimConfig, dict(lr=-1.0), "`lr` must be positive"),
        (OptimConfig, dict(lr=1e-3, final_lr=1e-2), "`final_lr` must be in"),
        (OptimConfig, dict(warmup=0.6, decay=0.5), r"`decay` must be in \[0, 1 - warmup=0.4\]"),
        (OptimConfig, dict(clip=0.0), "`clip` must be positive or None"),
        (TrainConfig, dict(epochs=0), "`epochs` must be at least 1, but is 0"),
        (TrainConfig, dict(precision="half"), "`precision` must be"),
        (TrainConfig, dict(seed=-1), "`seed` must be in"),
    ],
)
def test_bad_configs_are_refused(kind, options, message):
    with pytest.raises(ValueError, match=message):
        kind(**options)


def test_the_length_of_a_run_is_in_epochs_or_in_steps():
    assert TrainConfig().total_steps(7) == 70
    assert TrainConfig(epochs=3).total_steps(7) == 21
    assert TrainConfig(steps=5).total_steps(7) == 5
    with pytest.raises(ValueError, match=r"`epochs` is 3 and `steps` is 5, but only one can be set\. Set the other to"):
        TrainConfig(epochs=3, steps=5)


def test_the_json_of_a_length_in_epochs_stays_what_it_was():
    """Results that are kept are found by their config."""
    assert to_dict(TrainConfig(epochs=40)) == {
        "optim": {
            "name": "adamw",
            "lr": 0.003,
            "final_lr": 1e-05,
            "warmup": 0.1,
            "decay": 0.5,
            "weight_decay": 0.0,
            "betas": [0.9, 0.999],
            "eps": 1e-08,
            "clip": 1.0,
        },
        "epochs": 40,
        "steps": None,
        "seed": 0,
        "device": "auto",
        "precision": "float32",
        "log_every": 20,
        "eval_every": None,
        "checkpoint_every": None,
        "patience": None,
        "keep": 2,
        "tensorboard": False,
        "progress": True,
    }
