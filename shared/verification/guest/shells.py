"""What a closed surface bounds: whether it passes through itself, and which solids it is the skin of.

Invariant: a measure is of the space that is filled. Triangles that are closed and turned right have a volume by their
signs even where shells lie in each other or are turned inside out in the open: that sum is the volume of nothing.
"""

from __future__ import annotations

from typing import Any

_CUTS = 16
"""Heights along each axis at which a surface is cut: an overlap thinner than a sixteenth along all three may be missed."""
_GOLDEN = 0.6180339887498949
"""Its multiples are spread evenly and are no round share of a length, where corners are."""
_SLACK = 1e-3
"""Share of a cut's area that rounding, and the seams of honest meshes, may come to."""
_TURNS = ((0.0, 0.0, 0.0), (90.0, 0.0, 0.0), (0.0, 90.0, 0.0))


def passes_through_itself(body: Any) -> bool:
    """Whether some cut of a body (a `Manifold`) has an area that is counted twice, or negatively in the open."""
    return any(_cut_wrong(body.rotate(turn)) for turn in _TURNS)


def solids(body: Any) -> list[Any]:
    """The connected solids, each without its own cavities. A cavity is a shell of its own, turned the other way."""
    shells = body.decompose()
    skins = [shell for shell in shells if shell.volume() > 0]
    cavities = [_turned(shell) for shell in shells if shell.volume() < 0]
    holes: dict[int, list[Any]] = {}
    for cavity in cavities:
        around = [at for at, skin in enumerate(skins) if _within(cavity, skin)]
        if around:
            holes.setdefault(min(around, key=lambda at: skins[at].volume()), []).append(cavity)
    return [_without(skin, holes.get(at, [])) for at, skin in enumerate(skins)]


def count(body: Any) -> int:
    return sum(shell.volume() > 0 for shell in body.decompose())


def _cut_wrong(body: Any) -> bool:
    import numpy

    mesh = body.to_mesh()
    corners = numpy.asarray(mesh.vert_properties, dtype=numpy.float64)[:, :3][numpy.asarray(mesh.tri_verts)]
    corners[..., :2] -= corners[..., :2].mean(
        axis=(0, 1)
    )  # areas of what lies far out are differences of large numbers
    low, high = float(corners[..., 2].min()), float(corners[..., 2].max())
    for number in range(1, _CUTS + 1):
        height = low + (high - low) * (number * _GOLDEN % 1.0)
        signed, filled = _signed_area(corners, height), float(body.slice(height).area())
        if abs(signed - filled) > _SLACK * max(abs(signed), filled):
            return True
    return False


def _signed_area(corners: Any, height: float) -> float:
    """Of the cut at `height` through triangles (n, 3, 3): half the sum of cross products of its directed edges."""
    import numpy

    above = corners[..., 2] > height
    cut = corners[above.any(axis=1) & ~above.all(axis=1)]
    up = cut[..., 2] > height
    # Turned so that the first corner is alone on its side; the order, and with it the direction, stays.
    alone = numpy.argmax(up == (up.sum(axis=1) == 1)[:, None], axis=1)
    order = (alone[:, None] + numpy.arange(3)) % 3
    turned = numpy.take_along_axis(cut, order[..., None], axis=1)
    first, second, third = turned[:, 0], turned[:, 1], turned[:, 2]
    one, other = _at(first, second, height), _at(first, third, height)
    crosses = one[:, 0] * other[:, 1] - one[:, 1] * other[:, 0]
    sign = numpy.where(first[:, 2] > height, 1.0, -1.0)
    return float((sign * crosses).sum() / 2)


def _at(start: Any, end: Any, height: float) -> Any:
    share = (height - start[:, 2]) / (end[:, 2] - start[:, 2])
    return start[:, :2] + share[:, None] * (end[:, :2] - start[:, :2])


def _turned(shell: Any) -> Any:
    import manifold3d
    import numpy

    mesh = shell.to_mesh()
    return manifold3d.Manifold(
        manifold3d.Mesh(
            vert_properties=numpy.array(mesh.vert_properties, dtype=numpy.float32)[:, :3].copy(),
            tri_verts=numpy.array(mesh.tri_verts, dtype=numpy.uint32)[:, ::-1].copy(),
        )
    )


def _within(inner: Any, outer: Any) -> bool:
    return bool((inner ^ outer).volume() > inner.volume() * (1 - _SLACK))


def _without(skin: Any, cavities: list[Any]) -> Any:
    for cavity in cavities:
        skin = skin - cavity
    return skin
