"""The curve: what is drawn is what was measured, and labels do not cover each other."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import DependencyError
from temper.report.curve import apart, plot_curves
from tests.report.made_messages import RUN, evaluation, group, rl_step, sft_step

STEPS = [
    sft_step(1),
    sft_step(2),
    *(rl_step(n, n - 2, group(n, "trained"), mean=n / 10) for n in range(3, 9)),
]


def picture_size(path: Path) -> tuple[int, int]:
    raw = path.read_bytes()
    assert raw[:8] == b"\x89PNG\r\n\x1a\n"
    return int.from_bytes(raw[16:20], "big"), int.from_bytes(raw[20:24], "big")


def test_a_run_is_drawn(tmp_path: Path):
    png = tmp_path / "reward.png"
    plot_curves(RUN, STEPS, [evaluation("start", 0, arithmetic=0), evaluation("end", 8, arithmetic=15)], png)
    assert picture_size(png) == (1330, 980)
    first = png.read_bytes()
    plot_curves(RUN, STEPS, [evaluation("start", 0, arithmetic=0), evaluation("end", 8, arithmetic=4)], png)
    assert png.read_bytes() != first
    assert [p.name for p in tmp_path.iterdir()] == ["reward.png"]


@pytest.mark.parametrize("steps", [[], STEPS[:1], STEPS[2:3]], ids=["no step", "imitation only", "one step"])
@pytest.mark.parametrize("evaluations", [[], [evaluation("start", 0, a=0, b=0, c=0)]], ids=["none", "one"])
def test_a_short_run_is_drawn(steps: list, evaluations: list, tmp_path: Path):
    plot_curves(RUN, steps, evaluations, tmp_path / "reward.png")
    assert picture_size(tmp_path / "reward.png")[0] == 1330


@given(st.lists(st.floats(0, 1), max_size=12))
def test_labels_stand_apart_in_order(values: list[float]):
    moved = apart(sorted(values), 0.06)
    assert all(b - a >= 0.06 - 1e-9 for a, b in itertools.pairwise(moved))
    assert all(height <= 1 for height in moved)
    if all(b - a >= 0.06 for a, b in itertools.pairwise(sorted(values))):
        assert moved == sorted(values), "nothing moves where there is room"


def test_without_matplotlib_the_mend_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(DependencyError, match=r"temper-rl\[plot\]"):
        plot_curves(RUN, STEPS, [], tmp_path / "reward.png")


def test_importing_the_report_does_not_load_matplotlib():
    program = "import temper.report.collect, sys; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
