"""The sandbox of these tests."""

from tests.verification.methods.bench import bench

__all__ = ["bench"]
