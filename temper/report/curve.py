"""The reward curve of a run as a picture.

Invariant: it shows measured points only: a line joins points of one domain within one stage, and every held-out
pass rate stands beside the counts it is made of.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from shared.contracts import Evaluation, Step
from shared.errors import DependencyError
from temper.audit.lineage import surviving
from temper.report.summary import wilson

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Okabe and Ito's palette: told apart by colour-blind readers too."""
_LABEL_GAP = 0.06
_ASIDE = 0.006
"""Share of the axis by which domains of one evaluation stand beside each other: intervals must not hide each other."""
_INK = "#444444"


def plot_curves(run_id: str, steps: Iterable[Step], evaluations: Iterable[Evaluation], png: Path) -> None:
    """Held-out pass rates over mean training reward, by domain, over optimizer steps.

    Raises `DependencyError` where matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise DependencyError(
            "the reward curve needs matplotlib: install the extra, temper-rl[plot]"
        ) from error
    lineage = surviving(steps)
    held_out = sorted({e.name: e for e in evaluations}.values(), key=lambda e: (e.step, e.created_ms))
    names = sorted({n for s in lineage for n in s.rewards} | {n for e in held_out for n in e.domains})
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
    figure = Figure(figsize=(9.5, 7.0), dpi=140, layout="constrained")
    FigureCanvasAgg(figure)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    figure.suptitle(f"Run {run_id}", fontsize=14, fontweight="bold", x=0.02, ha="left")
    _draw_held_out(top, held_out, colours)
    _draw_training(bottom, lineage, colours)
    last = max([1, *(s.step for s in lineage), *(e.step for e in held_out)])
    for axes in (top, bottom):
        _dress(axes, lineage, last, labelled=axes is top)
    bottom.set_xlabel("optimizer step", color=_INK)
    handles, labels = _legend(top, bottom)
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    partial = png.with_name(png.name + ".partial")
    figure.savefig(partial, format="png")
    partial.replace(png)


def _draw_held_out(axes: Any, evaluations: Sequence[Evaluation], colours: dict[str, str]) -> None:
    axes.set_ylabel("held-out pass rate, 95 % interval", color=_INK)
    last = max([1, *(e.step for e in evaluations)])
    for position, (name, colour) in enumerate(colours.items()):
        points = [
            (e.step, e.domains[name]) for e in evaluations if name in e.domains and e.domains[name].count
        ]
        if not points:
            continue
        aside = (position - (len(colours) - 1) / 2) * _ASIDE * last
        x = [step + aside for step, _ in points]
        y = [result.passed / result.count for _, result in points]
        bounds = [wilson(result.passed, result.count) or (0.0, 0.0) for _, result in points]
        errors = [
            [max(0.0, v - low) for v, (low, _) in zip(y, bounds, strict=True)],
            [max(0.0, high - v) for v, (_, high) in zip(y, bounds, strict=True)],
        ]
        axes.errorbar(
            x, y, yerr=errors, color=colour, marker="D", markersize=7, markeredgecolor="white",
            linewidth=1.6, elinewidth=1, capsize=3, label=name, zorder=3,
        )  # fmt: skip
    for evaluation in evaluations:
        _write_counts(axes, evaluation, colours)


def _write_counts(axes: Any, evaluation: Evaluation, colours: dict[str, str]) -> None:
    """`52/64` to the right of each marker, pushed apart where markers are close."""
    found = sorted(
        (result.passed / result.count, name, f"{result.passed}/{result.count}")
        for name, result in evaluation.domains.items()
        if result.count
    )
    heights = apart([value for value, _, _ in found], _LABEL_GAP)
    for (value, name, text), height in zip(found, heights, strict=True):
        axes.annotate(
            text, xy=(evaluation.step, value), xytext=(13, height), textcoords=("offset points", "data"),
            color=colours[name], fontsize=8.5, va="center", annotation_clip=False, zorder=4,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.6},
        )  # fmt: skip


def apart(values: Sequence[float], gap: float) -> list[float]:
    """Ascending `values` moved as little as a simple pass can, so that neighbours differ by `gap` and none passes 1."""
    out: list[float] = []
    for value in values:
        out.append(max(value, out[-1] + gap) if out else value)
    ceiling = 1.0
    for at in range(len(out) - 1, -1, -1):
        out[at] = min(out[at], ceiling)
        ceiling = out[at] - gap
    return out


def _draw_training(axes: Any, lineage: Sequence[Step], colours: dict[str, str]) -> None:
    axes.set_ylabel("mean training reward", color=_INK)
    stages = sorted({step.stage_index for step in lineage})
    for name, colour in colours.items():
        labelled = False
        for stage in stages:
            points = [
                (s.step, s.rewards[name].mean)
                for s in lineage
                if s.stage_index == stage and name in s.rewards
            ]
            if not points:
                continue
            x, y = zip(*points, strict=True)
            axes.plot(
                x, y, color=colour, linewidth=1.4, marker="o", markersize=3.5 if len(x) < 60 else 0,
                label=None if labelled else name,
            )  # fmt: skip
            labelled = True
    if not any(step.rewards for step in lineage):
        axes.text(
            0.5, 0.5, "no rewards in training", transform=axes.transAxes, ha="center", va="center", color=_INK
        )


def _dress(axes: Any, lineage: Sequence[Step], last: int, *, labelled: bool) -> None:
    """Limits, grid, and where each stage begins."""
    axes.set_ylim(-0.05, 1.05)
    axes.set_xlim(-0.025 * last, last * 1.08)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.8)
    axes.tick_params(colors=_INK)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    first: dict[int, Step] = {}
    for step in lineage:
        first.setdefault(step.stage_index, step)
    for index, step in first.items():
        begins = step.step - 0.5 if index else 0
        if index:
            axes.axvline(begins, color="#999999", linestyle="--", linewidth=1)
        if labelled:
            axes.annotate(
                f"stage {index}: {step.stage}", xy=(begins, 1.0), xycoords=("data", "axes fraction"),
                xytext=(4, 6), textcoords="offset points", fontsize=9, color=_INK, annotation_clip=False,
            )  # fmt: skip


def _legend(*panels: Any) -> tuple[list[Any], list[str]]:
    """One entry a domain over all panels."""
    found: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    return list(found.values()), list(found)
