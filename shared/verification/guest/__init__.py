"""Programs that run inside jails. Standard library only, and nothing of Temper but this package.

`shared.verification.methods.bundle` packs them into the one text that a jail is started with.
"""
