"""A study whose experiments take no time and have known outcomes."""

from dataclasses import dataclass, field, replace

from experiments.reproduce.study import Cell, Claim, Study, run_study
from topomask.train import TrainConfig


@dataclass(frozen=True)
class Outcome:
    metrics: dict
    seconds: float


@dataclass(frozen=True)
class Data:
    name: str = "toys"
    root: str | None = None


@dataclass(frozen=True)
class Toy:
    """An experiment whose outcome is known; it leaves a note of every run."""

    level: float
    train: TrainConfig = field(default_factory=TrainConfig)
    data: Data = field(default_factory=Data)

    def with_seed(self, seed):
        return replace(self, train=replace(self.train, seed=seed))

    def run(self, folder, *, resume, fallback):
        assert resume, "a run that was stopped goes on"
        assert fallback, "from the last checkpoint that is whole"
        if (folder.parent / "stop").exists():
            raise KeyboardInterrupt
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "runs").open("a") as note:
            note.write("x")
        return Outcome({"accuracy": self.level + 0.001 * self.train.seed**2, "loss": 1.0}, 2.0 + self.train.seed)

    def measure(self, outcome):
        return outcome.metrics | {"val_accuracy": 1 - self.level}


STUDY = Study(
    title="Table 9: toys",
    folder="toys",
    about=("As small as can be.",),
    cells=(
        Cell("linear", "unmasked", Toy(0.50), "0.693"),
        Cell("grf", "masked", Toy(0.75), "0.730"),
        Cell("grf-100", "masked more", Toy(0.25)),
    ),
    claims=(
        Claim("grf", "linear", "+3.7 points"),
        Claim("grf-100", "linear", "more is better"),
    ),
    baseline="linear",
    seeds=3,
)


def run(folder, study=STUDY, seeds=(0, 1, 2), **options):
    """Run a study in a folder; what it said."""
    said = []
    run_study(study, seeds, folder / "results", folder / "runs", say=said.append, **options)
    return said
