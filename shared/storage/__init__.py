"""The object store: weights, checkpoints and large message bodies, addressed by URI and digest."""

from shared.storage.store import ObjectRef, ObjectStore

__all__ = ["ObjectRef", "ObjectStore"]
