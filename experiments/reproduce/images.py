"""Tables 1 and 3 and Fig. 6: masked attention in vision transformers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from experiments.reproduce.study import NOT_AVAILABLE, Cell, Claim, Study, variant
from topomask.recipes import images
from topomask.recipes.images import ImageExperiment

# The paper's values on ImageNet and iNaturalist. Our copy of the paper has no column for Places365.
_TABLE1 = (
    ("softmax", "unmasked softmax", "0.741, 0.699"),
    ("toeplitz", "Toeplitz-masked linear", "0.733, 0.674"),
    ("exact", "exact M_alpha-masked linear", "0.741, 0.692"),
    ("linear", "unmasked linear", "0.693, 0.667"),
    ("grf-paper", "GRF-masked linear, the paper's walks", "0.730, 0.689"),
    ("grf", "GRF-masked linear, our walks", NOT_AVAILABLE),
    ("grf-softmax", "GRF-masked softmax", NOT_AVAILABLE),
)
_PAPER = "the paper: ImageNet, iNaturalist"
_ABLATION: dict[str, Any] = {"num_walks": 100, "halt_prob": 0.5}
_TABLE3: tuple[tuple[str, str, str, str, dict[str, Any]], ...] = (
    ("grf-paper-100", "grf-paper", "GRF-masked, 100 walks, halt 0.5", "0.730", _ABLATION),
    ("linear", "linear", "unmasked linear", "0.693", {}),
    ("visits-100", "visits", "ad-hoc masked (Eq. 21), 100 walks, halt 0.5", "0.689", _ABLATION),
    ("learned", "learned", "fully learnable features", "0.696", {}),
)
_CLAIMS1 = (
    Claim("grf-paper", "linear", "+3.7 points on ImageNet, +2.2 on iNaturalist, +0.5 on Places365"),
    Claim("grf", "linear"),
    Claim("exact", "linear", "+4.8 points on ImageNet"),
    Claim("exact", "grf-paper", "+1.1 points on ImageNet"),
    Claim("softmax", "linear", "+4.8 points on ImageNet"),
)
_CLAIMS3 = (
    Claim("grf-paper-100", "linear", "+3.7 points"),
    Claim("grf-paper-100", "visits-100", "+4.1 points"),
    Claim("linear", "visits-100", "+0.4 points"),
    Claim("grf-paper-100", "learned", "+3.4 points"),
)


def _quiet(experiment: ImageExperiment, eval_every: int) -> ImageExperiment:
    """Evaluate rarely: the test set selects nothing, so only the last evaluation counts."""
    return replace(experiment, train=replace(experiment.train, eval_every=eval_every))


def _table1(experiment: ImageExperiment) -> list[Cell]:
    return [Cell(name, label, variant(experiment, name), paper) for name, label, paper in _TABLE1]


def _table3(experiment: ImageExperiment) -> list[Cell]:
    return [
        Cell(name, label, variant(experiment, attention, **options), paper)
        for name, attention, label, paper, options in _TABLE3
    ]


def table1() -> Study:
    """Table 1 on Fashion-MNIST."""
    experiment = images.fashion_mnist()
    return Study(
        title="Table 1: attention in vision transformers",
        folder="fashion-mnist",
        about=(
            "The paper trains ViT-B/16 on ImageNet, iNaturalist and Places365 (whose values our copy of it lacks). "
            "Here: Fashion-MNIST, the first 12,000 training images, a 14 x 14 grid of patches, 3 layers of width 64 "
            "with 4 heads, 10 epochs, all variants alike. Test accuracy after the last epoch; nothing is chosen by it.",
        ),
        cells=_table1(_quiet(experiment, 940)),
        claims=_CLAIMS1,
        baseline="linear",
        seeds=3,
        paper_heading=_PAPER,
    )


def table3() -> Study:
    """Table 3 on Fashion-MNIST; it shares its unmasked row with Table 1."""
    return Study(
        title="Table 3: which part of the mask matters",
        folder="fashion-mnist",
        about=("As Table 1, with 100 walks that halt with probability 0.5, as in the paper's ablation.",),
        cells=_table3(_quiet(images.fashion_mnist(), 940)),
        claims=_CLAIMS3,
        baseline="linear",
        seeds=3,
    )


def digits() -> Study:
    """Tables 1 and 3 on the digits of scikit-learn, which need no download."""
    experiment = _quiet(images.digits(), 230)
    cells = {cell.name: cell for cell in [*_table3(experiment), *_table1(experiment)]}
    return Study(
        title="Digits: Tables 1 and 3 in minutes",
        folder="digits",
        about=(
            "1,438 training and 359 test digits of 8 x 8 pixels, a token per pixel, 3 layers of width 32 with 4 heads, "
            "40 epochs. One test image is 0.28 points.",
        ),
        cells=list(cells.values()),
        claims=(*_CLAIMS1, *_CLAIMS3),
        baseline="linear",
        seeds=5,
        paper_heading=_PAPER,
    )


def fig6() -> Study:
    """Fig. 6 on the digits: more walks."""
    experiment = _quiet(images.digits(), 230)
    cells = [
        Cell(f"grf-paper-{count}", label, variant(experiment, "grf-paper", num_walks=count, halt_prob=0.5))
        for count, label in ((1, "1 walk"), (10, "10 walks"), (100, "100 walks"), (1000, "1,000 walks"))
    ]
    return Study(
        title="Fig. 6: accuracy by the number of walks",
        folder="digits",
        about=(
            "The digits as above, i.i.d. walks that halt with probability 0.5. The paper shows a plot of ImageNet.",
        ),
        cells=cells,
        claims=(
            Claim("grf-paper-10", "grf-paper-1", "rises, in a plot"),
            Claim("grf-paper-100", "grf-paper-10", "rises, in a plot"),
            Claim("grf-paper-1000", "grf-paper-100", "rises, in a plot"),
        ),
        baseline="grf-paper-1",
        seeds=5,
    )


def tiny_imagenet() -> Study:
    """Table 1 on Tiny-ImageNet-50, the paper's 16 x 16 grid."""
    experiment = images.tiny_imagenet_50()
    experiment = replace(experiment, train=replace(experiment.train, epochs=4))
    names = ("linear", "grf", "softmax")
    return Study(
        title="Table 1 on Tiny-ImageNet-50",
        folder="tiny-imagenet-50",
        about=(
            "25,000 training images of 64 x 64 pixels in 50 classes, patches of 4 x 4: the paper's 16 x 16 grid; 4 "
            "layers of width 128, 4 epochs, flips and shifts. Validation accuracy after the last epoch.",
        ),
        cells=[cell for cell in _table1(_quiet(experiment, 980)) if cell.name in names],
        claims=[claim for claim in _CLAIMS1 if {claim.better, claim.worse} <= set(names)],
        baseline="linear",
        seeds=1,
        paper_heading=_PAPER,
    )
