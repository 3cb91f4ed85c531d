"""From a name to a domain.

Invariant: a name means one domain or is refused in one line. Nothing is imported before it is asked for, and
only names that a person configured are resolved: a name out of a message never reaches this module unchecked.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import re
from collections.abc import Iterable

from shared.domains.base import Domain
from shared.errors import ConfigError

ENTRY_POINTS = "temper.domains"
_BUILT_IN = {
    "arithmetic": "shared.domains.arithmetic:Arithmetic",
    "extraction": "shared.domains.extraction:Extraction",
    "sequences": "shared.domains.sequences:Sequences",
}
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
        close = difflib.get_close_matches(name, list(places), n=1, cutoff=0.5)
        hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(places))}"
        raise ConfigError(f"domain {name!r} is not known; {hint} (or give its place as 'module:Class')")
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
        raise ConfigError(
            f"domain {name!r}: {module_name} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    found = getattr(module, attribute, None)
    if found is None:
        raise ConfigError(f"domain {name!r}: {module_name} has no {attribute!r}")
    if isinstance(found, type) and issubclass(found, Domain):
        found = found()
    if isinstance(found, Domain):
        return found
    raise ConfigError(
        f"domain {name!r}: {place} is {type(found).__name__}: it must be a Domain or a subclass"
    )
