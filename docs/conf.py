"""How Sphinx builds the documentation: `make docs`.

Pages are Markdown. What the product knows about itself is not written a second time: the API page reads docstrings, and
comments `<!-- generated: … -->` are replaced by what `generated.py` makes of commands, settings and errors.
"""

import sys
from dataclasses import is_dataclass
from importlib import import_module
from pathlib import Path
from typing import get_args, get_origin

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parent))

import generated

import seawall
from seawall.api.publishing import AsyncPublishingLog, PublishingLog

project = "Seawall"
author = "the Seawall contributors"
release = version = seawall.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]

# Headings are link targets as they are on a code host: `format.md#control-batches`.
myst_heading_anchors = 4
highlight_language = "text"

# One backtick in a docstring is code, as in Markdown.
default_role = "code"
autodoc_member_order = "bysource"
# Aliases keep their names, which the API page explains.
_ALIASES = "Item JsonObject JsonValue PositionItem PositionStart Publishable ReadMode Start Tls"
autodoc_type_aliases = {name: name for name in _ALIASES.split()}
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"
# Signatures name types of other projects, whose sites a build does not ask, and types that no user makes.
nitpick_ignore_regex = [
    ("py:.*", r"(?!seawall\.).*"),
    ("py:.*", r"seawall\.(api\.topic_config|client\.publish\.delivery|core\.types)\..*"),
    ("py:.*", r"seawall\.wire\.(format\.codes|lwp1\.node_load)\..*"),
    ("py:.*", r"seawall\.core\.routers\.Guarantee"),
    ("py:.*", r"seawall\.tasks\.(task_log|schedules)\..*"),
    ("py:.*", r"seawall\.tasks\.task_queue\.(R|_Decorator)"),
]

html_theme = "furo"
html_title = f"Seawall {release}"
html_copy_source = False
html_show_copyright = False
html_show_sourcelink = False


def _hide_constructors(_app: Sphinx, what: str, _name: str, found: object, *_: object) -> tuple[str, None] | None:
    """Logs, publishers and the like are made by others: only data classes show what they are made of."""
    return ("", None) if what == "class" and not is_dataclass(found) else None


def _name_publisher(
    _app: Sphinx, _what: str, name: str, _found: object, _options: object, given: str, result: str | None
) -> tuple[str, str] | None:
    """A log inherits `publisher` with a type variable as its result: show the class of the log's own publishers."""
    owner, _, method = name.rpartition(".")
    if method != "publisher" or result is None:
        return None
    module, _, log = owner.rpartition(".")
    bases = getattr(import_module(module), log).__orig_bases__
    publisher = next(get_args(base)[0] for base in bases if get_origin(base) in (PublishingLog, AsyncPublishingLog))
    return given, f"~{publisher.__module__}.{publisher.__qualname__}"


def setup(app: Sphinx) -> None:
    """Fill in what is generated, page by page; `hex` blocks are bytes with comments."""
    app.add_lexer("hex", TextLexer)
    app.connect("autodoc-process-signature", _hide_constructors)
    app.connect("autodoc-process-signature", _name_publisher)
    app.connect("source-read", lambda _app, _name, source: source.__setitem__(0, generated.filled(source[0])))
