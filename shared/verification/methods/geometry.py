"""`geometry`: a body of the policy's, as a mesh or as a program of solids, by its measures.

Invariant: the libraries that read it run in a jail that knows no expected measure; each measure is compared out here,
within its own tolerance, and one that could not be taken is a failure, never a pass.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterator
from typing import Any, Literal, Self, TypeGuard

from pydantic import BaseModel, ConfigDict, Field, model_validator

from shared.errors import VerificationFault
from shared.sandbox.faults import SandboxFault
from shared.sandbox.limits import Limits
from shared.sandbox.sandbox import Sandbox
from shared.verification.detectors.flags import Flag
from shared.verification.detectors.output import flags_of_output
from shared.verification.detectors.wording import hedges
from shared.verification.guest.codec import Decoder, Encoder
from shared.verification.guest.kinds import Malformed
from shared.verification.judgement import Judgement
from shared.verification.methods.base import Request, reader_ended
from shared.verification.methods.jails import guest

PACKAGES = ("numpy", "trimesh", "manifold3d")
"""What the jail's root must show: `sandbox.python_packages`."""
MAX_BODY_BYTES = 6 << 20
_START, _FINISHED = b"T", b"F"
Form = Literal["stl", "obj", "3mf", "csg"]
Vector = tuple[float, float, float]


class Measure(BaseModel):
    """A number within a tolerance."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    value: float
    relative: float = Field(default=1e-3, ge=0)
    absolute: float = Field(default=0.0, ge=0)

    def holds(self, found: object) -> bool:
        if not _is_number(found):
            return False
        return math.isclose(found, self.value, rel_tol=self.relative, abs_tol=self.absolute)


class Box(BaseModel):
    """Extents along x, y and z; `corner`: where the lowest corner is, None for anywhere; `any_order` of the axes."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    size: Vector
    corner: Vector | None = None
    any_order: bool = False
    tolerance: float = Field(default=1e-3, ge=0)
    """Absolute, in the body's own units."""

    def holds(self, found: Any) -> bool:
        low, high = found
        size = [top - bottom for bottom, top in zip(low, high, strict=True)]
        wanted = list(self.size)
        if self.any_order:
            size, wanted = sorted(size), sorted(wanted)
        near = all(abs(a - b) <= self.tolerance for a, b in zip(size, wanted, strict=True))
        if self.corner is None:
            return near
        return near and all(abs(a - b) <= self.tolerance for a, b in zip(low, self.corner, strict=True))


class Expectation(BaseModel):
    """What must hold; what is left out is free."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    watertight: bool | None = None
    volume: Measure | None = None
    surface_area: Measure | None = None
    bounding_box: Box | None = None
    genus: int | None = None
    """Handles, summed over all shells."""
    parts: int | None = None
    """Connected solids; a cavity is none."""
    clearance: float | None = Field(default=None, ge=0)
    """At least this gap between any two parts."""
    keep_out_gap: float | None = Field(default=None, ge=0)
    """At least this gap to the keep-out body."""


class Geometry(Request):
    """`text` (csg, obj, text stl) or `base64` of the body; `keep_out` is a program of solids (csg)."""

    format: Form
    text: str | None = None
    base64: str | None = None
    keep_out: dict[str, Any] | None = None
    expected: Expectation
    partial: bool = False

    @model_validator(mode="after")
    def _readable(self) -> Self:
        if (self.text is None) == (self.base64 is None):
            raise ValueError("give the body either as `text` or as `base64`")
        if not self.expected.model_dump(exclude_none=True):
            raise ValueError("`expected` names no measure: anything would pass")
        if (self.expected.keep_out_gap is None) != (self.keep_out is None):
            raise ValueError("`keep_out` and `expected.keep_out_gap` go together")
        return self

    def data(self) -> bytes:
        """Raises `ValueError` for what is no base64."""
        if self.base64 is not None:
            return base64.b64decode(self.base64, validate=True)
        return (self.text or "").encode("utf-8", "surrogatepass")


async def check(sandbox: Sandbox, request: Geometry, limits: Limits) -> Judgement:
    """Raises `SandboxFault`, and `VerificationFault` where the keep-out body is wrong."""
    try:
        request.data()
    except ValueError:
        return Judgement.failed("the body cannot be read: no base64")
    found = await _measured(sandbox, request, limits)
    if isinstance(found, Judgement):
        return found
    outcome, measures, word = found
    if outcome == "keep_out":
        raise VerificationFault(f"the keep-out body cannot be made: {word}; mend the domain")
    if outcome != "measured":
        reason = {"empty": "the body is empty", "too_large": f"the body is too large: {word}"}
        judged = Judgement.failed(reason.get(outcome, f"the body cannot be read: {word}"))
        return judged.flagged(_flags(request))
    results = dict(_results(request.expected, measures))
    wrong = [name for name, holds in results.items() if not holds]
    components = {name: float(holds) for name, holds in results.items()}
    if not wrong:
        return Judgement("passed", 1.0, f"{len(results)} of {len(results)} measures", components)
    reason_text = f"wrong: {', '.join(wrong)}"
    if request.partial and len(wrong) < len(results):
        return Judgement.partial(1 - len(wrong) / len(results), reason_text, components)
    return Judgement("failed", 0.0, reason_text, components, tuple(sorted(_flags(request))))


def _flags(request: Geometry) -> set[Flag]:
    """What the text of a body that is none says."""
    found = set(flags_of_output(request.data()))
    if request.text and hedges(request.text):
        found.add(Flag.HEDGED_ANSWER)
    return found


def _results(expected: Expectation, found: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    """Measure by measure: whether it holds. One that is not there does not."""
    if expected.watertight is not None:
        yield "watertight", found.get("watertight") is expected.watertight
    for name in ("volume", "surface_area"):
        measure = getattr(expected, name)
        if measure is not None:
            yield name, measure.holds(found.get(name)) and found.get("inside_out") is not True
    if expected.bounding_box is not None:
        yield "bounding_box", expected.bounding_box.holds(found["bounding_box"])
    for name in ("genus", "parts"):
        wanted = getattr(expected, name)
        if wanted is not None:
            yield name, found.get(name) == wanted
    for name in ("clearance", "keep_out_gap"):
        least = getattr(expected, name)
        if least is not None:
            gap = found.get(name)
            yield name, _is_number(gap) and gap >= least - 1e-6 * max(1.0, least)


async def _measured(
    sandbox: Sandbox, request: Geometry, limits: Limits
) -> tuple[str, dict[str, Any], str] | Judgement:
    missing = [name for name in PACKAGES if name not in sandbox.settings.python_packages]
    if missing:
        raise VerificationFault(f"geometry needs {missing[0]!r} in sandbox.python_packages: name it there")
    if len(request.data()) > MAX_BODY_BYTES:
        return Judgement.failed(f"the body has over {MAX_BODY_BYTES >> 20} MiB")
    keep_out = json.dumps(request.keep_out).encode() if request.keep_out is not None else b""
    job = (request.format, request.data(), keep_out)
    async with guest(sandbox, "solids", limits, imports=PACKAGES) as child:
        await child.send(_START + Encoder().encode(job))
        frame = await child.receive()
        if frame is None:
            return reader_ended(await child.finish(), "the body")
    try:
        if frame[:1] != _FINISHED:
            raise Malformed("another frame")
        outcome, measures, word = Decoder().decode(frame[1:])
        return str(outcome), dict(measures), str(word)
    except (Malformed, ValueError, TypeError) as error:
        raise SandboxFault("a measuring process ended with a report that nobody can read") from error


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
