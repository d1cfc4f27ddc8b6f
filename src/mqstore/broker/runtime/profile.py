"""Profiles: differences between 4.9.3 and 5.3.3 brokers that clients can see.

    >>> profile("4.9.3").number, profile("5.3.3").parameter_code.name
    (399, 'INVALID_PARAMETER')

Both handle all requests; those that only 5.3.3 clients send (361, 351, 352) work with the 4.9.3 profile too.

Protocol: docs/formats/rocketmq-remoting.md, section 7.
"""

from __future__ import annotations

from dataclasses import dataclass

from mqstore.broker.protocol.codes import V4_9_3, V5_3_3, ResponseCode, release_name
from mqstore.errors import UsageError
from mqstore.rocketmq.format.profile import VersionRules, version_rules


@dataclass(frozen=True, slots=True)
class Profile:
    """The version whose behaviour clients see. number: the release number in every frame.

    parameter_code: response code for an illegal topic or queue id. refusal_code: for a request that access control refuses.
    offline_code: for a group without members. What follows says what a broker does; the values here are those of 5.3.3. What the stores of
    both versions do differently is in `rules`.
    """

    version: str
    number: int
    parameter_code: ResponseCode
    refusal_code: ResponseCode
    offline_code: ResponseCode
    has_topic_attributes: bool = True  # topics have attributes, and clients set their order
    tells_acting_master: bool = True  # in routes
    tells_timers: bool = True  # among its runtime information
    tells_put_rate: bool = True  # of a topic, and all of its queues, whether they are for writing or for reading
    tells_pull_offset: bool = True  # of a group, by queue
    tells_transaction_id: bool = True  # in the answer to a message that was sent
    tells_size_limit: bool = True  # the one that is configured, when a message is too large
    limits_time_of_decision: bool = True  # CHECK_IMMUNITY_TIME_IN_SECONDS of a half message
    names_broker_in_check: bool = True  # of a half message
    compares_commits: bool = True  # of offsets, with the queue
    forgets_offsets: bool = True  # with a topic that is deleted
    marks_dead_letters: bool = True  # with the topic and the id that the message had
    knows_fingerprints: bool = True  # of heartbeats

    @property
    def rules(self) -> VersionRules:
        """What a store of this version does."""
        return version_rules(self.version)

    @property
    def release(self) -> str:
        """The name of the release, such as `V4_9_3`."""
        return release_name(self.number)


PROFILE_4_9_3 = Profile(
    "4.9.3",
    V4_9_3,
    ResponseCode.SYSTEM_ERROR,
    ResponseCode.SYSTEM_ERROR,
    ResponseCode.SYSTEM_ERROR,
    has_topic_attributes=False,
    tells_acting_master=False,
    tells_timers=False,
    tells_put_rate=False,
    tells_pull_offset=False,
    tells_transaction_id=False,
    tells_size_limit=False,
    limits_time_of_decision=False,
    names_broker_in_check=False,
    compares_commits=False,
    forgets_offsets=False,
    marks_dead_letters=False,
    knows_fingerprints=False,
)
PROFILE_5_3_3 = Profile("5.3.3", V5_3_3, ResponseCode.INVALID_PARAMETER, ResponseCode.NO_PERMISSION, ResponseCode.CONSUMER_NOT_ONLINE)


def profile(version: str) -> Profile:
    """Return the profile of a version. Raises UsageError."""
    for each in (PROFILE_4_9_3, PROFILE_5_3_3):
        if each.version == version:
            return each
    raise UsageError(f"there is no profile {version!r}; the profiles are {PROFILE_4_9_3.version} and {PROFILE_5_3_3.version}")
