"""From topics to summary.json and reward.png, on a broker."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable

import pytest

from shared.bus.producer import TypedProducer
from shared.bus.topics import TopicNames
from shared.contracts import Control
from shared.settings import Settings
from temper.report.collect import summarize_run
from tests.report.made_messages import RUN, evaluation, group, rl_step, sft_step


async def write(settings: Settings) -> None:
    names, producer = TopicNames(settings.bus.namespace), TypedProducer(settings, "made")
    for step in (
        sft_step(1),
        rl_step(2, 1, group(2, "trained", "stale")),
        rl_step(2, 1, group(2, "trained", "stale")),
    ):
        await producer.send(names.steps, step)
    await producer.send(
        names.steps, rl_step(3, 2, group(3, "trained")).model_copy(update={"run_id": "other"})
    )
    await producer.send_raw(names.steps, b"k", b"no message")
    for made in (evaluation("start", 0, arithmetic=0), evaluation("end", 2, arithmetic=16)):
        await producer.send(names.control, made)
    for domain, kind in (("sums", "hold"), ("mended", "hold"), ("mended", "lift")):
        word = Control.model_validate({"run_id": RUN, "kind": kind, "domain": domain, "reason": "it wavers"})
        await producer.send(names.control, word)
    await producer.close()


@pytest.mark.parametrize("plotting", [True, False])
def test_a_run_is_summarized(
    make_settings: Callable[..., Settings], plotting: bool, monkeypatch: pytest.MonkeyPatch
):
    settings = make_settings(run={"name": RUN})
    asyncio.run(write(settings))
    if not plotting:
        monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    summary = summarize_run(settings, 12.5)
    written = json.loads((settings.run_folder / "summary.json").read_text())
    assert written == summary.model_dump(mode="json")
    assert (written["steps"], written["wall_seconds"]) == (2, 12.5)
    assert written["slots"] == {
        "trained": 2,
        "stale": 1,
        "dropped": 0,
        "faulted": 0,
        "by_fate": {"stale": 1, "trained": 2},
    }
    assert [e["name"] for e in written["evaluations"]] == ["start", "end"]
    assert written["held"] == {"sums": "it wavers"}
    assert written["evaluations"][1]["domains"]["arithmetic"]["passed"] == 16
    assert (settings.run_folder / "reward.png").exists() is plotting
