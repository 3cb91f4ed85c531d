"""From a name to a domain.

Invariant: a name means one domain or is refused in one line. Nothing is imported before it is asked for, and
only names that a person configured are resolved: a name out of a message never reaches this module unchecked.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import re
from collections.abc import Iterable

from shared.domains.agent import AgentProgram
from shared.domains.base import Difficulty, Domain
from shared.errors import ConfigError
from shared.plain_errors import nearest_or_all

ENTRY_POINTS = "temper.domains"
_BUILT_IN = {
    "arithmetic": "shared.domains.arithmetic:Arithmetic",
    "extraction": "shared.domains.extraction:Extraction",
    "sequences": "shared.domains.sequences:Sequences",
    "code_repair": "shared.domains.code_repair:CodeRepair",
    "terminal": "shared.domains.terminal:Terminal",
}
_METHODS = ("draft", "verify", "oracle", "do_nothing", "near_misses")
_PLACE = re.compile(r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")


def domain_places() -> dict[str, str]:
    """Every domain that is installed: name to `module:attribute`, built-in ones first.

    Raises `ConfigError` where two installed packages claim one name.
    """
    places = dict(_BUILT_IN)
    for point in importlib.metadata.entry_points(group=ENTRY_POINTS):
        if places.setdefault(point.name, point.value) != point.value:
            raise ConfigError(
                f"domain {point.name!r} is declared twice, as {places[point.name]} and as {point.value}: "
                "uninstall one of the packages or give one another name"
            )
    return places


def load_domain(name: str) -> Domain:
    """The domain of this name: built in, installed (entry point `temper.domains`), or `module:Class`.

    Raises `ConfigError` for a name that nobody declares (nearest name given) and for a place that holds no domain.
    """
    if _PLACE.match(name):
        return _load(name, name)
    places = domain_places()
    if name not in places:
        hint = nearest_or_all(name, places)
        raise ConfigError(f"domain {name!r} is not known{hint} (or give its place as 'module:Class')")
    domain = _load(name, places[name])
    if domain.name != name:
        raise ConfigError(
            f"domain {name!r} at {places[name]} calls itself {domain.name!r}: the names must be equal"
        )
    return domain


def load_domains(names: Iterable[str]) -> dict[str, Domain]:
    """The named domains under their configured name and under the name that their references carry."""
    found: dict[str, Domain] = {}
    for name in names:
        domain = load_domain(name)
        for key in {name, domain.name}:
            if found.setdefault(key, domain) is not domain:
                raise ConfigError(f"domain {key!r} is configured twice: once by name, once by {name!r}")
    return found


def _load(name: str, place: str) -> Domain:
    module_name, _, attribute = place.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        absent = isinstance(error, ModuleNotFoundError) and error.name == module_name.partition(".")[0]
        raise ConfigError(
            f"domain {name!r}: {module_name} cannot be imported: {type(error).__name__}: {error}"
            + ("; install its package, or name the module's folder in PYTHONPATH" if absent else "")
        ) from error
    found = getattr(module, attribute, None)
    if found is None:
        raise ConfigError(f"domain {name!r}: {module_name} has no {attribute!r}")
    if isinstance(found, type) and issubclass(found, Domain):
        found = _made(name, place, found)
    if not isinstance(found, Domain):
        raise ConfigError(
            f"domain {name!r}: {place} is {type(found).__name__}: it must be a Domain or a subclass"
        )
    _check_names(name, place, found)
    return found


def _made(name: str, place: str, kind: type[Domain]) -> Domain:
    """An object of the class. Raises `ConfigError` naming everything that the class leaves out."""
    names = [attribute for attribute in ("name", "difficulty_model") if not hasattr(kind, attribute)]
    missing = names + [method for method in _METHODS if method in kind.__abstractmethods__]
    if missing:
        raise ConfigError(
            f"domain {name!r}: {place} does not define {', '.join(missing)}: a domain needs them all (docs/domains.md)"
        )
    try:
        return kind()
    except Exception as error:
        raise ConfigError(
            f"domain {name!r}: {place}() cannot be made: {type(error).__name__}: {error}; "
            "a domain is made without arguments"
        ) from error


def _check_names(name: str, place: str, domain: Domain) -> None:
    """The class attributes are what every service takes them for. Raises `ConfigError`."""
    model = getattr(domain, "difficulty_model", None)
    version = domain.version
    wrong = [
        f"{attribute} is {value!r}: it must be {wanted}"
        for attribute, value, wanted, good in (
            ("name", getattr(domain, "name", None), "text", isinstance(getattr(domain, "name", None), str)),
            (
                "version",
                version,
                "a whole number",
                isinstance(version, int) and not isinstance(version, bool),
            ),
            ("cell", domain.cell, "text", isinstance(domain.cell, str)),
            (
                "agent",
                domain.agent,
                "an AgentProgram, or None",
                domain.agent is None or isinstance(domain.agent, AgentProgram),
            ),
            (
                "difficulty_model",
                model,
                "a subclass of Difficulty",
                isinstance(model, type) and issubclass(model, Difficulty),
            ),
        )
        if not good
    ]
    if wrong:
        raise ConfigError(f"domain {name!r}: {place}: {'; '.join(wrong)}")
