"""Named properties of an output, for `property_check`. Runs beside the tests, never beside the policy's code.

Invariant: each is `name(inputs, output) -> bool` on plain data, takes any output without harm (what raises does not
hold), and never changes its inputs. `judge_all` runs one over the cases.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

MAX_OUTPUT = 1_000_000
"""Items of an output that are looked at."""


class CaseFailed(AssertionError):
    """`args[0]` is the number of the case."""


def judge_all(candidate: Callable[..., Any], name: str, cases: Any) -> None:
    """Calls the candidate on each case's arguments; raises `CaseFailed` at the first output without the property."""
    holds = globals()[name]
    for number, arguments in enumerate(cases, start=1):
        output = candidate(*copy.deepcopy(arguments))
        if not _holds(holds, copy.deepcopy(tuple(arguments)), output):
            raise CaseFailed(number)


def judge_output(candidate: object, name: str, arguments: Any, output: Any) -> None:
    """As `judge_all`, for an output that is there already."""
    del candidate
    if not _holds(globals()[name], tuple(arguments), output):
        raise CaseFailed(1)


def _holds(holds: Callable[[Any, Any], Any], inputs: Any, output: Any) -> bool:
    try:
        return holds(inputs, output) is True
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, OverflowError, ZeroDivisionError):
        return False


def _items(output: Any) -> list[Any]:
    if not isinstance(output, list | tuple) or len(output) > MAX_OUTPUT:
        raise TypeError("not a list")
    return list(output)


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise TypeError("not an integer")
    return value


def permutation(inputs: Any, output: Any) -> bool:
    """The first input's items, each as often, in any order."""
    items, given = _items(output), list(inputs[0])
    if len(items) != len(given):
        return False
    try:
        return Counter(map(_typed, items)) == Counter(map(_typed, given))
    except TypeError:
        rest = list(given)
        for item in items:
            rest.remove(item)
        return not rest


def sorted_permutation(inputs: Any, output: Any) -> bool:
    """A permutation of the first input in ascending order."""
    items = _items(output)
    return permutation(inputs, items) and all(a <= b for a, b in itertools.pairwise(items))


def unique_in_order(inputs: Any, output: Any) -> bool:
    """The first input's items, each once, in the order of their first appearance."""
    kept: list[Any] = []
    for item in inputs[0]:
        if item not in kept:
            kept.append(item)
    return _items(output) == kept


def prime_factors(inputs: Any, output: Any) -> bool:
    """Primes, in any order, whose product is the first input (over 1)."""
    factors = [_whole(item) for item in _items(output)]
    return bool(factors) and math.prod(factors) == _whole(inputs[0]) and all(map(_is_prime, factors))


def integer_root(inputs: Any, output: Any) -> bool:
    """The largest r with r * r <= n."""
    root, n = _whole(output), _whole(inputs[0])
    return root >= 0 and root * root <= n < (root + 1) * (root + 1)


def topological_order(inputs: Any, output: Any) -> bool:
    """Inputs: nodes and edges (from, to). All nodes once, every edge forward."""
    nodes, edges = inputs[0], inputs[1]
    order = _items(output)
    place = {node: at for at, node in enumerate(order)}
    complete = len(order) == len(nodes) and place.keys() == set(nodes)
    return complete and all(place[first] < place[second] for first, second in edges)


def walk(inputs: Any, output: Any) -> bool:
    """Inputs: edges (from, to), start and goal. Nodes from start to goal, each step an edge."""
    edges, start, goal = {(a, b) for a, b in inputs[0]}, inputs[1], inputs[2]
    nodes = _items(output)
    steps = itertools.pairwise(nodes)
    return bool(nodes) and nodes[0] == start and nodes[-1] == goal and all(step in edges for step in steps)


def subset_with_sum(inputs: Any, output: Any) -> bool:
    """Inputs: integers and a target. Some of them, each at most as often as given, that add up to it."""
    chosen = [_whole(item) for item in _items(output)]
    return sum(chosen) == inputs[1] and not Counter(chosen) - Counter(inputs[0])


def _typed(value: Any) -> Any:
    """`True` and `1` are two things here, and so are `1` and `1.0`."""
    hash(value)
    return type(value).__name__, value


def _is_prime(number: int) -> bool:
    if number < 2 or number > 1 << 40:
        return False
    return all(number % divisor for divisor in range(2, math.isqrt(number) + 1))


NAMES = (
    "permutation", "sorted_permutation", "unique_in_order", "prime_factors", "integer_root", "topological_order",
    "walk", "subset_with_sum",
)  # fmt: skip
