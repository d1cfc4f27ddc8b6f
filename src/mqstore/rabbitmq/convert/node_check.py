"""Whether a running node has all definitions of a rescued one, asked of its management interface: HTTP requests that only read.

    GET /api/overview                                        the node's version
    GET /api/whoami                                          the tags of the user: one with few of them is shown a part only
    GET /api/{vhosts,queues,exchanges,bindings,policies}     every object of that kind, as JSON

Compared is what decides whether messages and routes survive: a node deletes the messages of a queue that it lacks, or has with other
priority levels, when it starts on their stores.

User and password come from the URL, or from the environment variables MQSTORE_MANAGEMENT_USER and MQSTORE_MANAGEMENT_PASSWORD, and are
in no message. Redirects are not followed, because they would take the password elsewhere.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import socket
import ssl
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from mqstore.errors import CannotOpenError, NotAStoreError, UsageError
from mqstore.files.regular_file import open_regular_file, why_unreadable
from mqstore.rabbitmq.broker_version import target_version

USER, PASSWORD = "MQSTORE_MANAGEMENT_USER", "MQSTORE_MANAGEMENT_PASSWORD"
TIMEOUT = 30.0
DEADLINE = 180.0  # of a whole answer, however slowly it comes
MOST_BYTES = 256 << 20
COMPARED = ("vhosts", "queues", "exchanges", "bindings", "policies")
_COLUMNS = {
    "vhosts": "name",
    "queues": "name,vhost,type,durable,arguments,messages",
    "exchanges": "name,vhost,type,durable,internal,arguments",
    "bindings": "source,vhost,destination,destination_type,routing_key,arguments",
    "policies": "",
}
# a node adds the type by itself, and 4.x has one version of queues
_NOT_COMPARED = frozenset({"x-queue-type", "x-queue-version"})
_SEEING_ALL = frozenset({"administrator", "monitoring"})

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class NodeCheck:
    """The result. node: its address without the password; version: of the node; missing: one sentence for each definition that it lacks or
    has otherwise; messages: number of messages that it already has, which replacing its stores would delete.
    """

    node: str
    version: str
    compared: dict[str, int]
    missing: tuple[str, ...]
    messages: int = 0

    @property
    def ok(self) -> bool:
        return not self.missing

    def as_dict(self) -> dict[str, Any]:
        return {
            "node": self.node,
            "version": self.version,
            "ok": self.ok,
            "compared": dict(self.compared),
            "missing": list(self.missing),
            "messages": self.messages,
        }


class ManagementApi:
    """The management interface of a node. environment: variables. Raises UsageError for a URL that cannot be one."""

    def __init__(self, url: str, environment: Mapping[str, str]) -> None:
        example = "give http://host:15672 or https://host:15671"
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            raise UsageError(f"the address after --check is not a URL; {example}") from None
        if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
            raise UsageError(f"the address after --check is not that of a management interface; {example}")
        self._secure = parts.scheme == "https"
        self._host, self._port = host, port or (15671 if self._secure else 15672)
        self._path = parts.path.rstrip("/").removesuffix("/api")
        shown = f"[{host}]" if ":" in host else host
        self.node = f"{parts.scheme}://{shown}:{self._port}{self._path}"
        if not self.node.isascii() or not self.node.isprintable() or " " in self.node:
            raise UsageError(f"the address after --check has characters that a URL cannot have; {example}")
        user = unquote(parts.username) if parts.username is not None else environment.get(USER, "")
        password = unquote(parts.password) if parts.password is not None else environment.get(PASSWORD, "")
        self._headers = {"Accept": "application/json", "Connection": "close"}
        if user:
            self._headers["Authorization"] = f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode('ascii')}"

    def rows(self, kind: str) -> list[Row]:
        """Return all objects of a kind. Raises CannotOpenError, UsageError."""
        columns = _COLUMNS[kind]
        more = "&enable_queue_totals=true&disable_stats=true" if kind == "queues" else ""
        rows = self.get(f"/api/{kind}{f'?columns={columns}{more}' if columns else ''}")
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise self._not_management(f"its list of {kind} is not one")
        return rows

    def version(self) -> str:
        """Return the node's version."""
        overview = self.get("/api/overview")
        version = overview.get("rabbitmq_version") if isinstance(overview, dict) else None
        if not isinstance(version, str) or not version.isascii() or not version.isprintable() or len(version) > 60:
            raise self._not_management("it does not name its version")
        return version

    def check_user(self) -> None:
        """Raise UsageError if the user is shown only what is its own: then what lacks is not known."""
        user = self.get("/api/whoami")
        tags = user.get("tags") if isinstance(user, dict) else None
        if isinstance(tags, str):  # before 3.9
            tags = tags.split(",")
        if not isinstance(tags, list):
            raise self._not_management("it does not describe the user")
        if not {str(tag) for tag in tags} & _SEEING_ALL:
            raise UsageError(f"the user is shown only a part of the definitions of {self.node}; give one with the tag administrator")

    def get(self, path: str) -> Any:
        """Return the answer to a request. Raises CannotOpenError, UsageError."""
        try:
            status, body = self._answer(f"{self._path}{path}")
        except ssl.SSLError as error:
            raise CannotOpenError(
                f"{self.node} has no valid TLS: {error.reason or 'the handshake failed'}; check the URL, or name the "
                "file with its CA in SSL_CERT_FILE"
            ) from None
        except TimeoutError:
            raise CannotOpenError(f"{self.node} did not answer in time; check the URL") from None
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else "the answer is not HTTP"
            raise CannotOpenError(
                f"{self.node} cannot be asked: {why}; check the URL, and that the plug-in rabbitmq_management is enabled"
            ) from None
        if status in (401, 403):
            raise UsageError(
                f"{self.node} refuses the user or the password (status {status}); give those of an administrator in the URL, "
                f"http://user:password@host, or in {USER} and {PASSWORD}"
            )
        if status != 200:
            raise self._not_management(f"it answers {path.partition('?')[0]} with status {status}")
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            raise self._not_management("its answer is not JSON") from None

    def _answer(self, target: str) -> tuple[int, bytes]:
        made = (
            http.client.HTTPSConnection(self._host, self._port, timeout=TIMEOUT, context=ssl.create_default_context())
            if self._secure
            else http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT)
        )
        late = threading.Event()

        def give_up() -> None:
            late.set()
            if made.sock is not None:
                with contextlib.suppress(OSError):
                    made.sock.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(DEADLINE, give_up)
        timer.daemon = True
        try:
            made.connect()
            timer.start()
            # the socket is kept by the answer, and no longer by the connection, if the node closes it
            held = made.sock
            made.request("GET", target, headers=self._headers)
            answer = made.getresponse()
            made.sock = held
            body = bytearray()
            while piece := answer.read(1 << 20):
                body += piece
                if len(body) > MOST_BYTES:
                    raise self._not_management(f"its answer has more than {MOST_BYTES >> 20} MiB")
        except (OSError, http.client.HTTPException):
            if late.is_set():
                raise TimeoutError from None
            raise
        finally:
            timer.cancel()
            made.close()
        if late.is_set():
            raise TimeoutError
        return answer.status, bytes(body)

    def _not_management(self, why: str) -> CannotOpenError:
        return CannotOpenError(f"{self.node} is not the management interface of a RabbitMQ node: {why}; check the URL")


def read_document(directory: Path) -> dict[str, Any]:
    """Return the definitions that a rescue wrote. place: its directory. Raises NotAStoreError, CannotOpenError."""
    file = directory / "definitions.json"
    try:
        with open_regular_file(file) as content:
            document = json.loads(content.read(MOST_BYTES))
    except (FileNotFoundError, NotADirectoryError):
        raise NotAStoreError(
            f"{directory} has no definitions.json; give the directory that rescue wrote, or run it without --check first"
        ) from None
    except OSError as error:
        raise CannotOpenError(why_unreadable(file, error)) from None
    except (ValueError, RecursionError):
        raise CannotOpenError(f"{file} is not JSON; run rescue again with another OUT") from None
    rows = [document.get(kind, []) for kind in COMPARED] if isinstance(document, dict) else [None]
    if not all(isinstance(each, list) and all(isinstance(row, dict) for row in each) for each in rows):
        raise CannotOpenError(f"{file} does not have definitions; run rescue again with another OUT")
    return dict(document)


def check_node(document: Row, api: ManagementApi, version: str | None = None) -> NodeCheck:
    """Compare definitions with those of a node. version: the one that it must have. Raises CannotOpenError, UsageError."""
    expected = None if version is None else target_version(version).name
    running = api.version()
    api.check_user()
    missing = []
    if expected is not None and ".".join(running.split(".")[:2]) != expected:
        missing.append(f"The node is RabbitMQ {running}, not {expected}.")
    there = {kind: api.rows(kind) for kind in COMPARED}
    missing += _missing_vhosts(document, there["vhosts"])
    known = {str(row.get("name")) for row in there["vhosts"]}
    for kind, compare in (("queues", _queue_differences), ("exchanges", _exchange_differences), ("policies", _policy_differences)):
        rows = {_key(row): row for row in there[kind]}
        for row in _of_vhosts(document, kind, known):
            what = f"{'policy' if kind == 'policies' else kind.removesuffix('s')} {row.get('name')!r} of vhost {row.get('vhost')!r}"
            own = rows.get(_key(row))
            missing += [f"No {what}."] if own is None else [f"The {what} {why}." for why in compare(row, own)]
    bindings = {_binding(row) for row in there["bindings"]}
    for row in _of_vhosts(document, "bindings", known):
        if _binding(row) not in bindings:
            missing.append(
                f"No binding from exchange {row.get('source')!r} to {row.get('destination_type')} {row.get('destination')!r} with key "
                f"{row.get('routing_key')!r} in vhost {row.get('vhost')!r}."
            )
    messages = sum(row["messages"] for row in there["queues"] if type(row.get("messages")) is int)
    return NodeCheck(api.node, running, {kind: len(document.get(kind, [])) for kind in COMPARED}, tuple(missing), messages)


def _missing_vhosts(document: Row, there: Iterable[Row]) -> list[str]:
    """Return a sentence for each missing vhost, with what it should contain: that is not listed again."""
    names = {str(row.get("name")) for row in there}
    sentences = []
    for vhost in document.get("vhosts", []):
        if str(vhost.get("name")) not in names:
            queues = sum(1 for row in document.get("queues", []) if row.get("vhost") == vhost.get("name"))
            sentences.append(f"No vhost {vhost.get('name')!r}, nor its {queues} {'queue' if queues == 1 else 'queues'}.")
    return sentences


def _of_vhosts(document: Row, kind: str, vhosts: set[str]) -> list[Row]:
    return [row for row in document.get(kind, []) if str(row.get("vhost")) in vhosts]


def _key(row: Row) -> tuple[str, str]:
    return str(row.get("vhost")), str(row.get("name"))


def _queue_differences(expected: Row, own: Row) -> list[str]:
    named = _arguments(own, every=True).get("x-queue-type", "classic")
    return [
        *_differences(expected, {**own, "type": own.get("type", named)}, ("type", "durable")),
        *_argument_differences(expected, own),
    ]


def _exchange_differences(expected: Row, own: Row) -> list[str]:
    return [*_differences(expected, {"internal": False, **own}, ("type", "durable", "internal")), *_argument_differences(expected, own)]


def _policy_differences(expected: Row, own: Row) -> list[str]:
    return _differences(expected, own, ("pattern", "apply-to", "definition", "priority"))


def _differences(expected: Row, own: Row, names: Iterable[str]) -> list[str]:
    return [
        f"has {name} {_shown(own.get(name))}, not {_shown(expected[name])}"
        for name in names
        if name in expected and expected[name] != own.get(name)
    ]


def _argument_differences(expected: Row, own: Row) -> list[str]:
    first, second = _arguments(expected), _arguments(own)
    said = []
    for name in sorted(first.keys() | second.keys()):
        if name not in second:
            said.append(f"has no argument {name}, which should be {_shown(first[name])}")
        elif name not in first:
            said.append(f"has an argument {name} ({_shown(second[name])}), which it should not have")
        elif first[name] != second[name]:
            said.append(f"has {name} {_shown(second[name])}, not {_shown(first[name])}")
    return said


def _arguments(row: Row, *, every: bool = False) -> dict[str, Any]:
    arguments = row.get("arguments")
    return (
        {str(name): value for name, value in arguments.items() if every or name not in _NOT_COMPARED} if isinstance(arguments, dict) else {}
    )


def _binding(row: Row) -> tuple[str, ...]:
    places = tuple(str(row.get(name)) for name in ("vhost", "source", "destination_type", "destination", "routing_key"))
    return (*places, json.dumps(_arguments(row, every=True), sort_keys=True))


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)[:200]
