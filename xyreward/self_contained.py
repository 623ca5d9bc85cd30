"""What the HTML pages of this package share: nothing leaves them, and no text of the data runs in them.

A page is one file (`report_page.py` may lay data beside it). Its content security policy names the hashes
of its own style and script, so nothing else applies or runs; texts reach it as JSON in a script element of
a type that browsers do not run, or through a template that escapes.

Not here: the pages (`pairs/page.py`, `annotate.py`, `report_page.py`).
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup


def render(
    template: str,
    data: Mapping[str, Any],
    *,
    styles: Sequence[str],
    scripts: Sequence[str],
    more_css: str = "",
    loads: bool = False,
    **values: Any,
) -> Iterator[str]:
    """A page's HTML in pieces.

    Args:
        template: name of a template that extends `base.html.jinja`.
        data: what the page's script reads, see `as_script`.
        styles, scripts: names of assets; they are one style and one script of the page.
        more_css: after the styles.
        loads: see `csp`.
        values: for the template.
    """
    css = "".join(map(asset, styles)) + more_css
    # One function, so that helpers of the first script are there for the next and for nobody else.
    js = '"use strict";\n(() => {\n' + "".join(map(asset, scripts)) + "})();\n"
    yield from (
        environment()
        .get_template(template)
        .generate(
            csp=csp(css, js, loads=loads),
            css=Markup(css),  # noqa: S704  # ours, as is the script
            js=Markup(js),  # noqa: S704
            data=Markup(as_script(data)),  # noqa: S704  # escaped by as_script
            **values,
        )
    )
    yield "\n"


@cache
def environment() -> Environment:
    """Of all templates: what is not marked as mark-up is escaped, what is not given is an error."""
    return Environment(
        autoescape=True,
        undefined=StrictUndefined,
        loader=PackageLoader("xyreward"),
        trim_blocks=True,
        lstrip_blocks=True,
    )


@cache
def asset(name: str) -> str:
    """The text of a file of `templates/`."""
    return files("xyreward").joinpath("templates", name).read_text("utf-8")


def csp(css: str, js: str, *, loads: bool = False) -> str:
    """The policy of a page with this style and this script and nothing from anywhere else.

    Args:
        loads: the script may load further ones (files beside the page). 'strict-dynamic' lets it, and
            only it: an element that got into the page with a text still loads nothing. Names of files
            would not do, as a page that was opened from a disk has no origin.
    """
    return (
        "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; "
        f"style-src '{csp_hash(css)}'; script-src '{csp_hash(js)}'" + " 'strict-dynamic'" * loads
    )


def csp_hash(text: str) -> str:
    """A text's hash, as a policy names it."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


_UNSAFE_IN_SCRIPT = re.compile("[<>&\u2028\u2029\ud800-\udfff]")


def as_script(data: Mapping[str, Any]) -> str:
    """JSON that cannot end or open a script element, whatever the texts in it are."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return _UNSAFE_IN_SCRIPT.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
