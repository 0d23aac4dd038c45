import json
import math
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import nn

from helpers import training
from topomask.data import Batches, ParticleSet
from topomask.support.config import from_dict, to_dict
from topomask.train import (
    Classification,
    NonFiniteError,
    OptimConfig,
    ParticleMotion,
    Regression,
    Task,
    TrainConfig,
    evaluate,
    find_checkpoint,
    load_weights,
    read_checkpoint,
    read_metrics,
    run,
)


@dataclass(frozen=True)
class Recipe:
    train: TrainConfig = field(default_factory=lambda: training.CONFIG)
    width: int = 3


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A run, with the whole recipe as its record."""
    folder = tmp_path_factory.mktemp("run")
    config = replace(training.CONFIG, epochs=12)
    return training.run(folder, config, record=Recipe(train=config)), folder


def test_a_model_learns_and_the_best_is_kept(done):
    result, folder = done
    assert result.step == 12 * 7
    assert result.best["accuracy"] >= 0.9
    evaluated = [line for line in read_metrics(folder / "metrics.jsonl") if line["event"] == "eval"]
    assert result.best["accuracy"] == max(line["accuracy"] for line in evaluated)
    assert result.metrics == {name: evaluated[-1][name] for name in ("loss", "accuracy")}
    model = training.Tiny()
    load_weights(model, find_checkpoint(folder))
    valid = training.make_data(20, shuffle=False, seed=1)
    assert evaluate(model, valid, Classification()) == {name: result.best[name] for name in ("loss", "accuracy")}
    assert read_checkpoint(find_checkpoint(folder)).info["step"] == result.best["step"]


def test_a_result_is_evaluated_with_its_best_weights(done):
    result, _ = done
    valid, test = (training.make_data(20, shuffle=False, seed=seed) for seed in (1, 2))
    state = {name: value.clone() for name, value in result.model.named_parameters()}
    assert result.evaluate(valid) == {name: result.best[name] for name in ("loss", "accuracy")}
    assert result.evaluate(valid, best=False) == result.metrics
    assert result.best["step"] != result.step, "the two differ"
    assert set(result.evaluate(test)) == {"loss", "accuracy"}
    assert all(torch.equal(value, state[name]) for name, value in result.model.named_parameters())


def test_a_run_that_was_never_evaluated_has_its_last_weights(tmp_path):
    valid = training.make_data(20, shuffle=False, seed=1)
    result = training.run(tmp_path, replace(training.CONFIG, epochs=1), valid=None)
    assert result.evaluate(valid) == evaluate(result.model, valid, Classification())
    # In a later session.
    again = training.run(tmp_path, replace(training.CONFIG, epochs=1), valid=None, resume=True)
    assert again.evaluate(valid) == result.evaluate(valid)


def test_a_new_head_is_fine_tuned_from_a_checkpoint(done, tmp_path):
    _, folder = done
    stored = read_checkpoint(find_checkpoint(folder)).weights

    def build():
        model = training.Tiny()
        model.head = nn.Linear(training.WIDTH, 2)
        load_weights(model, find_checkpoint(folder), except_prefix="head.")
        built.append({name: value.clone() for name, value in model.state_dict().items()})
        return model

    built = []
    data, valid = training.make_data(), training.make_data(20, shuffle=False, seed=1)
    for batches in (data, valid):
        inputs, labels = batches.dataset.tensors
        batches.dataset.tensors = inputs, (labels == 0).long()
    config = replace(training.CONFIG, epochs=2)
    result = training.run(tmp_path, config, build=build, data=data, valid=valid)
    assert all(torch.equal(value, stored[name]) for name, value in built[0].items() if not name.startswith("head."))
    assert built[0]["head.weight"].shape == (2, training.WIDTH)
    assert result.best["accuracy"] >= 0.8


def test_the_last_checkpoint_is_found_where_nothing_was_evaluated(tmp_path):
    with pytest.raises(FileNotFoundError, match="There is no checkpoint in"):
        find_checkpoint(tmp_path)
    training.run(tmp_path, replace(training.CONFIG, epochs=None, steps=6), valid=None)
    assert find_checkpoint(tmp_path).name == "step-000000006.safetensors"


def test_metrics_are_lines_of_json(done):
    result, folder = done
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    trained = [line for line in lines if line["event"] == "train"]
    assert [line["step"] for line in trained] == [*range(3, 85, 3)]
    assert [line["step"] for line in lines if line["event"] == "eval"] == [*range(5, 85, 5), 84]
    assert trained[-1]["lr"] == pytest.approx(training.OPTIM.final_lr)
    assert trained[1]["epoch"] == pytest.approx(6 / 7, abs=1e-4)
    assert all(line["time"]["examples_per_second"] > 0 and math.isfinite(line["grad_norm"]) for line in trained)
    assert trained[-1]["loss"] < trained[0]["loss"]
    assert 0 < result.seconds < 100


def test_the_recipe_is_kept(done):
    _, folder = done
    kept = json.loads((folder / "config.json").read_text())
    assert from_dict(Recipe, kept) == Recipe(train=replace(training.CONFIG, epochs=12))
    info = read_checkpoint(folder / "checkpoints" / "step-000000084.safetensors").info
    assert info["config"] == kept
    packages = {"torch", "numpy", "python", "numba", "scipy", "scikit-learn", "torch-geometric"}
    assert packages | {"topomask", "threads", "costs"} == info["versions"].keys()
    assert (info["step"], info["epoch"], info["length"], info["total"]) == (84, 12.0, 7, 84)


def test_the_same_seed_gives_the_same_run_and_another_seed_another(tmp_path):
    results = [
        training.run(tmp_path / name, replace(training.CONFIG, epochs=1, seed=seed))
        for name, seed in (("a", 3), ("b", 3), ("c", 4))
    ]
    first, second, third = (result.model.state_dict() for result in results)
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    assert not torch.equal(first["attention.mask._extra_state"], third["attention.mask._extra_state"])
    assert not torch.equal(first["head.weight"], third["head.weight"])


def test_steps_end_a_run_inside_an_epoch(tmp_path):
    result = training.run(tmp_path, replace(training.CONFIG, epochs=None, steps=9))
    assert result.step == 9
    assert read_metrics(tmp_path / "metrics.jsonl")[-1]["step"] == 9
    assert (tmp_path / "checkpoints" / "step-000000009.safetensors").exists()


def test_a_step_is_that_of_plain_torch(tmp_path):
    """Clipping, schedule and AdamW against a loop written out."""
    data = training.make_data()
    optim = OptimConfig(lr=0.05, final_lr=0.01, warmup=0.3, decay=0.4, weight_decay=0.2, clip=0.1)
    flat = lambda: nn.Sequential(nn.Flatten(), nn.Linear(training.TOKENS * training.WIDTH, training.CLASSES))  # noqa: E731
    found = run(TrainConfig(optim, steps=10, progress=False), flat, data, Classification(), tmp_path).model

    from topomask.train import learning_rate, seed_everything

    seed_everything(0)
    model = flat()
    adam = torch.optim.AdamW(
        [{"params": [model[1].weight], "weight_decay": 0.2}, {"params": [model[1].bias], "weight_decay": 0.0}]
    )
    batches = [*data.epoch(0), *data.epoch(1)][:10]
    for step, (x, y) in enumerate(batches):
        for group in adam.param_groups:
            group["lr"] = learning_rate(optim, step, 10)
        adam.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        adam.step()
    torch.testing.assert_close(found[1].weight, model[1].weight, rtol=1e-6, atol=1e-7)


class Faulty(Classification):
    """A loss or a gradient that is not finite at a step, from the head on."""

    def __init__(self, step: int, how: str) -> None:
        super().__init__()
        self.step, self.how = step, how

    def loss(self, model, batch):
        if self.how == "layer":
            # Finite weights that are too large for the sum in a layer.
            if self.step == 0:
                model.attention.value.weight.data.fill_(3e38)
            self.step -= 1
            return super().loss(model, batch)
        loss, metrics = super().loss(model, batch)
        self.step -= model.training
        if self.step == -1:
            if self.how == "loss":
                loss = loss + float("inf")
            elif self.how == "gradient":
                # The root of 0 is finite, and its slope is not.
                loss = loss + (model.head.bias * 0).abs().sum().sqrt()
            elif self.how == "weight":
                model.norm.bias.data[3] = float("nan")
        return loss, metrics


@pytest.mark.parametrize(
    ("how", "step", "message"),
    [
        (
            "loss",
            6,
            r"step 6 \(epoch 0, batch 6, learning rate 0.02\): the loss is inf, and .* the fault is in the loss itself",
        ),
        ("gradient", 9, r"step 9 \(epoch 1, batch 2, .*first gradient that is not finite is that of `head.bias`"),
        ("weight", 5, r"step 6 \(.*: the loss is nan, and the first weights that are not finite .* `norm.bias`"),
        ("layer", 6, r"step 6 \(.*: the loss is nan, and the first output .* is that of layer `attention.value`"),
        # Found before the checkpoint is written.
        ("weight", 7, r"step 8 \(epoch 1, batch 1\): the first weights that are not finite .* `norm.bias`"),
    ],
)
def test_numbers_that_are_not_finite_stop_the_run(how, step, message, tmp_path):
    checkpoint = tmp_path / "checkpoints" / f"step-{step // 4 * 4:09d}.safetensors"
    with pytest.raises(NonFiniteError, match=message) as found:
        training.run(tmp_path, task=Faulty(step, how), valid=None)
    assert f"The last checkpoint, {checkpoint}, is intact" in str(found.value)
    assert max((tmp_path / "checkpoints").iterdir()) == checkpoint
    assert all(value.isfinite().all() for value in read_checkpoint(checkpoint).weights.values())


def test_a_batch_that_is_not_finite_is_named(tmp_path):
    data = [*training.make_data().epoch(0)]
    data[2][0][5, 0, 1] = float("nan")
    message = r"step 2 .*the loss is nan, and tensor 0 of the batch .* not finite, first in example 5\. There is no"
    with pytest.raises(NonFiniteError, match=message):
        training.run(tmp_path, data=data)


def test_without_a_checkpoint_the_message_says_so(tmp_path):
    with pytest.raises(NonFiniteError, match="There is no checkpoint yet"):
        training.run(tmp_path, task=Faulty(0, "loss"))


def test_mixed_precision_trains(tmp_path):
    result = training.run(tmp_path, replace(training.CONFIG, precision="bfloat16", epochs=12))
    assert result.best["accuracy"] >= 0.9
    assert all(parameter.dtype == torch.float32 for parameter in result.model.parameters())


def test_a_list_of_batches_will_do_and_regression_learns(tmp_path):
    x = torch.randn(8, 16, 3)
    data = [(part, part.sum(dim=-1, keepdim=True)) for part in x]
    config = TrainConfig(OptimConfig(lr=0.1), epochs=10, progress=False)
    result = run(config, lambda: nn.Linear(3, 1), data, Regression(), tmp_path, valid=data)
    assert result.metrics["loss"] < 1e-2
    assert result.metrics["absolute_error"] < 0.1
    evaluated = [line for line in read_metrics(tmp_path / "metrics.jsonl") if line["event"] == "eval"]
    assert len(evaluated) == 10
    assert result.best["loss"] == min(line["loss"] for line in evaluated)


class Scripted(Classification):
    """Learns as usual; its evaluations are known beforehand."""

    def __init__(self, *evaluations):
        super().__init__()
        self.evaluations = iter(evaluations)

    def loss(self, model, batch):
        if model.training:
            return super().loss(model, batch)
        accuracy, loss = next(self.evaluations)
        return torch.tensor(loss, dtype=torch.float64), {"accuracy": torch.tensor(accuracy, dtype=torch.float64)}


@pytest.mark.parametrize("rounding", [0.0, 1e-9, -1e-9])
def test_of_evaluations_that_tie_the_one_with_the_least_loss_is_best(tmp_path, rounding):
    data = [(torch.randn(4, 2), torch.tensor([0, 1, 0, 1]))]
    tie = 0.8 + rounding
    task = Scripted((0.7, 0.1), (0.8, 0.5), (tie, 0.6), (tie, 0.4), (0.75, 0.2), (tie, math.nan), (tie, 0.45))
    config = TrainConfig(OptimConfig(lr=0.1), epochs=20, patience=5, progress=False)
    result = run(config, lambda: nn.Linear(2, 2), data, task, tmp_path, valid=data)
    assert result.best == {"accuracy": pytest.approx(0.8), "loss": 0.4, "step": 4}
    assert read_checkpoint(find_checkpoint(tmp_path)).info["step"] == 4
    # A tie is no progress: patience counts from the second evaluation on.
    assert result.step == 7


class Drift(nn.Module):
    """Moves particles by their velocity times a learnt time; features stay."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Parameter(torch.tensor(0.01))

    def forward(self, positions, features):
        return positions + self.time * features[..., :3], features


def test_the_motion_of_particles_is_learnt(tmp_path):
    options = dict(num_trajectories=1, num_particles=40, num_frames=9)
    one, six = (Batches(ParticleSet(horizon=horizon, **options), 3) for horizon in (1, 6))
    config = TrainConfig(OptimConfig(lr=0.005, warmup=0.0), epochs=20, progress=False)
    result = run(config, Drift, one, ParticleMotion(), tmp_path, valid=six)
    assert float(result.model.time.detach()) == pytest.approx(1 / 30, rel=0.2)
    # Without forces the error grows faster than the number of steps.
    assert 0 < 6 * result.metrics["error_1"] < result.metrics["error_6"] < 0.3


def test_particle_errors_are_those_of_a_loop():
    positions, features = torch.randn(2, 5, 3), torch.randn(2, 5, 6)
    ahead, features_ahead = torch.randn(2, 3, 5, 3), torch.randn(2, 3, 5, 6)
    model = Drift()
    loss, metrics = ParticleMotion(position_scale=0.5).loss(model, (positions, features, ahead, features_ahead))
    wanted = 0.0
    for step in range(3):
        positions = positions + 0.01 * features[..., :3]
        wanted += (
            4 * (positions - ahead[:, step]).square().mean() + (features - features_ahead[:, step]).square().mean()
        )
    torch.testing.assert_close(loss, wanted / 3)
    torch.testing.assert_close(metrics["error_3"], (positions - ahead[:, 2]).norm(dim=-1).mean())
    assert metrics.keys() == {"error_1", "error_3"}
    with pytest.raises(ValueError, match="`position_scale` must be positive"):
        ParticleMotion(0.0)


def test_data_that_is_not_as_it_says_is_refused(tmp_path):
    class Short(list):
        def __len__(self):
            return 5

    with pytest.raises(ValueError, match="`data` has 5 batches, but epoch 0 gave 3"):
        training.run(tmp_path / "short", data=Short([*training.make_data().epoch(0)][:3]))
    with pytest.raises(ValueError, match="A batch has no examples"):
        training.run(tmp_path / "empty", data=[(torch.ones(0, 9, 8), torch.ones(0, dtype=torch.long))])
    with pytest.raises(ValueError, match="`data` has no batches"):
        training.run(tmp_path / "none", data=[])
    with pytest.raises(ValueError, match="nothing to evaluate"):
        evaluate(nn.Identity(), [], Classification())


def test_an_unknown_monitor_is_refused(tmp_path):
    task = Classification()
    task.monitor = "acuracy"
    with pytest.raises(
        ValueError, match="`monitor` must be a metric of the task, one of loss, accuracy, but is 'acuracy'"
    ):
        training.run(tmp_path, task=task)


def test_evaluation_counts_examples_and_changes_nothing():
    model = training.Tiny(dropout=0.5)
    model.norm.eval()
    data = training.make_data(21, batch_size=8)
    x, y = data.dataset.tensors
    found = evaluate(model, data, Classification(label_smoothing=0.3))
    assert model.training
    assert model.dropout.training
    assert not model.norm.training
    model.eval()
    with torch.no_grad():
        logits = model(x)
    # Labels are smoothed in training only.
    assert found["loss"] == pytest.approx(float(nn.functional.cross_entropy(logits, y)), rel=1e-5)
    assert found["accuracy"] == pytest.approx(float((logits.argmax(-1) == y).float().mean()))


def test_labels_are_smoothed_in_training():
    logits, y = torch.randn(5, 4), torch.tensor([0, 1, 2, 3, 3])
    loss, _ = Classification(label_smoothing=0.2).loss(nn.Identity(), (logits, y))
    wanted = 0.8 * nn.functional.cross_entropy(logits, y) - 0.2 * logits.log_softmax(-1).mean()
    torch.testing.assert_close(loss, wanted)


def test_tasks_refuse_what_they_cannot_do():
    with pytest.raises(ValueError, match="`label_smoothing` must lie in"):
        Classification(label_smoothing=1.0)
    with pytest.raises(ValueError, match="so that nothing is broadcast"):
        Regression().loss(nn.Identity(), (torch.ones(3, 1), torch.ones(3)))
    with pytest.raises(ValueError, match=r"contains no tensor. Override Classification.size"):
        Classification().size(("a", 3))
    assert Classification().size({"name": "a", "x": [torch.ones(4, 2)]}) == 4


def test_a_task_of_ones_own(tmp_path):
    class Dicts(Task):
        """Batches that are dicts."""

        def loss(self, model, batch):
            error = (model(batch["x"]) - batch["y"]).square().mean()
            return error, {"error": error.detach()}

    data = [{"x": x, "y": x[:, :1], "name": "any"} for x in torch.randn(4, 8, 3)]
    config = TrainConfig(epochs=2, log_every=1, progress=False)
    run(config, lambda: nn.Linear(3, 1), data, Dicts(), tmp_path, valid=data)
    lines = read_metrics(tmp_path / "metrics.jsonl")
    assert all(line["error"] == pytest.approx(line["loss"], rel=1e-6) for line in lines)
    assert to_dict(config)["epochs"] == 2


def test_arguments_in_each_others_place_are_named(tmp_path):
    data = training.make_data(8)
    right = dict(config=training.CONFIG, build=training.Tiny, data=data, task=Classification())
    for wrong, message in (
        (dict(config=training.Tiny()), r"`config` must be a TrainConfig, but is a Tiny. Pass, .*TrainConfig\(epochs"),
        (dict(config=data), r"`config` must be a TrainConfig, but is a Batches"),
        (dict(build=training.Tiny()), r"`build` must be a function .*, but is a Tiny. Pass, .*lambda: Tiny\(\.\.\.\)"),
        (dict(build=data), r"`build` must be a function .*, but is a Batches"),
        (dict(build=lambda: 1), "`build` must return a torch.nn.Module, but returned a int"),
        (dict(data=iter(())), "`data` must be a list of batches or an Epochs, but is a tuple_iterator"),
        (dict(task=Classification), "`task` must be a Task, but is a ABCMeta"),
    ):
        with pytest.raises(ValueError, match=message):
            run(**right | wrong, folder=tmp_path)
    # Nothing was trained, so the folder is free.
    assert run(**right, folder=tmp_path).step > 0


def test_a_run_that_failed_in_its_first_step_does_not_occupy_the_folder(tmp_path):
    with pytest.raises(ValueError, match="not enough values"):
        run(training.CONFIG, training.Tiny, [(torch.ones(1),)], Classification(), tmp_path)
    assert run(training.CONFIG, training.Tiny, training.make_data(8), Classification(), tmp_path).step > 0
