"""How large a comparison is: the rounds and seeds that `--scale` stands for."""

from dataclasses import dataclass

from dapfl.errors import ConfigError


@dataclass(frozen=True)
class Scale:
    """How much of an experiment to run."""

    rounds: int
    seeds: int


SCALES = {
    "quick": {"logistic": Scale(20, 1), "cnn": Scale(5, 1), "resnet18": Scale(1, 1)},
    "standard": {"logistic": Scale(200, 5), "cnn": Scale(60, 3), "resnet18": Scale(8, 1)},
    "full": {"logistic": Scale(3000, 5), "cnn": Scale(3000, 5), "resnet18": Scale(1000, 3)},
}


def scale_of(name: str, task: str) -> Scale:
    """The rounds and seeds of a scale for a task; a task that has none of its own counts as a CNN."""
    if name not in SCALES:
        raise ConfigError(f"There is no scale '{name}': the scales are {', '.join(SCALES)}.")
    return SCALES[name].get(task.partition("-")[0], SCALES[name]["cnn"])
