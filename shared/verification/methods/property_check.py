"""`property_check`: an output is right if it has a property, whichever of many right ones it is.

Invariant: the property and the hidden inputs live in the tester's jail; the policy's function gets one input at a
time, and its outputs come back as plain data.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from shared.sandbox.limits import Limits
from shared.sandbox.sandbox import Sandbox
from shared.verification.detectors.flags import Flag
from shared.verification.detectors.source import flags_of_constant, flags_of_source, parsed
from shared.verification.detectors.wording import hedges
from shared.verification.guest import properties
from shared.verification.guest.codec import Encoder, TooLarge
from shared.verification.guest.tester import PLACE
from shared.verification.judgement import Judgement
from shared.verification.methods.base import Request, VisibleExample, examples, too_long
from shared.verification.methods.converse import Finished, Script, alone, converse
from shared.verification.methods.function_tests import judge

_CUSTOM = "holds"


class PropertyCheck(Request):
    """A candidate with an entry point that is called on each of `inputs`; or one `output` for one of `inputs`.

    `property` is a name of `shared.verification.guest.properties`; or `source` defines `holds(inputs, output)`, which
    returns True or not. An input is the list of a call's arguments.
    """

    candidate: str = ""
    entry_point: str = ""
    output: Any = None
    inputs: tuple[tuple[Any, ...], ...] = Field(min_length=1)
    property: str = ""
    source: str = ""
    visible: tuple[VisibleExample, ...] = ()

    @model_validator(mode="after")
    def _one_of_each(self) -> Self:
        if bool(self.property) == bool(self.source):
            raise ValueError("give `property`, a name, or `source`, which defines holds(inputs, output)")
        if self.property and self.property not in properties.NAMES:
            raise ValueError(f"property {self.property!r} is unknown; known: {', '.join(properties.NAMES)}")
        if bool(self.candidate) != bool(self.entry_point):
            raise ValueError("`candidate` and `entry_point` go together")
        if not self.candidate and ("output" not in self.model_fields_set or len(self.inputs) != 1):
            raise ValueError("without a `candidate`, give one `output` and the one input it is for")
        return self


async def check(sandbox: Sandbox, request: PropertyCheck, limits: Limits) -> Judgement:
    """Raises `SandboxFault`."""
    refused = too_long(request.candidate, "candidate") or _mistake(request)
    if refused is not None:
        return refused
    text = Path(properties.__file__).read_text(encoding="utf-8")
    sources = [("<properties>", text), *([(PLACE, request.source)] if request.source else [])]
    name = request.property or _CUSTOM
    if not request.candidate:
        if _too_large(request.output):
            return Judgement.failed("the output is too large")
        inputs = [list(item) for item in request.inputs]
        end = await alone(sandbox, Script(sources, "judge_output", (name, inputs[0], request.output)), limits)
        judged = end if isinstance(end, Judgement) else _judged(end)
        hedged = isinstance(request.output, str) and hedges(request.output)
        return judged.flagged([Flag.HEDGED_ANSWER] if hedged else [])
    seen = flags_of_source(request.candidate, known=[examples(request.visible)])
    script = Script(sources, "judge_all", (name, [list(item) for item in request.inputs]))
    found, flags = await converse(sandbox, request.candidate, request.entry_point, script, limits)
    judged = found if isinstance(found, Judgement) else _judged(found)
    if judged.verdict != "passed":
        flags |= flags_of_constant(request.candidate, request.entry_point)
    return judged.flagged({*seen, *flags})


def _too_large(output: Any) -> bool:
    """To be sent to the process that judges it; the inputs are ours, and another matter."""
    try:
        Encoder().encode(output)
    except TooLarge:
        return True
    return False


def _judged(end: Finished) -> Judgement:
    if end.outcome == "assertion":
        return Judgement.failed(f"the output does not have the property in case {end.told}")
    if end.outcome == "passed":
        return Judgement.passed()
    return judge(end)


def _mistake(request: PropertyCheck) -> Judgement | None:
    if request.source and parsed(request.source) is None:
        return Judgement.unverifiable("the property does not compile: mend the property")
    return None
