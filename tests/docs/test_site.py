"""The documentation as a site: every link and anchor leads somewhere, no page is wider than a window or needs another host."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
from support.consoles import CHROMIUM, chromium, serious_faults

ROOT = Path(__file__).resolve().parents[2]

# pages with the widest tables and code of each kind
WIDE = (
    "index.html",
    "guide/versions.html",
    "guide/message-table.html",
    "commands/salvage.html",
    "formats/rocketmq-remoting.html",
    "performance.html",
    "reliability.html",
    "reference/mqstore.rocketmq.html",
)
SEARCHED = {
    "broker does not start": "guide/start.html",
    "lag": "guide/analysis.html",
    "find": "guide/find.html",
    "quorum queues": "guide/quorum.html",
    "salvage": "guide/salvage.html",
}


@pytest.fixture(scope="module")
def site() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_site", ROOT / "scripts" / "docs_site.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def html(site: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built once."""
    out = tmp_path_factory.mktemp("site")
    assert site.main(out) == 0
    return out / "html"


def test_links_lead_to_pages_of_the_site_and_source_files_are_named(site: ModuleType) -> None:
    find = Path("docs/guide/find.md")
    places = {
        Path("README.md"): Path("index.md"),
        find: Path("guide/find.md"),
        Path("docs/start.md"): Path("start.md"),
        Path("docs/guide/find.md#get"): Path("commands/get.md"),
    }
    text = "[find](docs/guide/find.md#what), [ci](.ci/run), [`x`](pyproject.toml), [there](http://x/y), [no](docs/nothing.md), [here](#top)"
    assert site.linked(text, Path("README.md"), places, Path("index.md")) == (
        "[find](guide/find.md#what), ci (`.ci/run`), `x`, [there](http://x/y), no (`docs/nothing.md`), [here](#top)",
        ["docs/nothing.md"],
    )
    text = "[up](../../README.md) [next](../start.md) [get](#get) [here](#top)"
    assert (
        site.linked(text, find, places, places[find])[0] == "[up](../index.md) [next](../start.md) [get](../commands/get.md) [here](#top)"
    )


def test_every_command_and_every_public_name_has_a_place(site: ModuleType) -> None:
    pages = site.commands()
    sections = site.by_command((ROOT / site.GUIDE).read_text(encoding="utf-8"), pages)
    assert sections.keys() == {"", *pages}
    for command in pages:
        assert f"[`{command}`](#{command})" in site.overview()
    assert "| `--between FROM..TO` | The same as --since FROM --until TO; also as two words: --between FROM TO. |" in pages["messages"]
    assert "--no-color" in site.overview()
    assert "--no-color" not in pages["messages"]
    names = set(re.findall(r"^::: mqstore\.\S+\.(\w+)$", site.api("mqstore.rocketmq"), re.MULTILINE))
    assert {"MessageStore", "Message", "PutResult", "RocketMQStore", "StoreConfig"} <= names


def test_the_manual_page_has_every_command_and_the_formatter_has_nothing_to_say(site: ModuleType, tmp_path: Path) -> None:
    text = site.manual()
    for command in ("inspect", "diagnose", "repair", "completion"):
        assert f"\n.SS {command}\n" in text
    assert "text|json|jsonl|csv" in text
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed")
    done = subprocess.run(["groff", "-K", "utf8", "-man", "-Tutf8", "-ww", "-Z"], input=text, capture_output=True, text=True, check=True)
    assert done.stderr == ""


@pytest.mark.long
def test_the_site_is_built_without_a_dead_link_and_needs_no_other_host(html: Path) -> None:
    assert len(list(html.rglob("*.html"))) > 50
    for page in html.rglob("*.html"):
        fetched = re.findall(r"<(?:script|img|link)[^>]*(?:src|href)=[\"']?((?:https?:)?//[^\"' >]+)", page.read_text(encoding="utf-8"))
        assert not fetched, page.name
    found = (html / "reference" / "mqstore.rocketmq.html").read_text(encoding="utf-8")
    assert "A store open for writing" in found


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is on this machine; .ci/run installs Debian's")
def test_no_page_is_wider_than_the_window_and_the_search_has_tasks_first(html: Path) -> None:
    pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
    width = "document.documentElement.scrollWidth"
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        faults: list[str] = []
        page.on("pageerror", lambda error: faults.append(str(error)))
        wide = {}
        for path in WIDE:
            page.goto((html / path).as_uri())
            for window in (1280, 390):
                page.set_viewport_size({"width": window, "height": 900})
                wide[path, window] = page.evaluate(width) - window
        assert not {at: over for at, over in wide.items() if over > 0}
        for scheme, window in (("light", 1280), ("dark", 390)):
            page.emulate_media(color_scheme=scheme)
            page.set_viewport_size({"width": window, "height": 900})
            page.goto((html / "index.html").as_uri())
            assert serious_faults(page) == []
        page.set_viewport_size({"width": 1280, "height": 900})
        for query, first in SEARCHED.items():
            page.goto((html / "guide" / "limits.html").as_uri())
            page.click("text=Search")
            page.fill("#mkdocs-search-query", query)
            page.wait_for_selector("#mkdocs-search-results article")
            assert page.locator("#mkdocs-search-results a").first.get_attribute("href").startswith(f"../{first}"), query
        assert faults == []


@pytest.mark.long
@pytest.mark.parametrize(("link", "said"), [("[gone](guide/gone.md)", "guide/gone.md"), ("[gone](guide/find.md#gone)", "#gone")])
def test_a_link_that_leads_nowhere_ends_the_build(
    link: str, said: str, site: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    for name in ("src", "tests", "scripts", "benchmarks", ".ci", "LICENSE"):
        (tmp_path / name).symlink_to(ROOT / name)
    with (tmp_path / "docs" / "architecture.md").open("a") as page:
        page.write(f"\n{link}\n")
    monkeypatch.setattr(site, "ROOT", tmp_path)
    monkeypatch.setattr(site, "PACKAGES", ())
    assert site.main(tmp_path / "site") != 0
    assert said in capfd.readouterr().err
