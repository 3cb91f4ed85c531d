"""What a token of a packed line sees, and attention that computes no more than that where a device has it."""
