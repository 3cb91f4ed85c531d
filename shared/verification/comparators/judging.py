"""The check method `answer`: a gold answer, an answer, and a verdict.

Invariant: one record in, one verdict out; an unreadable gold answer is a fault and never counts against the policy.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from shared.errors import ConfigError, ContractError, VerificationFault
from shared.verification.comparators.base import Comparator
from shared.verification.comparators.declared import declared_comparator
from shared.verification.faults import fault_verdict
from shared.verification.judgement import Judgement

DEFAULTS: Mapping[str, Any] = {"type": "answer", "extraction": "marked"}


class AnswerMethod:
    """`options` hold for every record; a record's own `type` (a name, or an object with options) goes before them.

    Raises `ConfigError` for options that fit no type.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = {**DEFAULTS, **options}
        self._made: dict[str, Comparator[Any]] = {}
        if "type" in options or not set(options) - {"extraction"}:
            self._comparator(None)

    def judge(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """`{"equal", "verdict", "reason"}`. Raises `ContractError` for a record without gold or answer."""
        for name in ("gold", "answer"):
            if name not in record:
                raise ContractError(f'it has no {name!r}: a record is {{"gold": …, "answer": …, "type"?: …}}')
        comparator = self._comparator(record.get("type"))
        try:
            judgement = comparator.judge(_text(record["gold"]), _text(record["answer"]))
        except VerificationFault as fault:
            judgement = Judgement(fault_verdict(fault), None, str(fault))
        return {
            "equal": judgement.verdict == "passed",
            "verdict": judgement.verdict,
            "reason": judgement.reason,
            **({"reward": judgement.reward} if judgement.verdict == "partial" else {}),
        }

    def _comparator(self, declared: Any) -> Comparator[Any]:
        key = json.dumps(declared, sort_keys=True)
        if key not in self._made:
            if declared is not None and not isinstance(declared, str | Mapping):
                raise ConfigError(
                    f"type is {declared!r}: give a name, or an object with its name under 'type'"
                )
            own = {"type": declared} if isinstance(declared, str) else dict(declared or {})
            self._made[key] = declared_comparator({**self._options, **own})
        return self._made[key]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
