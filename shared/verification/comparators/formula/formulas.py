r"""Formulas: sums, products, powers, functions.

Invariant: `1/2x` is (1/2)·x, `\sin 2x` is sin(2x), `3\frac12` and `3 1/2` are mixed numbers, two numbers side by side
are no product. Sums and products are flat, so a tree is never deeper than the brackets of its text.
"""

from __future__ import annotations

from fractions import Fraction

from shared.verification.comparators.formula.cursor import Cursor
from shared.verification.comparators.formula.limits import MAX_ITEMS, SyntaxFault, Unreadable
from shared.verification.comparators.formula.nodes import (
    FORMULAS,
    MINUS_ONE,
    ONE,
    Brackets,
    Call,
    Constant,
    Infinity,
    Matrix,
    Name,
    NamedSet,
    Node,
    Number,
    PlusMinus,
    Power,
    Product,
    Quotient,
    SetOperation,
    Sum,
    Words,
    negated,
)

_INVERSE = {"sin": "arcsin", "cos": "arccos", "tan": "arctan", "sinh": "arcsinh", "cosh": "arccosh",
            "tanh": "arctanh"}  # fmt: skip
_TIGHT = frozenset(("sqrt", "cbrt", "abs", "floor", "ceil"))
"""Functions of what stands next to them alone: `√2x` is (√2)·x."""
_APPLIED = frozenset("fghFG")
"""Names that a bracket applies: `f(x)` is no product."""
_STARTS = frozenset(("(", "{", "frac", "tex_sqrt", "binom", "lfloor", "lceil"))
TWO, THREE, TEN = Number(Fraction(2)), Number(Fraction(3)), Number(Fraction(10))


def formula(node: Node) -> Node:
    """Raises `SyntaxFault` for what cannot stand in arithmetic."""
    if not isinstance(node, FORMULAS) or isinstance(node, Infinity):
        raise SyntaxFault(f"arithmetic with {type(node).__name__.lower()}")
    return node


class FormulaParser(Cursor):
    _bars = 0
    """Open `|` of this bracket."""
    _conditions = False
    """Inside the braces of a set, where `|` and `:` come before a condition."""

    def bracket(self) -> Node:
        """From an opening bracket or brace to its closing one; by the parser of statements."""
        raise NotImplementedError

    def matrix(self) -> Matrix:
        raise NotImplementedError

    def additive(self) -> Node:
        first = self._signed(self.take_if("+", "-", "pm", "mp"))
        terms = [first]
        while self.at("+", "-", "pm", "mp"):
            sign = self.take()
            if sign.text == "-" and len(terms) == 1 and isinstance(first, Brackets | NamedSet):
                return SetOperation("setminus", first, self.term())
            terms.append(self._signed(sign))
        return first if len(terms) == 1 else Sum(tuple(formula(term) for term in terms))

    def _signed(self, sign: object) -> Node:
        node = self.term()
        text = getattr(sign, "text", "+")
        if text == "+":
            return node
        if text == "-":
            return node if node == Number(Fraction(0)) else negated(_or_infinite(node))
        return PlusMinus(formula(node), 1 if text == "pm" else -1)

    def term(self) -> Node:
        first = self.power()
        factors = [first]
        while True:
            if self.take_if("*"):
                factors.append(self._factor())
            elif self.at("/") and not self._unit_follows():
                self.take()
                factors[-1:] = self._divided(formula(factors[-1]), len(factors) == 1)
            elif self.starts_factor():
                factors.append(self.power())
            else:
                break
        return factors[0] if len(factors) == 1 else Product(tuple(formula(factor) for factor in factors))

    def _divided(self, above: Node, first: bool) -> list[Node]:
        """`1/2%` is half of one percent: a sign at the very end belongs to the whole."""
        below, rest = formula(self._factor()), list[Node]()
        if self.last_symbol("%", "degree"):
            match below:
                case Product((inner, Constant() as sign)):
                    below, rest = inner, [sign]
        return [Quotient(above, below), *rest] if first else [above, Quotient(ONE, below), *rest]

    def _unit_follows(self) -> bool:
        return self.after.kind in ("unit", "text", "word")

    def starts_factor(self) -> bool:
        """Whether the next token multiplies what stands before it."""
        token = self.next
        if token.kind in ("name", "constant", "function"):
            return True
        if token.kind != "symbol":
            return False
        return token.text in _STARTS or (token.text == "|" and not self._bars and not self._conditions)

    def _factor(self) -> Node:
        negative = False
        while sign := self.take_if("+", "-"):
            negative ^= sign.text == "-"
        node = self.power()
        return negated(formula(node)) if negative else node

    def power(self) -> Node:
        node = self._postfix()
        return Power(formula(node), self._exponent()) if self.take_if("^") else node

    def _exponent(self) -> Node:
        with self.deeper():
            sign = self.take_if("+", "-", "pm", "mp")
            node = self._postfix()
            if self.take_if("^"):
                node = Power(formula(node), self._exponent())
        node = formula(node)
        if sign is None or sign.text == "+":
            return node
        return negated(node) if sign.text == "-" else PlusMinus(node, 1 if sign.text == "pm" else -1)

    def _postfix(self) -> Node:
        node, last = self.primary(), ""
        while self.at("!", "%", "degree"):
            text = self.take().text
            if text == "!":
                if last == "!":
                    raise SyntaxFault("a factorial of a factorial without brackets")
                node = Call("factorial", (formula(node),))
            elif isinstance(node, Product) and isinstance(node.factors[-1], Constant):
                raise SyntaxFault("two signs after one number")
            else:
                node = Product((formula(node), Constant("percent" if text == "%" else "degree")))
            last = text
        return node

    def primary(self) -> Node:
        with self.deeper():
            token = self.next
            match token.kind:
                case "number":
                    return self._number()
                case "name" | "constant":
                    return self._name()
                case "function":
                    return self._function()
                case "text":
                    return _words(self.take().text)
                case "unit" if token.text.isalpha() and len(token.text) <= 2:
                    self.take()
                    return Product(tuple(Name(letter) for letter in token.text))
                case "symbol":
                    return self._symbol()
            raise SyntaxFault(f"a value is missing before {self.where()}")

    def _number(self) -> Node:
        token = self.take()
        node = Number(token.value)
        if not token.plain:
            return node
        if self.at("frac"):
            part = self.primary()
            if (
                isinstance(part, Quotient)
                and isinstance(part.above, Number)
                and isinstance(part.below, Number)
            ):
                return _mixed(token.value, part.above.value, part.below.value)
            part = Power(formula(part), self._exponent()) if self.take_if("^") else part
            return Product((node, formula(part)))
        if self.next.kind == "number" and self.next.plain and self.next.spaced and self.after.text == "/":
            above = self.take()
            self.take()
            below = self.take()
            if below.kind != "number" or not below.plain:
                raise SyntaxFault("two numbers side by side")
            return _mixed(token.value, above.value, below.value)
        return node

    def _name(self) -> Node:
        token = self.take()
        if self.take_if("_"):
            return Name(f"{token.text}_{self._subscript()}")
        if token.kind == "constant":
            return Constant(token.text)  # type: ignore[arg-type]
        if self.at("(") and not self.next.spaced and (token.text in _APPLIED or self.definition_follows()):
            return Call(f"apply {token.text}", (formula(self.bracket()),))
        return Name(token.text)

    def _subscript(self) -> str:
        if not self.take_if("{"):
            return (
                self.take().text if self.next.kind in ("number", "name", "constant", "text") else self._none()
            )
        parts: list[str] = []
        while not self.at("}"):
            token = self.take()
            if token.kind == "end" or len(parts) >= 8:
                self._none()
            parts.append(token.text)
        self.take()
        return "".join(parts)

    def _none(self) -> str:
        raise SyntaxFault(f"a subscript that is no name, before {self.where()}")

    def _function(self) -> Node:
        name = self.take().text
        base, exponent = None, None
        for _ in range(2):
            if exponent is None and self.take_if("^"):
                exponent = self._exponent()
            elif base is None and name == "log" and self.take_if("_"):
                base = self._base()
        argument = formula(self._argument(name))
        if exponent == MINUS_ONE and name in _INVERSE:
            return Call(_INVERSE[name], (argument,))
        node = _call(name, argument, base)
        return node if exponent is None else Power(node, exponent)

    def _base(self) -> Node:
        if self.next.kind == "number" and self.next.text == "10":
            return Number(self.take().value)
        return formula(self.argument())

    def _argument(self, name: str) -> Node:
        if self.at("(", "{", "["):
            return self.bracket()
        if name in _TIGHT:
            return self.primary()
        factors = [formula(self._factor())]
        while self.starts_factor() and self.next.kind != "function":
            factors.append(formula(self.power()))
        return factors[0] if len(factors) == 1 else Product(tuple(factors))

    def argument(self) -> Node:
        """What a TeX command takes: a group or a single character."""
        if self.at("{"):
            return self.bracket()
        digit = self.first_digit()
        return Number(digit.value) if digit else self.primary()

    def _symbol(self) -> Node:
        text = self.next.text
        if text in ("(", "[", "]", "{", "set{"):
            return self.bracket()
        if text in ("matrix", "vmatrix"):
            return self.matrix()
        if text in ("frac", "tex_sqrt", "binom", "lfloor", "lceil", "|"):
            self.take()
            return self._structure(text)
        if text == "inf":
            self.take()
            return Infinity()
        if text.startswith("set:"):
            self.take()
            return NamedSet(text[4:])
        if text == "U":
            self.take()
            return Name("U")
        raise SyntaxFault(f"a value is missing before {self.where()}")

    def _structure(self, text: str) -> Node:
        if text in ("frac", "binom"):
            above, below = formula(self.argument()), formula(self.argument())
            return Quotient(above, below) if text == "frac" else Call("binomial", (above, below))
        if text == "tex_sqrt":
            degree: Node = TWO
            if self.take_if("["):
                degree = formula(self.additive())
                self.expect("]")
            return Call("root", (formula(self.argument()), degree))
        closing = {"|": "|", "lfloor": "rfloor", "lceil": "rceil"}[text]
        self._bars += text == "|"
        inner = formula(self.additive())
        self._bars -= text == "|"
        self.expect(closing)
        return Call({"|": "abs", "lfloor": "floor", "lceil": "ceil"}[text], (inner,))


def _or_infinite(node: Node) -> Node:
    return node if isinstance(node, Infinity) else formula(node)


def _call(name: str, argument: Node, base: Node | None) -> Node:
    match name:
        case "sqrt":
            return Call("root", (argument, TWO))
        case "cbrt":
            return Call("root", (argument, THREE))
        case "exp":
            return Power(Constant("e"), argument)
        case "log" | "lg":
            return Call("log", (argument, base or TEN))
    return Call(name, (argument,))


def _mixed(whole: Fraction, above: Fraction, below: Fraction) -> Number:
    if not 0 < above < below or above.denominator != 1 or below.denominator != 1:
        raise Unreadable("a number beside a fraction that is no mixed number")
    return Number(whole + above / below)


def _words(text: str) -> Node:
    """One letter, bare or in brackets, is a name; the rest is words."""
    inner = text[1:-1].strip() if text.startswith("(") and text.endswith(")") else text.strip()
    if len(inner) == 1 and inner.isascii() and inner.isalpha():
        return Constant(inner) if inner in "ei" else Name(inner)  # type: ignore[arg-type]
    if not inner or len(text) > MAX_ITEMS:
        raise SyntaxFault("words without a letter")
    return Words(text)
