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

__all__ = ["PROFILE_4_9_3", "PROFILE_5_3_3", "Profile", "profile"]


@dataclass(frozen=True, slots=True)
class Profile:
    """The version whose behaviour clients see. number: the release number in every frame.

    parameter_code: response code for an illegal topic or queue id. refusal_code: for a request that access control refuses.
    """

    version: str
    number: int
    parameter_code: ResponseCode
    refusal_code: ResponseCode

    @property
    def is_v5(self) -> bool:
        return self.number >= V5_3_3

    @property
    def release(self) -> str:
        """The name of the release, such as `V4_9_3`."""
        return release_name(self.number)


PROFILE_4_9_3 = Profile("4.9.3", V4_9_3, ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_ERROR)
PROFILE_5_3_3 = Profile("5.3.3", V5_3_3, ResponseCode.INVALID_PARAMETER, ResponseCode.NO_PERMISSION)


def profile(version: str) -> Profile:
    """Return the profile of a version. Raises UsageError."""
    for each in (PROFILE_4_9_3, PROFILE_5_3_3):
        if each.version == version:
            return each
    raise UsageError(f"there is no profile {version!r}; the profiles are {PROFILE_4_9_3.version} and {PROFILE_5_3_3.version}")
