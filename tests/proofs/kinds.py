"""The kinds of proofs. Each checks a range of seeds and says how many images, states or scripts that were."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

from fuzz.batches import TESTS, Failure, check_images, environment, in_memory
from proofs.state import Failed


@dataclass
class Part:
    """The result of a range of seeds: all below stop were checked. done: images, states or scripts."""

    stop: int
    done: int = 0
    failures: list[Failed] = field(default_factory=list)


class Kind(ABC):
    """name: what `--kind` takes. unit: what is counted. per_seed: how many of them a seed gives at the most. part: seeds at a time."""

    name: str
    unit: str
    per_seed = 1
    part = 1000

    def missing(self) -> str | None:
        """Return what this machine lacks for it; None if nothing."""
        return None

    @abstractmethod
    def run(self, seeds: range, jobs: int, deadline: float, place: Path | None) -> Part:
        """Check these seeds. deadline: when nothing new is begun. place: a directory for what failed."""

    def repeat(self, seed: str) -> Part:
        """Check one seed again, as a failure has printed it."""
        return self.run(range(int(seed), int(seed) + 1), 1, time.time() + 1e9, None)

    def failed(self, seed: object, error: str) -> Failed:
        """Return a failure; names of files that are not UTF-8 become text that can be written to the state."""
        error = error.encode("utf-8", "backslashreplace").decode()
        return Failed(str(seed), error, f"scripts/prove --kind {self.name} --seed {shlex.quote(str(seed))} --count 1")


class Damaged(Kind):
    """Damaged images of golden stores: the structural fuzzer, and every fourth image one of the sweep of bytes."""

    unit = "images"

    def __init__(self, family: str) -> None:
        self.family = family
        self.name = f"damaged-{family}"

    def run(self, seeds: range, jobs: int, deadline: float, place: Path | None) -> Part:
        kept = None if place is None else place / "kept"
        batch = check_images(self.family, seeds, jobs=jobs, deadline=deadline, kept=kept)
        return Part(batch.stop, batch.done, [self.failed(each.number, _described(each)) for each in batch.failures])


def _described(failure: Failure) -> str:
    return "\n".join(text for text in (failure.error, failure.image, failure.trace) if text)


class Crashes(Kind):
    """Crash states of recorded runs of an engine; a seed is a run, of which at most `per_seed` states are checked, evenly drawn."""

    unit = "states"
    per_seed = 500
    part = 4

    def __init__(self, family: str) -> None:
        self.family = family
        self.name = f"crash-{family}"

    def run(self, seeds: range, jobs: int, deadline: float, place: Path | None) -> Part:
        part = Part(seeds.start)
        with ThreadPoolExecutor(jobs) as pool:
            for seed, found in zip(seeds, pool.map(lambda seed: self._one(str(seed), deadline), seeds), strict=True):
                if found is None:
                    break
                part.stop = seed + 1
                part.done += found.done
                part.failures += found.failures
        return part

    def repeat(self, seed: str) -> Part:
        found = self._one(seed, time.time() + 1e9)
        assert found is not None
        return found

    def _one(self, seed: str, deadline: float) -> Part | None:
        """Check the states of a run; of one state if the seed is `RUN:STATE`. None: it is too late to begin."""
        if time.time() >= deadline:
            return None
        number, _, state = seed.partition(":")
        command = [sys.executable, "-m", "proofs.crashes", self.family, number, str(self.per_seed), *([state] if state else [])]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=TESTS, env=environment())
        if done.returncode:
            error = f"the process ended with {done.returncode}\n{done.stderr[-4000:]}"
            return Part(int(number) + 1, 0, [self.failed(number, error)])
        found = json.loads(done.stdout.splitlines()[-1])
        failure = found["failure"]
        failures = [] if failure is None else [self.failed(f"{number}:{failure['state']}", failure["error"])]
        return Part(int(number) + 1, found["done"], failures)


class RocketMQScripts(Kind):
    """Random scripts on our store engine and on the real ones, both ways; even seeds with 4.9.3, odd ones with 5.3.3."""

    name = "scripts-rocketmq"
    unit = "scripts"
    part = 100

    def missing(self) -> str | None:
        from interop.realbroker import VERSIONS, why_not

        return next((reason for reason in map(why_not, VERSIONS) if reason is not None), None)

    def run(self, seeds: range, jobs: int, deadline: float, place: Path | None) -> Part:
        from interop.laboratory import CHECKS, run_scripts
        from interop.realbroker import VERSIONS
        from interop.scripts import random_script

        part = Part(seeds.start)
        if time.time() >= deadline:
            return part
        for turn, version in enumerate(VERSIONS):
            scripts = [random_script(seed, version) for seed in seeds if seed % 2 == turn]
            if not scripts:
                continue
            with tempfile.TemporaryDirectory(prefix="mqstore-scripts-", dir=in_memory()) as root:
                lab = run_scripts(version, Path(root), scripts)
                for script in scripts:
                    wrong = [f"{what}: {line}" for what, check in CHECKS.items() for line in check(lab, script)]
                    if wrong:
                        part.failures.append(self.failed(script.seed, "\n".join(wrong)))
            part.done += len(scripts)
        part.stop = seeds.stop
        return part


class RabbitMQScripts(Kind):
    """Random lives of queues, led by a real node and by our engine, both ways; a batch of lives shares the boots of a node.

    A seed is a batch: even ones kill the node when its journals are written, odd ones when its queues hibernate.
    """

    name = "scripts-rabbitmq"
    unit = "scripts"
    per_seed = 30
    part = 2

    def missing(self) -> str | None:
        from interop.rabbitmq.node import missing

        return missing() or None

    def run(self, seeds: range, jobs: int, deadline: float, place: Path | None) -> Part:
        from interop.rabbitmq.lives import JOURNALS, SEGMENTS, prove_lives
        from interop.rabbitmq.node import new_node
        from interop.rabbitmq.queuescripts import SETTINGS, scripts

        part = Part(seeds.start)
        for seed in seeds:
            if time.time() >= deadline:
                return part
            kind = (JOURNALS, SEGMENTS)[seed % 2]
            lives = scripts(seed, 0, self.per_seed, len(kind.ends), kind.versions)
            try:
                with tempfile.TemporaryDirectory(prefix="mqstore-lives-", dir=in_memory()) as root, new_node(SETTINGS) as node:
                    prove_lives(node, lives, kind, Path(root))
            except Exception as error:  # whatever it is, it is a failure of this batch, and the next one is played
                part.failures.append(self.failed(seed, f"{type(error).__name__}: {error}"[:4000]))
            part.done += len(lives)
            part.stop = seed + 1
        return part


class QuorumScripts(Kind):
    """Random lives of quorum queues and streams on a real node, read by us after each phase; a seed is a batch on one node."""

    name = "scripts-quorum"
    unit = "lives"
    per_seed = 30
    part = 2

    def missing(self) -> str | None:
        from interop.rabbitmq import node, other_node
        from interop.rabbitmq.quorum_lives import RELEASES

        return next(filter(None, (node.missing(), *map(other_node.missing, RELEASES[1:]))), None)

    def run(self, seeds: range, jobs: int, deadline: float, place: Path | None) -> Part:
        from interop.rabbitmq.quorum_lives import prove

        part = Part(seeds.start)
        for seed in seeds:
            if time.time() >= deadline:
                return part
            try:
                wrong = prove(seed, self.per_seed)
            except Exception as error:  # whatever it is, it is a failure of this batch, and the next one is played
                wrong = [f"{type(error).__name__}: {error}"]
            if wrong:
                part.failures.append(self.failed(seed, "\n".join(wrong)[:4000]))
            part.done += self.per_seed
            part.stop = seed + 1
        return part


class Diagnosis(Kind):
    """What `diagnose` says of structural states, against real brokers; 40 seeds in a row are one version. module: of the states."""

    unit = "states"
    module: str

    def missing(self) -> str | None:
        reason: str | None = import_module(self.module).missing_brokers()
        return reason

    def run(self, seeds: range, jobs: int, deadline: float, place: Path | None) -> Part:
        part = Part(seeds.start)
        for state in import_module(self.module).check_seeds(seeds, deadline):
            part.done += 1
            part.stop = state.seed + 1
            if state.error:
                part.failures.append(self.failed(state.seed, f"{state.name}\n{state.error}"))
        return part


class DiagnosisRabbitMQ(Diagnosis):
    name = "diagnosis-rabbitmq"
    part = 640
    module = "proofs.rabbitmq_diagnosis"


class DiagnosisRocketMQ(Diagnosis):
    name = "diagnosis-rocketmq"
    part = 120
    module = "proofs.rocketmq_diagnosis"


class Sites(Kind):
    """Sound stores of which parts are moved, renamed, split over paths or omitted: nothing false is said of what is not there."""

    unit = "states"
    part = 100

    def __init__(self, family: str) -> None:
        self.family = family
        self.name = f"sites-{family}"

    def run(self, seeds: range, jobs: int, deadline: float, place: Path | None) -> Part:
        from proofs import rabbitmq_sites, sites

        wrong = {"rocketmq": sites.wrong, "rabbitmq": rabbitmq_sites.wrong}[self.family]
        part = Part(seeds.start)
        for seed in seeds:
            if time.time() >= deadline:
                break
            with tempfile.TemporaryDirectory(prefix="mqstore-sites-", dir=in_memory()) as root:
                try:
                    said = wrong(seed, Path(root))
                except Exception as error:  # whatever it is, it is a failure of this state
                    said = f"{type(error).__name__}: {error}"
            if said:
                part.failures.append(self.failed(seed, said[:4000]))
            part.done += 1
            part.stop = seed + 1
        return part


class Advice(Kind):
    """Golden stores, then damaged images: the commands that `diagnose` names end with a broker to start, and none loses a message."""

    unit = "stores"
    part = 20

    def __init__(self, family: str) -> None:
        self.family = family
        self.name = f"advice-{family}"

    def run(self, seeds: range, jobs: int, deadline: float, place: Path | None) -> Part:
        from fuzz.images import Images
        from proofs.advice import wrong

        part = Part(seeds.start)
        with tempfile.TemporaryDirectory(prefix="mqstore-advice-", dir=in_memory()) as root:
            images = Images(self.family, Path(root, "images"))
            for seed in seeds:
                if time.time() >= deadline:
                    break
                with tempfile.TemporaryDirectory(dir=root) as scratch:
                    try:
                        said = wrong(seed, self.family, Path(scratch), images)
                    except Exception as error:  # whatever it is, it is a failure of this store
                        said = f"{type(error).__name__}: {error}"
                if said:
                    part.failures.append(self.failed(seed, said[:4000]))
                part.done += 1
                part.stop = seed + 1
        return part


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Damaged("rocketmq"),
        Damaged("rabbitmq"),
        Damaged("quorum"),
        Crashes("rocketmq"),
        Crashes("rabbitmq"),
        RocketMQScripts(),
        RabbitMQScripts(),
        QuorumScripts(),
        DiagnosisRabbitMQ(),
        DiagnosisRocketMQ(),
        Sites("rocketmq"),
        Sites("rabbitmq"),
        Advice("rocketmq"),
        Advice("rabbitmq"),
    )
}
