"""A run in virtual time: our own state machines on a clock that jumps from event to event."""
