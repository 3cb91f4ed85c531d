"""The system call table, in both of its forms, against a small model of BPF and against the real kernel."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import struct
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.sandbox.faults import SandboxUnavailable
from shared.sandbox.seccomp import Policy, bpf

ALLOW, KILL = 0x7FFF_0000, 0x8000_0000
AUDIT = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}
CLONE, SOCKET, IOCTL = (
    {"x86_64": 56, "aarch64": 220},
    {"x86_64": 41, "aarch64": 198},
    {"x86_64": 16, "aarch64": 29},
)


def refusal(error: int) -> int:
    return 0x0005_0000 | error


def run_bpf(code: bytes, number: int, audit: int, arguments: tuple[int, ...] = ()) -> int:
    """The five instructions that the program uses, on a `struct seccomp_data`."""
    padded = [*arguments, *([0] * (6 - len(arguments)))]
    data = struct.pack("=IIQ6Q", number & 0xFFFF_FFFF, audit, 0, *padded)
    program = list(struct.iter_unpack("=HBBI", code))
    place = value = 0
    while True:
        operation, if_true, if_false, constant = program[place]
        place += 1
        if operation == 0x20:
            value = struct.unpack_from("=I", data, constant)[0]
        elif operation == 0x54:
            value &= constant
        elif operation == 0x06:
            return int(constant)
        else:
            holds = {0x15: value == constant, 0x25: value > constant, 0x35: value >= constant}[operation]
            place += if_true if holds else if_false


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_every_number_gets_what_the_table_says(machine: str) -> None:
    policy, code = Policy(machine), Policy(machine).bpf()
    checked = {CLONE[machine], SOCKET[machine], SOCKET[machine] + (12 if machine == "x86_64" else 1)}
    checked |= {IOCTL[machine], 135 if machine == "x86_64" else 92}
    for number in range(1200):
        if number in checked:
            continue
        seen = run_bpf(code, number, AUDIT[machine])
        if number in policy.refused:
            assert seen == refusal(errno.EPERM), number
        elif number in policy.allowed:
            assert seen == ALLOW, number
        else:
            assert seen == refusal(errno.ENOSYS), number


@given(st.integers(0, 2**32 - 1))
def test_x32_and_foreign_architectures_never_get_through(number: int) -> None:
    code = Policy("x86_64").bpf()
    assert run_bpf(code, 0x4000_0000 | number, AUDIT["x86_64"]) == refusal(errno.ENOSYS)
    assert run_bpf(code, number, 0x4000_0003) == KILL


@given(st.integers(0, 2**64 - 1))
def test_clone_is_refused_with_any_namespace_flag(flags: int) -> None:
    code = Policy("x86_64").bpf()
    wanted = refusal(errno.EPERM) if flags & 0x7E02_0000 else ALLOW
    assert run_bpf(code, 56, AUDIT["x86_64"], (flags,)) == wanted


@given(st.integers(0, 2**64 - 1))
def test_only_three_socket_families(family: int) -> None:
    code = Policy("x86_64").bpf()
    wanted = ALLOW if family & 0xFFFF_FFFF in (1, 2, 10) else refusal(errno.EAFNOSUPPORT)
    assert run_bpf(code, 41, AUDIT["x86_64"], (family,)) == wanted


def test_pushing_characters_into_a_terminal_is_refused() -> None:
    code = Policy("x86_64").bpf()
    assert run_bpf(code, 16, AUDIT["x86_64"], (0, 0x5412)) == refusal(errno.EPERM)
    assert run_bpf(code, 16, AUDIT["x86_64"], (0, 0xFFFF_FFFF_0000_5412)) == refusal(errno.EPERM)
    assert run_bpf(code, 16, AUDIT["x86_64"], (0, 0x5413)) == ALLOW


def test_an_unknown_machine_is_said() -> None:
    with pytest.raises(SandboxUnavailable, match="no system call table for sparc64"):
        Policy("sparc64")


PROBE = """
import ctypes, errno, json, os, sys
libc = ctypes.CDLL(None, use_errno=True)
code = bytes.fromhex(sys.argv[1])
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]
program = Program(len(code) // 8, code)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.byref(program), 0, 0) == 0, os.strerror(ctypes.get_errno())
seen = {}
for number, arguments in json.loads(sys.argv[2]):
    ctypes.set_errno(0)
    result = libc.syscall(number, *arguments)
    seen[str(number)] = errno.errorcode.get(ctypes.get_errno(), "ok") if result < 0 else "ok"
print(json.dumps(seen))
"""


def test_the_kernel_takes_the_program_and_refuses_by_it() -> None:
    """Numbers that an unjailed root could call, refused by the filter alone."""
    policy = Policy()
    calls = [[number, [0, 0, 0, 0, 0]] for number in (425, 435, 438, 442, 1000, *sorted(policy.refused))]
    result = subprocess.run(
        [sys.executable, "-I", "-S", "-c", PROBE, bpf().hex(), json.dumps(calls)],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    seen = json.loads(result.stdout)
    assert {seen[str(number)] for number in policy.refused} == {"EPERM"}
    assert {seen[str(number)] for number in (425, 435, 1000)} == {"ENOSYS"}


def test_kafel_names_every_number_once() -> None:
    policy = Policy()
    text = policy.kafel()
    for number in (*policy.allowed, *policy.refused):
        assert text.count(f"SYSCALL[{number}]") == 1, number
    assert ctypes.sizeof(ctypes.c_void_p) == 8 and os.uname().machine in AUDIT
