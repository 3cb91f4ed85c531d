"""Measures of one body, from a mesh file or from a small program of solids. Runs in a jail of its own.

Invariant: it measures and judges nothing; what should come out is not known here. Work is bounded by the sizes below
before anything is built.

Frame in: `T` (format, data, keep-out program). Frame out: `F` (outcome, measures, word).
Outcomes: `measured`, `unreadable`, `empty`, `too_large`; `keep_out`: that program is none.
"""

from __future__ import annotations

import io
import json
import math
import os
import struct
import zipfile
from typing import Any
from xml.etree import ElementTree

from shared.verification.guest.channel import Channel, Closed
from shared.verification.guest.codec import Decoder, Encoder
from shared.verification.guest.shells import count, passes_through_itself, solids

START, FINISHED = b"T", b"F"
MAX_TRIANGLES = 400_000
MAX_NODES = 2_000
MAX_DEPTH = 64
MAX_SEGMENTS = 512
MAX_SIZE = 1e9
_NEAR = 1e6


class Unreadable(Exception):
    """`args[0]` says what is wrong, in words without data."""


class TooLarge(Exception):
    """More triangles or nodes than are measured."""


def main() -> None:
    channel = Channel()
    try:
        kind, payload = channel.receive()
        if kind == START:
            channel.send(FINISHED, Encoder().encode(_answer(*Decoder().decode(payload))))
            channel.receive()
    except Closed:
        pass
    os._exit(0)


def _answer(form: str, data: bytes, other: bytes) -> tuple[str, dict[str, Any], str]:
    try:
        keep_out = program(other) if other else None
    except (Unreadable, TooLarge) as error:
        return "keep_out", {}, str(error)
    try:
        found, body = _measured(form, data)
        if other and found["triangles"]:
            found["keep_out_gap"] = _gap(body, keep_out)
    except Unreadable as error:
        return "unreadable", {}, str(error)
    except TooLarge as error:
        return "too_large", {}, str(error)
    except (ImportError, AttributeError):
        raise  # a library that is missing, or another one than this was written for
    except Exception as error:  # noqa: BLE001 -- numbers and shapes that a library does not take are the body's
        return "unreadable", {}, f"what nobody measures ({type(error).__name__})"
    return ("measured" if found["triangles"] else "empty"), found, ""


def _measured(form: str, data: bytes) -> tuple[dict[str, Any], Any]:
    """Measures, and the solid they are of (None where the mesh bounds none)."""
    import numpy
    import trimesh

    if form == "csg":
        body = program(data)
        mesh = body.to_mesh()
        points, faces = numpy.asarray(mesh.vert_properties)[:, :3], numpy.asarray(mesh.tri_verts)
    else:
        points, faces = _triangles(form, data)
        body = None
    if not len(faces):
        return {"triangles": 0}, body
    surface = trimesh.Trimesh(points, faces, process=False)
    surface.merge_vertices()
    surface.update_faces(surface.nondegenerate_faces())
    if not len(surface.faces):
        return {"triangles": 0}, None
    closed = bool(surface.is_watertight and surface.is_winding_consistent)
    found: dict[str, Any] = {
        "triangles": len(surface.faces),
        "watertight": closed,
        "bounding_box": [[float(x) for x in corner] for corner in surface.bounds],
        "surface_area": float(surface.area),
    }
    if body is None and closed:
        body = _solid(surface.vertices, surface.faces)
        if body is not None and passes_through_itself(body):
            return found, None
    if closed:
        signed = float(surface.volume)
        found |= {"volume": abs(signed), "inside_out": signed < 0}
    if body is not None and not body.is_empty():
        found |= _of_body(body)
    return found, body


def _of_body(body: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "volume": float(body.volume()),
        "surface_area": float(body.surface_area()),
        "genus": sum(int(shell.genus()) for shell in body.decompose()),
        "parts": count(body),
    }
    if 1 < found["parts"] <= 50:
        parts = solids(body)
        found["clearance"] = min(_gap(one, two) for at, one in enumerate(parts) for two in parts[at + 1 :])
    return found


def _gap(one: Any, two: Any) -> float:
    if one is None or two is None:
        raise Unreadable("a gap is measured between closed bodies")
    overlap = one ^ two
    if not overlap.is_empty() and overlap.volume() > 0:
        return 0.0
    return float(one.min_gap(two, _NEAR))


def _solid(points: Any, faces: Any) -> Any:
    """A closed body, turned right side out; None where the triangles bound none."""
    import manifold3d
    import numpy

    mesh = manifold3d.Mesh(
        vert_properties=numpy.ascontiguousarray(points, dtype=numpy.float32),
        tri_verts=numpy.ascontiguousarray(faces, dtype=numpy.uint32),
    )
    mesh.merge()
    body = manifold3d.Manifold(mesh)
    if body.status() != manifold3d.Error.NoError or body.is_empty():
        return None
    if body.volume() < 0:
        return _solid(points, faces[:, ::-1])
    return body


# --- mesh files ---


def _triangles(form: str, data: bytes) -> tuple[Any, Any]:
    """Points (n, 3) and faces (m, 3)."""
    import numpy

    readers = {"stl": _stl, "obj": _obj, "3mf": _3mf}
    points, faces = readers[form](data)
    if len(faces) > MAX_TRIANGLES:
        raise TooLarge(f"over {MAX_TRIANGLES} triangles")
    placed = numpy.asarray(points, dtype=numpy.float64).reshape(-1, 3)
    joined = numpy.asarray(faces, dtype=numpy.int64).reshape(-1, 3)
    if placed.size and not (numpy.isfinite(placed).all() and abs(placed).max() <= MAX_SIZE):
        raise Unreadable("a point that is not finite, or farther out than a billion")
    if joined.size and not (joined.min() >= 0 and joined.max() < len(placed)):
        raise Unreadable("a face of a point that is not there")
    return placed, joined


def _stl(data: bytes) -> tuple[Any, Any]:
    import numpy

    if len(data) >= 84:
        (count,) = struct.unpack_from("<I", data, 80)
        if 84 + 50 * count == len(data):
            if count > MAX_TRIANGLES:
                raise TooLarge(f"over {MAX_TRIANGLES} triangles")
            kind = numpy.dtype([("normal", "<f4", 3), ("points", "<f4", (3, 3)), ("more", "<u2")])
            placed = numpy.frombuffer(data, kind, count, 84)["points"].reshape(-1, 3)
            return placed, numpy.arange(3 * count).reshape(-1, 3)
    if not data.lstrip()[:5].lower() == b"solid":
        raise Unreadable("neither a binary nor a text STL")
    points: list[list[float]] = []
    for line in data.split(b"\n"):
        words = line.split()
        if words and words[0].lower() == b"vertex":
            points.append(_floats(words[1:4]))
    if len(points) % 3:
        raise Unreadable("a text STL with a triangle of fewer than three points")
    return points, [[at, at + 1, at + 2] for at in range(0, len(points), 3)]


def _obj(data: bytes) -> tuple[Any, Any]:
    points: list[Any] = []
    faces: list[Any] = []
    for line in data.split(b"\n"):
        words = line.split()
        if words[:1] == [b"v"]:
            points.append(_floats(words[1:4]))
        elif words[:1] == [b"f"]:
            corners = [_corner(word, len(points)) for word in words[1:]]
            faces += [[corners[0], corners[at], corners[at + 1]] for at in range(1, len(corners) - 1)]
        if len(faces) > MAX_TRIANGLES:
            raise TooLarge(f"over {MAX_TRIANGLES} triangles")
    return points, faces


def _corner(word: bytes, points: int) -> int:
    try:
        number = int(word.split(b"/")[0])
    except ValueError as error:
        raise Unreadable("a face with a corner that is no number") from error
    return number - 1 if number > 0 else points + number


def _3mf(data: bytes) -> tuple[Any, Any]:
    """The first object's mesh, in the core specification's namespace; no components, no transforms."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = [name for name in archive.namelist() if name.lower().endswith(".model")]
            if not names or archive.getinfo(names[0]).file_size > 200 << 20:
                raise Unreadable("a 3MF without a model, or with one of over 200 MiB")
            root = ElementTree.fromstring(archive.read(names[0]))
    except (
        zipfile.BadZipFile,
        ElementTree.ParseError,
        KeyError,
        RuntimeError,
        OSError,
        EOFError,
        ValueError,
    ) as error:
        raise Unreadable("no 3MF archive") from error
    points, faces = [], []
    for item in root.iter():
        kind = item.tag.rpartition("}")[2]
        if kind == "vertex":
            points.append(_floats([item.get(axis, "").encode() for axis in "xyz"]))
        elif kind == "triangle":
            faces.append([_corner_at(item.get(name)) for name in ("v1", "v2", "v3")])
        elif kind == "component":
            raise Unreadable("a 3MF of components: give one mesh")
    return points, faces


def _corner_at(text: str | None) -> int:
    try:
        return int(text or "")
    except ValueError as error:
        raise Unreadable("a triangle with a corner that is no number") from error


def _floats(words: list[bytes]) -> list[float]:
    try:
        found = [float(word) for word in words]
    except ValueError as error:
        raise Unreadable("a point that is no number") from error
    if len(found) != 3:
        raise Unreadable("a point without three coordinates")
    return found


# --- programs of solids ---


def program(data: bytes) -> Any:
    """A solid from JSON: `{"cube": {"size": [x, y, z], "center": true}}`, `sphere` {radius}, `cylinder` {height,
    radius, top_radius}, `extrude` {points, height}; `union`, `difference`, `intersection`, `hull` of lists;
    `translate`, `rotate` (degrees), `scale`, `mirror` as `{"translate": [x, y, z], "of": …}`. `segments` of round
    things.
    """
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Unreadable("a program that is no JSON") from error
    return _Builder().build(tree, 0)


class _Builder:
    def __init__(self) -> None:
        self._nodes = 0

    def build(self, node: Any, depth: int) -> Any:
        self._nodes += 1
        if self._nodes > MAX_NODES or depth > MAX_DEPTH:
            raise TooLarge(f"over {MAX_NODES} nodes, or deeper than {MAX_DEPTH}")
        if not isinstance(node, dict):
            raise Unreadable("a node that is no object")
        shapes = {
            "cube": self._cube,
            "sphere": self._sphere,
            "cylinder": self._cylinder,
            "extrude": self._extrude,
        }
        for name, make in shapes.items():
            if name in node:
                detail = node[name]
                if not isinstance(detail, dict):
                    raise Unreadable(f"a {name} without its measures")
                return make(detail)
        for name in ("union", "difference", "intersection", "hull"):
            if name in node:
                return self._joined(name, node[name], depth)
        for name in ("translate", "rotate", "scale", "mirror"):
            if name in node:
                return getattr(self.build(node.get("of"), depth + 1), name)(_vector(node[name]))
        raise Unreadable("a node that is no known shape")

    def _joined(self, name: str, parts: Any, depth: int) -> Any:
        import manifold3d

        if not isinstance(parts, list) or not parts:
            raise Unreadable(f"a {name} of nothing")
        bodies = [self.build(part, depth + 1) for part in parts]
        if name == "hull":
            return manifold3d.Manifold.batch_hull(bodies)
        kinds = {"union": "Add", "difference": "Subtract", "intersection": "Intersect"}
        return manifold3d.Manifold.batch_boolean(bodies, getattr(manifold3d.OpType, kinds[name]))

    def _cube(self, detail: dict[str, Any]) -> Any:
        import manifold3d

        size = _vector(detail.get("size"))
        if min(size) <= 0:
            raise Unreadable("a cube without extent")
        return manifold3d.Manifold.cube(size, detail.get("center") is True)

    def _sphere(self, detail: dict[str, Any]) -> Any:
        import manifold3d

        return manifold3d.Manifold.sphere(_positive(detail.get("radius")), _segments(detail))

    def _cylinder(self, detail: dict[str, Any]) -> Any:
        import manifold3d

        low = _positive(detail.get("radius"))
        high = _positive(detail["top_radius"]) if "top_radius" in detail else low
        height = _positive(detail.get("height"))
        return manifold3d.Manifold.cylinder(
            height, low, high, _segments(detail), detail.get("center") is True
        )

    def _extrude(self, detail: dict[str, Any]) -> Any:
        import manifold3d

        points = detail.get("points")
        if not isinstance(points, list) or not 3 <= len(points) <= 10_000:
            raise Unreadable("an outline of fewer than three points, or of over ten thousand")
        outline = [
            [_number(x) for x in point] for point in points if isinstance(point, list) and len(point) == 2
        ]
        if len(outline) < len(points):
            raise Unreadable("an outline with a point that is no pair")
        section = manifold3d.CrossSection([outline])
        return manifold3d.Manifold.extrude(section, _positive(detail.get("height")))


def _number(value: Any) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not math.isfinite(value)
        or abs(value) > MAX_SIZE
    ):
        raise Unreadable("a measure that is no number, or over a billion")
    return float(value)


def _positive(value: Any) -> float:
    number = _number(value)
    if number <= 0:
        raise Unreadable("a measure that is not positive")
    return number


def _vector(value: Any) -> list[float]:
    if not isinstance(value, list) or len(value) != 3:
        raise Unreadable("three numbers are needed")
    return [_number(item) for item in value]


def _segments(detail: dict[str, Any]) -> int:
    count = int(_number(detail.get("segments", 64)))
    if not 3 <= count <= MAX_SEGMENTS:
        raise Unreadable(f"segments must be 3 to {MAX_SEGMENTS}")
    return count
