"""Access control, form tokens, and that nothing in a store or an address becomes more than text."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import golden as goldenkit
from support import stores as storekit
from support.console import ADDRESS, Visitor, golden, visiting, words

from mqstore.console.app import create_app
from mqstore.console.guard import HEADERS
from mqstore.console.page import MAX_FORM_SIZE
from mqstore.console.settings import Settings, address_of
from mqstore.errors import UsageError

STORE = "4.9.3/b-kill9"
TOKEN = "a token of this test"

HOSTILE = [
    "'",
    '"><script>alert(1)</script>',
    "../../../etc/passwd",
    "..%2f..%2fetc/passwd",
    "/etc/passwd",
    "\x00",
    "\ud800",
    "٣",
    "-1",
    "0x10",
    "1e3",
    "9" * 30,
    "9" * 5000,
    str(2**63),
    str(-(2**63)),
    "{{7*7}}",
    "%s%n",
    "\u202eabc",
    "a\r\nSet-Cookie: x=y",
]

QUESTIONS = [
    ("/stores/0/messages", ("topic", "since", "until", "queue", "older", "newer", "view", "source", "begin")),
    ("/stores/0/key", ("topic", "key", "since", "until", "max", "view")),
    ("/stores/0/explain", ("topic", "key", "since", "until", "max", "view")),
    ("/stores/0/id", ("id", "topic", "view")),
    ("/stores/0/message", ("offset", "view", "body", "from", "record")),
    ("/stores/0/body", ("offset", "view")),
    ("/stores/0/topics", ("name", "from", "view")),
    ("/stores/0/groups", ("name", "from", "view")),
    ("/stores/0/files", ("name", "from", "only")),
    ("/stores/0/file", ("name", "at", "bytes")),
    ("/stores/1/queues", ("name", "from")),
    ("/stores/1/queue", ("vhost", "queue", "state", "level", "seq")),
    ("/stores/1/queued", ("id",)),
    ("/stores/1/message", ("vhost", "queue", "level", "seq", "body", "from")),
    ("/stores/1/body", ("vhost", "queue", "level", "seq")),
    ("/basket", ("from",)),
    ("/basket/export", ("family", "format")),
]


@pytest.fixture(scope="module")
def visitor():  # type: ignore[no-untyped-def]
    with visiting(golden(STORE), golden("3.10.8/f-mixed-features")) as found:
        yield found


# hostile requests


SOUND = {"topic": "TopicTest", "key": "K20", "offset": "0", "vhost": "/", "queue": "", "seq": "0", "name": ""}


@pytest.mark.parametrize(("path", "names"), QUESTIONS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_hostile_value_is_answered_with_a_sentence_and_never_a_trace(visitor: Visitor, path: str, names: tuple[str, ...]) -> None:
    for name in names:
        for value in HOSTILE:
            query = {each: SOUND[each] for each in names if each in SOUND} | {name: value}
            text = "&".join(f"{key}={quote(given, errors='surrogatepass')}" for key, given in query.items())
            page = visitor.get(f"{path}?{text}")
            assert page.status_code in (200, 400, 404), (path, name, value, page.status_code)
            assert "<script>alert" not in page.text
            assert "Traceback" not in page.text
            assert "root:" not in page.text
            assert "\x00" not in page.text
            assert "\u202e" not in page.text


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(QUESTIONS), st.data())
def test_any_question_is_answered(visitor: Visitor, question: tuple[str, tuple[str, ...]], data: st.DataObject) -> None:
    path, names = question
    values = data.draw(st.dictionaries(st.sampled_from(names), st.one_of(st.text(max_size=20), st.integers().map(str))))
    text = "&".join(f"{key}={quote(given, errors='surrogatepass')}" for key, given in values.items())
    assert visitor.get(f"{path}?{text}").status_code in (200, 400, 404, 422)


@pytest.mark.parametrize(
    "path",
    [
        "/stores/2",
        "/stores/99999999999999999999",
        "/stores/-1",
        "/stores/x",
        "/stores/0/nothing",
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static/..%2fsite.py",
        "/static//etc/passwd",
        "/jobs/none",
        "/stores/0/file?name=../../../../etc/passwd",
        "/stores/0/file?name=/etc/passwd",
        "/stores/0/file?name=commitlog/../config/topics.json",
        "/stores/0/file?name=commitlog",
    ],
)
def test_no_path_leads_out_of_the_given_stores(visitor: Visitor, path: str) -> None:
    page = visitor.get(path)
    assert page.status_code == 404
    assert "root:" not in page.text
    assert "import" not in page.text


def test_a_link_out_of_a_store_is_not_followed_to_a_directory(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("keep this")
    store = storekit.Store(tmp_path / "store")
    store.put(storekit.message("orders"))
    store.write()
    (tmp_path / "store" / "more").symlink_to(outside)
    (tmp_path / "store" / "config").mkdir()
    (tmp_path / "store" / "config" / "secret").symlink_to(outside / "secret")
    with visiting(tmp_path / "store") as inside:
        assert inside.get("/stores/0/file?name=more/secret").status_code == 404
        assert inside.get("/stores/0/file?name=checkpoint").status_code == 200
        assert "leads out of the store" in words(inside.get("/stores/0/file?name=config/secret"))
        assert "keep this" not in inside.get("/stores/0/files").text


def test_the_content_of_a_message_is_shown_and_never_run(tmp_path: Path) -> None:
    script = "<script>alert('x')</script><img src=x onerror=alert(1)>"
    store = storekit.Store(tmp_path)
    store.put(storekit.message("orders", script.encode(), keys=script.replace(" ", ""), tags=script))
    store.put(storekit.message("orders", b'{"a": "' + script.replace('"', "").encode() + b'"}', keys="plain"))
    store.put(storekit.message("<b>topic", b"\xff\xfe<script>", keys="\u202eevil\x1b[2J"))
    store.write()
    with visiting(tmp_path) as visitor:
        pages = ["/stores/0/topics", "/stores/0/messages", "/stores/0/messages?source=log", "/stores/0/messages?topic=orders"]
        pages += ["/stores/0/messages?topic=<b>topic", f"/stores/0/key?topic=orders&key={quote(script)}"]
        for put in store.puts:
            pages += [f"/stores/0/message?offset={put.offset}&body={view}&record=0" for view in ("text", "json", "hex")]
        for path in pages:
            page = visitor.get(path)
            assert page.status_code == 200
            assert not re.search(
                r"<script>|<img|<b>topic|onerror=alert\(1\)>(?!&)", page.text.replace("&lt;img src=x onerror=alert(1)&gt;", "")
            )
            assert "\u202e" not in page.text
            assert "\x1b" not in page.text
        body = visitor.get(f"/stores/0/body?offset={store.puts[0].offset}")
        assert body.content == script.encode()
        assert body.headers["content-type"] == "application/octet-stream"
        assert body.headers["content-disposition"].startswith("attachment")


def test_json_whose_layout_would_be_a_thousand_times_its_size_is_cut(tmp_path: Path) -> None:
    deep = 900
    store = storekit.Store(tmp_path, file_size=1 << 20)
    store.put(storekit.message("orders", b"[" * deep + b"1," * 100_000 + b"1" + b"]" * deep))
    store.put(storekit.message("orders", b"[" * 100_000))
    store.write()
    with visiting(tmp_path) as visitor:
        for put in store.puts:
            page = visitor.get(f"/stores/0/message?offset={put.offset}")
            assert page.status_code == 200
            assert len(page.content) < 400_000


# answers


@pytest.mark.parametrize(
    "path", ["/", "/stores/0", "/nowhere", "/static/console.css", "/stores/0/body?offset=0", "/basket/export?family=x"]
)
def test_every_response_has_the_security_headers(visitor: Visitor, path: str) -> None:
    found = visitor.get(path).headers
    assert {name: found.get(name) for name in HEADERS} == HEADERS
    policy = found["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    if not path.startswith("/static/"):
        assert found["cache-control"] == "no-store"


def test_pages_use_nothing_from_elsewhere_and_no_inline_script_or_style(visitor: Visitor) -> None:
    for path in (
        "/",
        "/stores/0",
        "/stores/0/messages?topic=TopicTest",
        "/stores/0/files",
        "/stores/1/queues",
        "/stores/0/message?offset=0",
    ):
        text = visitor.get(path).text
        assert not re.search(r'(?:src|href|action)="(?:https?:)?//', text)
        assert not re.search(r"<style|<script(?! src=\"/static/)|\sstyle=|\son[a-z]+=", text)


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_other_methods_are_refused(visitor: Visitor, method: str) -> None:
    assert visitor.request(method, "/").status_code == 405


# hosts, origins, forms


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:8082", "localhost:9", "[::1]:8082", "127.9.9.9"])
def test_requests_to_names_of_this_machine_are_answered(visitor: Visitor, host: str) -> None:
    assert visitor.get("/", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "10.0.0.1:8082", "", "localhost.evil", "[::ffff:10.0.0.1]"])
def test_a_foreign_name_that_resolves_to_this_machine_is_refused(visitor: Visitor, host: str) -> None:
    page = visitor.get("/", headers={"host": host})
    assert page.status_code == 421
    assert "broker" not in page.text


@pytest.mark.parametrize(
    "headers", [{"origin": "https://evil.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}]
)
def test_a_form_of_another_site_is_refused(visitor: Visitor, headers: dict[str, str]) -> None:
    token = visitor.csrf()
    assert visitor.post("/basket/add", data={"csrf": token, "place": "0:0"}, headers=headers).status_code == 403


POSTS = [
    "/basket/add",
    "/basket/remove",
    "/basket/clear",
    "/basket/replay",
    "/basket/replay/run",
    "/stores/0/verify",
    "/stores/0/usage",
    "/stores/0/reload",
    "/jobs/x/cancel",
]


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("token", [None, "", "0" * 64, "ü"])
def test_a_form_without_this_sessions_token_is_refused(visitor: Visitor, path: str, token: str | None) -> None:
    before = len(visitor.console.jobs.all())
    page = visitor.post(path, data={"place": "0:0"} | ({} if token is None else {"csrf": token}))
    assert page.status_code == 403
    assert len(visitor.console.jobs.all()) == before


def test_a_link_changes_nothing(visitor: Visitor) -> None:
    for path in POSTS:
        assert visitor.get(path).status_code in (200, 404, 405)
    assert not visitor.console.jobs.find("replay", None)


def test_the_token_of_one_session_is_invalid_in_another() -> None:
    app = create_app(Settings((golden(STORE),)))
    with Visitor(app, base_url=ADDRESS) as one, Visitor(app, base_url=ADDRESS) as other:
        token = one.csrf()
        other.get("/")
        assert other.post("/basket/add", data={"csrf": token, "place": "0:0"}).status_code == 403


def test_a_body_that_is_too_large_or_not_a_form_is_refused(visitor: Visitor) -> None:
    token = visitor.csrf()
    big = visitor.post(
        "/basket/add",
        content=b"csrf=" + token.encode() + b"&x=" + b"y" * MAX_FORM_SIZE,
        headers={"content-type": "application/x-www-form-urlencoded"},
    )
    assert big.status_code == 400
    assert "fewer" in words(big)
    many = visitor.post("/basket/add", content=b"a&" * 30_000, headers={"content-type": "application/x-www-form-urlencoded"})
    assert many.status_code == 400
    other = visitor.post("/basket/add", json={"csrf": token})
    assert other.status_code == 400


@pytest.mark.parametrize(
    "back", ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)", "/x\r\nSet-Cookie: a=b"]
)
def test_a_form_redirects_to_pages_of_this_console_only(visitor: Visitor, back: str) -> None:
    page = visitor.post("/basket/add", data={"csrf": visitor.csrf(), "place": "0:0", "back": back}, follow_redirects=False)
    assert page.status_code == 303
    assert page.headers["location"] == "/basket"
    assert "a=b" not in page.headers.get("set-cookie", "")


# the token


def entering(path: str = "/", **sent: object) -> Visitor:
    app = create_app(Settings((golden(STORE),), host="0.0.0.0", token=TOKEN))
    return Visitor(app, base_url="http://broker.example:8082")


def test_if_a_token_is_set_nothing_is_shown_without_it() -> None:
    with entering() as visitor:
        for path in ("/", "/stores/0", "/stores/0/messages?topic=TopicTest", "/stores/0/body?offset=0", "/jobs", "/basket"):
            page = visitor.get(path, follow_redirects=False)
            assert (page.status_code, page.headers["location"]) == (303, "/enter")
            assert "TopicTest" not in page.text
        assert visitor.post("/basket/add", data={"place": "0:0"}).status_code == 401
        assert not visitor.console.sessions._sessions


@pytest.mark.parametrize("token", ["", "wrong", TOKEN.upper(), TOKEN + " x", "ü" * 1000, "\x00"])
def test_a_wrong_token_is_refused(token: str) -> None:
    with entering() as visitor:
        assert visitor.post("/enter", data={"token": token}).status_code == 401
        assert visitor.get("/", headers={"authorization": f"Bearer {quote(token)}"}, follow_redirects=False).status_code == 303
        assert visitor.get("/stores/0", follow_redirects=False).status_code == 303


def test_the_token_is_accepted_from_the_form_the_printed_link_and_a_header() -> None:
    with entering() as visitor:
        assert "Stores" in words(visitor.post("/enter", data={"token": TOKEN}))
        assert visitor.get("/stores/0").status_code == 200
        cookie = next(iter(visitor.cookies.jar))
        assert cookie.has_nonstandard_attr("HttpOnly")
        assert cookie.get_nonstandard_attr("SameSite") == "Strict"
    with entering() as visitor:
        page = visitor.get(f"/enter?token={quote(TOKEN)}")
        assert page.url.path == "/"
        assert "token" not in str(page.url)
        assert visitor.get("/stores/0").status_code == 200
    with entering() as visitor:
        assert visitor.get("/stores/0", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200


def test_a_forged_cookie_is_not_a_session() -> None:
    with entering() as visitor:
        visitor.cookies.set("mqstore_console_8082", "x" * 32)
        assert visitor.get("/stores/0", follow_redirects=False).status_code == 303


def test_visitors_without_cookies_do_not_evict_a_basket() -> None:
    app = create_app(Settings((golden(STORE),)))
    with Visitor(app, base_url=ADDRESS) as keeper:
        keeper.submit("/basket/add", place="0:0")
        for _ in range(300):
            keeper.console.sessions.make()
        assert "1 of 1 message" in words(keeper.get("/basket"))
        assert len(keeper.console.sessions._sessions) <= 201


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"host": "0.0.0.0"}, "token"),
        ({"host": "broker.example"}, "token"),
        ({"token": ""}, "empty"),
        ({"targets": ("/x",)}, "--allow-writes"),
    ],
)
def test_unsafe_settings_are_refused(given: dict[str, object], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        Settings(("store",), **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("listen", ["", "x", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:70000", "::1:٣"])
def test_an_invalid_address_is_reported(listen: str) -> None:
    with pytest.raises(UsageError, match="HOST:PORT"):
        address_of(listen)


# damaged stores


WALK = ["", "/topics", "/groups", "/messages", "/messages?source=log", "/files", "/files?only=damaged", "/verify", "/usage", "/queues"]


@pytest.mark.parametrize("case", [*goldenkit.CASES, *goldenkit.RABBITMQ], ids=goldenkit.case_id)
def test_every_page_of_every_golden_store_is_answered_and_nothing_is_changed(case: goldenkit.GoldenCase) -> None:
    root = goldenkit.opened(case)
    with goldenkit.unchanged(root), visiting(root) as visitor:
        rabbit = case in goldenkit.RABBITMQ
        for below in WALK:
            page = visitor.get(f"/stores/0{below}")
            assert page.status_code in ((200, 422) if rabbit or below == "/queues" else (200,)), (below, words(page)[:300])
        for kind in ("verify", "usage"):
            page = visitor.submit(f"/stores/0/{kind}")
            for job in visitor.console.jobs.all():
                assert job.settled.wait(60)
                assert job.state == "done", job.error
            assert visitor.get(f"/stores/0/{kind}").status_code == 200
        listed = visitor.get("/stores/0/queues" if rabbit else "/stores/0/messages")
        below = re.findall(r'href="(/stores/0/(?:queue|messages)\?[^"]*)"', listed.text)
        for path in below[:6]:
            page = visitor.get(path.replace("&amp;", "&"))
            assert page.status_code == 200
            for message in re.findall(r'href="(/stores/0/message\?[^"]*)"', page.text)[:3]:
                assert visitor.get(message.replace("&amp;", "&")).status_code == 200
        for name in re.findall(r'href="(/stores/0/file\?[^"]*)"', visitor.get("/stores/0/files").text)[:40]:
            assert visitor.get(name.replace("&amp;", "&")).status_code == 200
