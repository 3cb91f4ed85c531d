"""What stays in a context that is too small for everything: pure policies over counted segments."""
