"""Access control of a broker: which requests are refused, under the accounts of a plain_acl.yml that is read again when it changes.

    address on the global white list                 accepted
    no AccessKey, or one without an account          refused
    address on the white list of the account         accepted
    wrong signature                                  refused
    permissions or administrator rights missing      refused
    a field that the code of the request has not     refused

Every request is checked, also those without a response and those to the name server. Responses of clients to the broker are not requests.
What the answers may contain is in `answers`.

The file is read every five seconds, as a broker does. A file that cannot be used changes nothing: the accounts of the last good one
remain, and a log line says what to correct. Secret keys appear in no log line and no response. A file that ends too early may still be
valid YAML:

    its last line has no end                                       not used
    an administrator is missing, or an account would get rights    not used unless its last line is `...`, the end of a YAML document
    because entries are missing
    an account, or a right, is missing                             used, and named in a log line

Format: docs/formats/rocketmq-remoting.md, section 10. Source: Apache RocketMQ 4.9.3, PlainPermissionManager, AclFileWatchService.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from mqstore.broker.access import addresses, answers, plain_acl
from mqstore.broker.access.accounts import AccessRules, Account, shown
from mqstore.broker.access.requirements import needed
from mqstore.broker.protocol.codes import ResponseCode
from mqstore.broker.protocol.frames import Frame, ResponseError
from mqstore.broker.protocol.headers import ACCESS_KEY, is_signed_by, undefined
from mqstore.broker.runtime.context import Component, Context
from mqstore.broker.runtime.logs import log
from mqstore.errors import MqstoreError, UsageError
from mqstore.rocketmq.format.queue_page import page_from
from mqstore.rocketmq.format.record import Record, body_crc
from mqstore.rocketmq.format.system_topics import RETRY_PREFIX

if TYPE_CHECKING:
    from mqstore.broker.runtime.connection import Connection

SETTLE = 0.05  # seconds in which a changed file must not change again
COMPLETE = b"\n..."  # how a file ends that says that it is complete
LOGGED_PER_SECOND = 10  # refusals; the others are counted


def check_accounts(path: str) -> AccessRules:
    """Read a file of accounts. Raises MqstoreError if it cannot be used."""
    if find_spec("yaml") is None:
        raise UsageError("access control needs PyYAML; install it with: pip install 'mqstore[acl]'")
    return plain_acl.parse(plain_acl.read(Path(path)), path)


def refusal(rules: AccessRules, request: Frame, host: str, context: Context) -> str | None:
    """Return why a request is refused, in a broker's words, or None if it is accepted. host: ip of the client."""
    if addresses.contains(rules.white, host):
        return None
    access_key = (request.ext or {}).get(ACCESS_KEY)
    if access_key is None:
        return "No accessKey is configured"
    account = rules.accounts.get(access_key)
    if account is None:
        return f"No acl config for {shown(access_key)}"
    if addresses.contains((account.white,), host):
        return None
    if not is_signed_by(request, account.secret_key):
        return f"Check signature failed for accessKey={shown(access_key)}"
    missing = _missing_permission(account, request, context)
    strange = undefined(request) if missing is None else None
    return missing if strange is None else f"The field {shown(strange)} is not one of request code={request.code}"


def _missing_permission(account: Account, request: Frame, context: Context) -> str | None:
    if account.unrestricted:
        return None
    try:
        needs = needed(request, context.settings.cluster, lambda offset: _record_at(context, offset))
    except ResponseError as error:
        return error.remark
    except UsageError as error:
        return str(error)
    if needs.admin and not account.admin:
        return f"Need admin permission for request code={request.code}, but accessKey={shown(account.access_key)} is not"
    for resource, permission in needs.resources.items():
        if not account.allows(resource, permission):
            name = f"group:{resource.removeprefix(RETRY_PREFIX)}" if resource.startswith(RETRY_PREFIX) else f"topic:{resource}"
            return f"No default permission for {shown(name, 200)}"
    return None


def _record_at(context: Context, offset: int) -> Record | None:
    """Return the message that begins at a physical offset, or None if none can be decoded there. Raises ResponseError.

    The bytes at an offset may look like a message and be none: a body may hold the head of one whose length reaches over messages of
    other topics. So its checksum and its own offset must fit, and its queue must lead to it, unless it is not dispatched yet.
    """
    store, live = context.store, context.store.writable
    record = store.record_at(offset)
    if record is None:
        return None
    if record.physical_offset == offset and record.body_crc == body_crc(record.body):
        end = store.log_max  # before the lag and the queue are looked at: dispatch goes on meanwhile
        pending = live is not None and offset >= end - live.dispatch_lag
        queue = store.queue_or_none(record.topic, record.queue_id)
        page = None
        if queue is not None and queue.min_offset <= record.queue_offset < queue.max_offset:
            page = page_from(queue, record.queue_offset)
        if pending if page is None else int(page.rows(1)[0][0]) == offset:
            return record
    raise ResponseError(ResponseCode.SYSTEM_ERROR, f"no message begins at the offset {offset}")


class AccessControl(Component):
    """The accounts of a broker, kept up to date with `Settings.acl`. rules: those of the last good file."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        path = context.settings.acl
        if path is None:
            raise UsageError("there is no file of accounts; give one with Settings.acl")
        self.path = path
        self._digest = b""
        self._second, self._logged, self._unlogged = 0, 0, 0
        self.rules = check_accounts(path)
        self._digest = self._read()[0]
        self._report(self.rules)

    def start(self) -> None:
        self.context.repeat(self.context.settings.acl_scan_interval / 1000, self.reload)

    async def reload(self) -> bool:
        """Read the file again if it has changed; return whether new accounts are in force."""
        digest, raw, why = await self.context.run(self._read)
        if digest == self._digest:
            return False
        await asyncio.sleep(SETTLE)
        if (await self.context.run(self._read))[0] != digest:
            return False  # it is being written; the next look takes it
        self._digest = digest
        if raw is not None:
            try:
                rules = await self.context.run(plain_acl.parse, raw, self.path)
            except MqstoreError as error:
                why = str(error)
            else:
                why = self._why_torn(raw, rules)
                if not why:
                    lost = self.rules.lost(rules)
                    self.rules = rules
                    self._report(rules)
                    if lost:
                        log("acl-rights-lost", logging.WARNING, file=self.path, lost=lost)
                    return True
        log("acl-file-broken", logging.ERROR, file=self.path, why=f"{why}; the accounts of the last good file remain in force")
        return False

    def _why_torn(self, raw: bytes, rules: AccessRules) -> str:
        """Return why a changed file may not have been written to its end; empty if it can be used."""
        if raw.rstrip().endswith(COMPLETE):
            return ""
        if not raw.endswith(b"\n"):
            return f"the last line of {self.path} has no end, as if the file were not written completely; end it with a newline"
        risked = self.rules.risked(rules)
        if not risked:
            return ""
        return (
            f"{self.path} may not have been written completely: {'; '.join(risked[:5])}; "
            "if that is intended, add a last line of three dots (...), or restart the broker"
        )

    def _read(self) -> tuple[bytes, bytes | None, str]:
        """Return (a digest of the file, its bytes, why it cannot be read)."""
        try:
            raw = plain_acl.read(Path(self.path))
        except (MqstoreError, OSError) as error:
            return str(error).encode(), None, str(error)
        return hashlib.sha256(raw).digest(), raw, ""

    def _report(self, rules: AccessRules) -> None:
        log("acl-loaded", file=self.path, accounts=len(rules.accounts), white_lists=len(rules.white))
        for note in rules.notes:
            log("acl-file-note", logging.WARNING, file=self.path, note=note)
        try:
            readable = Path(self.path).stat().st_mode & 0o007
        except OSError:
            readable = 0
        if readable:
            log("acl-file-note", logging.WARNING, file=self.path, note="every user of this machine may read the keys; use chmod o= on it")

    def refuse(self, connection: Connection, request: Frame) -> str | None:
        """Return the remark for a request that is refused, or None if it is accepted."""
        why = refusal(self.rules, request, connection.host, self.context)
        if why is not None:
            self._log_refusal(connection, request, why)
        return why

    def filtered(self, connection: Connection, request: Frame, answer: Frame) -> Frame:
        """Return what the client may see of an answer."""
        if request.code not in answers.LISTS or addresses.contains(self.rules.white, connection.host):
            return answer
        account = self.rules.accounts.get((request.ext or {}).get(ACCESS_KEY, ""))
        if account is not None and addresses.contains((account.white,), connection.host):
            return answer
        return answers.filtered(answer, request, account)

    def _log_refusal(self, connection: Connection, request: Frame, why: str) -> None:
        """Log a refusal, unless there are too many of them."""
        second = int(self.context.loop.time())
        if second != self._second:
            self._second, self._logged = second, 0
        if self._logged == LOGGED_PER_SECOND:
            self._unlogged += 1
            return
        self._logged += 1
        unlogged, self._unlogged = self._unlogged, 0
        log("access-refused", logging.WARNING, peer=connection.peer, code=request.code, why=why, unlogged=unlogged)
