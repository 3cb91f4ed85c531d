"""A small Python package with one bug in it, mended by shell commands, judged by hidden tests."""

from shared.domains.code_repair.domain import CodeRepair

__all__ = ["CodeRepair"]
