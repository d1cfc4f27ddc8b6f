"""Request and reply: the broker pushes a reply to the client that sent the request.

    requester 310, an ordinary message with CORRELATION_ID, REPLY_TO_CLIENT and TTL
    replier   324 or 325, a message to CLUSTER_REPLY_TOPIC with REPLY_TO_CLIENT = client id of the requester
    broker    326 to that client, waits for its response, then responds to the replier; the reply is also stored

Protocol: docs/formats/rocketmq-remoting.md, section 3.19.
Source: Apache RocketMQ 4.9.3, ReplyMessageProcessor.
"""

from __future__ import annotations

from dataclasses import replace

from mqstore.broker.handlers.membership import Membership
from mqstore.broker.handlers.send import sent
from mqstore.broker.protocol import send_header
from mqstore.broker.protocol.codes import RequestCode, ResponseCode
from mqstore.broker.protocol.frames import Frame, make_request, make_response
from mqstore.broker.protocol.send_header import SendHeader
from mqstore.broker.runtime.connection import Connection
from mqstore.broker.runtime.context import Context, Handler
from mqstore.broker.runtime.logs import log
from mqstore.rocketmq.format.java_map import reencode
from mqstore.rocketmq.format.record import decode_properties

PUSH_TIMEOUT = 3.0


async def send_reply(context: Context, connection: Connection, request: Frame) -> Frame:
    """Handle 324 and 325: push a reply to the client that waits for it, and store it."""
    context.writable_store()
    header = send_header.parse(request)
    to = decode_properties(header.properties).get("REPLY_TO_CLIENT")
    code, remark = await _push(context, connection, request, header, to)
    marks = {"MSG_REGION": context.settings.region, "TRACE_ON": "true"}
    if not context.settings.store_replies:
        return make_response(request, code, remark, {"msgId": "", "queueId": str(max(header.queue_id, 0)), "queueOffset": "0", **marks})
    work = sent(context, connection, request, header)
    stored = work if isinstance(work, Frame) else await work
    ext = stored.ext if stored.ext is not None and "msgId" in stored.ext else marks
    return make_response(request, code, remark, ext)


async def _push(context: Context, connection: Connection, request: Frame, header: SendHeader, to: str | None) -> tuple[int, str | None]:
    """Push the reply and return (code, remark)."""
    if to is None:
        return ResponseCode.SYSTEM_ERROR, "reply message properties[REPLY_TO_CLIENT] is null"
    member = context.component(Membership).clients.by_client_id(to)
    if member is None:
        return ResponseCode.SYSTEM_ERROR, f"push reply message fail, channel of <{to}> not found."
    frame = pushed(header, request.body, connection.peer, context.address, context.clock(), context.profile.version)
    try:
        response = await member.connection.call(frame, PUSH_TIMEOUT)
    except (TimeoutError, ConnectionError) as error:
        log("reply-not-pushed", peer=member.connection.peer, why=str(error) or type(error).__name__)
        return ResponseCode.SYSTEM_ERROR, f"push reply message to {to}fail."
    if response.code != ResponseCode.SUCCESS:
        return ResponseCode.SYSTEM_ERROR, f"push reply message to {to} fail."
    return ResponseCode.SUCCESS, None


def pushed(header: SendHeader, body: bytes | memoryview, born_host: str, store_host: str, now: int, version: str) -> Frame:
    """Return the request that delivers a reply to its client."""
    properties = reencode(header.properties, {"PUSH_REPLY_TIME": str(now)}, version)
    ext = {
        "bornHost": f"/{born_host}",
        "storeHost": f"/{store_host}",
        "storeTimestamp": str(now),
        "producerGroup": header.producer_group,
        "topic": header.topic,
        "defaultTopic": header.default_topic,
        "defaultTopicQueueNums": str(header.default_queues),
        "queueId": str(header.queue_id),
        "sysFlag": str(header.sys_flag),
        "bornTimestamp": str(header.born_timestamp),
        "flag": str(header.flag),
        "properties": properties.decode("utf-8", "replace"),
        "reconsumeTimes": str(header.reconsume_times),
        "unitMode": "true" if header.unit_mode else "false",
    }
    return replace(make_request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, ext), body=body)


HANDLERS: dict[int, Handler] = {
    RequestCode.SEND_REPLY_MESSAGE: send_reply,
    RequestCode.SEND_REPLY_MESSAGE_V2: send_reply,
}
