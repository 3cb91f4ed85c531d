"""Runs a part of the suite in a guest of its own: under another kernel, with cgroup version 2 and nothing else.

`python -m tests.vm.boot --kernel vmlinuz --modules lib/modules/<version> -- tests/hostile -k v2`; tests/vm/README.md
says what it needs. Invariant: the guest changes nothing outside. It sees this machine's files through virtiofs, read
only, under an overlay in its own memory, so it runs the very checkout and interpreter that start it.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

DRIVERS = (
    "drivers/virtio/virtio",
    "drivers/virtio/virtio_ring",
    "drivers/virtio/virtio_pci_legacy_dev",
    "drivers/virtio/virtio_pci_modern_dev",
    "drivers/virtio/virtio_pci",
    "fs/fuse/fuse",
    "fs/fuse/virtiofs",
    "fs/overlayfs/overlay",
)
"""In the order in which they need each other. What a kernel has built in is not among its modules, and is left out."""
ENDED = "the guest's command ended with"
FILE_SERVERS = ("/usr/libexec/virtiofsd", "/usr/lib/qemu/virtiofsd")

INIT = """\
#!/bin/busybox sh
b=/bin/busybox
$b mkdir -p /proc /sys /dev /below /above /new
$b mount -t proc proc /proc
$b mount -t devtmpfs dev /dev
for module in $($b cat /modules/order); do $b insmod /modules/$module; done
$b mount -t virtiofs root /below || $b poweroff -f
$b mount -t tmpfs -o size=2g above /above
$b mkdir /above/files /above/work
$b mount -t overlay -o lowerdir=/below,upperdir=/above/files,workdir=/above/work over /new
$b mount -t proc proc /new/proc
$b mount -t sysfs sys /new/sys
$b mount -t devtmpfs dev /new/dev
$b mkdir -p /new/dev/pts /new/dev/shm
$b mount -t devpts pts /new/dev/pts
$b mount -t tmpfs shm /new/dev/shm
$b mount -t tmpfs tmp /new/tmp
$b mount -t cgroup2 groups /new/sys/fs/cgroup
$b ip link set lo up
$b cp /job /new/tmp/job
exec $b switch_root /new /bin/sh /tmp/job
"""

JOB = """\
cd {folder}
export PATH={path} HOME=/root TERM=dumb COLUMNS=160 PYTHONDONTWRITEBYTECODE=1 TEMPER_TEST_PATIENCE={patience}
uname -r
{command}
echo "{ended} $?"
sync
/bin/busybox poweroff -f
"""


def initial_files(folder: Path, modules: Path, job: str) -> Path:
    """The archive that the kernel starts from: busybox, drivers, and the two scripts."""
    tree = folder / "tree"
    (tree / "bin").mkdir(parents=True)
    (tree / "modules").mkdir()
    busybox = shutil.which("busybox")
    if busybox is None:
        sys.exit("busybox is not here: install the package busybox-static")
    shutil.copy(busybox, tree / "bin" / "busybox")
    order = []
    for driver in DRIVERS:
        found = modules / "kernel" / f"{driver}.ko"
        if found.exists():
            shutil.copy(found, tree / "modules" / found.name)
            order.append(found.name)
    (tree / "modules" / "order").write_text("\n".join(order))
    (tree / "job").write_text(job)
    (tree / "init").write_text(INIT)
    (tree / "init").chmod(0o755)
    names = "\n".join(str(path.relative_to(tree)) for path in sorted(tree.rglob("*")))
    packed = subprocess.run(
        ["cpio", "-o", "-H", "newc", "--quiet"],
        input=names.encode(),
        cwd=tree,
        check=True,
        capture_output=True,
    )
    archive = folder / "initial.gz"
    archive.write_bytes(gzip.compress(packed.stdout, compresslevel=1))
    return archive


@contextlib.contextmanager
def file_server(folder: Path) -> Iterator[Path]:
    """This machine's files on a socket."""
    program = next((name for name in FILE_SERVERS if Path(name).exists()), None)
    if program is None:
        sys.exit("virtiofsd is not here: install the package virtiofsd or qemu-system-common")
    socket = folder / "files.sock"
    options = ("source=/", "sandbox=chroot", "cache=auto", "xattr")
    words = [word for option in options for word in ("-o", option)]
    with (folder / "virtiofsd.log").open("wb") as log:
        process = subprocess.Popen([program, f"--socket-path={socket}", *words], stdout=log, stderr=log)
        try:
            while not socket.exists() and process.poll() is None:
                time.sleep(0.05)
            yield socket
        finally:
            process.kill()
            process.wait()


def guest(arguments: argparse.Namespace, archive: Path, files: Path) -> list[str]:
    memory = f"{arguments.memory_gb}g"
    return [
        "qemu-system-x86_64", "-machine", "q35", "-accel", arguments.accel, "-cpu", "max", "-m", memory,
        "-smp", str(os.cpu_count() or 1), "-nographic", "-nodefaults", "-no-reboot", "-serial", "stdio",
        "-object", f"memory-backend-memfd,id=memory,size={memory},share=on", "-numa", "node,memdev=memory",
        "-chardev", f"socket,id=files,path={files}",
        "-device", "vhost-user-fs-pci,queue-size=1024,chardev=files,tag=root",
        "-kernel", str(arguments.kernel), "-initrd", str(archive), "-append", "console=ttyS0 quiet loglevel=3 panic=-1",
    ]  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """The exit code of the command inside; 125 where the guest did not come to its end."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "--timeout",
        "1800",
        *arguments.pytest,
    ]
    job = JOB.format(
        folder=shlex.quote(str(Path.cwd())),
        path=shlex.quote(os.environ["PATH"]),
        patience=arguments.patience,
        command=shlex.join(command),
        ended=ENDED,
    )
    code = 125
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        archive = initial_files(folder, arguments.modules, job)
        with file_server(folder) as files:
            machine = subprocess.Popen(
                guest(arguments, archive, files), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                errors="replace",
            )  # fmt: skip
            assert machine.stdout is not None
            for line in machine.stdout:
                print(line.rstrip(), flush=True)
                if ENDED in line:
                    code = int(line.rsplit(" ", 1)[1])
            machine.wait()
    return code


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.vm.boot")
    parser.add_argument("--kernel", type=Path, required=True, help="a vmlinuz")
    parser.add_argument("--modules", type=Path, required=True, help="its lib/modules/<version>")
    parser.add_argument("--accel", default="tcg,thread=multi", help="kvm where the machine has it")
    parser.add_argument("--patience", type=float, default=30, help="how many times slower the guest may be")
    parser.add_argument("--memory-gb", type=int, default=3)
    parser.add_argument("pytest", nargs="*", help="what pytest is told, after --")
    return run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
