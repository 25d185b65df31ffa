"""Network namespaces of this machine, connected by links that delay and lose packets.

The kernel's `netem` is not part of every kernel, so a process of this module has the other end of each host's network
device and forwards packets itself: after a delay, and not all of them.
"""

import contextlib
import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import threading
import time

TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
PACKET_BYTES = 65536
# Packets of one host that wait for their time.
QUEUE_PACKETS = 20_000


class Unavailable(Exception):
    """The machine does not let this process make networks."""


def ip(*arguments):
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


class Network:
    """Hosts `10.77.0.1` and so on, each a network namespace, and this machine as `10.77.0.254`. One network at a time on a machine."""

    def __init__(self, n_hosts, delay_s, loss, seed):
        self.names = [f"throng-{os.getpid()}-{i}" for i in range(1, n_hosts + 1)]
        self.addresses = [f"10.77.0.{i}" for i in range(1, n_hosts + 1)]
        # Devices by the last byte of their address.
        self.by_byte = {}
        self.delay_s, self.loss, self.random = delay_s, loss, random.Random(seed)
        self.n_lost = self.n_forwarded = 0
        self.cut_off = set()
        self.devices = []
        self.ending = threading.Event()

    def __enter__(self):
        try:
            for i, name in enumerate(self.names):
                device = self._open(i, i + 1)
                ip("netns", "add", name)
                ip("link", "set", device, "netns", name)
                ip("-n", name, "address", "add", f"{self.addresses[i]}/24", "dev", device)
                ip("-n", name, "link", "set", device, "up")
                ip("-n", name, "link", "set", "lo", "up")
            device = self._open(len(self.names), 254)
            ip("address", "add", "10.77.0.254/24", "dev", device)
            ip("link", "set", device, "up")
        except (OSError, Unavailable) as error:
            self.__exit__()
            raise Unavailable(str(error)) from error
        self.thread = threading.Thread(target=self._forward, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ending.set()
        if hasattr(self, "thread"):
            self.thread.join()
        for device in self.devices:
            os.close(device)
        for name in self.names:
            with contextlib.suppress(Unavailable):
                ip("netns", "delete", name)

    def _open(self, idx, last_byte):
        device = f"thr{os.getpid() % 100_000}x{idx}"
        self.devices.append(os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK))
        fcntl.ioctl(self.devices[-1], TUNSETIFF, struct.pack("16sH", device.encode(), IFF_TUN | IFF_NO_PI))
        self.by_byte[last_byte] = idx
        return device

    def inside(self, host_idx, *command):
        """A command line that runs inside a host."""
        return ["ip", "netns", "exec", self.names[host_idx], *command]

    def cut(self, host_idx):
        """Loses all packets from and to a host."""
        self.cut_off.add(host_idx)

    def mend(self):
        self.cut_off.clear()

    def _forward(self):
        waiting, order = [], 0
        hosts = {device: i for i, device in enumerate(self.devices)}
        while not self.ending.is_set():
            timeout = max(0.0, waiting[0][0] - time.monotonic()) if waiting else 0.05
            readable, _, _ = select.select(self.devices, [], [], min(timeout, 0.05))
            now = time.monotonic()
            for device in readable:
                with contextlib.suppress(OSError):
                    while True:
                        packet = os.read(device, PACKET_BYTES)
                        # IPv4 to 10.77.0.N; whatever else a host says to its link is not forwarded.
                        if len(packet) < 20 or packet[0] >> 4 != 4 or packet[16:19] != bytes([10, 77, 0]):
                            continue
                        to = self.by_byte.get(packet[19])
                        if to is None or len(waiting) > QUEUE_PACKETS:
                            continue
                        if {to, hosts[device]} & self.cut_off or self.random.random() < self.loss:
                            self.n_lost += 1
                            continue
                        order += 1
                        heapq.heappush(waiting, (now + self.delay_s, order, to, packet))
            while waiting and waiting[0][0] <= time.monotonic():
                _, _, to, packet = heapq.heappop(waiting)
                with contextlib.suppress(OSError):
                    os.write(self.devices[to], packet)
                    self.n_forwarded += 1
