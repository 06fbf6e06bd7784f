"""The documentation builds as a site without warnings, and the site is complete and loads nothing from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import seawall
from seawall.cli.main import COMMANDS
from seawall.config import SETTINGS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
BUILD = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--nitpicky", "--quiet"]


def build(source: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Build a site; `make docs` and `make test-slow` install the requirements."""
    return subprocess.run([*BUILD, source, site], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("site")
    done = build(ROOT / "docs", made)
    assert done.returncode == 0, done.stderr
    return made


class Loaded(HTMLParser):
    """The addresses that a browser loads with a page: scripts, styles, images."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        name = {"link": "href", "script": "src", "img": "src", "iframe": "src"}.get(tag)
        if name and (address := given.get(name)):
            self.addresses.append(address)


def test_every_page_is_in_the_site(site: Path) -> None:
    pages = [path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if not (site / page).is_file()] == []
    front = (site / "index.html").read_text(encoding="utf-8")
    for part in ("Tutorial", "How-to guides", "Reference", "Explanation"):
        assert f'<span class="caption-text">{part}</span>' in front


def test_the_api_page_describes_every_name(site: Path) -> None:
    page = (site / "api.html").read_text(encoding="utf-8")
    described = set(re.findall(r'<dt class="[^"]*" id="([\w.]+)"', page))
    wanted = {f"seawall.{name}" for name in seawall.__all__ if name != "errors"}
    assert wanted <= described
    for path in ("engine.api.embedded.EmbeddedLog.publish", "client.remote_log.RemoteLog.read", "errors.LockedError"):
        assert f"seawall.{path}" in described


def test_generated_pages_are_generated(site: Path) -> None:
    commands = (site / "cli.html").read_text(encoding="utf-8")
    for command in COMMANDS:
        assert f"Usage: seawall {command.name} " in commands
    settings = (site / "settings.html").read_text(encoding="utf-8")
    for setting in SETTINGS.values():
        assert setting.variable in settings


def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    for path in site.rglob("*.html"):
        loaded = Loaded()
        loaded.feed(path.read_text(encoding="utf-8"))
        assert [address for address in loaded.addresses if re.match(r"(https?:)?//", address)] == [], path


def test_a_broken_link_fails_the_build(tmp_path: Path) -> None:
    source = tmp_path / "docs"
    source.mkdir()
    for name in ("conf.py", "generated.py"):
        (source / name).write_text((ROOT / "docs" / name).read_text(encoding="utf-8"), encoding="utf-8")
    (source / "index.md").write_text("# Front\n\nA [link](missing.md#nowhere).\n", encoding="utf-8")
    done = build(source, tmp_path / "site")
    assert done.returncode == 1
    assert "missing" in done.stderr
