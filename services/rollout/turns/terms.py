"""From the settings of a domain's episodes to the runner of its attempts.

Invariant: what the settings say of tools, permissions, results and contexts is what every attempt at that domain has;
the limits of turns and tokens travel in the task. Pure.
"""

from __future__ import annotations

from dataclasses import replace

from services.rollout.context.compress import Compress
from services.rollout.context.retrieve import Retrieve
from services.rollout.context.segments import ContextPolicy
from services.rollout.context.window import Window
from services.rollout.tools.budget import OutputBudget
from services.rollout.tools.opening import DomainTools
from services.rollout.tools.permissions import Permissions
from services.rollout.turns.runner import Runner
from shared.episode_settings import CommandSettings, ContextSettings, EpisodeSettings
from shared.sandbox.limits import Limits
from shared.settings import Settings


def with_terms(plain: Runner, episode: EpisodeSettings) -> Runner:
    """`plain` under the terms of one domain."""
    permissions, output = episode.permissions, episode.output
    return replace(
        plain,
        permissions=Permissions(
            read=permissions.read,
            write=permissions.write,
            commands=permissions.commands,
            network=permissions.network,
        ),
        limits=limits_of(episode.commands),
        domain_tools=DomainTools(timeout_s=episode.tool_seconds),
        output=OutputBudget(output.head, output.tail),
        context=context_of(episode.context),
        format="" if episode.call_format == "auto" else episode.call_format,
    )


def context_of(context: ContextSettings) -> ContextPolicy | None:
    if context.policy == "window":
        return Window()
    if context.policy == "compress":
        return Compress(context.summary_tokens, context.newest)
    return Retrieve(context.word_tokens) if context.policy == "retrieve" else None


def limits_of(commands: CommandSettings) -> Limits:
    return Limits(
        wall_s=commands.wall_s,
        cpu_s=commands.cpu_s,
        memory_mb=commands.memory_mb,
        processes=commands.processes,
        disk_mb=commands.disk_mb,
        file_mb=commands.disk_mb,
    )


def largest_limits(settings: Settings) -> Limits:
    """Of a session that any declared domain may be lent: sessions are made before it is known for whom."""
    found = [limits_of(settings.episode_of(domain.name).commands) for domain in settings.domains]
    return max(found, key=lambda limits: limits.disk_mb)
