"""Bodies of several shells, bodies that pass through themselves, and data that no library measures."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from shared.errors import VerificationFault
from tests.verification.methods.bench import Bench
from tests.verification.methods.test_jailed_methods import FACES, POINTS

CUBE = {"cube": {"size": [1, 2, 3]}}


def box(size: float, at: float, *, inverted: bool = False) -> list[tuple[Any, Any]]:
    """One triangle each: its points, three of them."""
    faces = [face[::-1] if inverted else face for face in FACES]
    return [tuple(tuple(x * size / 2 + at for x in POINTS[corner]) for corner in face) for face in faces]


def tube(*, turns: int, rounds: int = 48, sides: int = 8) -> list[tuple[Any, Any]]:
    """A tube bent into a ring that goes `turns` times through the same room before it closes; its thickness varies."""

    def point(step: int, side: int) -> tuple[float, ...]:
        angle, turn = 2 * math.pi * step / rounds, 2 * math.pi * side / sides
        thick = 1 + 0.3 * math.cos(angle / turns + 0.013)
        out = 3 + thick * math.cos(turn)
        return out * math.cos(angle), out * math.sin(angle), thick * math.sin(turn)

    found: list[Any] = []
    for step in range(rounds * turns):
        for side in range(sides):
            after = (step + 1) % (rounds * turns)
            a, b = point(step, side), point(after, side)
            c, d = point(after, (side + 1) % sides), point(step, (side + 1) % sides)
            found += [(a, b, c), (a, c, d)]
    return found


def obj(*shells: list[Any]) -> dict[str, Any]:
    """Corners of one place are one corner, shell by shell."""
    lines: list[str] = []
    faces: list[str] = []
    known: dict[Any, int] = {}
    for number, shell in enumerate(shells):
        for triangle in shell:
            corners = []
            for place in triangle:
                key = (number, *(round(x, 9) for x in place))
                if key not in known:
                    known[key] = len(known) + 1
                    lines.append("v {:.9g} {:.9g} {:.9g}".format(*place))
                corners.append(known[key])
            faces.append("f {} {} {}".format(*corners))
    return {"format": "obj", "text": "\n".join([*lines, *faces])}


BODIES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "a cube": (obj(box(1, 0)), {"volume": {"value": 1}, "parts": 1, "watertight": True}, "passed"),
    "a cube far out": (obj(box(1, 4000)), {"volume": {"value": 1, "relative": 0.01}, "parts": 1}, "passed"),
    "two cubes apart": (obj(box(1, 0), box(1, 2)), {"volume": {"value": 2}, "parts": 2}, "passed"),
    "a ring": (obj(tube(turns=1)), {"genus": 1, "parts": 1, "watertight": True}, "passed"),
    "a hollow cube is one part": (obj(box(4, 0), box(2, 1, inverted=True)), {"volume": {"value": 56}, "parts": 1, "genus": 0}, "passed"),
    "room filled twice counts once": (obj(box(1, 0), box(0.9, 0.05)), {"volume": {"value": 1.729}}, "failed"),
    "shells that cross": (obj(box(1, 0), box(1, 0.5)), {"volume": {"value": 2}}, "failed"),
    "a hole in the open": (obj(box(1, 0), box(0.5, 3, inverted=True)), {"volume": {"value": 0.875}}, "failed"),
    "one shell through itself": (obj(tube(turns=2)), {"genus": 1}, "failed"),
}  # fmt: skip


@pytest.mark.parametrize("name", BODIES)
def test_a_measure_is_of_the_room_that_is_filled(bench: Bench, name: str) -> None:
    body, expected, verdict = BODIES[name]
    judged = bench.judge("geometry", {**body, "expected": expected})
    assert judged.verdict == verdict, judged


def test_what_passes_through_itself_is_a_closed_surface_of_no_body(bench: Bench) -> None:
    judged = bench.judge("geometry", {**obj(tube(turns=2)), "expected": {"watertight": True}})
    assert judged.verdict == "passed", judged


def test_a_ball_in_a_hollow_cube_is_as_far_from_it_as_it_is(bench: Bench) -> None:
    hollow = {"difference": [{"cube": {"size": [4] * 3, "center": True}}, {"cube": {"size": [3] * 3, "center": True}}]}  # fmt: skip
    text = json.dumps({"union": [hollow, {"cube": {"size": [1] * 3, "center": True}}]})
    record = {"format": "csg", "text": text, "expected": {"parts": 2, "clearance": 1.0}}
    assert bench.judge("geometry", record).verdict == "passed"
    assert bench.judge("geometry", {**record, "expected": {"clearance": 1.01}}).verdict == "failed"


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("csg", '{"cube": {"size": [1, 1, 1' + "0" * 400 + "]}}"), ("obj", "v 0 0 0\nv 1 0 0\nv 0 1 0\nf 1 2 " + "9" * 40),
        ("obj", "v 0 0 0\nv 1 0 0\nv 2 0 0\nf 1 2 3\nf 1 3 2\n"), ("obj", "v 0 0 0\nf 1 1 1\n"),
        ("csg", json.dumps({"scale": [1e9] * 3, "of": {"scale": [1e9] * 3, "of": {"scale": [1e9] * 3, "of": {"scale": [1e9] * 3, "of": {"scale": [1e9] * 3, "of": CUBE}}}}})),
    ],
    ids=["no such number", "no such corner", "no area", "one point", "no end"],
)  # fmt: skip
def test_data_that_no_library_takes_is_the_attempts_failure(bench: Bench, form: str, text: str) -> None:
    """A fault of ours is retried and not trained on: a policy could hide behind it."""
    judged = bench.judge("geometry", {"format": form, "text": text, "expected": {"watertight": True}})
    assert (judged.verdict, judged.reward) == ("failed", 0.0), judged


def test_a_body_that_is_no_base64_is_the_attempts_failure(bench: Bench) -> None:
    judged = bench.judge("geometry", {"format": "stl", "base64": "!!", "expected": {"watertight": True}})
    assert judged.reason == "the body cannot be read: no base64"


def test_a_keep_out_body_that_is_none_is_nobodys_failure(bench: Bench) -> None:
    record = {"format": "csg", "text": json.dumps(CUBE), "keep_out": {"blob": {}}}
    with pytest.raises(VerificationFault, match="keep-out body"):
        bench.judge("geometry", {**record, "expected": {"keep_out_gap": 1.0}})
