"""Programs that must not get out, take over, or be paid."""
