"""Whole answers: formulas with their units, relations, sets, tuples, matrices, and lists of these.

Invariant: a bracket is what its signs say: `(0,1)` is two items in round brackets until another value says whether
an interval or a pair is meant; braces with a comma are a set, braces of TeX a group.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Literal

from shared.verification.comparators.formula.formulas import FormulaParser, formula
from shared.verification.comparators.formula.limits import MAX_ITEMS, SyntaxFault, Unreadable
from shared.verification.comparators.formula.nodes import (
    FORMULAS,
    Braces,
    Brackets,
    Builder,
    Infinity,
    Listing,
    Matrix,
    Measured,
    Name,
    NamedSet,
    Node,
    Number,
    Power,
    Product,
    Ratio,
    Relation,
    SetOperation,
)
from shared.verification.comparators.formula.spelling import KEYWORDS
from shared.verification.comparators.formula.tokens import Token, Tokenizer
from shared.verification.comparators.formula.unit_parser import read_unit

_RELATIONS = ("=", "<", ">", "<=", ">=", "!=", "in")
_SETS = (Brackets, Braces, NamedSet, SetOperation, Builder)


def parse(source: str) -> Node:
    """The tree of a plain source. Raises `SyntaxFault`, or `Unreadable` where a limit is passed."""
    tokens = [plain for token in Tokenizer(source).tokens() for plain in _plain_text(token)]
    return StatementParser(tokens).answer()


def _plain_text(token: Token) -> list[Token]:
    r"""`\text{ or }` is the keyword, `\text{12 cm}` what it says; words stay text."""
    if token.kind != "text":
        return [token]
    if token.text.lower() in KEYWORDS and len(token.text) > 1:
        kind, text = KEYWORDS[token.text.lower()]
        return [Token(kind, text, True)]
    if token.text[:1].isdigit():
        return Tokenizer(token.text).tokens()[:-1]
    return [token]


class StatementParser(FormulaParser):
    def answer(self) -> Node:
        node = self.listing()
        if self.next.kind != "end":
            raise SyntaxFault(f"more after the answer: {self.where()}")
        return node

    def listing(self) -> Node:
        items, joiners = [self.statement()], set[str]()
        while joiner := self._joiner():
            joiners.add(joiner)
            items.append(self.statement())
            if len(items) > MAX_ITEMS:
                raise Unreadable(f"a list of over {MAX_ITEMS} items")
        if len(items) == 1:
            return items[0]
        kind: Literal["or", "and", ","] = "or" if "or" in joiners else "and" if "and" in joiners else ","
        return Listing(tuple(items), kind)

    def _joiner(self) -> str:
        token = self.take_if(",", ";", "or", "and")
        if token is None:
            return ""
        word = self.take_if("or", "and") if token.text in ",;" else token
        return word.text if word else ","

    def statement(self) -> Node:
        sides, operators = [self._union()], []
        while self.at(*_RELATIONS):
            operators.append(self.take().text)
            sides.append(self._union())
            if len(sides) > 8:
                raise Unreadable("a chain of over 7 relations")
        if operators:
            return Relation(tuple(sides), tuple(operators))
        if self.at(":") and not self._conditions:
            return self._ratio(sides)
        return sides[0]

    def _ratio(self, parts: list[Node]) -> Node:
        while self.take_if(":"):
            parts.append(self._union())
            if len(parts) > 8:
                raise Unreadable("a ratio of over 8 parts")
        return Ratio(tuple(formula(part) for part in parts))

    def _union(self) -> Node:
        node = self._measured()
        for _ in range(MAX_ITEMS):
            operator = self.take_if("cup", "cap", "setminus", "U")
            if operator is None:
                return node
            if not isinstance(node, _SETS):
                raise SyntaxFault("a union of what is no set")
            name: Literal["cap", "setminus", "cup"] = (
                "cap" if operator.text == "cap" else "setminus" if operator.text == "setminus" else "cup"
            )
            right = self._measured()
            if name == "cup" and isinstance(node, SetOperation) and _terms(node) > MAX_ITEMS // 8:
                raise Unreadable("a union of too many sets")
            node = SetOperation(name, node, right)
        raise Unreadable("a union of too many sets")

    def _measured(self) -> Node:
        before: tuple[tuple[str, int], ...] = ()
        sign = self.at("-") and self.after.kind == "unit"
        if sign:
            self.take()
        if self.next.kind == "unit" and (sign or self.after.kind in ("number", "symbol")):
            before = ((self.take().text, 1),)
        node = self.additive()
        if sign:
            node = Product((Number(Fraction(-1)), formula(node)))
        if self.next.kind == "symbol" and self.next.text.startswith("scale:"):
            node = Product((formula(node), _scale(self.take().text[6:])))
        if self.next.kind not in ("unit", "text", "word") and not before:
            return node
        unit = before + read_unit(self)
        return Measured(node if isinstance(node, Infinity) else formula(node), unit)

    def bracket(self) -> Node:
        with self.deeper():
            bars, conditions = self._bars, self._conditions
            self._bars, self._conditions = 0, False
            opening = self.take().text
            if opening in ("{", "set{"):
                node = self._braces("}" if opening == "{" else "set}")
            else:
                node = self._brackets(opening)
            self._bars, self._conditions = bars, conditions
        return node

    def _brackets(self, opening: str) -> Node:
        closings: tuple[str, ...] = (")", "]") if opening != "]" else ("[", "]", ")")
        if self.at(")", "]") and opening != "]":
            return Brackets(opening, (), self.take().text)
        items = self._items()
        if opening == "[" and len(items) == 2 and self.at("["):
            closings = ("[",)
        closing = self.expect(*closings).text
        if (opening == "]" or closing == "[") and len(items) == 2:
            opening = "(" if opening == "]" else opening
            closing = ")" if closing == "[" else closing
        group = opening + closing
        if group not in ("()", "[]") and len(items) != 2:
            raise SyntaxFault("brackets that do not match")
        if len(items) == 1 and (
            group == "()" or (group == "[]" and isinstance(items[0], (*FORMULAS, Matrix)))
        ):
            return items[0]
        return Brackets(opening, items, closing)

    def _items(self) -> tuple[Node, ...]:
        items = [self.statement()]
        while self.take_if(",", ";"):
            items.append(self.statement())
            if len(items) > MAX_ITEMS:
                raise Unreadable(f"a list of over {MAX_ITEMS} items")
        return tuple(items)

    def _braces(self, closing: str) -> Node:
        if self.take_if(closing):
            return Braces(())
        self._conditions = closing == "set}"
        first = self.statement()
        if self._conditions and self.at("|", ":"):
            self.take()
            self._conditions = False
            node = _builder(first, self.listing())
            self.expect(closing)
            return node
        self._conditions = False
        items = [first]
        while self.take_if(",", ";"):
            items.append(self.statement())
            if len(items) > MAX_ITEMS:
                raise Unreadable(f"a set of over {MAX_ITEMS} items")
        self.expect(closing)
        return items[0] if closing == "}" and len(items) == 1 else Braces(tuple(items))

    def matrix(self) -> Matrix:
        if self.take().text == "vmatrix":
            raise Unreadable("a determinant is no matrix")
        rows: list[tuple[Node, ...]] = []
        row: list[Node] = []
        while True:
            row.append(formula(self.additive()))
            ending = self.expect("&", "newline", "endmatrix").text
            if ending != "&":
                rows.append(tuple(row))
                row = []
            if ending == "endmatrix" or (ending == "newline" and self.take_if("endmatrix")):
                break
            if len(rows) * len(row) > MAX_ITEMS:
                raise Unreadable("a matrix of too many entries")
        if any(len(row) != len(rows[0]) for row in rows):
            raise SyntaxFault("a matrix with rows of different lengths")
        return Matrix(tuple(rows))


def _scale(digits: str) -> Node:
    """What `million` stands for: a power of ten, or a dozen."""
    if digits.strip("0") != "1":
        return Number(Fraction(digits))
    return Power(Number(Fraction(10)), Number(Fraction(len(digits) - 1)))


def _terms(node: Node) -> int:
    count = 1
    while isinstance(node, SetOperation):
        node, count = node.left, count + 1
    return count


def _builder(first: Node, conditions: Node) -> Node:
    domain = None
    if isinstance(first, Relation) and first.operators == ("in",):
        first, domain = first.sides
    if not isinstance(first, Name):
        raise Unreadable("a set by a condition on more than one variable")
    if isinstance(domain, FORMULAS):
        raise SyntaxFault("a variable in what is no set")
    return Builder(first.text, domain, conditions)
