"""`temper attempt`: one episode, live, with its tools and its verdict.

Invariant: the exit code says what became of it: 0 every sample passed, 1 one did not, 3 a fault of ours kept one from
being attempted or judged. Nothing heavy is imported before the arguments were read.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from shared.errors import TemperError

if TYPE_CHECKING:
    from shared.contracts import Reward, Task, Trajectory
    from shared.settings import Settings
    from temper.attempt.episode import Wanted
    from temper.policies import FolderPolicy, RunPolicy

FAILED, FAULT = 1, 3
MOST_SAMPLES = 4096

PolicyOption = Annotated[
    str,
    typer.Option(
        "--policy", help="runs/<name>@best, runs/<name>@last, runs/<name>@<step>, or a Hugging Face folder."
    ),
]
EngineOption = Annotated[
    Literal["transformers", "vllm", "openai", "instant"] | None,
    typer.Option("--engine", help="Another engine than the run's (of a folder: transformers)."),
]

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="A run's TOML: its domains, episodes, sandbox and engine in the place of the policy's.",
    ),
]


def attempt(
    policy: PolicyOption,
    domain: Annotated[str, typer.Option("--domain", help="A known domain, or its place as 'module:Class'.")],
    seed: Annotated[
        int, typer.Option("--seed", min=0, help="From 2^40 (1099511627776) on, seeds are held out.")
    ] = 0,
    *,
    difficulty: Annotated[
        str,
        typer.Option(
            "--difficulty", help="As JSON: '{\"digits\": 3}'. Default: the run's, or the domain's own."
        ),
    ] = "",
    samples: Annotated[
        int, typer.Option(min=1, max=MOST_SAMPLES, help="Attempts; with several, the pass rate.")
    ] = 1,
    temperature: Annotated[
        float | None, typer.Option(min=0, help="Default: 0 for one attempt, 1 for several.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Of one turn. Default: the run's, or 512.")
    ] = None,
    turns: Annotated[
        int | None, typer.Option(min=1, help="Default: the run's, or 16 with tools and 1 without.")
    ] = None,
    context: Annotated[int | None, typer.Option(min=1, help="Tokens of prompt and answers together.")] = None,
    wall: Annotated[float | None, typer.Option(min=0.1, help="Seconds of one attempt.")] = None,
    engine: EngineOption = None,
    config: ConfigOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Trajectories and rewards as one JSON object.")
    ] = False,
) -> None:
    """Attempt one instance with a policy, and show what it does: text, tool calls, results, verdict."""
    import asyncio

    from temper.attempt.episode import Wanted
    from temper.cli.logs import logs_on_stderr
    from temper.policies import find_policy

    logs_on_stderr("attempt")
    found = find_policy(policy)
    wanted = Wanted(domain, seed, samples, temperature, turns, context, wall)
    settings = _settings(
        found, domain, difficulty=difficulty, max_tokens=max_tokens, engine=engine, config=config
    )
    try:
        task, trajectories, rewards = asyncio.run(_run(settings, found, wanted, as_json))
    except TemperError as error:
        if error.exit_code != FAILED:
            raise
        # 1 is the policy's failure alone; what is ours and has no code of its own is a fault.
        print(f"temper: {' '.join(str(error).split())}", file=sys.stderr)
        raise typer.Exit(FAULT) from error
    passed = sum(reward.verdict == "passed" for reward in rewards)
    judged = sum(not reward.is_fault for reward in rewards)
    if as_json:
        _print_json(str(found), task, trajectories, rewards)
    elif samples > 1:
        print(_rate(passed, judged, len(rewards)))
    if judged < len(rewards):
        raise typer.Exit(FAULT)
    if passed < len(rewards):
        raise typer.Exit(FAILED)


async def _run(
    settings: Settings, policy: RunPolicy | FolderPolicy, wanted: Wanted, as_json: bool
) -> tuple[Task, list[Trajectory], list[Reward]]:
    from temper.attempt import episode, show
    from temper.attempt.serving import serving

    task = episode.task_of(settings, wanted)
    if not as_json:
        print(show.opening(str(policy), task), flush=True)
    async with serving(settings, policy) as served:
        tokenizer = served.codec.tokenizer
        live = show.Live(lambda ids: str(tokenizer.decode(ids, clean_up_tokenization_spaces=False)))
        watching = live.watching() if wanted.samples == 1 and not as_json else None
        made = await episode.attempt(settings, task, served.engine, served.codec, watching)
    rewards = await episode.verify(settings, wanted.domain, made)
    if not as_json:
        shown = show.verdict if wanted.samples == 1 else show.row
        for trajectory, reward in zip(made, rewards, strict=True):
            print(shown(trajectory, reward))
    return task, made, rewards


def _settings(
    policy: RunPolicy | FolderPolicy,
    domain: str,
    *,
    difficulty: str,
    max_tokens: int | None,
    engine: str | None,
    config: Path | None,
) -> Settings:
    """The policy's, with this domain alone. Raises `ConfigError`."""
    from temper.attempt.serving import MAX_TOKENS, settings_for
    from temper.cli.domains import parsed_difficulty

    settings = settings_for(policy, {"rollout": {"engine": engine}} if engine else {}, config)
    declared = next((one for one in settings.domains if one.name == domain), None)
    values: dict[str, Any] = (
        {"name": domain, "workload": settings.workloads[0].name, "max_tokens": MAX_TOKENS}
        if declared is None
        else declared.model_dump(mode="json")
    )
    if difficulty:
        values["difficulty"] = parsed_difficulty(difficulty)
    if max_tokens:
        values["max_tokens"] = max_tokens
    from shared.settings import DomainSettings

    # Alone: the run's other domains need not even be installed here.
    return settings.model_copy(update={"domains": (DomainSettings.model_validate(values),)})


def _print_json(policy: str, task: Task, trajectories: list[Trajectory], rewards: list[Reward]) -> None:
    attempts = [
        {"trajectory": t.model_dump(mode="json"), "reward": r.model_dump(mode="json")}
        for t, r in zip(trajectories, rewards, strict=True)
    ]
    passed = sum(reward.verdict == "passed" for reward in rewards)
    judged = sum(not reward.is_fault for reward in rewards)
    found = {
        "policy": policy,
        "task": task.model_dump(mode="json"),
        "passed": passed,
        "judged": judged,
        "samples": len(rewards),
        "attempts": attempts,
    }
    print(json.dumps(found))


def _rate(passed: int, judged: int, samples: int) -> str:
    from temper.report.summary import wilson

    between = wilson(passed, judged)
    interval = "" if between is None else f" (95 %: {between[0]:.0%}–{between[1]:.0%})"
    share = f"{passed / judged:.0%}" if judged else "nothing"
    faults = f", {samples - judged} faults of ours in no rate" if judged < samples else ""
    return f"passed {passed} of {judged}: {share}{interval}{faults}"
