"""Tools: typed functions that a policy may call, independent of any model."""
