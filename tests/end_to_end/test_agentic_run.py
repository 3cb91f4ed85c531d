"""A whole agentic run: scheduler, rollout, verifier and learner over the broker, real sandbox sessions, real checks.

The engine plays the domains' own solutions in every second sample and nothing in the others, so that groups have signal
from the first step on; a model that learns this takes minutes and is `examples/agentic.toml`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.learner import service as learner
from services.rollout.chat import ChatCodec
from services.rollout.engines.base import GenerateRequest, Ids
from services.rollout.engines.gated import GatedEngine
from services.rollout.engines.instant import InstantEngine
from services.rollout.formats.calls import Call
from services.rollout.formats.fenced import Fenced
from services.rollout.service import RolloutService
from services.rollout.turns.tokens import Tokens
from services.scheduler import service as scheduler
from services.scheduler.seeds import held_out_seed, train_seed
from services.verifier import service as verifier
from shared.bus.reader import LogReader
from shared.bus.topics import TopicNames
from shared.contracts import Evaluation, Reward, Step, Trajectory
from shared.domains.played import Played
from shared.domains.registry import load_domain
from shared.settings import Settings
from temper.models.shell import make_shell_model
from tests.end_to_end.local_run import temper

pytestmark = pytest.mark.slow
BASH = {
    "name": "bash",
    "parameters": {"properties": {"command": {"type": "string"}}, "required": ["command"]},
}
DOMAINS: list[dict[str, Any]] = [
    {
        "name": "terminal",
        "workload": "agentic",
        "max_tokens": 200,
        "difficulty": {"jobs": 2},
        "episode": {"turns": 4},
    },
    {
        "name": "code_repair",
        "workload": "agentic",
        "max_tokens": 200,
        "difficulty": {"kinds": ["total", "even_only", "reverse"], "functions": 1},
    },
]


@pytest.fixture
def settings(make_settings: Callable[..., Settings], tmp_path: Path) -> Settings:
    return make_settings(
        model={"path": str(make_shell_model(tmp_path / "shell"))},
        workloads=[{"name": "agentic", "episode": {"turns": 6, "context_tokens": 1024}}],
        domains=DOMAINS,
        stages=[
            {"kind": "sft", "steps": 1, "groups_per_step": 4},
            {"kind": "rl", "steps": 1, "groups_per_step": 4, "group_size": 2},
        ],
        evaluation={"instances_per_domain": 2, "at_start": False},
        scheduler={"max_lag": 0, "stall_s": 240.0},
        telemetry={"traces": "file", "heartbeat_s": 0.5},
    )


def played(settings: Settings) -> dict[str, Played]:
    """What is asked → the domain's solution, for every instance that this run can draw."""
    found: dict[str, Played] = {}
    for declared in settings.domains:
        domain = load_domain(declared.name)
        seeds = [train_seed(settings.run.seed, stage, declared.name, n) for stage in (0, 1) for n in range(8)]
        for seed in [*seeds, *map(held_out_seed, range(2))]:
            instance = domain.instance(seed, declared.difficulty)
            answer = domain.oracle(instance)
            assert isinstance(answer, Played)
            found.setdefault(instance.messages[0].content, answer)
    return found


def playing(settings: Settings, tokens: Tokens) -> Callable[[GenerateRequest], Ids]:
    table = played(settings)
    form = Fenced([{"type": "function", "function": BASH}])

    def answer(request: GenerateRequest) -> Ids:
        group, sample, turn = request.request_id.rsplit("/", 2)
        asked = tokens.raw(request.prompt_ids).partition("<|user|>")[2].partition("<|end|>")[0]
        solution = table[asked]
        lazy = int(sample) % 2 == 1 and not group.startswith("eval")
        if lazy or int(turn) >= len(solution.commands):
            said = solution.answer
        else:
            said = form.render([Call("bash", {"command": solution.commands[int(turn)]})])
        return np.concatenate([tokens.encode(said)[0], [tokens.end_id]]).astype(np.int32)

    return answer


async def run_to_its_end(settings: Settings) -> None:
    codec = ChatCodec.open(settings.model.path)
    engine = GatedEngine(
        InstantEngine(playing(settings, Tokens(codec.tokenizer, codec.stop_ids))), settings.rollout.follow
    )
    stop = asyncio.Event()
    services = [
        scheduler.run(settings, "scheduler-0", stop),
        RolloutService(settings, "rollout-0", engine, codec).run(stop),
        verifier.run(settings, "verifier-0", stop),
        learner.run(settings, "learner-0", stop),
    ]
    tasks = [asyncio.ensure_future(service) for service in services]
    try:
        async with asyncio.timeout(240):
            await asyncio.gather(*tasks)
    finally:
        stop.set()
        await asyncio.gather(*tasks, return_exceptions=True)


async def everything(settings: Settings) -> list[Any]:
    names = TopicNames(settings.bus.namespace)
    topics = [names.control, names.steps, names.rewards]
    topics += [names.trajectories("agentic", priority) for priority in ("high", "normal", "low")]
    reader = LogReader(settings, "audit", topics, "earliest")
    try:
        return [delivery.message async for delivery in reader.to_end(0.2)]
    finally:
        await reader.close()


def test_solutions_played_by_the_engine_are_demonstrated_judged_and_learnt_from(
    settings: Settings, tmp_path: Path
) -> None:
    from temper.up.resolved import resolve, to_toml

    asyncio.run(run_to_its_end(settings))
    messages = asyncio.run(everything(settings))
    evaluations = [message for message in messages if isinstance(message, Evaluation)]
    assert [evaluation.name for evaluation in evaluations] == ["0-sft-end", "1-rl-end"]
    for evaluation in evaluations:
        assert {name: (d.passed, d.count) for name, d in evaluation.domains.items()} == {
            "terminal": (2, 2),
            "code_repair": (2, 2),
        }
    check_demonstrations([m for m in messages if isinstance(m, Trajectory)])
    verdicts = Counter(
        (message.slot.sample_index, message.verdict)
        for message in messages
        if isinstance(message, Reward) and message.purpose == "train"
    )
    assert set(verdicts) == {(0, "passed"), (1, "failed")}
    assert not any(flag for m in messages if isinstance(m, Reward) for flag in m.flags)
    assert [m.stage for m in messages if isinstance(m, Step)] == ["sft", "rl"]
    settings.run_folder.mkdir(parents=True, exist_ok=True)
    (settings.run_folder / "run.toml").write_text(to_toml(resolve(settings)))
    audit = temper("audit", str(settings.run_folder))
    assert audit.returncode == 0, audit.stdout + audit.stderr


def check_demonstrations(trajectories: list[Trajectory]) -> None:
    """What the tools really printed stands between the turns, and only the turns are learnt."""
    shown = [made for made in trajectories if made.sampling_mode == "demonstration"]
    assert {made.domain.name for made in shown} == {"terminal", "code_repair"}
    for made in shown:
        (sequence,) = made.sequences
        assert made.final_answer == "done"
        assert made.tool_calls
        assert not any(call.error for call in made.tool_calls)
        if made.domain.name == "code_repair":
            assert "def " in made.tool_calls[0].result
        masked = {span.role: 0 for span in sequence.role_spans}
        at = 0
        for span in sequence.role_spans:
            masked[span.role] += int(sequence.loss_mask[at : at + span.length].sum())
            at += span.length
        assert masked["tool"] == masked["user"] == masked["system"] == 0
        assert masked["assistant"] > 10
