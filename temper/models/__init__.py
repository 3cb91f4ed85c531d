"""Model folders made ready for a run: a packaged small model, and a tiny one made from nothing.

Invariant: importing this package imports neither torch nor transformers.
"""
