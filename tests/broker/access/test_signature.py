"""Signatures: the content that is signed, and what does not match."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqstore.broker.protocol.frames import Frame
from mqstore.broker.protocol.headers import is_signed_by, sign

KEY = "12345678"

# (code, fields without the signature, signature), captured from AclClientRPCHook of the 4.9.3 and 5.3.3 clients, which sent the same
CAPTURED = [
    (105, {"topic": "AclOrders", "AccessKey": "shopkeeper"}, "xghhhp8XsQl0+0P+1iiEBAtwizI="),
    (
        11,
        {"queueId": "0", "maxMsgNums": "32", "sysFlag": "4", "suspendTimeoutMillis": "0", "commitOffset": "0", "topic": "AclOrders"}
        | {"queueOffset": "0", "AccessKey": "shopkeeper", "subscription": "*", "subVersion": "0", "consumerGroup": "acl-billing"},
        "GKBjW44G0QHM9ksEu2geRUEcn+M=",
    ),
]


def hmac_of(content: bytes, key: str = KEY) -> str:
    return base64.b64encode(hmac.digest(key.encode(), content, hashlib.sha1)).decode()


@pytest.mark.parametrize(("code", "fields", "signature"), CAPTURED)
def test_the_signatures_of_real_clients_are_right(code: int, fields: dict[str, str], signature: str) -> None:
    assert sign(Frame(code, fields), "the shop's key") == signature
    assert is_signed_by(Frame(code, {**fields, "Signature": signature}), "the shop's key")


def test_values_are_signed_in_the_order_of_their_names_with_the_body() -> None:
    request = Frame(310, ext={"b": "orders", "a": "g", "AccessKey": "publisher", "Signature": "x", "_UNIQUE_KEY_QUERY": "true"}, body=b"hi")
    assert sign(request, KEY) == hmac_of(b"publishergordershi")


def test_names_are_sorted_as_java_does() -> None:
    astral, private = "\U0001f600", "\ue000"  # by code point the other way round
    assert sign(Frame(1, ext={private: "second", astral: "first"}), KEY) == hmac_of(b"firstsecond")


def test_a_lone_surrogate_counts_as_a_question_mark() -> None:
    assert sign(Frame(1, ext={"a": "\ud800"}), KEY) == hmac_of(b"?")
    assert sign(Frame(1, ext={"\ud800": "x"}), KEY) == hmac_of(b"x")


def test_a_request_without_fields_is_signed_by_its_body() -> None:
    assert sign(Frame(1, body=memoryview(b"hi")), KEY) == hmac_of(b"hi")
    assert not is_signed_by(Frame(1), KEY)


@pytest.mark.parametrize(
    "change", [str.lower, str.swapcase, lambda text: text[:-1], lambda text: f"{text} ", lambda text: "", lambda text: "é" * 28]
)
def test_a_signature_matches_letter_by_letter(change) -> None:  # type: ignore[no-untyped-def]
    request = Frame(105, ext={"topic": "orders", "AccessKey": "publisher"})
    right = sign(request, KEY)
    assert request.ext is not None
    request.ext["Signature"] = right
    assert is_signed_by(request, KEY)
    assert not is_signed_by(request, KEY + "9")
    request.ext["Signature"] = change(right)
    assert not is_signed_by(request, KEY)


@given(st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=5), st.binary(max_size=9))
def test_any_request_can_be_signed_and_a_change_is_noticed(ext: dict[str, str], body: bytes) -> None:
    ext.pop("Signature", None)
    ext["topic"] = "orders"
    signed = Frame(1, ext={**ext, "Signature": sign(Frame(1, ext=dict(ext), body=body), KEY)}, body=body)
    assert is_signed_by(signed, KEY)
    assert signed.ext is not None
    signed.ext["topic"] = "others"
    assert not is_signed_by(signed, KEY)
