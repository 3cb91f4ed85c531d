"""The dev broker: one node that speaks the Kafka protocol, for laptops and tests, never for production.

Invariant: an acknowledged record has been handed to the kernel, so it survives a kill of this process.
"""
