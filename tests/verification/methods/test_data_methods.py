"""Trees, tables, outputs, worlds: pure comparisons, under their own properties."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from shared.errors import ConfigError, ContractError, VerificationFault
from shared.sandbox.limits import Limits
from shared.verification.judgement import Judgement
from shared.verification.methods.gridworld import Grid, GridWorld, IllegalAction
from shared.verification.methods.outputs import OutputComparator, same_output
from shared.verification.methods.registry import DECLARED, METHODS, method
from shared.verification.methods.repository import restored_tree
from shared.verification.methods.tables import cell_of, same_rows

CELLS = st.none() | st.integers(-5, 5) | st.floats(allow_nan=False, width=16) | st.text("ab", max_size=2)
ROWS = st.lists(st.tuples(CELLS, CELLS), max_size=8)


def judge(name: str, record: dict[str, Any]) -> Judgement:
    declared = DECLARED[name]
    return asyncio.run(declared.check(None, declared.read(record), Limits()))  # type: ignore[arg-type]


def rows(values: list[tuple[Any, ...]]) -> list[Any]:
    return [tuple(map(cell_of, row)) for row in values]


@given(ROWS, st.randoms(use_true_random=False))
def test_order_counts_in_a_sequence_only(values: list[Any], dice: Any) -> None:
    mixed = list(values)
    dice.shuffle(mixed)
    assert same_rows("bag", rows(values), rows(mixed), 1e-9)
    assert same_rows("set", rows(values), rows(mixed + mixed[:1]), 1e-9)
    assert same_rows("sequence", rows(values), rows(values), 1e-9)
    assert same_rows("sequence", rows(values), rows(mixed), 0.0) is (
        len(values) < 2 or all(a == b and kind(a) == kind(b) for a, b in zip(values, mixed, strict=True))
    )


def kind(row: tuple[Any, ...]) -> list[str]:
    return ["number" if isinstance(cell, int | float) else type(cell).__name__ for cell in row]


@given(ROWS, ROWS, st.sampled_from(["sequence", "bag", "set"]))
def test_tables_are_compared_the_same_from_both_sides(left: list[Any], right: list[Any], how: Any) -> None:
    assert same_rows(how, rows(left), rows(right), 1e-9) is same_rows(how, rows(right), rows(left), 1e-9)


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        ([(1,)], [(1.0,)], True), ([(1,)], [("1",)], False), ([(None,)], [("",)], False), ([(None,)], [(0,)], False),
        ([(0.1 + 0.2,)], [(0.3,)], True), ([(1,), (1,)], [(1,)], False), ([(True,)], [(1,)], True), ([], [], True),
        ([(b"a",)], [("a",)], False), ([(10**30,)], [(10**30 + 1,)], False), ([(math.inf,)], [(1e308,)], False),
        ([(1.0000001, "a"), (1.0, "b")], [(1.0, "a"), (1.0000001, "b")], False), ([(2**53 + 1,)], [(2**53,)], False),
    ],
)  # fmt: skip
def test_cells(left: list[Any], right: list[Any], same: bool) -> None:
    assert same_rows("bag", rows(left), rows(right), 1e-9) is same


def test_nan_equals_nothing() -> None:
    assert not same_rows("bag", rows([(math.nan,)]), rows([(math.nan,)]), 1e-9)


def test_reals_near_a_rounding_edge_are_still_matched() -> None:
    left = [(1.0000005, "a"), (1.0000005 - 1e-13, "a"), (2.5, "b")]
    right = [(1.0000005 - 2e-13, "a"), (1.0000005 + 1e-13, "a"), (2.5, "b")]
    assert same_rows("bag", rows(left), rows(right), 1e-9)


@given(
    st.binary(max_size=60), st.binary(max_size=60), st.sampled_from(["exact", "lines", "tokens", "numbers"])
)
def test_outputs_are_compared_the_same_from_both_sides(left: bytes, right: bytes, how: Any) -> None:
    comparator = OutputComparator(kind=how)
    assert same_output(comparator, left, right) is same_output(comparator, right, left)
    assert same_output(comparator, left, left)


@pytest.mark.parametrize(
    ("how", "left", "right", "same"),
    [
        ("exact", b"a\n", b"a", False), ("lines", b"a  \nb\n\n", b"a\nb", True), ("lines", b"a\n\nb", b"a\nb", False), ("lines", b" a", b"a", False),
        ("tokens", b"a  b\nc", b"a b c", True), ("tokens", b"ab", b"a b", False), ("numbers", b"0.30000000000000004", b"0.3", True), ("numbers", b"1e3", b"1000", True),
        ("numbers", b"nan", b"nan", True), ("numbers", b"nan", b"1", False), ("numbers", b"1", b"1.1", False), ("numbers", b"9" * 300, b"9" * 299 + b"8", False),
        ("numbers", b"5 or 6", b"5", False), ("numbers", b"1e9999", b"1e9998", False), ("lines", b"a\r\nb", b"a\nb", True),
    ],
)  # fmt: skip
def test_outputs(how: Any, left: bytes, right: bytes, same: bool) -> None:
    assert same_output(OutputComparator(kind=how), left, right) is same


TREE = [{"path": "a.txt", "text": "x\n", "mode": "644"}, {"path": "d/b.json", "text": '{"a": [1, 2]}', "comparator": "json"},
        {"path": "l", "kind": "link", "target": "a.txt"}, {"path": "gone", "kind": "absent"}]  # fmt: skip
GOOD = [{"path": "a.txt", "text": "x\n", "mode": "0644"}, {"path": "d", "kind": "folder"},
        {"path": "./d/b.json", "text": '{"a":[1,2]}\n'}, {"path": "l", "kind": "link", "target": "a.txt"}]  # fmt: skip


def test_a_tree_as_it_should_be() -> None:
    assert judge("state_diff", {"expected": TREE, "found": GOOD}).verdict == "passed"


@pytest.mark.parametrize(
    ("place", "change", "reason"),
    [
        (0, {"text": "x"}, "'a.txt' has other content"), (0, {"mode": "755"}, "'a.txt' has another mode"), (0, None, "'a.txt' is missing"),
        (2, {"text": '{"a": [1, 2, 3]}'}, "'d/b.json' has other content"), (2, {"text": '{"a": [1, true]}'}, "'d/b.json' has other content"),
        (2, {"text": '{"a": [1, 2], "a": [1, 2]}'}, "'d/b.json' has other content"), (3, {"target": "b.txt"}, "'l' points elsewhere"),
        (3, {"kind": "file", "target": None, "text": "x\n"}, "'l' is a file, not a link"), (1, {"path": "gone"}, "'gone' is still there"),
        (1, {"path": "e", "kind": "file"}, "'e' should not be there"),
    ],
)  # fmt: skip
def test_a_tree_with_one_thing_wrong(place: int, change: dict[str, Any] | None, reason: str) -> None:
    found = [dict(entry) for entry in GOOD]
    if change is None:
        del found[place]
    else:
        found[place].update(change)
    judged = judge("state_diff", {"expected": TREE, "found": found})
    assert (judged.verdict, judged.reason) == ("failed", reason)


def test_parts_of_a_tree_are_paid_unless_something_forbidden_is_there() -> None:
    record = {"expected": TREE, "found": GOOD[:2], "options": {"partial": True}}
    judged = judge("state_diff", record)
    assert judged.verdict == "partial" and judged.reward == 0.5
    assert judge("state_diff", {**record, "found": [*GOOD, {"path": "more"}]}).verdict == "failed"
    free = {**record, "found": [*GOOD, {"path": "more"}], "options": {"others": "allowed"}}
    assert judge("state_diff", free).verdict == "passed"
    assert judge("state_diff", {**free, "options": {"ignore": ["m*"]}}).verdict == "passed"


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../b", "", "a\0b", "d/" * 300 + "x"])
def test_a_path_outside_the_tree_is_no_expectation_and_fails_where_it_is_found(path: str) -> None:
    words = "deep" if path.startswith("d/") else "leaves the tree"
    with pytest.raises(ContractError, match=words):
        DECLARED["state_diff"].read({"expected": [{"path": path}], "found": []})
    with pytest.raises(ContractError, match=words):
        DECLARED["state_diff"].read({"expected": TREE, "found": [], "original": [{"path": path}]})
    judged = judge("state_diff", {"expected": TREE, "found": [{"path": path}]})
    assert judged.verdict == "failed" and words in judged.reason and judged.reason.isascii()


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ([{"path": "a", "text": "1\ud800"}], "'a' has other content"), ([{"path": "a", "base64": "?"}], "the content of 'a' is no base64"),
        ([{"path": "a", "text": "1"}, {"path": "./a", "text": "1"}], "'a' is there twice"), ([{"path": "a", "kind": "folder", "text": ""}], "'a' is a folder: only a file has content"),
        ([{"path": "a", "text": "1"}, {"path": "\ud800"}], "path '\\ud800' is no text"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_the_tree_found_is_a_failure(found: list[Any], reason: str) -> None:
    expected = [{"path": "a", "text": "1"}]
    judged = judge("state_diff", {"expected": expected, "found": found})
    assert (judged.verdict, judged.reason) == ("failed", reason)
    with pytest.raises(ContractError, match="twice"):
        DECLARED["state_diff"].read({"expected": expected * 2, "found": []})


def test_folders_that_lead_to_an_expected_path_are_allowed_and_no_others() -> None:
    tree = [{"path": "a/b/c", "text": ""}]
    folders = [{"path": "a", "kind": "folder"}, {"path": "a/b", "kind": "folder"}]
    assert judge("state_diff", {"expected": tree, "found": [*tree, *folders]}).verdict == "passed"
    for path in ("a/bb", "a/b/d", "b"):
        judged = judge("state_diff", {"expected": tree, "found": [*tree, {"path": path, "kind": "folder"}]})
        assert judged.reason == f"{path!r} should not be there"


def test_an_expectation_that_is_no_json_is_ours() -> None:
    record = {
        "expected": [{"path": "a", "text": "{", "comparator": "json"}],
        "found": [{"path": "a", "text": "{}"}],
    }
    with pytest.raises(VerificationFault, match="mend the domain"):
        judge("state_diff", record)


MAP = ["#####", "#@kD#", "#..G#", "#####"]


@pytest.mark.parametrize(
    ("actions", "verdict", "reason"),
    [
        (["right", "right", "down"], "passed", ""), (["D", "r", "r"], "passed", ""), (["right"], "failed", "the goal is not reached after 1 actions"),
        (["up"], "failed", "action 1 is illegal: a wall is in the way"), (["jump"], "failed", "action 1 is illegal: there is no action 'jump'"),
        ([3], "failed", "action 1 is illegal: an action is of type int"), (["down", "right", "right", "up"], "passed", ""),
        ([], "failed", "the goal is not reached after 0 actions"), ([{"goal": True}], "failed", "action 1 is illegal: an action is of type dict"),
    ],
)  # fmt: skip
def test_a_replay(actions: list[Any], verdict: str, reason: str) -> None:
    judged = judge("replay", {"simulator": "gridworld", "state": {"map": MAP}, "actions": actions})
    assert (judged.verdict, judged.reason) == (verdict, reason)


def test_a_door_needs_a_key_and_a_box_needs_room() -> None:
    shut = {"simulator": "gridworld", "state": {"map": ["@DG"]}, "actions": ["r", "r"]}
    assert judge("replay", shut).reason == "action 1 is illegal: a door is shut and no key is held"
    pushed = {"simulator": "gridworld", "state": {"map": ["@$.G#"]}, "actions": ["r", "r"]}
    assert judge("replay", pushed).verdict == "passed"
    stuck = {"simulator": "gridworld", "state": {"map": ["@$#G"]}, "actions": ["r"]}
    assert judge("replay", stuck).reason == "action 1 is illegal: a wall is in the way"


def test_a_world_that_cannot_be_made_is_ours_and_an_unknown_one_is_a_setting() -> None:
    with pytest.raises(VerificationFault, match="0 players"):
        judge("replay", {"simulator": "gridworld", "state": {"map": ["..."]}, "actions": []})
    with pytest.raises(ConfigError, match="known: gridworld"):
        judge("replay", {"simulator": "chess", "state": {}, "actions": []})


def test_a_simulator_of_ones_own() -> None:
    record = {"simulator": "tests.verification.methods.counting:Counting", "state": 3, "actions": [1, 2]}
    assert judge("replay", record).verdict == "passed"
    assert judge("replay", {**record, "actions": [1]}).verdict == "failed"


@pytest.mark.parametrize("actions", ["right", {"0": "right"}, None, 3, True])
def test_actions_that_are_no_list_are_a_failed_attempt(actions: Any) -> None:
    judged = judge("replay", {"simulator": "gridworld", "state": {"map": MAP}, "actions": actions})
    assert (judged.verdict, judged.reason) == ("failed", "the actions are no list")


@pytest.mark.parametrize(
    "name",
    ["sys:exit", "os:abort", "os:fork", "threading:Thread", "json:nope", "..:x", "os:path",
     "shared.verification.methods.replay:Simulator"],
)  # fmt: skip
def test_nothing_but_a_simulator_class_is_called(name: str) -> None:
    with pytest.raises(ConfigError, match="simulator"):
        judge("replay", {"simulator": name, "state": {}, "actions": []})


@pytest.mark.parametrize("state", ["initial", "step", "is_goal"])
def test_a_simulator_that_ends_the_process_is_a_fault_of_the_domain(state: str) -> None:
    record = {"simulator": "tests.verification.methods.counting:Leaving", "state": state, "actions": [1]}
    with pytest.raises(VerificationFault, match="SystemExit: 3; mend the domain"):
        judge("replay", record)


@given(st.lists(st.sampled_from(["up", "down", "left", "right"]), max_size=40))
def test_a_world_never_leaves_its_grid_and_never_loses_a_box(actions: list[str]) -> None:
    world = GridWorld()
    state = world.initial({"map": ["G..$", ".@#.", "$..G"]})
    for action in actions:
        try:
            state = world.step(state, action)
        except IllegalAction:
            continue
        assert_sound(state)


def assert_sound(state: Grid) -> None:
    places = {state.player, *state.boxes}
    assert len(places) == 3 and len(state.boxes) == 2
    assert all(
        0 <= row < 3 and 0 <= column < 4 and (row, column) not in state.walls for row, column in places
    )


def test_what_the_runner_trusts_is_put_back() -> None:
    original = {
        "a.py": b"1",
        "conftest.py": b"ours",
        "tests/test_old.py": b"old",
        "pyproject.toml": b"p",
        "tests/help.py": b"h",
    }
    policy = {"a.py": b"2", "b.py": b"new", "conftest.py": b"evil", "tests/test_old.py": b"evil", "pytest.py": b"evil", "x.pth": b"evil",
              "tests/test_new.py": b"evil", "src/sub/conftest.py": b"evil", "tests/hidden.py": b"evil", "c.pyc": b"evil", ".git/config": b"evil"}  # fmt: skip
    hidden = {"tests/hidden.py": b"hidden"}
    assert restored_tree(original, policy, hidden) == {
        "a.py": b"2", "b.py": b"new", "conftest.py": b"ours", "tests/test_old.py": b"old", "pyproject.toml": b"p",
        "tests/help.py": b"h", "tests/hidden.py": b"hidden",
    }  # fmt: skip


def test_the_registry_is_what_the_service_reads() -> None:
    assert METHODS.keys() == DECLARED.keys()
    for name, (model, check) in METHODS.items():
        assert (model, check) == (DECLARED[name].request, DECLARED[name].check)
    with pytest.raises(ConfigError, match="known: python_function_tests"):
        method("nope")


@pytest.mark.parametrize(
    ("name", "record", "words"),
    [
        ("program_tests", {"candidate": "x", "cases": []}, "cases"), ("program_tests", {"cases": [{"expected": "1"}]}, "no program"),
        ("property_check", {"output": 1, "inputs": [[1]]}, "give `property`"), ("property_check", {"output": 1, "inputs": [[1]], "property": "nice"}, "unknown"),
        ("property_check", {"inputs": [[1]], "property": "permutation"}, "give one `output`"), ("sql_result", {"query": "x"}, "either `expected`"),
        ("sql_result", {"query": "x", "expected": [[{}]]}, "unreadable"), ("geometry", {"format": "csg", "text": "{}", "expected": {}}, "names no measure"),
        ("geometry", {"format": "csg", "expected": {"genus": 1}}, "either as"), ("pytest_suite", {"files": {}, "hidden": {"t.py": ""}, "named": ["x.py::a"]}, "in no hidden"),
        ("pytest_suite", {"files": {}, "hidden": {"../t.py": ""}, "named": ["../t.py::a"]}, "leaves the tree"), ("state_diff", {"expected": [], "found": []}, "expected"),
        ("python_function_tests", {"candidate": "x"}, "entry_point"),
    ],
)  # fmt: skip
def test_a_record_that_is_no_request_says_why_in_one_line(
    name: str, record: dict[str, Any], words: str
) -> None:
    with pytest.raises(ContractError) as caught:
        DECLARED[name].read(record)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_defaults_fill_what_a_record_leaves_out() -> None:
    declared = DECLARED["program_tests"]
    record = {"candidate": "x", "cases": [{"expected": "1"}]}
    assert declared.read(record, {"partial": True}).options.partial is True
    assert (
        declared.read({**record, "options": {"partial": False}}, {"partial": True}).options.partial is False
    )
    assert declared.read({"cases": [{"expected": "1"}]}, {"argv": ["true"]}).argv == ("true",)
    with pytest.raises(ConfigError, match="unknown; known"):
        declared.read_defaults({"partal": True})
    with pytest.raises(ConfigError, match="partial"):
        declared.read_defaults({"partial": "perhaps"})


def test_requests_are_frozen() -> None:
    request = DECLARED["replay"].read({"simulator": "gridworld", "state": {}, "actions": []})
    with pytest.raises(ValidationError):
        request.simulator = "x"
