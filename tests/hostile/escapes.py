"""Programs that try to get out or to see what is not theirs.

Each prints `held` when every attempt was refused, and otherwise one line `OUT: what` for each that was not. They run
outside of a jail as well, as root, where that is harmless: there they must get out, or they would prove nothing.
"""

from __future__ import annotations

HEAD = """
import ctypes, errno, fcntl, os, signal, socket, stat, struct, subprocess, sys, tempfile, time
libc = ctypes.CDLL(None, use_errno=True)
outs = []
def out(what): outs.append(what)
def call(number, *arguments):
    ctypes.set_errno(0)
    return libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])
def attempt(what, action):
    try:
        value = action()
    except Exception:
        return None
    if value is not False and value is not None: out(f"{what}: {value!r}"[:200])
def readable(path):
    attempt(path, lambda: os.read(os.open(path, os.O_RDONLY | os.O_NONBLOCK), 64) or False)
"""
TAIL = """
print("\\n".join("OUT: " + what for what in outs) or "held", flush=True)
"""

ESCAPES: dict[str, str] = {
    "dots_after_the_pivot": """
root = os.open("/", os.O_RDONLY)
for path in ("../" * 40, "/proc/self/root/" + "../" * 40, "/proc/self/cwd/" + "../" * 40):
    names = set(os.listdir(path))
    if names & {"boot", "var", "srv", "mnt", "media"}:
        out(f"{path[:20]} shows {sorted(names)}")
attempt("chroot", lambda: os.chroot("/tmp"))
attempt("fchdir and chroot", lambda: (os.fchdir(root), os.chroot("..")))
""",
    "writing_the_system": """
for path in ("/usr/bin/planted", "/etc/planted", "/etc/passwd", "/bin/sh", "/planted", "/run/planted", "/python/planted",
             "/python-packages/planted", "/proc/sys/kernel/hostname", "/proc/sysrq-trigger", "/sys/planted",
             "/sys/fs/cgroup/planted", "/proc/self/oom_score_adj_", "/dev/planted"):
    attempt("write " + path, lambda: open(path, "ab").write(b"x"))
attempt("mkdir cgroup", lambda: os.mkdir("/sys/fs/cgroup/mine"))
attempt("remount", lambda: subprocess.run(["mount", "-o", "remount,rw", "/"], check=True, capture_output=True))
""",
    "reading_the_host": """
for path in ("/etc/shadow", "/root/.ssh/id_rsa", "/root/.bashrc", "/home", "/proc/1/environ_", "/dev/mem", "/dev/kmem",
             "/proc/kcore", "/proc/kmsg", "/dev/kmsg", "/dev/vda", "/dev/sda", "/proc/kpagecount", "/sys/kernel/debug",
             "/var/run/secrets/kubernetes.io/serviceaccount/token", "/run/secrets", "/etc/hostname", "/etc/machine-id",
             "/sys/class/dmi/id/product_uuid"):
    readable(path)
with open("/proc/kallsyms") as symbols:
    for _, line in zip(range(200), symbols):
        if int(line.split()[0], 16):
            out("kernel address " + line); break
names = {name for name in os.environ}
if names - {"PATH", "HOME", "LANG", "LC_CTYPE", "PYTHONPATH", "PWD", "SHLVL", "OLDPWD", "_"}:
    out(f"environment {sorted(names)}")
for pid in filter(str.isdigit, os.listdir("/proc")):
    attempt(f"environ of {pid}", lambda: os.getppid() and int(pid) not in (os.getpid(),) and
            (b"SECRET" in open(f"/proc/{pid}/environ", "rb").read() or 1 / 0))
if os.uname().nodename not in ("jail", "NSJAIL"):
    out("host name " + os.uname().nodename)
""",
    "processes_of_the_host": """
seen = [pid for pid in os.listdir("/proc") if pid.isdigit()]
if len(seen) > 6:
    out(f"{len(seen)} processes")
for pid in (1, os.getppid()):
    if os.getuid():  # as root, outside, this would stop whoever started us
        attempt(f"ptrace {pid}", lambda: call(101, 16, pid, 0, 0) == 0 or 1 / 0)
    attempt(f"memory of {pid}", lambda: pid != os.getpid() and open(f"/proc/{pid}/mem", "r+b"))
    attempt(f"descriptors of {pid}", lambda: pid != os.getpid() and os.listdir(f"/proc/{pid}/fd"))
for number in (101, 310, 311):
    if call(number, 0, os.getpid(), 0, 0, 0, 0) == 0:
        out(f"call {number}")
""",
    "network": """
import threading
def tcp(host, port):
    with socket.create_connection((host, port), timeout=2): return "connected"
def udp(host, port):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(1); s.sendto(b"x", (host, port)); return "sent"
for host, port in (("1.1.1.1", 443), ("169.254.169.254", 80), ("10.0.0.1", 22), ("127.0.0.1", HOST_PORT)):
    attempt(f"tcp {host}", lambda: tcp(host, port))
    attempt(f"udp {host}", lambda: udp(host, port))
attempt("dns", lambda: socket.getaddrinfo("example.com", 80))
attempt("tcp ::1", lambda: tcp("::1", HOST_PORT))
with open("/proc/net/dev") as devices:
    names = [line.split(":")[0].strip() for line in devices if ":" in line]
if set(names) - {"lo"}:
    out(f"interfaces {names}")
""",
    "socket_families": """
for family, kind in ((40, socket.SOCK_STREAM), (17, socket.SOCK_RAW), (16, socket.SOCK_RAW), (38, socket.SOCK_SEQPACKET),
                     (31, socket.SOCK_RAW), (29, socket.SOCK_RAW), (2, socket.SOCK_RAW)):
    attempt(f"family {family}", lambda: socket.socket(family, kind))
""",
    "kernel_calls": """
buffer = ctypes.create_string_buffer(256)
calls = {"bpf": (321, 0, buffer, 72), "perf": (298, buffer, 0, -1, -1, 0), "userfaultfd": (323, 0), "io_uring": (425, 4, buffer),
         "keyctl": (250, 0, -3, 1), "add_key": (248, b"user", b"k", b"v", 1, -3), "unshare user": (272, 0x10000000),
         "unshare mount": (272, 0x20000), "setns": (308, 0, 0), "pidfd_getfd": (438, 0, 0, 0), "open_by_handle": (304, 0, buffer, 0),
         "clone3": (435, buffer, 88), "fsopen": (430, b"tmpfs", 0), "reboot": (169, 0xfee1dead, 672274793, 0, 0),
         "swapon": (167, b"/tmp/x", 0), "settime": (227, 0, buffer), "kexec": (246, 0, 0, 0, 0), "init_module": (175, buffer, 0, b""),
         "memfd_secret": (447, 0), "syslog": (103, 3, buffer, 10)}
for name, arguments in calls.items():
    result = call(*arguments)
    if result >= 0 or ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS):
        out(f"{name}: {result} {errno.errorcode.get(ctypes.get_errno())}")
""",
    "namespaces_and_mounts": """
for words in (["unshare", "-U", "true"], ["unshare", "-m", "true"], ["unshare", "-n", "true"], ["mount", "-t", "tmpfs", "x", "/tmp"],
              ["umount", "/tmp"], ["nsenter", "-t", "1", "-m", "true"]):
    attempt(" ".join(words), lambda: subprocess.run(words, check=True, capture_output=True))
CLONE_NEWUSER = 0x10000000
if call(56, CLONE_NEWUSER | signal.SIGCHLD, 0, 0, 0, 0) >= 0: out("clone with a new user namespace")
""",
    "set_user_id": """
status = open("/proc/self/status").read()
for line in status.splitlines():
    if line.startswith("Cap") and int(line.split()[1], 16): out(line)
    if line.startswith("NoNewPrivs") and line.split()[1] != "1": out(line)
    if line.startswith("Seccomp:") and line.split()[1] != "2": out(line)
attempt("setuid 0", lambda: os.setuid(0) or os.getuid() == 0 or 1 / 0)
with open("/work/rootshell", "wb") as copy: copy.write(open("/bin/sh", "rb").read())
attempt("chown", lambda: os.chown("/work/rootshell", 0, 0))
os.chmod("/work/rootshell", 0o6755)
done = subprocess.run(["/work/rootshell", "-c", "id -u; cat /proc/self/status | grep CapEff"], capture_output=True, text=True)
if done.returncode == 0 and ("0\\n" == done.stdout[:2] or int(done.stdout.split()[-1], 16)): out(done.stdout)
for name in ("su", "mount", "passwd"):
    path = f"/usr/bin/{name}"
    if os.path.exists(path):
        attempt(name, lambda: subprocess.run([path, "-c", "id"], check=True, capture_output=True, timeout=5).stdout)
attempt("device", lambda: os.mknod("/work/disk", 0o666 | stat.S_IFBLK, os.makedev(254, 0)))
""",
    "inherited_descriptors": """
mine = os.open("/proc/self/fd", os.O_RDONLY)
for name in os.listdir("/proc/self/fd"):
    if int(name) > 2 and int(name) != mine:
        attempt("descriptor " + name, lambda: os.readlink(f"/proc/self/fd/{name}"))
""",
    "memory_between_runs": """
import mmap
for name in ("null", "zero", "full", "random", "urandom"):
    attempt(f"times of /dev/{name}", lambda: os.utime(f"/dev/{name}") or True)
    attempt(f"mode of /dev/{name}", lambda: os.chmod(f"/dev/{name}", 0o666) or True)
for path in ("/proc/cmdline", "/proc/kallsyms", "/usr/bin/env", "/etc/passwd", "/", "/usr"):
    attempt("times of " + path, lambda: os.utime(path) or True)
before = os.stat("/dev/zero").st_atime_ns
with open("/dev/zero", "rb") as zero: zero.read(10)
open("/dev/null", "wb").write(b"x")
if os.stat("/dev/zero").st_atime_ns != before: out("a read is remembered")
shared = os.open("/usr/bin/env", os.O_RDONLY)
attempt("fadvise", lambda: os.posix_fadvise(shared, 0, 0, os.POSIX_FADV_DONTNEED) or True)
attempt("nowait", lambda: os.preadv(shared, [bytearray(1)], 0, os.RWF_NOWAIT) or True)
if call(27, 0, 4096, ctypes.create_string_buffer(8)) >= 0 or ctypes.get_errno() != errno.ENOSYS: out("mincore")
for number in (253, 294, 187, 451, 162, 306):
    if call(number, shared, 0, 0, 0) >= 0: out(f"call {number}")
""",
    "terminal": """
for request in (0x5412, 0x541C):
    for number in (0, 1, 2):
        attempt(f"ioctl {request:#x}", lambda: fcntl.ioctl(number, request, b"x"))
attempt("controlling terminal", lambda: os.open("/dev/tty", os.O_RDWR))
""",
    "container_sockets": """
for path in ("/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock", "/run/crio/crio.sock",
             "/run/podman/podman.sock", "/run/systemd/private", "/run/dbus/system_bus_socket"):
    attempt(path, lambda: socket.socket(socket.AF_UNIX).connect(path) or "connected")
for name in os.listdir("/run"):
    out("/run/" + name)
""",
    "old_calls": """
code = b"\\xb8\\x14\\x00\\x00\\x00\\xcd\\x80\\xc3"  # mov eax, 20 (getpid); int 0x80; ret
import mmap
if os.fork() == 0:
    memory = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    memory.write(code)
    function = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(memory)))
    result = function()
    os._exit(0 if result > 0 else 1)
_, status = os.wait()
if os.waitstatus_to_exitcode(status) == 0: out("a 32-bit call")
if call(0x40000000 | 39) >= 0: out("an x32 call")
""",
}


def program(name: str, host_port: int = 9) -> str:
    """The whole text of one of them. `host_port`: where something listens on this machine."""
    return HEAD + ESCAPES[name].replace("HOST_PORT", str(host_port)) + TAIL


OUTSIDE = (
    "reading_the_host", "processes_of_the_host", "network", "socket_families", "kernel_calls", "namespaces_and_mounts",
    "old_calls", "dots_after_the_pivot",
)  # fmt: skip
"""Those that are harmless outside of a jail, and must get out there."""
