"""Faults of the sandbox itself.

Invariant: a fault is ours; it is retried and never becomes a verdict on a program.
"""

from __future__ import annotations

from shared.errors import ConfigError, VerificationFault


class SandboxFault(VerificationFault):
    """A run that could not be made, or was lost, for a reason of ours."""


class SandboxUnavailable(ConfigError):
    """This machine, or this configuration, cannot jail anything; the message names what is missing and the mend."""
