"""Control tests contradict the real one, and never on what honest code could satisfy too."""

from __future__ import annotations

import random
import textwrap
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.verification.methods.another import another
from shared.verification.methods.controls import controls, normal
from shared.verification.methods.suite_plan import plan

SEED = b"seed"


def outcomes(source: str, name: str, **given: Any) -> list[str]:
    """What honest code makes of each control."""
    found = []
    for changed in controls(source, (name,), 10, SEED):
        space: dict[str, Any] = dict(given)
        exec(compile(changed, "<control>", "exec"), space)
        try:
            space[name]()
        except AssertionError:
            found.append("failed")
        else:
            found.append("passed")
    return found


@pytest.mark.parametrize(
    "body",
    [
        "assert f(2) == 4", "assert 4 == f(2)", "assert f(2) == 4, 'why'\nassert f(3) == 9", "expected = 4\nassert f(2) == expected",
        "assert [f(1), f(2)] == [1, 4]", "assert str(f(2)) == '4'", "assert f(2) > 3", "assert f(2)", "value = f(2)\nassert value == 4",
        "assert {'a': f(2)} == {'a': 4}", "assert (f(2), None) == (4, None)", "assert f(2) == 4.0", "assert (f(2) == 4) == True",
        "for n in range(3):\n    assert f(n) == n * n", "x = 4\nassert f(x) == 16\nassert x == 4", "N = 1\nassert f(N) == N",
        "with open('/dev/null'):\n    assert f(2) == 4", "assert f(2) is not None\nassert f(3) is f(3) or f(3)", "g = lambda n: n ** 2\nassert f(5) == g(5)\nassert g(6) == f(6)", "assert (f(2) > 1) is True",
        "class T:\n    def assertTrue(self, x): assert x\n    def assertEqual(self, a, b): assert a == b\nself = T()\nself.assertTrue(f(2) == 4)\nself.assertEqual(f(3), 9)",
        "assert f(-1) == 1", "assert f(0) == 0", "assert f(1j) == -1 + 0j",
    ],
)  # fmt: skip
def test_honest_code_fails_every_control(body: str) -> None:
    source = f"def test_it():\n{textwrap.indent(body, '    ')}\n"
    space: dict[str, Any] = {"f": lambda n: n * n}
    exec(source, space)
    space["test_it"]()
    found = outcomes(source, "test_it", f=lambda n: n * n)
    assert found and set(found) == {"failed"}


def test_a_name_that_is_also_an_input_is_left_alone() -> None:
    changed = controls("def test_it():\n    n = 5\n    assert f(n) == n\n", ("test_it",), 10, SEED)
    assert changed and all("n = 5" in one for one in changed)


def test_an_object_equal_to_everything_passes_one_that_changes_a_value() -> None:
    class Anything:
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = None  # type: ignore[assignment]

    for body in ("assert f(2) == 4", "assert f(2) == g(2)", "want = g(2)\n    assert want == f(2)"):
        source = f"def test_it():\n    {body}\n"
        assert "passed" in outcomes(source, "test_it", f=lambda n: Anything(), g=lambda n: n * n)


@pytest.mark.parametrize("literal", ["8", "-3", "'word'", "2.5", "[1, 2]", "(4, 'x')"])
def test_no_control_hands_over_the_real_value_where_others_do(literal: str) -> None:
    """One that keeps it (`not f(2) == 8`) is failed by code that compares by itself and knows nothing."""
    source = f"def test_it():\n    assert f(2) == {literal}\n"
    for seed in range(20):
        found = controls(source, ("test_it",), 6, bytes([seed]))
        assert len(found) >= 3 and not any(f" == {literal}\n" in f"{one}\n" for one in found), found


def test_code_that_remembers_the_first_value_is_paid_in_a_case_of_seven() -> None:
    """It takes the first that it is compared with for the real one, and fails every other. Seeds 0 to 149."""
    source, paid = "def test_it():\n    assert f(2) == 8\n", 0
    for seed in range(150):
        runs = plan(
            ("a",), lambda test, count: controls(source, ("test_it",), count, bytes(str(seed), "ascii")),  # noqa: B023
            controls=3, controlled_tests=20, again=True, seed=b"", dice=random.Random(seed),
        )  # fmt: skip
        first: list[int] = []

        class Remembering(int):
            def __eq__(self, other: object) -> bool:
                first.append(int(other))  # type: ignore[call-overload] # noqa: B023
                return first[0] == other  # noqa: B023

            __hash__ = int.__hash__

        passes = [_passes(run.control or source, lambda n: Remembering()) for run in runs]
        paid += passes == [run.control is None for run in runs]
    assert 0.06 < paid / 150 < 0.25, paid


def _passes(source: str, f: Any) -> bool:
    place: dict[str, Any] = {"f": f}
    exec(compile(source, "<control>", "exec"), place)
    try:
        place["test_it"]()
    except (AssertionError, TypeError, ValueError):
        return False
    return True


def test_parameters_and_methods() -> None:
    source = textwrap.dedent(
        """
        import pytest

        class TestIt:
            @pytest.mark.parametrize("n, expected", [(1, 1), (2, 4)])
            def test_square(self, n, expected):
                assert f(n) == expected

            def test_close(self):
                assert f(0.1) == pytest.approx(0.01)
                self.assertEqual(f(2), 4)
        """
    )
    first = controls(source, ("TestIt", "test_square"), 1, SEED)
    assert "(1, 1)" not in first[0] and "(2, 4)" not in first[0] and "assert f(n) == expected" in first[0]
    kept = controls(source, ("TestIt", "test_square"), 9, SEED, keep_ids=True)
    assert kept and all("[(1, 1), (2, 4)]" in one for one in kept)
    values = controls(source, ("TestIt", "test_close"), 8, SEED)
    assert any("approx(0.01)" not in one for one in values) and any("f(2), 4" not in one for one in values)


@pytest.mark.parametrize(
    "source", ["def test_it(:\n", "def other(): pass\n", "def test_it():\n    return\n    assert f(1) == 1\n"]
)
def test_nothing_where_nothing_can_be_contradicted(source: str) -> None:
    assert controls(source, ("test_it",), 3, SEED) == []


def test_the_seed_decides_alone() -> None:
    source = "def test_it():\n" + "".join(f"    assert f({n}) == {n * n}\n" for n in range(1, 20))
    assert controls(source, ("test_it",), 3, b"a") == controls(source, ("test_it",), 3, b"a")
    assert controls(source, ("test_it",), 3, b"a") != controls(source, ("test_it",), 3, b"b")
    assert len(set(controls(source, ("test_it",), 3, b"a"))) == 3


def test_a_control_has_the_form_of_the_real_one() -> None:
    source = "# a comment\ndef test_it():\n    assert f(2)==4 # why\n"
    assert "#" not in normal(source) and normal("def (") == "def ("
    for changed in controls(source, ("test_it",), 5, SEED):
        assert normal(changed) == changed
        assert changed.count("\n") - normal(source).count("\n") in (0, 1)


VALUES = st.recursive(
    st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5) | st.binary(max_size=5) | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


@given(VALUES, st.randoms(use_true_random=False))
def test_another_value_is_another_and_of_the_same_kind(value: Any, dice: Any) -> None:
    found = another(value, dice)
    assert value is None or type(found) is type(value)
    assert value is None or found != value


def test_another_number_cannot_be_told_by_its_looks() -> None:
    found = [another(40, random.Random(seed)) for seed in range(400)]
    assert 120 < sum(n % 2 for n in found) < 280 and 120 < sum(n > 40 for n in found) < 280
    assert all(abs(another(10**7, random.Random(seed)) - 10**7) >= 10**4 for seed in range(200))
