"""From the names in a task to the tools of an attempt.

Invariant: an attempt has exactly the tools that its task names, in that order; a name that neither the sandbox nor the
domain has is refused before anything is sampled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from services.rollout.tools.tool import Tool, ToolFault, make_tool
from services.rollout.tools.toolset import Toolset
from services.rollout.tools.workspace import WorkspaceTools
from shared.domains.tool_names import tool_nobody_has
from shared.domains.tools import Bench, OffersTools
from shared.domains.workspace_tools import WORKSPACE_TOOLS
from shared.errors import ConfigError, ContractError
from shared.plain_errors import one_line


@dataclass(frozen=True, slots=True)
class DomainTools:
    """How the tools of a domain are bounded."""

    timeout_s: float = 30.0
    network: frozenset[str] = field(default_factory=frozenset)
    """Names of those that reach out of the sandbox."""


def open_tools(
    names: Sequence[str],
    bench: Bench,
    workspace: WorkspaceTools,
    domain: object | None = None,
    bounds: DomainTools | None = None,
) -> Toolset:
    """`domain`: asked for tools of its own where it implements `OffersTools`; they win over the sandbox's.

    Raises `ContractError` for a name that nobody has, `ConfigError` for one that the permissions exclude, `ToolFault`
    where the domain fails.
    """
    own = _of_domain(domain, bench, bounds or DomainTools())
    if wrong := tool_nobody_has(names, own):
        raise ContractError(f"task of domain {bench.reference.name!r} names {wrong}")
    tools = tuple(own[name] if name in own else workspace.make(name) for name in names)
    return Toolset(tools, network=workspace.permissions.network)


def needs_session(names: Sequence[str]) -> bool:
    """One of the tools works in a sandbox. A domain's own get a session beside such a one, or where there are files."""
    return any(name in WORKSPACE_TOOLS and name != "submit" for name in names)


def _of_domain(domain: object | None, bench: Bench, bounds: DomainTools) -> Mapping[str, Tool]:
    if not isinstance(domain, OffersTools):
        return {}
    try:
        functions = domain.tools(bench)
    except Exception as error:
        raise ToolFault(
            f"domain {bench.reference.name!r} failed to make its tools: {one_line(error)}"
        ) from error
    made: dict[str, Tool] = {}
    for function in functions:
        name = str(getattr(function, "__name__", ""))
        tool = make_tool(function, timeout_s=bounds.timeout_s, network=name in bounds.network)
        if made.setdefault(name, tool) is not tool:
            raise ConfigError(f"domain {bench.reference.name!r} has two tools called {name!r}: rename one")
    return made
