"""Which topics a request is about, for fault rules that name one.

Invariant: topics that are named by id are translated, so that a rule works whatever version a client speaks.
"""

from typing import Any

from shared.bus.devbroker.codes import Refusal
from shared.bus.devbroker.topics import TopicCatalogue

_LISTS = ("topic_data", "topics", "topic_names")
_NAMES = ("topic", "name")


def topics_of(request: Any, catalogue: TopicCatalogue) -> frozenset[str]:
    """The names of the topics that a request lists, at its top or (OffsetFetch v8+) under its groups."""
    holders = [request]
    if "groups" in request.fields:
        holders += [group for group in request.groups or [] if not isinstance(group, str)]
    names: set[str] = set()
    for holder in holders:
        for list_name in _LISTS:
            if list_name in holder.fields:
                names.update(
                    filter(None, (_name(entry, catalogue) for entry in getattr(holder, list_name) or []))
                )
    return frozenset(names)


def _name(entry: Any, catalogue: TopicCatalogue) -> str | None:
    if isinstance(entry, str):
        return entry
    for attribute in _NAMES:
        if attribute in entry.fields and getattr(entry, attribute):
            return str(getattr(entry, attribute))
    if "topic_id" not in entry.fields:
        return None
    try:
        return catalogue.by_id(entry.topic_id).name
    except Refusal:
        return None  # a topic that is gone matches no rule
