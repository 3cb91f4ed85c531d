"""Sub-commands of `temper`, a file each. Heavy imports live inside the functions: `temper --help` stays fast."""
