"""Transactions: producers commit or roll back half messages, and are asked about undecided ones.

    37 END_TRANSACTION           oneway: commit (8), roll back (12), or undecided (0)
    39 CHECK_TRANSACTION_STATE   from the broker, oneway, to one producer of the group, which sends 37

Half messages are stored by `send`; `mqstore.rocketmq.append.transactions` handles them in the store. Every minute
(transactionCheckInterval) those undecided for more than 6 s (transactionTimeOut) are put again, and their producers are asked.

Protocol: docs/formats/rocketmq-remoting.md, section 3.12.
Source: Apache RocketMQ 4.9.3 and 5.3.3, EndTransactionProcessor, AbstractTransactionalMessageCheckListener.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools

from mqstore.broker.handlers.membership import Membership
from mqstore.broker.protocol import headers
from mqstore.broker.protocol.codes import RequestCode, ResponseCode
from mqstore.broker.protocol.frames import Frame, ResponseError, make_request, make_response
from mqstore.broker.protocol.headers import number_or_none
from mqstore.broker.runtime.connection import Connection
from mqstore.broker.runtime.context import Component, Context, Handler
from mqstore.broker.runtime.logs import log
from mqstore.errors import NotFoundError, RefusedError
from mqstore.rocketmq.format.half_message import IMMUNITY
from mqstore.rocketmq.format.message import PutResult, PutStatus
from mqstore.rocketmq.format.record import Record, encode, offset_message_id, parse_host
from mqstore.rocketmq.format.system_topics import HALF_TOPIC

COMMIT, ROLLBACK = 8, 12


async def end_transaction(context: Context, connection: Connection, request: Frame) -> Frame | None:
    """Handle 37: commit or roll back a half message."""
    group = headers.text(request, "producerGroup")
    queue_offset = headers.int64(request, "tranStateTableOffset")
    physical = headers.int64(request, "commitLogOffset")
    decision = headers.int32(request, "commitOrRollback")
    from_check = headers.boolean_or(request, "fromTransactionCheck")
    if decision not in (COMMIT, ROLLBACK):
        return None
    store = context.writable_store()
    await context.run(_check_half_message, context, group, queue_offset, physical, from_check)
    settle = store.transactions.commit if decision == COMMIT else store.transactions.rollback

    def settled() -> PutResult:
        return settle(physical, producer_group=group)

    try:
        put = await context.run(settled)
    except (NotFoundError, RefusedError) as error:
        raise ResponseError(ResponseCode.SYSTEM_ERROR, str(error)) from None
    if put.stored:
        return make_response(request)
    code = ResponseCode.SERVICE_NOT_AVAILABLE if put.status is PutStatus.SERVICE_NOT_AVAILABLE else ResponseCode.SYSTEM_ERROR
    return make_response(request, code, put.detail)


def _check_half_message(context: Context, group: str, queue_offset: int, physical: int, from_check: bool) -> None:
    """Raise ResponseError unless the half message exists and belongs to the producer."""
    found = context.store.record_at(physical)
    if found is None or found.topic != HALF_TOPIC:
        raise ResponseError(ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed")
    properties = found.property_map()
    if properties.get("PGROUP") != group:
        raise ResponseError(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
    if found.queue_offset != queue_offset:
        raise ResponseError(ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong")
    if found.physical_offset != physical:
        raise ResponseError(ResponseCode.SYSTEM_ERROR, "The commit log offset wrong")
    seconds = number_or_none(properties.get(IMMUNITY, ""))
    if not context.profile.limits_time_of_decision or from_check or seconds is None or seconds < 0:
        return
    if context.clock() - found.born_timestamp > seconds * 1000:
        raise ResponseError(ResponseCode.ILLEGAL_OPERATION, "the time for a decision has passed; wait until the broker asks")


class CheckBack(Component):
    """Asks producers about undecided half messages."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._turn = itertools.count()

    def start(self) -> None:
        if self.context.writable:
            self.context.spawn(self._serve())

    async def _serve(self) -> None:
        while True:
            await asyncio.sleep(self.context.settings.transaction_check_interval / 1000)
            await self.check()

    async def check(self) -> None:
        """Check the half messages once."""
        context = self.context
        if HALF_TOPIC in (queue.topic for queue in context.store.queues()):
            await context.run(self._find_half_messages)

    def _find_half_messages(self) -> None:
        """Find the half messages to ask about. Runs in a thread."""
        settings = self.context.settings
        run = self.context.writable_store().transactions.check(
            timeout=settings.transaction_timeout, max_checks=settings.transaction_check_max, hook=self._later
        )
        if run.failure or run.given_up:
            log("transactions-checked", asked=run.asked, given_up=run.given_up, failure=run.failure)

    def _later(self, half: Record) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop may be closed; the next broker asks
            self.context.loop.call_soon_threadsafe(self.ask, half)

    def ask(self, half: Record) -> None:
        """Ask one producer of the group about a half message, given with its real topic and queue."""
        group = half.property_map().get("PGROUP", "")
        members = [member for member in self.context.component(Membership).clients.producer_group(group) if member.connection.writable]
        if not members:
            log("transaction-producer-offline", group=group, physical_offset=half.physical_offset)
            return
        member = members[next(self._turn) % len(members)]
        broker_name = self.context.settings.broker_name if self.context.profile.names_broker_in_check else None
        member.connection.notify(check_request(half, broker_name))


def check_request(half: Record, broker_name: str | None = None) -> Frame:
    """Return the request that asks about a half message. broker_name: sent by 5.3.3 together with the half topic."""
    unique = half.property_map().get("UNIQ_KEY")
    ext = {
        "commitLogOffset": str(half.physical_offset),
        "offsetMsgId": offset_message_id(parse_host(half.store_host), half.physical_offset),
        "tranStateTableOffset": str(half.queue_offset),
    }
    if unique is not None:
        ext |= {"msgId": unique, "transactionId": unique}
    if broker_name is not None:
        ext |= {"bname": broker_name, "topic": HALF_TOPIC}
    return make_request(RequestCode.CHECK_TRANSACTION_STATE, ext, encode(half), oneway=True)


COMPONENTS = (CheckBack,)
HANDLERS: dict[int, Handler] = {RequestCode.END_TRANSACTION: end_transaction}
