"""The object store: weights, checkpoints and large message bodies, addressed by URI and digest."""

from shared.storage.store import ObjectRef, ObjectStore, Stored

__all__ = ["ObjectRef", "ObjectStore", "Stored"]
