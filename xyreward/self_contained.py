"""What the HTML pages of this package share: nothing leaves them, and no text of the data runs in them.

A page is one file. Its content security policy names the hashes of its own style and script, so nothing
else applies or runs; texts reach it as JSON in a script element of a type that browsers do not run.

Not here: the pages (`pairs/page.py`, `annotate.py`).
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any


def csp(css: str, js: str) -> str:
    """The policy of a page with this style and this script and nothing from anywhere else."""
    return (
        "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; "
        f"style-src '{csp_hash(css)}'; script-src '{csp_hash(js)}'"
    )


def csp_hash(text: str) -> str:
    """A text's hash, as a policy names it."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


_UNSAFE_IN_SCRIPT = re.compile("[<>&\u2028\u2029\ud800-\udfff]")


def as_script(data: Mapping[str, Any]) -> str:
    """JSON that cannot end or open a script element, whatever the texts in it are."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return _UNSAFE_IN_SCRIPT.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
