"""How Sphinx builds the documentation: `make docs`.

Pages are Markdown. What the product knows about itself is not written a second time: the API page reads docstrings, and
comments `<!-- generated: … -->` are replaced by what `generated.py` makes of commands, settings and errors.
"""

import sys
from dataclasses import is_dataclass
from pathlib import Path

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parent))

import generated

import seawall

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
]

html_theme = "furo"
html_title = f"Seawall {release}"
html_copy_source = False
html_show_copyright = False
html_show_sourcelink = False


def _hide_constructors(_app: Sphinx, what: str, _name: str, found: object, *_: object) -> tuple[str, None] | None:
    """Logs, publishers and the like are made by others: only data classes show what they are made of."""
    return ("", None) if what == "class" and not is_dataclass(found) else None


def setup(app: Sphinx) -> None:
    """Fill in what is generated, page by page; `hex` blocks are bytes with comments."""
    app.add_lexer("hex", TextLexer)
    app.connect("autodoc-process-signature", _hide_constructors)
    app.connect("source-read", lambda _app, _name, source: source.__setitem__(0, generated.filled(source[0])))
