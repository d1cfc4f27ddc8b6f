"""Profiles: what differs between a 4.9.3 and a 5.3.3 broker, as far as a client can see it.

    >>> profile("4.9.3").number, profile("5.3.3").parameter_code.name
    (399, 'INVALID_PARAMETER')

Both answer what either asks for; requests that only 5.3.3 clients make (361, 351, 352) are answered by the 4.9.3 profile too.

Protocol: docs/formats/rocketmq-remoting.md, section 7.
"""

from __future__ import annotations

from dataclasses import dataclass

from mqstore.broker.protocol.codes import V4_9_3, V5_3_3, ResponseCode, release_name
from mqstore.errors import UsageError

__all__ = ["PROFILE_4_9_3", "PROFILE_5_3_3", "Profile", "profile"]


@dataclass(frozen=True, slots=True)
class Profile:
    """Whose behaviour is shown. number: the release number in every frame.

    parameter_code: of a request with an illegal topic or queue id.
    """

    version: str
    number: int
    parameter_code: ResponseCode

    @property
    def is_v5(self) -> bool:
        return self.number >= V5_3_3

    @property
    def release(self) -> str:
        """The name of the release, as `V4_9_3`."""
        return release_name(self.number)


PROFILE_4_9_3 = Profile("4.9.3", V4_9_3, ResponseCode.SYSTEM_ERROR)
PROFILE_5_3_3 = Profile("5.3.3", V5_3_3, ResponseCode.INVALID_PARAMETER)


def profile(version: str) -> Profile:
    """The profile of a version. Raises UsageError."""
    for each in (PROFILE_4_9_3, PROFILE_5_3_3):
        if each.version == version:
            return each
    raise UsageError(f"there is no profile {version!r}; known are {PROFILE_4_9_3.version} and {PROFILE_5_3_3.version}")
