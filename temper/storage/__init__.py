"""What the messages of a run left in its object store, and what of it nobody can ask for any more."""
