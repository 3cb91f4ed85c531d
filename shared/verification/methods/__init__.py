"""Check methods: how an attempt becomes a verdict. `registry` names them all.

Each is a typed request and `async check(sandbox, request, limits) -> Judgement`. What is the policy's runs in jails;
what is expected never enters one of those.
"""
