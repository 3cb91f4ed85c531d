"""docs/learning.md says what is so: its example is a run that the learner accepts, and its tables name what there is."""

from __future__ import annotations

import re
import tomllib
import typing
from pathlib import Path

import pytest

from services.learner.objectives.presets import PRESETS
from services.learner.stages import check_stages
from shared.settings import GuardBound, load_settings, parse_settings

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "learning.md").read_text(encoding="utf-8")


def example() -> str:
    found = re.search(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    return found[1]


def test_the_example_is_a_run_of_three_stages() -> None:
    settings = parse_settings(tomllib.loads(example()))
    objectives = check_stages(settings)
    assert [stage.kind for stage in settings.stages] == ["sft", "preference", "rl"]
    assert [objective.kind for objective in objectives] == ["imitation", "preference", "policy"]
    mine = objectives[2]
    assert (mine.clip_high, mine.kl_target, mine.dynamic_sampling) == (0.3, 0.05, True)
    assert [bound.action for bound in settings.guard.bounds] == ["roll_back", "skip_batch", "pause", "pause"]


def test_the_example_s_file_is_the_page_s() -> None:
    written = (ROOT / "examples" / "stages.toml").read_text(encoding="utf-8")
    assert written.split("\n", 1)[1] == example()


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.toml")), ids=lambda path: path.name)
def test_every_example_is_accepted(path: Path) -> None:
    check_stages(load_settings(path, {}))


def test_every_preset_metric_and_action_is_on_the_page() -> None:
    fields = GuardBound.model_fields
    names = [*PRESETS, *(n for key in ("metric", "action") for n in typing.get_args(fields[key].annotation))]
    assert [name for name in names if f"`{name}`" not in PAGE] == []
