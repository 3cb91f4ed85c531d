"""Logs and traces: what every process says about itself.

Nothing is imported here: `propagation` is on the path of every record and must stay cheap to load.
"""
