"""Plans to `Task` messages.

Invariant (6 of the design): what goes into a task is the instance's public part; a demonstration goes in only for an
`sft` training task, and never for a held-out seed, or from the data set of a stage, which is no domain's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from services.scheduler.evaluations import EvaluationTask, RunningEvaluation
from services.scheduler.training import GroupPlan
from shared.contracts import ChatMessage, DomainRef, Limits, Sampling, Task
from shared.data_set import load_data
from shared.domains.base import HELD_OUT_SEED, Domain, Instance
from shared.domains.played import demonstration_of
from shared.domains.tools import OffersTools
from shared.domains.workspace_tools import WORKSPACE_TOOLS
from shared.episode_settings import EpisodeSettings
from shared.errors import ConfigError
from shared.plain_errors import nearest_or_all
from shared.settings import DomainSettings, Settings, StageSettings


class TaskBuilder:
    """Makes tasks of one run's domains. Raises `ConfigError` for a tool that nobody has."""

    def __init__(self, settings: Settings, domains: Mapping[str, Domain]) -> None:
        self._settings = settings
        self._domains = domains
        self._declared = {declared.name: declared for declared in settings.domains}
        self._workloads = {workload.name: workload for workload in settings.workloads}
        self._episodes = {name: settings.episode_of(name) for name in self._declared}
        for name, episode in self._episodes.items():
            _check_tools(domains[name], episode)
        self._data = {
            index: load_data(stage, run_seed=settings.run.seed, stage_index=index)
            for index, stage in enumerate(settings.stages)
            if stage.data
        }

    def training(self, plan: GroupPlan, current_version: int, now_ms: int) -> Task:
        stage = self._settings.stages[plan.stage_index]
        if stage.data:
            return self._from_data(plan, stage, now_ms)
        declared = self._declared[plan.domain]
        domain = self._domains[plan.domain]
        instance = domain.instance(plan.seed, declared.difficulty)
        demonstration: tuple[ChatMessage, ...] = ()
        if stage.kind == "sft":
            if plan.seed >= HELD_OUT_SEED:
                raise ConfigError(
                    f"seed {plan.seed} of {plan.domain} is held out: it must not be demonstrated"
                )
            demonstration = demonstration_of(domain.oracle(instance))
        sampling = Sampling(
            samples=stage.samples,
            group_size=stage.samples,
            enough=stage.enough if stage.oversample else 0,
            temperature=stage.temperature,
            max_tokens=declared.max_tokens,
        )
        lag = self._settings.scheduler.max_lag
        oldest = 0 if demonstration else max(plan.oldest_version, current_version - lag)
        return Task(
            **self._common(instance, declared, now_ms),
            group_id=plan.group_id,
            stage=stage.kind,
            stage_index=plan.stage_index,
            priority=self._priority(declared.workload, "normal"),
            purpose="train",
            demonstration=demonstration,
            sampling=sampling,
            min_policy_version=oldest,
            attempt=plan.attempt,
        )

    def _from_data(self, plan: GroupPlan, stage: StageSettings, now_ms: int) -> Task:
        """A line of the stage's data set; it travels with the workload that is declared first."""
        data = self._data[plan.stage_index]
        number = data.number_at(plan.seed)
        line = data.line(number)
        workload = self._settings.workloads[0]
        deadline_s = self._settings.scheduler.group_deadline_s
        return Task(
            run_id=self._settings.run.name,
            group_id=plan.group_id,
            stage=stage.kind,
            stage_index=plan.stage_index,
            domain=DomainRef(
                name=data.name, version=1, seed=number, instance_digest=data.digest, cell="data"
            ),
            workload=workload.name,
            priority=self._priority(workload.name, "normal"),
            purpose="train",
            messages=line.prompt,
            demonstration=line.answer,
            rejected=line.rejected,
            sampling=Sampling(samples=stage.samples, group_size=stage.samples),
            limits=Limits(wall_seconds=deadline_s),
            attempt=plan.attempt,
            created_ms=now_ms,
            deadline_ms=now_ms + int(deadline_s * 1000),
        )

    def evaluation(self, item: EvaluationTask, running: RunningEvaluation, now_ms: int) -> Task:
        declared = self._declared[item.domain]
        instance = self._domains[item.domain].instance(item.seed, declared.difficulty)
        sampling = Sampling(temperature=self._settings.evaluation.temperature, max_tokens=declared.max_tokens)
        return Task(
            **self._common(instance, declared, now_ms),
            group_id=item.group_id,
            stage=self._settings.stages[running.stage_index].kind,
            stage_index=running.stage_index,
            priority=self._priority(declared.workload, "high"),
            purpose="eval",
            sampling=sampling,
            min_policy_version=running.min_version,
            attempt=item.attempt,
        )

    def _common(self, instance: Instance, declared: DomainSettings, now_ms: int) -> dict[str, Any]:
        deadline_s = self._settings.scheduler.group_deadline_s
        episode = self._episodes[declared.name]
        tools = episode.tools or tuple(instance.tools)
        return {
            "run_id": self._settings.run.name,
            "domain": DomainRef(
                name=instance.domain,
                version=instance.version,
                seed=instance.seed,
                difficulty=dict(instance.difficulty),
                instance_digest=instance.digest(),
                cell=self._domains[declared.name].cell,
            ),
            "workload": declared.workload,
            "messages": tuple(instance.messages),
            "files": dict(instance.files),
            "tools": tools,
            "limits": _limits(episode, tools, deadline_s, self._domains[declared.name].agent is not None),
            "created_ms": now_ms,
            "deadline_ms": now_ms + int(deadline_s * 1000),
        }

    def _priority(self, workload: str, wanted: str) -> str:
        """`wanted` where the workload has it, else its first for evaluation and its middle one for training."""
        priorities = self._workloads[workload].priorities
        if wanted in priorities:
            return wanted
        return priorities[0] if wanted == "high" else priorities[len(priorities) // 2]


def _limits(episode: EpisodeSettings, tools: tuple[str, ...], deadline_s: float, agent: bool) -> Limits:
    """`agent`: the domain has a program of its own."""
    return Limits(
        turns=episode.turns_of(tools, agent=agent),
        context_tokens=episode.context_tokens,
        wall_seconds=episode.wall_seconds or deadline_s,
        sampled_tokens=episode.sampled_tokens,
        tool_calls=episode.tool_calls,
    )


def _check_tools(domain: Domain, episode: EpisodeSettings) -> None:
    if isinstance(domain, OffersTools):
        return  # which ones it has is known only beside a sandbox; there a wrong name is refused as well
    for name in episode.tools:
        if name not in WORKSPACE_TOOLS:
            raise ConfigError(
                f"the episode of domain {domain.name!r} gives tool {name!r}, which nobody has"
                f"{nearest_or_all(name, WORKSPACE_TOOLS)}"
            )
