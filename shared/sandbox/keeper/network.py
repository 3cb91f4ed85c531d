"""A network of one run, with one door.

Invariant: the run's network namespace has no interface but its own loopback, and belongs to us, not to the jail's user
namespace; what leaves it passes through one listening socket that was made inside and is served outside.
"""

from __future__ import annotations

import array
import fcntl
import socket
import struct

from shared.sandbox.keeper.kernel import passed_descriptors, unshare

CLONE_NEWNET = 0x40000000
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
_BACKLOG = 64


def open_door(port: int) -> socket.socket:
    """In the forked child: a new network namespace, its loopback up, a listening socket on 127.0.0.1:`port`.

    Raises `OSError`.
    """
    unshare(CLONE_NEWNET, "a network namespace for a run")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))
    return socket.create_server(("127.0.0.1", port), backlog=_BACKLOG)


def hand_over(peer: socket.socket, door: socket.socket) -> None:
    peer.sendmsg([b"door"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [door.fileno()]))])
    door.close()
    peer.close()


def take_over(peer: socket.socket) -> int:
    """The descriptor of a door. Raises `OSError` where none was passed."""
    with peer:
        _, ancillary, _, _ = peer.recvmsg(16, socket.CMSG_SPACE(4))
    doors = passed_descriptors(ancillary)
    if not doors:
        raise OSError(0, "a run's network was made and its door was not passed")
    return doors[0]
