"""Comparing the second consume queues of a store with its log: files beside a RocksDB database, or the other way round.

A broker that keeps both fills them from one dispatch; one whose `storeType` was changed leaves the old kind where it was. So a second
queue may end early, which is a note; entries that contradict the log are damage.
"""

from __future__ import annotations

from collections.abc import Iterator

from mqstore.findings import Damage
from mqstore.rocketmq.dispatch.dispatcher import QueueRun
from mqstore.rocketmq.format.commit_log import CommitLog
from mqstore.rocketmq.store.store import RocketMQStore
from mqstore.rocketmq.verify.queue_proof import QueueProof


class SecondQueues:
    """The proofs of the queues that a store has twice."""

    def __init__(self, store: RocketMQStore) -> None:
        self._proofs = {
            (queue.topic, queue.queue_id): QueueProof(queue, store.tags_code_resolver(queue.topic, queue.queue_id), unclean=True)
            for queue in store.stored_queues.second
        }

    def compare(self, run: QueueRun) -> None:
        """Compare the entries that a range of log yields with those of a second queue."""
        proof = self._proofs.get((run.topic, run.queue_id))
        if proof is not None and not run.batch:
            proof.compare(run)
            proof.fresh.clear()

    def damage(self, log: CommitLog, log_end: int) -> Iterator[Damage]:
        """Yield what is wrong with the second queues, once the whole log was compared."""
        for proof in self._proofs.values():
            yield from proof.queue.findings
            proof.finish(log, log_end)
            proof.queue.drop()
            yield from proof.damage

    def notes(self) -> Iterator[str]:
        """Yield what the second queues lack."""
        lacking = sum(proof.pending_count + proof.missing_count for proof in self._proofs.values())
        if lacking:
            kind = {proof.queue.place(0)[0].split("/")[0] for proof in self._proofs.values()}
            where = " and ".join(sorted(kind))
            yield f"{len(self._proofs)} queues are there twice, as files and in RocksDB; those in {where} lack {lacking} of the entries"
