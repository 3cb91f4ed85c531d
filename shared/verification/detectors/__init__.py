"""Detectors of tampering: they name what they saw, and pay or refuse nothing by themselves."""

from shared.verification.detectors.flags import Flag
from shared.verification.detectors.output import flags_of_output
from shared.verification.detectors.runtime import flags_of_events
from shared.verification.detectors.source import flags_of_source
from shared.verification.detectors.tree import flags_of_changes

__all__ = ["Flag", "flags_of_changes", "flags_of_events", "flags_of_output", "flags_of_source"]
