"""A check that a domain wants made in a sandbox.

Invariant: plain data all the way: a request is JSON, so that making it (in the killable child that holds the
expected values) and serving it (beside the jails) need nothing of each other but this text.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

_NAME = re.compile(r"^[a-z][a-z0-9_]{0,63}$")


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """`method`: a name of `shared.verification.methods`; `request`: its typed request, or the same as a mapping.

    `limits` are of each run of untrusted code (names of `shared.sandbox.limits.Limits`; what is not named has its
    default). `seconds` is wall time for the whole check; 0 leaves it to the verifier. Raises `ValueError` for what
    is not plain data, so that a broken domain is a fault and never a verdict.
    """

    method: str
    request: BaseModel | Mapping[str, Any]
    limits: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.method, str) or not _NAME.match(self.method):
            raise ValueError(f"method is {self.method!r}: it must be the name of a check method")
        for name, value in {**self.limits, "seconds": self.seconds}.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise ValueError(f"{name} of a {self.method} check is {value!r}: it must be a finite number")
        if self.seconds < 0:
            raise ValueError(f"seconds of a {self.method} check is {self.seconds}: it must not be negative")

    def plain(self) -> dict[str, Any]:
        """As JSON data. Raises `ValueError` where the request holds something else."""
        made = self.request
        body = made.model_dump(mode="json") if isinstance(made, BaseModel) else dict(made)
        plain = {
            "method": self.method,
            "request": body,
            "limits": dict(self.limits),
            "seconds": self.seconds,
        }
        try:
            json.dumps(plain, allow_nan=True)
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"the request of a {self.method} check is not plain data: {error}") from error
        return plain

    @classmethod
    def from_plain(cls, body: Mapping[str, Any]) -> CheckRequest:
        """Raises `KeyError`, `TypeError` or `ValueError` for what `plain` did not write."""
        request, limits = body["request"], body["limits"]
        if not isinstance(request, dict) or not isinstance(limits, dict):
            raise TypeError("request and limits must be objects")
        return cls(body["method"], request, limits, float(body["seconds"]))
