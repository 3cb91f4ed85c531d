"""What `temper up` refuses before anything is started.

Invariant: it uses up no name and leaves no folder: a mistake in a stage, a domain, its tools or its agent program is one
line, and the same command runs once it is mended.
"""

from __future__ import annotations

import contextlib

from services.learner.sources import check_sources
from services.learner.stages import check_stages
from shared.data_set import check_data
from shared.domains.admission import first_look
from shared.domains.base import HELD_OUT_SEED, Domain, Instance
from shared.domains.registry import load_domain
from shared.domains.tool_names import asks_the_domain, own_names, tool_nobody_has
from shared.errors import ConfigError
from shared.settings import Settings


def refuse_mistakes(settings: Settings) -> None:
    """Looks at every stage, and at one instance of each split of every domain. Raises `ConfigError`."""
    check_stages(settings)
    check_sources(settings)
    for declared in settings.domains:
        domain = load_domain(declared.name)
        program = settings.agent_of(declared.name) or domain.agent
        for seed in (0, HELD_OUT_SEED):
            instance, _ = first_look(domain, seed, declared.difficulty)
            if program is None:  # a program has tools of its own
                _refuse_tools(domain, instance, settings.episode_of(declared.name).tools)
    check_data(settings)


def _refuse_tools(domain: Domain, instance: Instance, given: tuple[str, ...]) -> None:
    """`given`: by the episode, in the place of those that the instance names."""
    names = given or instance.tools
    if not asks_the_domain(names):
        return
    own: tuple[str, ...] | None = None
    # It may make them beside a sandbox alone, which is not open here: a rollout says what is wrong then.
    with contextlib.suppress(Exception):
        own = own_names(domain, instance)
    if own is not None and (wrong := tool_nobody_has(names, own)):
        who = "its episode gives" if given else "a draft names"
        raise ConfigError(f"domain {domain.name!r}: {who} {wrong}")
