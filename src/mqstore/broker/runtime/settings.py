"""Settings of a broker: those of a real broker, under Python names, and the limits of this process.

>>> Settings().with_broker({"brokerName": "broker-b", "autoCreateTopicEnable": "true", "unknown": "1"}).broker_name
'broker-b'
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from mqstore.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of a broker. Times in ms, sizes in bytes.

    address: announced to clients, `ip:port`; by default where the broker listens. rewrite_store_host: put that address into outgoing
    records, so that message ids point here. freeze_offsets: refuse to change offsets in a read-only store. metrics: where to serve
    metrics for Prometheus, `host:port`, or None. acl: a plain_acl.yml with the accounts that may connect, or None; read again every
    acl_scan_interval.

    tls: `disabled`, `permissive` or `enforcing`; by default enforcing if there is a tls_cert. tls_cert, tls_key, tls_client_ca: PEM files;
    without a tls_key, the key is in tls_cert; with a tls_client_ca, TLS clients need a certificate signed by it. insecure_listen: allow
    listening beyond loopback without accounts and without enforced TLS.

    handshake_timeout: of TLS, and of the first byte. max_handshakes: at a time; connections that begin further ones are closed.
    max_connections: further ones are closed at once; at most three quarters of the process's file descriptors. max_in_flight,
    max_in_flight_bytes: concurrent requests of one connection; further ones wait. working_limit: bytes of those of all connections;
    further ones are refused. write_high: unsent bytes of one connection above which no more of its requests are read. write_limit:
    unsent bytes above which the connection is aborted; unsent_limit: over all connections above write_high. incoming_limit: bytes of
    unfinished frames over all connections. max_held_pulls, held_limit: number and bytes of the pulls that are held;
    max_client_held_pulls: of one connection. max_hold_time: how long a pull is held at most, whatever it asks for. max_address_share:
    percent of each of these limits that the clients of one remote address may take (`runtime.limits`).

    max_topics to max_attributes: what clients can make the broker hold (`runtime.limits`). max_memberships: groups of all connected
    clients, each counted once per client; max_client_groups: of one client. max_client_subscriptions: topics in one heartbeat.
    max_subscription_bytes: memory of all subscriptions. Lengths in characters.
    """

    cluster: str = "DefaultCluster"
    broker_name: str = "broker-a"
    broker_id: int = 0
    region: str = "DefaultRegion"
    address: str | None = None
    rewrite_store_host: bool = False
    freeze_offsets: bool = False
    metrics: str | None = None
    acl: str | None = None
    acl_scan_interval: int = 5000
    tls: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_client_ca: str | None = None
    insecure_listen: bool = False

    auto_create_topics: bool = False
    auto_create_groups: bool = True
    default_topic_queue_nums: int = 8
    trace_topic: bool = True
    property_filter: bool = False
    reject_transactions: bool = False
    store_replies: bool = True
    long_polling: bool = True
    short_polling_time: int = 1000
    notify_consumers: bool = True
    server_side_reset: bool = True

    transaction_check_interval: int = 60_000
    transaction_timeout: int = 6000
    transaction_check_max: int = 15

    client_timeout: int = 120_000
    client_scan_interval: int = 10_000
    lock_timeout: int = 60_000
    idle_timeout: int = 120_000
    call_timeout: int = 10_000
    stop_timeout: int = 10_000
    handshake_timeout: int = 5000
    max_hold_time: int = 60_000

    max_connections: int = 50_000
    max_handshakes: int = 1000
    max_address_share: int = 50
    max_in_flight: int = 10_000
    max_in_flight_bytes: int = 32 << 20
    working_limit: int = 256 << 20
    max_held_pulls: int = 100_000
    max_client_held_pulls: int = 10_000
    held_limit: int = 256 << 20
    write_high: int = 1 << 20
    write_limit: int = 64 << 20
    unsent_limit: int = 512 << 20
    incoming_limit: int = 256 << 20
    workers: int = 4

    max_topics: int = 50_000
    max_groups: int = 20_000
    max_offsets: int = 500_000
    max_memberships: int = 200_000
    max_client_groups: int = 1000
    max_client_subscriptions: int = 5000
    max_subscriptions: int = 100_000
    max_subscription_bytes: int = 256 << 20
    max_queue_locks: int = 200_000
    max_kv_values: int = 10_000
    max_registered_topics: int = 200_000
    max_name_length: int = 255
    max_expression_length: int = 8192
    max_attributes: int = 64

    def with_broker(self, named: Mapping[str, str]) -> Settings:
        """Return the settings overridden by a broker's `name=value` pairs; unknown names are ignored. Raises UsageError."""
        kinds = {each.name: str(each.type) for each in fields(self)}
        changes: dict[str, Any] = {}
        for name, text in named.items():
            own, value = BROKER_NAMES.get(name), text.strip()
            if own is None:
                continue
            try:
                kind = kinds[own]
                changes[own] = value.lower() == "true" if kind == "bool" else int(value) if kind == "int" else value
            except ValueError:
                raise UsageError(f"{name}={text} is not a number; correct or omit the line") from None
        return replace(self, **changes)


# what no client may change
LIMITS = {
    "maxConnections": "max_connections",
    "maxTlsHandshakes": "max_handshakes",
    "tlsHandshakeTimeout": "handshake_timeout",
    "maxAddressShare": "max_address_share",
    "maxInFlightRequests": "max_in_flight",
    "maxInFlightBytesOfConnection": "max_in_flight_bytes",
    "maxInFlightBytes": "working_limit",
    "maxUnfinishedBytes": "incoming_limit",
    "maxUnsentBytesOfConnection": "write_limit",
    "maxUnsentBytes": "unsent_limit",
    "maxHeldPulls": "max_held_pulls",
    "maxHeldPullsOfConnection": "max_client_held_pulls",
    "maxHeldBytes": "held_limit",
    "maxHoldTime": "max_hold_time",
    "maxTopics": "max_topics",
    "maxGroups": "max_groups",
    "maxConsumerOffsets": "max_offsets",
    "maxMemberships": "max_memberships",
    "maxClientGroups": "max_client_groups",
    "maxClientSubscriptions": "max_client_subscriptions",
    "maxSubscriptions": "max_subscriptions",
    "maxSubscriptionBytes": "max_subscription_bytes",
    "maxQueueLocks": "max_queue_locks",
    "maxKvValues": "max_kv_values",
    "maxRegisteredTopics": "max_registered_topics",
    "maxNameLength": "max_name_length",
    "maxExpressionLength": "max_expression_length",
    "maxAttributes": "max_attributes",
}
BROKER_NAMES = {
    **LIMITS,
    "brokerClusterName": "cluster",
    "brokerName": "broker_name",
    "brokerId": "broker_id",
    "regionId": "region",
    "autoCreateTopicEnable": "auto_create_topics",
    "autoCreateSubscriptionGroup": "auto_create_groups",
    "defaultTopicQueueNums": "default_topic_queue_nums",
    "traceTopicEnable": "trace_topic",
    "enablePropertyFilter": "property_filter",
    "rejectTransactionMessage": "reject_transactions",
    "storeReplyMessageEnable": "store_replies",
    "longPollingEnable": "long_polling",
    "shortPollingTimeMills": "short_polling_time",
    "notifyConsumerIdsChangedEnable": "notify_consumers",
    "useServerSideResetOffset": "server_side_reset",
    "transactionCheckInterval": "transaction_check_interval",
    "transactionTimeOut": "transaction_timeout",
    "transactionCheckMax": "transaction_check_max",
}
