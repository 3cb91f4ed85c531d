"""Which system calls a jailed program may make.

Invariant: one table makes both forms, the kafel text that nsjail compiles and the BPF program that the fork server's
children load; a call that is not in the table is refused (ENOSYS), so new kernels open nothing. Calls of another
architecture (32-bit ones of a 64-bit machine) end the process; x32 numbers are not in the table.

The table is all calls that the kernel had at 6.8 less those named below with the reason. Numbers: the kernel's
arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h. BPF: Documentation/userspace-api/
seccomp_filter.rst.
"""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shared.sandbox.faults import SandboxUnavailable

_NAMESPACE_FLAGS = 0x7E02_0000
"""CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET}."""
_FAMILIES = (1, 2, 10)
"""AF_UNIX, AF_INET, AF_INET6: the jail's network namespace has no interface anyway. AF_VSOCK, AF_ALG, AF_PACKET and
the other forty are attack surface."""
_TERMINAL_REQUESTS = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX push characters into the terminal that a jail may have inherited."""
_PERSONALITIES = (0, 0xFFFF_FFFF)
"""The plain one, and the question which it is: others switch address randomisation off."""

_REFUSED = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438), "process_madvise": (440, 440), "process_mrelease": (448, 448),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "open_tree": (428, 428),
    "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432),
    "fspick": (433, 433), "mount_setattr": (442, 442), "statmount": (457, 457), "listmount": (458, 458),
    "unshare": (272, 97), "setns": (308, 268),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105), "finit_module": (313, 273),
    "delete_module": (176, 106), "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225),
    "acct": (163, 89), "syslog": (103, 116), "quotactl": (179, 60), "quotactl_fd": (443, 443),
    "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264), "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263), "settimeofday": (164, 170), "clock_settime": (227, 112),
    "clock_adjtime": (305, 266), "adjtimex": (159, 171), "sethostname": (170, 161), "setdomainname": (171, 162),
    "vhangup": (153, 58), "lookup_dcookie": (212, 18), "migrate_pages": (256, 238), "move_pages": (279, 239),
    "mbind": (237, 235), "set_mempolicy": (238, 237), "get_mempolicy": (239, 236),
    "set_mempolicy_home_node": (450, 450), "memfd_secret": (447, 447),
    "lsm_get_self_attr": (459, 459), "lsm_set_self_attr": (460, 460), "lsm_list_modules": (461, 461),
    "io_setup": (206, 0), "io_destroy": (207, 1), "io_submit": (209, 2), "io_cancel": (210, 3),
    "io_getevents": (208, 4), "io_pgetevents": (333, 292), "sync": (162, 81), "syncfs": (306, 267),
}  # fmt: skip
"""EPERM: name, then the number on x86_64 and on aarch64. Tracing and reading of other processes, mounts, namespaces,
kernel programs and counters, keyrings, the kernel itself, clocks, handles that walk around path checks, memory
placement, asynchronous input and output that runs outside of accounting, and making the whole machine write its disks."""
_REFUSED_X86 = {
    "inotify_init": 253, "iopl": 172, "ioperm": 173, "modify_ldt": 154, "uselib": 134, "ustat": 136, "sysfs": 139, "_sysctl": 156,
    "create_module": 174, "get_kernel_syms": 177, "query_module": 178, "nfsservctl": 180, "getpmsg": 181,
    "putpmsg": 182, "afs_syscall": 183, "tuxcall": 184, "security": 185, "vserver": 236, "epoll_ctl_old": 214,
    "epoll_wait_old": 215, "remap_file_pages": 216,
}  # fmt: skip
_UNSUPPORTED = {
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "clone3": (435, 435),
    "inotify_init1": (294, 26), "inotify_add_watch": (254, 27), "inotify_rm_watch": (255, 28),
    "fadvise64": (221, 223), "readahead": (187, 213), "mincore": (27, 232), "cachestat": (451, 451),
    "preadv2": (327, 286), "pwritev2": (328, 287),
}  # fmt: skip
"""ENOSYS: programs then fall back. clone3 hides its flags behind a pointer that no filter can follow; inotify watches
others use files that all roots share; the rest asks what of a file is in memory, or puts it there and takes it away:
that is memory between runs, and a policy has used such to tell a control from the test it contradicts."""

KAFEL_NAME = "temper"


@dataclass(frozen=True, slots=True)
class _Machine:
    audit: int
    """AUDIT_ARCH_*, of linux/audit.h."""
    place: int
    known: tuple[range, ...]
    clone: int
    socket: int
    socketpair: int
    ioctl: int
    personality: int
    extra: Sequence[int] = ()


_MACHINES = {
    "x86_64": _Machine(
        0xC000_003E, 0, (range(335), range(424, 463)), 56, 41, 53, 16, 135, (*_REFUSED_X86.values(),)
    ),
    "aarch64": _Machine(0xC000_00B7, 1, (range(295), range(424, 463)), 220, 198, 199, 29, 92),
}


@dataclass(frozen=True, slots=True)
class _Checked:
    """A call that is allowed by one of its arguments (the low 32 bits, all that the kernel reads of these)."""

    number: int
    argument: int
    mask: int
    allowed: tuple[int, ...]
    """Masked values; empty: all but those in `refused`."""
    refused: tuple[int, ...]
    error: int


class Policy:
    """The table for one machine. Raises `SandboxUnavailable` for an architecture that has none."""

    def __init__(self, machine: str = "") -> None:
        name = machine or platform.machine()
        if name not in _MACHINES:
            raise SandboxUnavailable(
                f"no system call table for {name}; there are ones for {' and '.join(_MACHINES)}: run on one of them"
            )
        self._machine = _MACHINES[name]
        here = self._machine
        refused = {numbers[here.place] for numbers in _REFUSED.values()} | set(here.extra)
        self.refused = frozenset(refused)
        self._checked = (
            _Checked(here.clone, 0, _NAMESPACE_FLAGS, (0,), (), errno.EPERM),
            _Checked(here.socket, 0, 0xFFFF_FFFF, _FAMILIES, (), errno.EAFNOSUPPORT),
            _Checked(here.socketpair, 0, 0xFFFF_FFFF, _FAMILIES, (), errno.EAFNOSUPPORT),
            _Checked(here.ioctl, 1, 0xFFFF_FFFF, (), _TERMINAL_REQUESTS, errno.EPERM),
            _Checked(here.personality, 0, 0xFFFF_FFFF, _PERSONALITIES, (), errno.EPERM),
        )
        unsupported = {numbers[here.place] for numbers in _UNSUPPORTED.values()}
        special = self.refused | unsupported | {call.number for call in self._checked}
        self.allowed = tuple(n for numbers in here.known for n in numbers if n not in special)

    def kafel(self) -> str:
        """For nsjail's `--seccomp_string` (kafel adds the check of the architecture itself)."""
        parts = [
            f"ALLOW {{ {_calls(self.allowed)} }}",
            f"ERRNO({errno.EPERM}) {{ {_calls(sorted(self.refused))} }}",
        ]
        for call in self._checked:
            names = ", ".join("abcdef"[: call.argument + 1])
            value = f"({'abcdef'[call.argument]} & {call.mask:#x})"
            if call.allowed:
                good = " || ".join(f"{value} == {item:#x}" for item in call.allowed)
                bad = " && ".join(f"{value} != {item:#x}" for item in call.allowed)
            else:
                good = " && ".join(f"{value} != {item:#x}" for item in call.refused)
                bad = " || ".join(f"{value} == {item:#x}" for item in call.refused)
            parts.append(f"ALLOW {{ SYSCALL[{call.number}]({names}) {{ {good} }} }}")
            parts.append(f"ERRNO({call.error}) {{ SYSCALL[{call.number}]({names}) {{ {bad} }} }}")
        body = ",\n  ".join(parts)
        return f"POLICY {KAFEL_NAME} {{\n  {body}\n}}\nUSE {KAFEL_NAME} DEFAULT ERRNO({errno.ENOSYS})"

    def bpf(self) -> bytes:
        """An array of `struct sock_filter` (8 bytes each, native order) for PR_SET_SECCOMP."""
        code = [
            _statement(_LOAD, _OFFSET_ARCH),
            _jump(_EQUAL, self._machine.audit, 1, 0),
            _statement(_RETURN, _KILL_PROCESS),
            _statement(_LOAD, _OFFSET_NUMBER),
        ]
        for call in self._checked:
            body = list(_checked_code(call))
            code += [_jump(_EQUAL, call.number, 0, len(body)), *body]
        for first, last in _spans(self.allowed):
            code += [
                _jump(_GREATER_EQUAL, first, 0, 2),
                _jump(_GREATER, last, 1, 0),
                _statement(_RETURN, _ALLOW),
            ]
        for first, last in _spans(sorted(self.refused)):
            refuse = _statement(_RETURN, _ERRNO | errno.EPERM)
            code += [_jump(_GREATER_EQUAL, first, 0, 2), _jump(_GREATER, last, 1, 0), refuse]
        return b"".join([*code, _statement(_RETURN, _ERRNO | errno.ENOSYS)])


def bpf() -> bytes:
    """The program for this machine; see `Policy`."""
    return Policy().bpf()


def kafel() -> str:
    """The text for this machine; see `Policy`."""
    return Policy().kafel()


# linux/bpf_common.h and linux/seccomp.h
_LOAD, _EQUAL, _GREATER, _GREATER_EQUAL, _AND, _RETURN = 0x20, 0x15, 0x25, 0x35, 0x54, 0x06
_ALLOW, _ERRNO, _KILL_PROCESS = 0x7FFF_0000, 0x0005_0000, 0x8000_0000
_OFFSET_NUMBER, _OFFSET_ARCH, _OFFSET_ARGUMENTS = 0, 4, 16


def _statement(code: int, value: int) -> bytes:
    return struct.pack("=HBBI", code, 0, 0, value)


def _jump(code: int, value: int, if_true: int, if_false: int) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _checked_code(call: _Checked) -> Iterator[bytes]:
    """Reached with the right number; always returns. The low half of a little-endian argument comes first."""
    yield _statement(_LOAD, _OFFSET_ARGUMENTS + 8 * call.argument)
    yield _statement(_AND, call.mask)
    values, hit, miss = (
        (call.allowed, _ALLOW, _ERRNO | call.error)
        if call.allowed
        else (call.refused, _ERRNO | call.error, _ALLOW)
    )
    for value in values:
        yield _jump(_EQUAL, value, 0, 1)
        yield _statement(_RETURN, hit)
    yield _statement(_RETURN, miss)


def _calls(numbers: Sequence[int]) -> str:
    return ", ".join(f"SYSCALL[{number}]" for number in numbers)


def _spans(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Runs of consecutive numbers: a filter of forty ranges instead of four hundred comparisons."""
    first = last = numbers[0]
    for number in numbers[1:]:
        if number != last + 1:
            yield first, last
            first = number
        last = number
    yield first, last
