"""Decides what is attempted, how often and with what priority; the only producer of tasks."""
