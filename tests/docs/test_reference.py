"""The reference is complete: every public name is on the API page with an example, and every setting on its page.

`test_examples.py` runs the examples. `test_site.py` builds the site.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import generated
import pytest
from page_runner import blocks_of

import seawall
import seawall.spark
from seawall import errors
from seawall.config import SETTINGS
from seawall.topics.config import TopicConfig

ROOT = Path(__file__).parents[2]
API = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
EXAMPLES = "\n".join(block.code for block in blocks_of(API) if block.language == "python" and block.mark is None)

#: A directive for a class, and its options.
CLASS = re.compile(r"^\.\. autoclass:: seawall\.([\w.]+)\n((?:   .*\n)*)", re.MULTILINE)

#: The classes whose instances users get from the package, by the path that autodoc reads.
SURFACES = (
    *("engine.api.embedded.EmbeddedLog", "client.remote_log.RemoteLog"),
    *("engine.api.aio_embedded.AsyncLog", "client.aio_remote_log.AsyncRemoteLog"),
    *("engine.api.publisher.Publisher", "client.publish.publisher.RemotePublisher"),
    *("engine.api.aio_publisher.AsyncPublisher", "client.publish.aio_publisher.AsyncRemotePublisher"),
    *("engine.api.subscriber.Subscriber", "engine.api.subscriber.PositionSubscriber"),
    *("client.read.subscriber.RemoteSubscriber", "client.read.subscriber.RemotePositionSubscriber"),
    *("engine.api.aio_subscriber.AsyncSubscriber", "engine.api.aio_subscriber.AsyncPositionSubscriber"),
    *("client.read.aio_subscriber.AsyncRemoteSubscriber", "client.read.aio_subscriber.AsyncRemotePositionSubscriber"),
    *("api.watches.Watch", "api.watches.AsyncWatch"),
    *("engine.commit.delivery.Delivery", "api.transactions.Transaction", "api.transactions.Stager"),
    *("api.aio_transactions.AsyncTransaction", "api.aio_transactions.AsyncStager"),
)

#: Topic settings without an implementation yet: no page explains them.
UNUSED_TOPIC_SETTINGS = {"priority", "auto_priority", "auto_create", "dedupe_node"}


def without_example(names: list[str], page: str) -> list[str]:
    """Names of the package that have no section, no directive or no example on a page."""
    sections = dict(re.findall(r"^### seawall\.(\w+)\n(.*?)(?=^##|\Z)", page, re.MULTILINE | re.DOTALL))
    return [name for name in names if not _is_described(name, sections.get(name, ""))]


def _is_described(name: str, section: str) -> bool:
    directive = re.compile(rf"^(\.\. auto\w+:: seawall\.{name}|<!-- generated: {name} -->)$", re.MULTILINE)
    examples = [block.code for block in blocks_of(section) if block.language == "python" and block.mark is None]
    return bool(directive.search(section)) and any(f"seawall.{name}" in code for code in examples)


def documented(page: str) -> dict[str, set[str]]:
    """The classes of a page, and the members that each excludes by its last option."""
    found = {}
    for path, options in CLASS.findall(page):
        left_out = options.partition(":exclude-members:")[2]
        assert ":" not in left_out, f"{path}: name what is excluded last"
        found[path] = set(re.findall(r"\w+", left_out))
    return found


def public_names(path: str) -> Iterator[str]:
    module, _, name = path.rpartition(".")
    found = getattr(importlib.import_module(f"seawall.{module}"), name)
    return (each for each in dir(found) if not each.startswith("_"))


def test_every_name_of_the_package_has_an_example() -> None:
    assert without_example(seawall.__all__, API) == []


def test_a_name_without_section_directive_or_example_is_found() -> None:
    directive = "```{eval-rst}\n.. autofunction:: seawall.open\n```\n"
    example = '```python\nseawall.open("data")\n```\n'
    assert without_example(["open"], f"### seawall.open\n\n{directive}\n{example}") == []
    assert without_example(["open"], f"### seawall.opened\n\n{directive}\n{example}") == ["open"]
    assert without_example(["open"], f"### seawall.open\n\n{directive}") == ["open"]
    assert without_example(["open"], f"### seawall.open\n\n{example}") == ["open"]
    assert without_example(["open"], f"### seawall.open\n\n{directive}\n## Next\n\n{example}") == ["open"]
    unrun = f"<!-- not run: breaks -->\n{example}"
    assert without_example(["open"], f"### seawall.open\n\n{directive}\n{unrun}") == ["open"]


@pytest.mark.parametrize("path", SURFACES)
def test_every_public_member_has_an_example(path: str) -> None:
    left_out = documented(API)[path]
    names = set(public_names(path))
    missing = {name for name in names - left_out if not re.search(rf"\.{name}\b", EXAMPLES)}
    assert missing == set(), f"show {missing} of {path} in an example, or exclude them on the page"


def test_excluded_members_exist() -> None:
    """The name of a removed member would hide a later one of the same name."""
    instance_attributes = {"on_change", "own_keys", "queue", "topic_named"}
    for path in SURFACES:
        assert documented(API)[path] - instance_attributes <= set(public_names(path)), path


def test_excluded_members_are_parsed_as_by_sphinx() -> None:
    page = ".. autoclass:: seawall.a.B\n   :members:\n   :exclude-members: one,\n      two\n\n"
    assert documented(page + ".. autoclass:: seawall.c.D\n   :members:\n") == {"a.B": {"one", "two"}, "c.D": set()}


def test_the_table_of_differences_is_correct() -> None:
    """Which kinds of log have a method that not all of them have."""
    shown = {
        name: tuple(cell.strip() == "yes" for cell in cells.split("|"))
        for name, cells in re.findall(r"^\| `(\w+)` \|((?: (?:yes|no) \|){3} (?:yes|no)) \|", API, re.MULTILINE)
    }
    kinds = [set(public_names(path)) - documented(API)[path] for path in SURFACES[:4]]
    presence = {name: tuple(name in kind for kind in kinds) for name in set().union(*kinds)}
    assert shown == {name: present for name, present in presence.items() if not all(present)}


def test_every_name_for_spark_is_on_the_page() -> None:
    for name in seawall.spark.__all__:
        assert f".. autofunction:: seawall.spark.{name}\n" in API


def test_every_setting_of_a_topic_is_in_the_table() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", API, re.MULTILINE))
    defaults = {key: value for key, value in TopicConfig().to_json().items() if key not in UNUSED_TOPIC_SETTINGS}
    assert rows == {key: str(value).lower() for key, value in defaults.items()}


def test_every_setting_is_on_the_settings_page() -> None:
    page = generated.filled((ROOT / "docs" / "settings.md").read_text(encoding="utf-8"))
    for key, setting in SETTINGS.items():
        _, _, rest = page.partition(f"\n### `{key}`\n")
        own = rest.partition("\n##")[0]
        for part in (setting.help[1:], setting.rule.allowed, f"`{setting.variable}`", f"`--set {key}=VALUE`"):
            assert part in own, key
        assert f"Default: `{generated.default_of(setting)}`" in own
    assert "`seawall serve --memory-limit`" in page


def test_every_error_is_on_the_api_page() -> None:
    page = generated.filled(API)
    for name in errors.__all__:
        assert f".. autoexception:: seawall.errors.{name}\n" in page


def test_an_unknown_generated_part_is_an_error() -> None:
    with pytest.raises(KeyError):
        generated.filled("<!-- generated: nothing -->")
