"""`temper trace`: what became of one task, and where its time went."""
