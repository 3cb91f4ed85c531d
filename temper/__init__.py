"""The `temper` command, and the few names that domain authors import."""
