"""Requests of administrators that the broker forwards to a consumer, whose response it returns.

    307 GET_CONSUMER_RUNNING_INFO    what a consumer is doing
    309 CONSUME_MESSAGE_DIRECTLY     let a consumer consume one message now; the broker adds the record

The client has ten seconds (`Settings.call_timeout`). Its response is returned unchanged, under the opaque of the original request.
Only the fields of the code's header are forwarded. The key and the signature of the administrator are not for the client, which chose
its client id and so a part of what was signed.

Protocol: docs/formats/rocketmq-remoting.md, section 3.18.
"""

from __future__ import annotations

from mqstore.broker.handlers.membership import Membership
from mqstore.broker.protocol import headers
from mqstore.broker.protocol.codes import V3_1_8_SNAPSHOT, Language, RequestCode, ResponseCode, release_name
from mqstore.broker.protocol.fields import defined
from mqstore.broker.protocol.frames import Frame, ResponseError, make_request, make_response
from mqstore.broker.runtime.connection import Connection
from mqstore.broker.runtime.context import Context, Handler

__all__ = ["HANDLERS", "call_consumer", "position_in_id"]


def position_in_id(msg_id: str) -> int:
    """Return the physical offset in an offset message id. Raises ResponseError if it is not one.

    >>> position_in_id("7F00000100008FEB00000000000000D4")
    212
    """
    try:
        raw = bytes.fromhex(msg_id)
    except ValueError:
        raw = b""
    if len(raw) not in (16, 28):
        raise ResponseError(ResponseCode.SYSTEM_ERROR, f"{msg_id!r} is not a message id, which has 32 or 56 hexadecimal digits")
    return int.from_bytes(raw[-8:], "big", signed=True)


async def running_info(context: Context, connection: Connection, request: Frame) -> Frame:
    """Handle 307: forward the request."""
    group, client_id = headers.text(request, "consumerGroup"), headers.text(request, "clientId")
    return await call_consumer(context, request, group, client_id, defined(request))


async def consume_directly(context: Context, connection: Connection, request: Frame) -> Frame:
    """Handle 309: forward the request with the record that it names."""
    group = headers.text(request, "consumerGroup")
    ext = {**defined(request), "brokerName": context.settings.broker_name}
    msg_id = headers.text_or(request, "msgId")
    body = b""
    if msg_id is not None:
        position = position_in_id(msg_id)
        record = context.store.raw_record_at(position)
        if record is None:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {position}")
        member = context.component(Membership).clients.consumer(group, headers.text_or(request, "clientId", "null"))
        body = context.response_body([record], request.language if member is None else Language[member.language])
    return await call_consumer(context, request, group, headers.text_or(request, "clientId", "null"), ext, body)


async def call_consumer(context: Context, request: Frame, group: str, client_id: str, ext: dict[str, str], body: bytes = b"") -> Frame:
    """Forward the request's code to one consumer and return its response."""
    member = context.component(Membership).clients.consumer(group, client_id)
    if member is None:
        return make_response(request, ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online")
    if member.version < V3_1_8_SNAPSHOT:
        remark = (
            f"The Consumer <{client_id}> Version <{release_name(member.version)}> too low to finish, please upgrade it to V3_1_8_SNAPSHOT"
        )
        return make_response(request, ResponseCode.SYSTEM_ERROR, remark)
    try:
        told = await member.connection.call(make_request(RequestCode(request.code), ext, body), context.settings.call_timeout / 1000)
    except TimeoutError:
        waited = context.settings.call_timeout
        return make_response(
            request, ResponseCode.CONSUME_MSG_TIMEOUT, f"consumer <{group}> <{client_id}> Timeout: no response within {waited} ms"
        )
    except ConnectionError as error:
        return make_response(request, ResponseCode.SYSTEM_ERROR, f"invoke consumer <{group}> <{client_id}> Exception: {error}")
    return make_response(request, told.code, told.remark, told.ext, told.body)


HANDLERS: dict[int, Handler] = {
    RequestCode.GET_CONSUMER_RUNNING_INFO: running_info,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: consume_directly,
}
