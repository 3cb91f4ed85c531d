"""How a policy writes a tool call, and how it is answered: one adapter a format."""
