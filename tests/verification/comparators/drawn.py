"""Typed pairs made by rule: a value is drawn, written in two ways, and spoilt in one.

Writers are independent of the readers under test: they print from Python numbers, never from a parsed answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from fractions import Fraction
from random import Random
from typing import Any, NamedTuple


class Pair(NamedTuple):
    type: Any
    left: str
    right: str
    equal: bool


Rule = Callable[[Random], Iterator[Pair]]


def integers(rng: Random) -> Iterator[Pair]:
    n = rng.choice((-1, 1)) * rng.randint(2, 10 ** rng.randint(1, 12))
    k = rng.randint(2, 9)
    forms = (f"{n:,}", f"${n}$", rf"\frac{{{n * k}}}{{{k}}}", f"{n}.0", rf"{n}_{{10}}", f"{n - k}+{k}", f"x={n}",
             f"{n}".replace("-", "−"), rf"\text{{{n}}}" if n > 0 else f"({n})")  # fmt: skip
    yield Pair({"type": "integer", "value_only": False}, str(n), rng.choice(forms), True)
    for wrong in (
        str(n + rng.choice((-1, 1))),
        str(-n),
        f"{n}{rng.randint(0, 9)}",
        f"{n} or {n + 1}",
        rf"{n}\%",
    ):
        yield Pair("integer", str(n), wrong, False)


def rationals(rng: Random) -> Iterator[Pair]:
    q = rng.randint(2, 40)
    value = Fraction(rng.randint(1, 400) * q + rng.randint(1, q - 1), q)
    p, q = value.numerator, value.denominator
    whole, rest = divmod(p, q)
    k = rng.randint(2, 9)
    forms = (rf"\frac{{{p}}}{{{q}}}", f"{p}/{q}", rf"\frac{{{p * k}}}{{{q * k}}}", f"{whole} {rest}/{q}",
             rf"{whole}\frac{{{rest}}}{{{q}}}", rf"${whole}\tfrac{{{rest}}}{{{q}}}$", repeating(value),
             rf"{p * 100}/{q}\%" if p * 100 % q else rf"{p * 100 // q}\%", rf"\frac{{-{p}}}{{-{q}}}", f"{p}÷{q}")  # fmt: skip
    left, right = rng.sample(forms, 2)
    yield Pair("rational", left, right, True)
    for wrong in (rf"\frac{{{p}}}{{{q + 1}}}", f"{q}/{p}", f"{float(value):.3f}7", f"-{p}/{q}", f"{whole}"):
        yield Pair("rational", left, wrong, False)


def repeating(value: Fraction) -> str:
    """Long division, with the period under a bar."""
    whole, rest = divmod(value.numerator, value.denominator)
    digits, seen = "", dict[int, int]()
    while rest and rest not in seen:
        seen[rest] = len(digits)
        digit, rest = divmod(rest * 10, value.denominator)
        digits += str(digit)
    if not rest:
        return f"{whole}.{digits}"
    start = seen[rest]
    return rf"{whole}.{digits[:start]}\overline{{{digits[start:]}}}"


def decimals(rng: Random) -> Iterator[Pair]:
    places = rng.randint(1, 4)
    value = Fraction(rng.randint(-(10**6), 10**6), 10**places)
    step = Fraction(1, 10 ** rng.randint(1, 3))
    kind = {"type": "decimal", "absolute": str(step)}
    for share, equal in ((Fraction(99, 100), True), (Fraction(1), True), (Fraction(101, 100), False)):
        other = value + rng.choice((-1, 1)) * step * share
        yield Pair(kind, written(value), written(other), equal)
    size = value if value else Fraction(1)
    yield Pair(
        {"type": "decimal", "relative": "0.01"}, written(size), written(size * Fraction(100, 99)), True
    )
    yield Pair({"type": "decimal", "relative": "0.01"}, written(size), rf"\frac{{{(size * 98).numerator}}}"
               rf"{{{(size * 98).denominator * 100}}}", False)  # fmt: skip
    yield Pair("decimal", written(value), written(value + Fraction(1, 10**12)), False)


def written(value: Fraction) -> str:
    """A finite decimal, or a fraction where there is none."""
    for places in range(20):
        scaled = value * 10**places
        if scaled.denominator == 1:
            digits = f"{abs(scaled.numerator):0{places + 1}d}"
            sign = "-" if value < 0 else ""
            return sign + (f"{digits[:-places]}.{digits[-places:]}" if places else digits)
    return f"{value.numerator}/{value.denominator}"


UNITS = (("m", "cm", 100), ("km", "m", 1000), ("kg", "g", 1000), ("hours", "minutes", 60), ("L", "mL", 1000),
         ("feet", "inches", 12), ("days", "hours", 24), ("km/h", "m/h", 1000), ("m^2", "cm^2", 10**4))  # fmt: skip


def quantities(rng: Random) -> Iterator[Pair]:
    large, small, factor = rng.choice(UNITS)
    n = rng.randint(2, 500)
    left, right = f"{n} {large}", f"{n * factor} {small}"
    tex = rf"{n}\text{{ {large}}}" if "^" not in large else rf"{n}\text{{ {large[:-2]}}}^2"
    yield Pair("quantity", tex, right, True)
    yield Pair("quantity", tex, left, True)
    for wrong in (
        f"{n} {small}",
        f"{n * factor} {large}",
        f"{n * factor + 1} {small}",
        f"{n}",
        f"{n} bananas",
    ):
        yield Pair("quantity", tex, wrong, False)


def items(rng: Random, least: int = 2) -> list[int]:
    return rng.sample(range(-50, 51), rng.randint(least, 6))


def sets(rng: Random) -> Iterator[Pair]:
    values = items(rng)
    mixed = rng.sample(values, len(values))
    left = r"\{" + ",".join(map(str, values)) + r"\}"
    for right in (", ".join(map(str, mixed)), "{" + ",".join(map(str, [*mixed, mixed[0]])) + "}",
                  " or ".join(f"x={n}" for n in mixed)):  # fmt: skip
        yield Pair("set", left, right, True)
    yield Pair("set", left, r"\{" + ",".join(map(str, values[1:])) + r"\}", False)
    yield Pair("set", left, r"\{" + ",".join(map(str, [values[0] + 101, *values[1:]])) + r"\}", False)
    yield Pair("set", left, "(" + ",".join(map(str, values)) + ")", False)


def multisets(rng: Random) -> Iterator[Pair]:
    values = items(rng)
    values.append(values[0])
    left = r"\{" + ",".join(map(str, values)) + r"\}"
    yield Pair("multiset", left, ", ".join(map(str, rng.sample(values, len(values)))), True)
    yield Pair("multiset", left, r"\{" + ",".join(map(str, values[:-1])) + r"\}", False)
    yield Pair("multiset", left, ", ".join(map(str, [*values[:-1], values[1]])), False)


def tuples(rng: Random) -> Iterator[Pair]:
    values = items(rng)
    left = "(" + ",".join(map(str, values)) + ")"
    yield Pair(
        "tuple", left, r"\left( " + " , ".join(rf"\frac{{{2 * n}}}{{2}}" for n in values) + r" \right)", True
    )
    yield Pair("tuple", left, "[" + ", ".join(map(str, values)) + "]", True)
    yield Pair("tuple", left, "(" + ",".join(map(str, [values[1], values[0], *values[2:]])) + ")", False)
    yield Pair("tuple", left, "(" + ",".join(map(str, values[:-1])) + ")", False)
    yield Pair("tuple", left, r"\{" + ",".join(map(str, values)) + r"\}", False)


def intervals(rng: Random) -> Iterator[Pair]:
    low = rng.randint(-50, 49)
    high = rng.randint(low + 1, 50)
    opening, closing = rng.choice("(["), rng.choice(")]")
    below, above = (r"\le" if opening == "[" else "<"), (r"\le" if closing == "]" else "<")
    left = f"{opening}{low},{high}{closing}"
    middle = Fraction(low + high, 2)
    union = rf"{opening}{low},{written(middle)}]\cup[{written(middle)},{high}{closing}"
    for right in (
        f"{low}{below} x{above} {high}",
        rf"\{{t : {2 * low} {below} 2t {above} {2 * high}\}}",
        union,
    ):
        yield Pair("interval", left, right, True)
    flipped = "([".replace(opening, "")
    for wrong in (f"{flipped}{low},{high}{closing}", f"{opening}{low},{high + 1}{closing}", rf"\{{{low},{high}\}}",
                  f"x {above} {high}", f"({low},{written(middle)})\\cup({written(middle)},{high})"):  # fmt: skip
        yield Pair("interval", left, wrong, False)


def matrices(rng: Random) -> Iterator[Pair]:
    rows, columns = rng.randint(1, 3), rng.randint(2, 3)
    cells = [[rng.randint(-9, 9) for _ in range(columns)] for _ in range(rows)]
    cells[0][0], cells[0][1] = 11, 12
    tex = matrix(cells, "pmatrix")
    yield Pair("matrix", tex, matrix(cells, "bmatrix"), True)
    yield Pair("matrix", tex, json.dumps(cells), True)
    spoilt = [list(row) for row in cells]
    spoilt[-1][-1] += 1
    yield Pair("matrix", tex, matrix(spoilt, "pmatrix"), False)
    yield Pair("matrix", tex, matrix([[row[i] for row in cells] for i in range(columns)], "pmatrix"), False)


def matrix(cells: list[list[int]], name: str) -> str:
    body = r" \\ ".join(" & ".join(map(str, row)) for row in cells)
    return rf"\begin{{{name}}} {body} \end{{{name}}}"


def expressions(rng: Random) -> Iterator[Pair]:
    a, b, c = rng.randint(1, 9), rng.randint(-9, 9), rng.randint(-9, 9)
    factored = f"{a}(x{b:+d})(x{c:+d})"
    expanded = f"{a}x^2{a * (b + c):+d}x{a * b * c:+d}"
    yield Pair("expression", factored, expanded, True)
    yield Pair("expression", factored, rf"{expanded}+\sin^2 x+\cos^2 x-1", True)
    yield Pair(
        "expression", factored, rf"\frac{{{2 * a}x^2{2 * a * (b + c):+d}x{2 * a * b * c:+d}}}{{2}}", True
    )
    yield Pair("expression", factored, f"{a}x^2{a * (b + c) + 1:+d}x{a * b * c:+d}", False)
    yield Pair("expression", factored, expanded.replace("x", "y"), False)
    yield Pair("expression", factored, rf"{expanded}+10^{{-{rng.randint(20, 80)}}}\sin^2 x", False)


def trigonometry(rng: Random) -> Iterator[Pair]:
    k, m = rng.randint(2, 5), rng.randint(2, 9)
    yield Pair("expression", rf"\sin({2 * k}x)", rf"2\sin({k}x)\cos({k}x)", True)
    yield Pair("expression", rf"{m}^{{x+{k}}}", rf"{m**k}\cdot {m}^x", True)
    yield Pair("expression", rf"\ln({m}^{k})", rf"{k}\ln {m}", True)
    yield Pair("expression", rf"\sqrt{{{m * m * k}}}", rf"{m}\sqrt{{{k}}}", True)
    yield Pair("expression", rf"\sin({2 * k}x)", rf"2\sin({k}x)\cos({k + 1}x)", False)
    yield Pair("expression", rf"\ln({m}^{k})", rf"{k}\ln {m + 1}", False)
    yield Pair("expression", rf"\sqrt{{{m * m * k}}}", rf"{m}\sqrt{{{k + 1}}}", False)


def choices(rng: Random) -> Iterator[Pair]:
    right, wrong = rng.sample("ABCDE", 2)
    for form in (
        f"({right})",
        f"{right}.",
        rf"\text{{({right})}}",
        f"option {right.lower()}",
        f"**{right}**",
    ):
        yield Pair("choice", right, form, True)
    for form in (wrong, f"{right} or {wrong}", f"{right}{wrong}", f"not {right}"):
        yield Pair("choice", right, form, False)


def booleans(rng: Random) -> Iterator[Pair]:
    true, false = (
        rng.choice(("true", "Yes", r"\text{True}", "T")),
        rng.choice(("False", "no", r"\text{No}", "f")),
    )
    yield Pair("boolean", "true", true, True)
    yield Pair("boolean", "false", false, True)
    yield Pair("boolean", "true", false, False)
    yield Pair("boolean", "true", f"{true} and {false}", False)


def dates(rng: Random) -> Iterator[Pair]:
    day = date(1950, 1, 1) + timedelta(days=rng.randint(0, 30_000))
    yield Pair("date", day.isoformat(), f"{day:%B} {day.day}, {day.year}", True)
    yield Pair("date", day.isoformat(), f"{day.day} {day:%b} {day.year}", True)
    yield Pair("date", day.isoformat(), (day + timedelta(days=1)).isoformat(), False)
    yield Pair("date", day.isoformat(), f"{day.month}/{day.day}/{day.year}", False)


def texts(rng: Random) -> Iterator[Pair]:
    words = rng.sample(("red", "Green", "north", "York", "value", "Zürich", "straße"), 3)
    left = " ".join(words)
    yield Pair("text", left, f"  {left.upper()} . ", True)
    yield Pair("text", left, " ".join(reversed(words)), False)
    yield Pair("text", left, left[:-1], False)


FIELDS = {
    "type": "json",
    "fields": {"name": "text", "age": "integer", "price": {"type": "decimal", "absolute": "0.01"}},
}


def objects(rng: Random) -> Iterator[Pair]:
    price = Fraction(rng.randint(100, 9999), 100)
    record = {"name": rng.choice(("Ada", "Ben")), "age": rng.randint(1, 99), "price": float(price)}
    left = json.dumps(record)
    reordered = {"price": str(float(price)), "name": str(record["name"]).lower(), "age": record["age"]}
    yield Pair(FIELDS, left, json.dumps(reordered), True)
    yield Pair(FIELDS, left, "```json\n" + json.dumps(record, indent=1) + "\n```", True)
    for spoilt in (
        {"age": int(str(record["age"])) + 1},
        {"name": "Cleo"},
        {"price": float(price) + 1},
        {"more": 1},
    ):
        yield Pair(FIELDS, left, json.dumps({**record, **spoilt}), False)
    yield Pair(FIELDS, left, json.dumps({key: record[key] for key in ("name", "age")}), False)


def tables(rng: Random) -> Iterator[Pair]:
    rows = [[name, rng.randint(1, 99)] for name in rng.sample(("Ada", "Ben", "Cleo", "Dan"), 3)]
    mixed = [rows[1], rows[2], rows[0]]
    left = json.dumps(rows)
    csv = "\n".join(f"{name}, {n}.0" for name, n in rows)
    markdown = "| who | n |\n|---|---|\n" + "\n".join(f"| {name} | {n} |" for name, n in rows)
    sequence = {"type": "table", "header": False}
    yield Pair(sequence, left, csv, True)
    yield Pair(sequence, left, markdown, True)
    yield Pair(sequence, left, json.dumps(mixed), False)
    yield Pair({**sequence, "rows": "set"}, left, json.dumps([*mixed, mixed[0]]), True)
    yield Pair({**sequence, "rows": "bag"}, left, json.dumps(mixed), True)
    yield Pair({**sequence, "rows": "bag"}, left, json.dumps([*mixed, mixed[0]]), False)
    yield Pair({**sequence, "rows": "set"}, left, json.dumps([*mixed[:2], ["Eva", 1]]), False)


RULES: tuple[Rule, ...] = (integers, rationals, decimals, quantities, sets, multisets, tuples, intervals, matrices,
                           expressions, trigonometry, choices, booleans, dates, texts, objects, tables)  # fmt: skip


def drawn_pairs(seed: int, rounds: int) -> list[Pair]:
    """The same pairs for the same seed."""
    rng = Random(seed)
    return [pair for _ in range(rounds) for rule in RULES for pair in rule(rng)]
