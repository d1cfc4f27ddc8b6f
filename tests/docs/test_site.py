"""The documentation as a site: every link and anchor leads somewhere, and no page needs another host."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def site() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_site", ROOT / "scripts" / "docs_site.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_links_lead_to_pages_of_the_site_and_source_files_are_named(site: ModuleType) -> None:
    places = {
        Path("README.md"): Path("index.md"),
        Path("docs/guide/find.md"): Path("guide/find.md"),
        Path("docs/start.md"): Path("start.md"),
    }
    text = "[find](docs/guide/find.md#what), [ci](.ci/run), [`x`](pyproject.toml), [there](http://x/y), [no](docs/nothing.md), [here](#top)"
    assert site.linked(text, Path("README.md"), places) == (
        "[find](guide/find.md#what), ci (`.ci/run`), `x`, [there](http://x/y), no (`docs/nothing.md`), [here](#top)",
        ["docs/nothing.md"],
    )
    assert (
        site.linked("[up](../../README.md) [next](../start.md)", Path("docs/guide/find.md"), places)[0]
        == "[up](../index.md) [next](../start.md)"
    )


def test_every_command_and_every_public_name_has_a_place(site: ModuleType) -> None:
    pages = site.commands()
    for command in ("inspect", "messages", "diagnose", "repair", "rescue", "salvage", "replay", "find", "serve", "console"):
        assert pages[command].startswith(f"# `{command}`\n")
        assert f"[`{command}`](commands/{command}.md)" in pages["index"]
    assert "| `--between FROM..TO` | The same as --since FROM --until TO; also as two words: --between FROM TO. |" in pages["messages"]
    assert "--no-color" in pages["index"]
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
def test_the_site_is_built_without_a_dead_link_and_needs_no_other_host(site: ModuleType, tmp_path: Path) -> None:
    assert site.main(tmp_path / "site") == 0
    html = tmp_path / "site" / "html"
    assert len(list(html.rglob("*.html"))) > 50
    for page in html.rglob("*.html"):
        fetched = re.findall(r"<(?:script|img|link)[^>]*(?:src|href)=[\"']?((?:https?:)?//[^\"' >]+)", page.read_text(encoding="utf-8"))
        assert not fetched, page.name
    found = (html / "reference" / "mqstore.rocketmq.html").read_text(encoding="utf-8")
    assert "A store open for writing" in found


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
