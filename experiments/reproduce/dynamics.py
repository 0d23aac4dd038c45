"""Table 4 and Fig. 5: videos and moving particles."""

from __future__ import annotations

from dataclasses import replace

from experiments.reproduce.study import Cell, Claim, Study, variant
from topomask.models.interlacer import Neighbors
from topomask.recipes import particles, videos


def table4() -> Study:
    """Table 4 on moving digits."""
    experiment = videos.moving_digits()
    experiment = replace(experiment, train=replace(experiment.train, eval_every=630))
    return Study(
        title="Table 4: video transformers",
        folder="moving-digits",
        about=(
            "The paper trains a ViViT on Kinetics 400. Here: 2,000 generated videos of 16 frames of 64 x 64 pixels, in "
            "which a digit moves or turns in one of ten ways; factorised encoder, tubelets of 8 x 8 pixels and 2 "
            "frames, 3 layers over space and 2 over time, width 64. Accuracy on 500 test videos after the last epoch.",
        ),
        cells=(
            Cell("softmax", "softmax", variant(experiment, "softmax"), "0.754"),
            Cell("grf-softmax", "softmax + GRFs, our walks", variant(experiment, "grf-softmax"), "0.758"),
        ),
        claims=(Claim("grf-softmax", "softmax", "+0.4 points"),),
        baseline="softmax",
        seeds=3,
    )


def interlacer() -> Study:
    """Fig. 5 on a mass-spring body: which neighbour layer predicts motion best."""
    experiment = particles.particles()
    labels: dict[Neighbors, str] = {
        "none": "linear attention only",
        "messages": "message passing",
        "grf": "GRF-masked attention",
    }
    cells = [
        Cell(name, label, replace(experiment, model=replace(experiment.model, neighbors=name)))
        for name, label in labels.items()
    ]
    return Study(
        title="Fig. 5: Interlacers",
        folder="particles",
        about=(
            "The paper predicts video of a robot through a point cloud of 32,768 particles and plots the similarity of "
            "images. Here: a soft body of 4,096 particles that falls on a floor; weight decay 1e-3 and clipping at "
            "0.01 are the paper's. Mean distance of a particle from its place after six predicted frames, on "
            "bodies that were not seen in training. Particles that kept their velocity would be off by 14.0 mm after "
            "one frame and by 196 mm after six, particles that stayed where they are by 58.7 and 317 mm.",
        ),
        cells=cells,
        claims=(
            Claim("grf", "none", "closer, in a plot"),
            Claim("grf", "messages", "closer, in a plot"),
        ),
        baseline="none",
        seeds=3,
        metric="error_6",
        scale=1000.0,
        unit="mm",
        gap_unit="mm",
        also=(("error_1", "after one frame, mm"),),
        higher_is_better=False,
    )
