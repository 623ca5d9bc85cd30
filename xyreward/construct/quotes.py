"""Whether a quote shows anything: it must occur in the text it names, and be longer than chance."""

from __future__ import annotations

from xyreward.reading import ELLIPSIS, occurs

QUOTE_CHARACTERS = 12
"""Letters and digits of a quote's longest part at least, unless it is the whole text: shorter ones occur
anywhere."""


def not_a_quote(quote: str, text: str, *, of: str = "its answer") -> str | None:
    """What is wrong with a quote, to follow "The quote"; None where it shows something.

    Args:
        quote: of a model's reply.
        text: where it is to occur.
        of: what that text is.
    """
    if not occurs(quote, text):
        return f"does not occur in {of}"
    # Of common words with an ellipsis between them every text has some.
    parts = [quote] if quote in text else ELLIPSIS.split(quote)
    letters = max(sum(map(str.isalnum, part)) for part in parts)
    if letters < min(QUOTE_CHARACTERS, sum(map(str.isalnum, text))):
        return "is too short to show anything"
    return None
