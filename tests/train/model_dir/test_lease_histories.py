"""The lease of a model_dir, held by made-up hosts with a made-up clock, in seeded histories."""

from __future__ import annotations

import contextlib
import heapq
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from phalanx.errors import ConfigurationError, LeaseError
from phalanx.train.model_dir.lease import EXPIRY_SECONDS, RENEW_SECONDS, Lease, Owner, acquire

HOSTS = 4
HISTORIES = 40
# For so long, hosts begin, die and are stopped; then only those that wait for the lease go on.
FAULTY_SECONDS = 600.0
# A lease that expires is taken over after this, with the polls and the waits for others to see it.
TAKEOVER_SECONDS = 2 * EXPIRY_SECONDS + 30


class Killed(BaseException):
    """Ends the thread of a host that has died."""


class World:
    """A clock, and hosts that run one at a time, each up to its next wait."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now = 0.0
        self.holders: set[str] = set()
        self._wakes: list[tuple[float, int, Host]] = []
        self._count = 0
        self.baton = threading.Semaphore(0)
        self._threads: list[threading.Thread] = []

    def start(self, host: Host, action: Callable[[Host], None]) -> None:
        def run() -> None:
            host.baton.acquire()
            with contextlib.suppress(Killed):
                if not host.is_dead:
                    action(host)
            self.holders.discard(host.name)
            self.baton.release()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        self._threads.append(thread)
        self.wake(host, self.now)

    def wake(self, host: Host, when: float) -> None:
        self._count += 1
        heapq.heappush(self._wakes, (when, self._count, host))

    def run(self, until: float) -> None:
        while self._wakes and self._wakes[0][0] <= until:
            when, _, host = heapq.heappop(self._wakes)
            if host.stopped_until > when and not host.is_dead:
                self.wake(host, host.stopped_until)
                continue
            self.now = when
            self._switch_to(host)
        self.now = until

    def end(self) -> None:
        while self._wakes:
            _, _, host = heapq.heappop(self._wakes)
            host.is_dead = True
            self._switch_to(host)
        for thread in self._threads:
            thread.join()

    def _switch_to(self, host: Host) -> None:
        host.baton.release()
        self.baton.acquire()


class Host:
    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.is_dead = False
        self.stopped_until = 0.0
        self.baton = threading.Semaphore(0)

    def sleep(self, seconds: float) -> None:
        self.world.wake(self, self.world.now + seconds)
        self.world.baton.release()
        self.baton.acquire()
        if self.is_dead:
            raise Killed


@dataclass
class Disk:
    """What the file contains; every host sees it after its own delay."""

    text: str = ""
    version: int = 0


class SharedFile:
    """The lease file as one host sees it."""

    def __init__(self, host: Host, disk: Disk, is_remote: bool) -> None:
        self._host, self._disk = host, disk
        self.needs_settling = is_remote
        self.settle_seconds = 2.0 if is_remote else 0.2
        self._delay = self.settle_seconds / 5

    def _travel(self) -> None:
        self._host.sleep(self._host.world.chance.uniform(0, self._delay))

    def read(self) -> str:
        return self.read_version()[0]

    def read_version(self) -> tuple[str, int]:
        self._travel()
        return self._disk.text, self._disk.version

    def create(self, text: str) -> bool:
        if self.read():
            return False
        if self.needs_settling:
            # On object stores, another host may write between the two.
            self._travel()
        self._write(text)
        return True

    def replace(self, text: str) -> None:
        self._travel()
        self._write(text)

    def renew(self, text: str) -> None:
        self._travel()
        if self.needs_settling or not self._disk.text:
            self._write(text)
        self._disk.version += 1

    def remove(self) -> None:
        self._travel()
        self._disk.text = ""

    def _write(self, text: str) -> None:
        self._disk.text = text
        self._disk.version += 1


def make_owner(world: World, host: Host) -> Owner:
    token = f"{host.name}-{world.chance.random()}"
    return Owner(token, job="", host=host.name, machine=host.name, pid=1, started="1")


def use_lease(world: World, disk: Disk, is_remote: bool, saves: list[str]) -> Callable[..., None]:
    """Return what each host does: ask for the lease, save for a while, and give it back."""

    def act(host: Host) -> None:
        while True:
            host.sleep(world.chance.uniform(0, 20))
            file = SharedFile(host, disk, is_remote)
            owner = make_owner(world, host)
            try:
                acquire(file, owner, "runs/a", lambda: world.now, host.sleep)
            except ConfigurationError:
                continue
            world.holders.add(host.name)
            lease = Lease(file, owner, "runs/a")
            ends = world.now + world.chance.uniform(0, 200)
            try:
                while world.now < ends:
                    host.sleep(RENEW_SECONDS)
                    lease.renew()
                    lease.check()
                    # Nothing happens between the check and the save.
                    assert owner.token in disk.text
                    saves.append(host.name)
            except LeaseError:
                world.holders.discard(host.name)
                continue
            world.holders.discard(host.name)
            lease.release()

    return act


@pytest.mark.parametrize("is_remote", [False, True], ids=["local", "remote"])
@pytest.mark.parametrize("stops", [False, True], ids=["deaths", "deaths and stops"])
def test_one_host_holds_the_lease_at_a_time(is_remote: bool, stops: bool) -> None:
    for seed in range(HISTORIES):
        world, disk, saves = World(seed), Disk(), list[str]()
        hosts = [Host(world, f"host-{number}") for number in range(HOSTS)]
        for host in hosts:
            world.start(host, use_lease(world, disk, is_remote, saves))
        try:
            while world.now < FAULTY_SECONDS:
                world.run(world.now + world.chance.uniform(0.05, 30))
                check_holders(world, hosts, seed)
                number = world.chance.randrange(HOSTS)
                if stops and world.chance.random() < 0.3:
                    hosts[number].stopped_until = world.now + world.chance.uniform(1, 150)
                elif world.chance.random() < 0.2:
                    # The host dies, and another process begins in its place.
                    hosts[number].is_dead = True
                    hosts[number] = Host(world, f"host-{number}-at-{world.now:.0f}")
                    world.start(hosts[number], use_lease(world, disk, is_remote, saves))
            before = len(saves)
            world.run(world.now + 150 + TAKEOVER_SECONDS)
            assert len(saves) > before, f"seed {seed}: nobody got the lease of a dead host"
        finally:
            world.end()


def check_holders(world: World, hosts: list[Host], seed: int) -> None:
    """Of several that hold the lease, all but one were stopped, and will notice it."""
    alive = [
        host.name
        for host in hosts
        if host.name in world.holders and not host.is_dead and not host.stopped_until
    ]
    assert len(alive) <= 1, f"seed {seed}: {alive} hold the lease at {world.now:.1f} s"
