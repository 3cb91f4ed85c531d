"""Units: what each is in base units, exactly, so that 1 km and 1000 m are one length and 5 m/s is not 5 km/h.

Invariant: factors are fractions; a word that is no known unit is a dimension of its own, equal to itself alone.
Factors: the international yard and pound (1959), the BIPM SI brochure (9th edition); a month or a year has no fixed
number of days, so each is a dimension of its own (12 months are a year). Temperatures are not converted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction as F

Dimension = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Unit:
    """`factor` base units of `dimension`; `known` where every word of it is in the tables."""

    factor: F
    dimension: Dimension
    known: bool = True


_LENGTH = {
    "m": F(1), "meter": F(1), "metre": F(1), "km": F(1000), "kilometer": F(1000), "kilometre": F(1000),
    "dm": F(1, 10), "cm": F(1, 100), "centimeter": F(1, 100), "centimetre": F(1, 100), "mm": F(1, 1000),
    "millimeter": F(1, 1000), "millimetre": F(1, 1000), "um": F(1, 10**6), "nm": F(1, 10**9),
    "inch": F(254, 10**4), "inches": F(254, 10**4), "in": F(254, 10**4), "ft": F(3048, 10**4),
    "foot": F(3048, 10**4), "feet": F(3048, 10**4), "yd": F(9144, 10**4), "yard": F(9144, 10**4),
    "mi": F(1609344, 1000), "mile": F(1609344, 1000),
}  # fmt: skip
_MASS = {
    "kg": F(1), "kilogram": F(1), "g": F(1, 1000), "gram": F(1, 1000), "mg": F(1, 10**6), "milligram": F(1, 10**6),
    "tonne": F(1000), "lb": F(45359237, 10**8), "lbs": F(45359237, 10**8), "pound": F(45359237, 10**8),
    "oz": F(45359237, 16 * 10**8), "ounce": F(45359237, 16 * 10**8),
}  # fmt: skip
_TIME = {
    "s": F(1), "sec": F(1), "second": F(1), "ms": F(1, 1000), "millisecond": F(1, 1000), "min": F(60),
    "mins": F(60), "minute": F(60), "h": F(3600), "hr": F(3600), "hrs": F(3600), "hour": F(3600), "day": F(86400),
    "week": F(604800), "us": F(1, 10**6), "ns": F(1, 10**9),
}  # fmt: skip
_LITRE = F(1, 1000)
_VOLUME = {
    "L": _LITRE, "l": _LITRE, "liter": _LITRE, "litre": _LITRE, "mL": _LITRE / 1000, "ml": _LITRE / 1000,
    "milliliter": _LITRE / 1000, "millilitre": _LITRE / 1000, "cc": _LITRE / 1000,
}  # fmt: skip
_MONEY = {
    "$": ("USD", F(1)), "USD": ("USD", F(1)), "dollar": ("USD", F(1)), "cent": ("USD", F(1, 100)),
    "¢": ("USD", F(1, 100)), "€": ("EUR", F(1)), "EUR": ("EUR", F(1)), "euro": ("EUR", F(1)),
    "£": ("GBP", F(1)), "GBP": ("GBP", F(1)), "¥": ("JPY", F(1)), "JPY": ("JPY", F(1)), "yen": ("JPY", F(1)),
}  # fmt: skip
_NEWTON = (("kg", 1), ("m", 1), ("s", -2))
_JOULE = (("kg", 1), ("m", 2), ("s", -2))
_WATT = (("kg", 1), ("m", 2), ("s", -3))
_PASCAL = (("kg", 1), ("m", -1), ("s", -2))
_HERTZ = (("s", -1),)
_DERIVED: dict[str, tuple[F, Dimension]] = {
    "N": (F(1), _NEWTON), "newton": (F(1), _NEWTON), "kN": (F(1000), _NEWTON),
    "J": (F(1), _JOULE), "joule": (F(1), _JOULE), "kJ": (F(1000), _JOULE), "kWh": (F(3_600_000), _JOULE),
    "W": (F(1), _WATT), "watt": (F(1), _WATT), "kW": (F(1000), _WATT), "MW": (F(10**6), _WATT),
    "Pa": (F(1), _PASCAL), "pascal": (F(1), _PASCAL), "kPa": (F(1000), _PASCAL), "bar": (F(10**5), _PASCAL),
    "Hz": (F(1), _HERTZ), "hertz": (F(1), _HERTZ), "kHz": (F(1000), _HERTZ), "MHz": (F(10**6), _HERTZ),
    "mph": (_LENGTH["mi"] / 3600, (("m", 1), ("s", -1))), "kph": (F(1000, 3600), (("m", 1), ("s", -1))),
    "month": (F(1), (("month", 1),)), "year": (F(12), (("month", 1),)), "yr": (F(12), (("month", 1),)),
    "hectare": (F(10**4), (("m", 2),)), "ha": (F(10**4), (("m", 2),)),
    "rad": (F(1), (("radian", 1),)), "radian": (F(1), (("radian", 1),)),
    "A": (F(1), (("A", 1),)), "amp": (F(1), (("A", 1),)), "ampere": (F(1), (("A", 1),)),
    "V": (F(1), (("V", 1),)), "volt": (F(1), (("V", 1),)), "C": (F(1), (("C", 1),)),
    "K": (F(1), (("K", 1),)), "kelvin": (F(1), (("K", 1),)), "mol": (F(1), (("mol", 1),)),
    "degC": (F(1), (("degC", 1),)), "degF": (F(1), (("degF", 1),)), "ohm": (F(1), (("ohm", 1),)),
    "unit": (F(1), ()),
}  # fmt: skip


def find_unit(word: str) -> tuple[F, Dimension] | None:
    """One known word, in the singular or the plural (`miles`)."""
    for name in (word, word.lower() if len(word) > 3 else word):
        for spelled in (name, name[:-1] if len(name) > 3 and name.endswith("s") else name):
            for base, table in (("m", _LENGTH), ("kg", _MASS), ("s", _TIME)):
                if spelled in table:
                    return table[spelled], ((base, 1),)
            if spelled in _VOLUME:
                return _VOLUME[spelled], (("m", 3),)
            if spelled in _MONEY:
                return _MONEY[spelled][1], ((_MONEY[spelled][0], 1),)
            if spelled in _DERIVED:
                return _DERIVED[spelled]
    return None


def unit_of(parts: Iterable[tuple[str, int]]) -> Unit:
    """The product of (word, exponent) pairs; exponents are small (the parser's limit)."""
    factor, exponents, known = F(1), dict[str, int](), True
    for word, exponent in parts:
        found = find_unit(word)
        if found is None:
            known = False
            found = F(1), ((f"'{word.casefold()}'", 1),)
        factor *= found[0] ** exponent
        for base, power in found[1]:
            exponents[base] = exponents.get(base, 0) + power * exponent
    return Unit(factor, tuple(sorted((b, p) for b, p in exponents.items() if p)), known)
