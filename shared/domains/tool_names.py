"""Whether somebody has the tools that a task names: the sandbox, or the domain itself.

Invariant: a name is refused only where the domain said which tools it has; one that makes them beside a sandbox alone
is asked there.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from shared.domains.base import Domain, Instance
from shared.domains.tools import Bench, OffersTools
from shared.domains.workspace_tools import WORKSPACE_TOOLS
from shared.plain_errors import nearest
from shared.sandbox.sessions.session import Session


def tool_nobody_has(names: Sequence[str], own: Collection[str]) -> str:
    """`tool 'bas', which is not known; did you mean 'bash'?; known: …` of the first such; empty where there is none.

    `own`: names of the domain's tools.
    """
    known = (*own, *(name for name in WORKSPACE_TOOLS if name not in own))
    for name in names:
        if name not in known:
            return f"tool {name!r}, which is not known{nearest(name, known)}; known: {', '.join(known)}"
    return ""


def asks_the_domain(names: Sequence[str]) -> bool:
    """One of the names is none of the sandbox's."""
    return any(name not in WORKSPACE_TOOLS for name in names)


def own_names(domain: Domain, instance: Instance, session: Session | None = None) -> tuple[str, ...]:
    """Names of the tools that the domain brings to an attempt at `instance`. Raises whatever the domain raises."""
    if not isinstance(domain, OffersTools):
        return ()
    functions = domain.tools(Bench(instance.reference(), instance.files, session))
    return tuple(str(getattr(function, "__name__", "")) for function in functions)
