"""The guard: declared bounds on what a step may look like, and what is done when one is crossed.

Invariant: everything here is pure. State goes in and comes out, can be written as JSON, and no decision depends on a
clock, on chance or on the order in which bounds are declared.
"""
