"""Training again on what the topics recorded: the same batches, the same or another objective."""
