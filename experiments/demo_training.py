"""The last part of the tour: a vision transformer on handwritten digits, with and without the mask."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from matplotlib.figure import Figure

from topomask.pictures.pages import Picture, Section, Table, draw_picture
from topomask.recipes import images
from topomask.recipes.images import ImageExperiment
from topomask.recipes.registry import read_experiment
from topomask.support.files import write_content
from topomask.train import Result, plot_modulations, read_metrics

VARIANTS = {"linear": "linear attention, unmasked", "grf": "linear attention, masked by walks"}
COLOURS = {"linear": "tab:gray", "grf": "tab:blue"}


def show_training(output: Path) -> Section:
    """Train both models, and plot their accuracy."""
    folder = output / "training"
    experiment = demo_experiment()
    print("Training a vision transformer on digits, without the mask and with it ...", flush=True)
    results = {}
    with _one_thread():
        for name in VARIANTS:
            run = replace(experiment, model=replace(experiment.model, attention=name))
            _clear(folder / name)
            results[name] = run.run(folder / name)
    plot_modulations(results["grf"].model, folder / "modulation.png")
    rows = [[label, _accuracy(results[name]), f"{results[name].seconds:.0f}"] for name, label in VARIANTS.items()]
    tokens = f"{experiment.train.epochs} epochs over 1,438 digits of 8 x 8 pixels, a token per pixel"
    return Section(
        "4. What does a transformer gain?",
        (f"Test accuracy of a vision transformer, 3 layers of width 32, after {tokens}.",),
        Table(["", "test accuracy", "seconds"], rows),
        (
            "This is one seed, and one of 359 test digits is 0.28 %: topomask reproduce digits has five seeds and all "
            "kinds of attention.",
        ),
        (
            _draw_curves(folder, folder / "curves.png"),
            Picture("The learnt modulation f, per layer and head", (folder / "modulation.png").read_bytes(), 620),
        ),
    )


def demo_experiment() -> ImageExperiment:
    """The recipe digits, evaluated on the test set every fourth epoch."""
    experiment = images.digits()
    return replace(experiment, train=replace(experiment.train, eval_every=92, checkpoint_every=1000))


def _clear(folder: Path) -> None:
    """Delete the run of an earlier tour, and nothing but a run."""
    if folder.exists():
        read_experiment(folder)
        shutil.rmtree(folder)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Use one thread, as for the tables, so that the results are the same; a small model gains little from more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _accuracy(result: Result) -> str:
    return f"{result.metrics['accuracy']:.1%}"


def _draw_curves(folder: Path, path: Path) -> Picture:
    """Plot the test accuracy of both models by epoch."""
    figure = Figure(figsize=(5.5, 3.8), layout="constrained")
    axes = figure.subplots()
    for name, label in VARIANTS.items():
        lines = [line for line in read_metrics(folder / name / "metrics.jsonl") if line["event"] == "eval"]
        axes.plot(
            [line["epoch"] for line in lines],
            [100 * line["accuracy"] for line in lines],
            "o-",
            ms=3,
            color=COLOURS[name],
            label=label,
        )
    axes.set(xlabel="epoch", ylabel="test accuracy, %")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    picture = draw_picture(figure, "Test accuracy by epoch", width=520)
    write_content(path, picture.png)
    return picture
