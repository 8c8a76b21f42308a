"""Pictures of results; matplotlib is imported when one is drawn."""

from __future__ import annotations

import os
from typing import Any

from ivvi.errors import InputError
from ivvi.evaluation import Evaluation
from ivvi.files import atomic_file

COLOURS = ("#222222", "#1b7f79", "#c8553d", "#5b6c8f", "#b08900", "#8e5ea2")
FORMATS = (".png", ".svg", ".pdf")


def draw_rewards(
    evaluation: Evaluation, path: str | os.PathLike[str], *, force: bool = False
) -> None:
    """Draw the mean reward of each step with its 95% band, one line a policy."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 4.2), layout="constrained")
    for colour, name in zip(COLOURS * 9, evaluation.rewards, strict=False):
        mean, low, high = evaluation.curve(name).T
        axes.plot(mean, color=colour, lw=1.4, label=f"{name}  ({evaluation.value(name)})")
        axes.fill_between(range(len(mean)), low, high, color=colour, alpha=0.15, lw=0)
    axes.set(xlabel="step", ylabel="reward", title=evaluation.label)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, title="policy (return, 95% interval)")
    save_figure(figure, path, force=force)
    plt.close(figure)


def save_figure(figure: Any, path: str | os.PathLike[str], *, force: bool = False) -> None:
    """Write a figure in the format of its name, atomically."""
    ending = os.path.splitext(path)[1].lower()
    if ending not in FORMATS:
        raise InputError(f"{path} is not the name of a picture; {', '.join(FORMATS)} are known")
    with atomic_file(path, force=force) as temporary:
        figure.savefig(temporary, format=ending[1:], dpi=150)
