"""Layers against a model that copies everything."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shared.sandbox.sessions.layers import Layers

Step = tuple[str, int, int]
steps = st.lists(
    st.tuples(
        st.sampled_from(["write", "freeze", "roll_back", "fork", "forget", "close"]),
        st.integers(0, 7),
        st.integers(0, 7),
    ),
    max_size=40,
)


@given(steps)
def test_a_snapshot_is_what_a_copy_would_be(program: list[Step]) -> None:
    layers = Layers()
    contents: dict[str, dict[str, int]] = {}
    layers.open("w0")
    model: dict[str, dict[str, int]] = {"w0": {}}
    copies: dict[str, dict[str, int]] = {}
    made = 1

    def view(workspace: str) -> dict[str, int]:
        mounted = layers.mounted(workspace)
        merged: dict[str, int] = {}
        for layer in reversed((mounted.upper, *mounted.lower)):
            merged |= contents.get(layer, {})
        return merged

    for number, (kind, first, second) in enumerate(program):
        if not model:
            break
        workspace = sorted(model)[first % len(model)]
        snapshot = sorted(copies)[second % len(copies)] if copies else ""
        if kind == "write":
            contents.setdefault(layers.mounted(workspace).upper, {})[f"f{second}"] = number
            model[workspace][f"f{second}"] = number
        elif kind == "freeze":
            name, _ = layers.freeze(workspace)
            copies[name] = dict(model[workspace])
        elif kind == "roll_back" and snapshot:
            layers.roll_back(workspace, snapshot)
            model[workspace] = dict(copies[snapshot])
        elif kind == "fork" and snapshot:
            layers.fork(snapshot, f"w{made}")
            model[f"w{made}"] = dict(copies[snapshot])
            made += 1
        elif kind == "forget" and snapshot:
            layers.forget(snapshot)
            del copies[snapshot]
        elif kind == "close":
            layers.close(workspace)
            del model[workspace]
        needed = layers.needed()
        contents = {layer: held for layer, held in contents.items() if layer in needed}
        for name, wanted in model.items():
            assert view(name) == wanted
    assert layers.empty == (not model)
    assert set(layers.snapshots) == set(copies)
