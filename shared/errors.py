"""The one exception hierarchy of Temper.

Invariant: every error that reaches a person is a `TemperError` whose message names the thing, the value
and the mend in one line, and carries the exit code its process ends with.
"""

from __future__ import annotations


class TemperError(Exception):
    """Base of every error that Temper raises on purpose.

    `exit_code` is what a command returns when the error ends it: 1 a finding or a failed run, 2 bad
    configuration or usage, 3 a dependency that is missing or unreachable, 4 bad data, 5 storage, 6 no progress.
    """

    exit_code = 1


class ConfigError(TemperError):
    """A configuration that cannot be used; raised before any work starts."""

    exit_code = 2


class DependencyError(TemperError):
    """Something outside this process that is needed and not there (broker, model, program)."""

    exit_code = 3


class BusError(DependencyError):
    """The broker refused or lost something: topics that do not match, a send that failed."""


class RecordTooLargeError(BusError):
    """A record over the size limit; the message names both numbers. Never sent, never lost silently."""

    exit_code = 4


class ContractError(TemperError):
    """A message that does not keep its contract: undecodable, wrong lengths, unknown schema or version."""

    exit_code = 4


class UnknownVersionError(ContractError):
    """A message of a schema version that this build does not read (it comes from the future)."""


class DataError(TemperError):
    """A file whose content is not what it must be: damaged, or of something else."""

    exit_code = 4


class StorageError(TemperError):
    """The object store cannot do what was asked: full, missing object, digest mismatch."""

    exit_code = 5


class UnreachableError(StorageError):
    """The object store does not answer; it may come back."""


class DigestMismatchError(StorageError):
    """Bytes that do not hash to the digest under which they were announced."""


class AttestationError(TemperError):
    """An engine that does not reproduce the canary of the policy it is told to serve (invariant 8)."""

    exit_code = 3


class VerificationFault(TemperError):
    """A check that could not be made for a reason of ours; it is retried, and never becomes a reward."""


class StalledError(TemperError):
    """A service that makes no progress; the message says what it waits for."""

    exit_code = 6
