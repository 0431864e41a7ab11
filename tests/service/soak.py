# SPDX-License-Identifier: Apache-2.0
"""
A service for a while, and all that can happen: ``python -m tests.service.soak --minutes 30``.

Clients fetch and compile without pause, while the service, its signer and its compile processes are
killed, signing keys rotated, entries revoked, taken back and removed, and the disk filled (as root,
who can mount one). The service has a lock, which it compares with its store whenever it starts;
`tests.service.soak_hosts` has that and the hosts that freeze with it, of a remote and of the
service. Every answer and every kernel of a host is looked at: one that is not the entry that was
asked for, that no trusted key signed, or that was revoked before the request, ends the soak.

In the last two thirds of the time one process serves, so that its memory can be seen to be flat.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import urllib3

from jitgen.cache import Damaged
from jitgen.compile.processes import children_of, descendants_of
from jitgen.config import Arch
from jitgen.remote import wire
from jitgen.runtime.spec import spec_of
from jitgen.signing.keys import PrivateKey
from jitgen.signing.policy import judge
from tests.service.running import Running, order, resident_bytes
from tests.service.soak_hosts import Fleet, LockFile
from tests.service.test_stampede import configs
from tests.service.test_trouble import fill
from tests.service.trusting import trust_in

MOST_RESIDENT = 300 * 2**20
KERNELS = 24
MOST_GROWTH = 1.2
"""Of the last process: the median of its last quarter over that of its first."""
REPORT_S = 300.0


class Soak:
    """One soak: clients, what happens to the service, and what was seen."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.resident: list[int] = []
        self.over = threading.Event()
        self.kernels = configs(KERNELS)
        self.keys = [spec_of(config, Arch.CPU).key for config in self.kernels]
        self.revoked: dict[str, float] = {}
        self.disk = self._disk(folder)
        self.service = Running(
            folder / "service",
            {
                "store": {"root": f"{self.disk}/cache", "state": str(folder / "state")},
                "limits": {"grace_s": 5},
                "log": {"requests": "errors"},
            },
        )
        self.service.patience_s = 600.0  # the machine may be busy with something else
        self.signers = [self.service.key]
        self.is_mounted = self.disk.is_mount()
        self.lock = LockFile(folder, self.disk / "cache")
        self.hosts = Fleet(folder / "hosts", self.lock, seed)
        self._plain = self.service.config.read_text()
        self._locking = self._plain.replace("[store]", f'[store]\nlock = "{self.lock.path}"')

    def _disk(self, folder: Path) -> Path:
        disk = folder / "disk"
        disk.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", "size=8m,mode=700", "tmpfs", str(disk)]
        subprocess.run(command, check=False, capture_output=True)
        return disk

    def client(self, number: int, pace_s: float) -> None:
        """Fetch and compile until it is over, with pauses of up to `pace_s`."""
        chance = random.Random(number)
        http = urllib3.PoolManager(retries=False, timeout=60.0)
        while not self.over.is_set():
            index = chance.randrange(KERNELS)
            config, key = self.kernels[index], self.keys[index]
            begin = time.time()
            headers = {"Authorization": f"Bearer {self.service.tokens['all']}", "Prefer": "wait=30"}
            if chance.random() < 0.5:
                headers["Accept-Encoding"] = "zstd"
            try:
                if chance.random() < 0.8:
                    url = f"{self.service.url}/v1/entries/{key}"
                    answer = http.request("GET", url, headers=headers, decode_content=False)
                else:
                    url = f"{self.service.url}/v1/compile"
                    answer = http.request(
                        "POST", url, json=order(config), headers=headers, decode_content=False
                    )
            except urllib3.exceptions.HTTPError:
                self.counts["no answer"] += 1
                time.sleep(0.1)
                continue
            self.counts[str(answer.status)] += 1
            if answer.status == 200:
                self._look(answer, key, begin)
            time.sleep(chance.random() * pace_s)

    def _look(self, answer: urllib3.BaseHTTPResponse, key: str, begin: float) -> None:
        data = answer.data
        try:
            if answer.headers.get("content-encoding") == "zstd":
                data = wire.decompress(data)
            packed = wire.unpack(data, key)
        except Damaged as error:
            self.wrong.append(f"{key[:12]}: {error}")
            return
        verdict = judge(packed.record, packed.signatures, trust_in(*self.signers))
        if not verdict:
            self.wrong.append(f"{key[:12]}: {verdict.reason}")
        digest = answer.headers["etag"].strip('"')
        if self.revoked.get(digest, begin) < begin:
            self.wrong.append(f"{key[:12]}: revoked before it was asked for")

    def start(self) -> None:
        """Start the service: it must start if its store is as the lock says, and else must not."""
        differences = self.lock.differences(self.revoked)
        try:
            self.service.start()
        except AssertionError as error:
            said = "the store is not as" in str(error)
            if not differences or not said:
                self.wrong.append(f"it does not start; unlike the lock: {differences}; {error}")
            self.counts["lock: start refused"] += 1
            self.service.config.write_text(self._plain)
            self.service.start()
            self.make_lock()
        else:
            self.counts["lock: started"] += 1
            if differences:
                self.wrong.append(f"it starts unlike its lock: {differences}")

    def make_lock(self) -> None:
        """Have the service compile what the lock lacks, lock it, and demand it from now on."""
        for _ in range(10):
            statuses = {self.service.compile(config).status for config in self.lock.configs}
            if statuses == {200} and self.lock.write():
                self.service.config.write_text(self._locking)
                return
            time.sleep(3)  # a compile process was killed, or the disk is full
        self.wrong.append(f"the kernels of the lock are not there: {statuses}")

    # what happens

    def kill_server(self) -> None:
        self.service.stop(signal.SIGKILL)
        self.start()

    def end_server(self) -> None:
        if code := self.service.stop(signal.SIGTERM):
            self.wrong.append(f"a shutdown ended with {code}")
        self.start()

    def foreign_lock(self) -> None:
        """Start with the lock of another machine."""
        self.service.stop(signal.SIGTERM)
        self.lock.falsify()
        self.start()

    def lock_anew(self) -> None:
        """Lock what the service has now, and give it to the remote."""
        self.make_lock()
        self.hosts.push()

    def push(self) -> None:
        self.hosts.push()

    def harm_remote(self) -> None:
        self.hosts.harm()

    def new_host(self) -> None:
        self.hosts.host(self.service.url, self.service.tokens["all"], self.signers, self.revoked)

    def kill_signer(self) -> None:
        self._kill("jitgen.server.signer")

    def kill_foreman(self) -> None:
        self._kill("jitgen.server.supervisor")

    def kill_workers(self) -> None:
        for pid in self._children("jitgen.server.supervisor"):
            for worker in descendants_of(pid):
                with suppress(ProcessLookupError):
                    os.kill(worker, signal.SIGKILL)

    def rotate_key(self) -> None:
        """Let the service sign with a new key; signatures of the old one stay valid."""
        key = PrivateKey.generate()
        self.signers.append(key)
        file = self.service.folder / "key.pem"
        file.unlink()
        key.save(file)
        self.hosts.trust(self.signers, self.revoked)
        self.reload()

    def reload(self) -> None:
        assert self.service.process is not None
        self.service.process.send_signal(signal.SIGHUP)

    def revoke(self) -> None:
        key = self.random.choice(self.keys)
        answer = self.service.request("HEAD", f"/v1/entries/{key}")
        if answer.status == 200:
            digest = answer.headers["etag"].strip('"')
            body = {"revoked": {digest: "soak"}}
            if self.service.request("POST", "/v1/revocations", json=body).status == 200:
                self.revoked[digest] = time.time()
                self.hosts.trust(self.signers, self.revoked)
                shutil.rmtree(self._entry(key), ignore_errors=True)  # so that a new one is built

    def take_back(self) -> None:
        """Take one revocation back: from now on its digest may be handed out again."""
        if self.revoked:
            digest = self.random.choice(list(self.revoked))
            del self.revoked[digest]
            self.hosts.trust(self.signers, self.revoked)
            body = {"revoked": {digest: "soak"}}
            answer = self.service.request("POST", "/v1/revocations:remove", json=body)
            if answer.status != 200 or answer.json()["removed"] != 1:
                self.wrong.append(f"{digest[:12]}: not taken back ({answer.status})")

    def remove(self) -> None:
        for key in self.random.sample(self.keys, 4):
            shutil.rmtree(self._entry(key), ignore_errors=True)
        self.reload()  # memory forgets what it holds

    def fill_disk(self) -> None:
        if not self.is_mounted:
            return
        fill(self.disk / "ballast")
        self.remove()
        time.sleep(5)
        (self.disk / "ballast").unlink()

    def _entry(self, key: str) -> Path:
        return self.disk / "cache/v1/entries" / key[:2] / key

    def _children(self, what: str) -> list[int]:
        assert self.service.process is not None
        found = []
        for pid in children_of(self.service.process.pid):
            with suppress(OSError):
                if what.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
        return found

    def _kill(self, what: str) -> None:
        for pid in self._children(what):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def run(self, minutes: float, clients: int, pause_s: float, pace_s: float) -> dict[str, object]:
        """
        Run `clients` clients for `minutes`, with random events meanwhile; return what was seen.
        """
        ends: list[Callable[[], None]] = [self.kill_server, self.end_server, self.foreign_lock]
        events: list[Callable[[], None]] = [
            *(self.kill_signer, self.kill_foreman, self.kill_workers, self.rotate_key),
            *(self.reload, self.revoke, self.revoke, self.take_back, self.remove, self.fill_disk),
            *(self.lock_anew, self.push, self.harm_remote, self.new_host, self.new_host),
        ]
        self.service.start()
        self.hosts.trust(self.signers, self.revoked)
        self.make_lock()
        self.push()
        threads = [threading.Thread(target=self.client, args=(n, pace_s)) for n in range(clients)]
        for thread in threads:
            thread.start()
        begin = told = time.monotonic()
        lasting: list[int] = []
        try:
            while (now := time.monotonic()) < begin + 60 * minutes and not self.wrong:
                time.sleep(pause_s)
                assert self.service.process is not None
                self.resident.append(resident_bytes(self.service.process.pid))
                is_last = now > begin + 20 * minutes
                if is_last:
                    lasting.append(self.resident[-1])
                event = self.random.choice(events if is_last else events + ends * 2)
                self.counts[event.__name__] += 1
                event()
                self.wrong += self.hosts.wrong
                if self.resident[-1] > MOST_RESIDENT:
                    self.wrong.append(f"{self.resident[-1]} bytes of memory")
                if now > told + REPORT_S:
                    told = now
                    print(self.seen((now - begin) / 60, lasting), flush=True)
        finally:
            self.over.set()
            for thread in threads:
                thread.join()
            with suppress(AssertionError):
                self.service.stop()
            if self.is_mounted:
                subprocess.run(["umount", "-l", str(self.disk)], check=False)
        if (grown := growth(lasting)) > MOST_GROWTH:
            self.wrong.append(f"its memory grew by {grown:.2f}")
        return self.seen(minutes, lasting)

    def seen(self, minutes: float, lasting: list[int]) -> dict[str, object]:
        """Return what was seen in `minutes`; `lasting`: the memory of the last process, bytes."""
        counts = self.counts + self.hosts.counts
        return {
            "minutes": round(minutes, 1),
            "wrong": self.wrong,
            "compiles": sum(e["event"] == "compile" for e in self.service.events()),
            "most_resident_mib": round(max(self.resident, default=0) / 2**20, 1),
            "last_process_mib": [
                round(each / 2**20, 1) for each in lasting[:: len(lasting) // 12 + 1]
            ],
            "last_process_growth": round(growth(lasting), 3),
            **{name: counts[name] for name in sorted(counts)},
        }


def growth(sizes: list[int]) -> float:
    """Return the median of the last quarter of `sizes` over that of the first; 1 for a few."""
    quarter = len(sizes) // 4
    if not quarter:
        return 1.0
    return statistics.median(sizes[-quarter:]) / statistics.median(sizes[:quarter])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--pause", type=float, default=3.0, help="seconds between events")
    parser.add_argument("--pace", type=float, default=0.02, help="most seconds between requests")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        soak = Soak(Path(folder), chosen.seed)
        found = soak.run(chosen.minutes, chosen.clients, chosen.pause, chosen.pace)
        if found["wrong"]:
            print(soak.service.log.read_text()[-5000:], file=sys.stderr)
    print(json.dumps({"seed": chosen.seed, **found}, indent=1))
    return 1 if found["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
