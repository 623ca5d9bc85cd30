"""Personal data and keys in answers: e-mail addresses, phone numbers, account numbers, API keys.

What stands in an answer of code is mostly no one's: `user@example.com`, `git@host:path`, hashes, version
numbers, `sk-your-key-here`. So only what says by its form, its checksum or its provider's prefix what it is
counts as found; a name, a postal address or a password without a known form is not found. Nothing that was
found is logged or returned, only its kind and how often.

Not here: what happens to an answer in which something was found (`guards.py`).
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Literal, get_args

PersonalKind = Literal["email", "phone", "key", "iban", "card", "ip"]
PERSONAL_KINDS: tuple[PersonalKind, ...] = get_args(PersonalKind)
DEFAULT_KINDS: tuple[PersonalKind, ...] = ("email", "phone", "key", "iban", "card")
"""Without addresses of machines: in answers they are mostly versions, masks and examples."""

Span = tuple[int, int]


def mask(
    text: str,
    kinds: Sequence[PersonalKind] = DEFAULT_KINDS,
    *,
    phone_regions: Sequence[str] = (),
) -> tuple[str, Counter[PersonalKind]]:
    """Replace personal data and keys by `[email]`, `[phone]`, `[key]`, `[iban]`, `[card]`, `[ip]`.

    Masking what is masked changes nothing.

    Args:
        text: an answer or a query.
        kinds: what is looked for.
        phone_regions: regions (ISO 3166-1, `US`) whose numbers are also found as they are written
            within the region; elsewhere a number needs its `+`.

    Returns:
        The text, and kind -> how many were replaced.
    """
    found: Counter[PersonalKind] = Counter()
    # What was replaced can uncover what its neighbour hid. Each round replaces digits or an @ by a
    # word without either, so the rounds end.
    while spans := _spans(text, kinds, phone_regions):
        pieces = []
        at = 0
        for start, end, kind in spans:
            pieces += [text[at:start], f"[{kind}]"]
            at = end
            found[kind] += 1
        text = "".join([*pieces, text[at:]])
    return text, found


def _spans(
    text: str, kinds: Sequence[PersonalKind], phone_regions: Sequence[str]
) -> list[tuple[int, int, PersonalKind]]:
    """What is found, in order and without overlaps; of two that overlap the earlier in `_ORDER` stays."""
    taken: list[tuple[int, int, PersonalKind]] = []
    covered = bytearray()
    for kind in _ORDER:
        if kind not in kinds:
            continue
        for start, end in _phones(text, phone_regions) if kind == "phone" else _FIND[kind](text):
            covered = covered or bytearray(len(text))
            if not any(covered[start:end]):
                covered[start:end] = b"\1" * (end - start)
                taken.append((start, end, kind))
    return sorted(taken)


# ---------------------------------------------------------------- e-mail addresses

_EMAIL = re.compile(
    r"(?<![\w.+%@/-])([a-z0-9][a-z0-9._%+-]{0,63})@((?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z]{2,24})"
    r"(?![\w@-])",
    re.IGNORECASE | re.ASCII,
)
# Reserved for documentation or for private networks (RFC 2606, 6761, 6762, 8375).
_NOT_PUBLIC = frozenset(
    {"example", "test", "invalid", "localhost", "local", "internal", "lan", "arpa", "corp", "home"}
)
_EXAMPLE = re.compile(
    r"(?:^|\.)(?:example|(?:your|my|some|the)?-?_?(?:domain|company|organi[sz]ation|org|site|email|mail|host"
    r"|server|provider|website|school|university)|email|test|foo|bar|acme|contoso|fabrikam)\.[a-z]+$"
)
# Ends of names of files and of systemd units: `icon@2x.png`, `getty@tty1.service`.
_FILE_TYPE = re.compile(
    r"bmp|conf|css|csv|gif|gz|html|ico|ipynb|jpe?g|jsx?|json|lock|log|mjs|mount|path|pdf|png|py|rb|rs|service"
    r"|sh|slice|socket|sql|svg|swift|tar|target|tgz|timer|tmp|toml|tsx?|txt|vue|webp|whl|xml|ya?ml|zip"
)
_PLACEHOLDER_USER = re.compile(
    r"(?:your|my|some)?[._-]?(?:user|username|name|email|mail|address|account|login|me|you|someone|somebody"
    r"|example|foo|bar|test|first[._]?(?:name)?[._]?last(?:name)?|j(?:ohn|ane)?[._]?doe|git|no-?reply"
    r"|do-?not-?reply)\d{0,3}"
    # Of a role and not of a person (RFC 2142).
    r"|info|marketing|sales|support|abuse|noc|security|postmaster|hostmaster|webmaster|admin|contact|help"
)
_REMOTE_LOGIN = re.compile(r"\b(?:ssh|scp|sftp|rsync|mosh|sshfs|ssh-copy-id)\b", re.IGNORECASE)


def _emails(text: str) -> Iterator[Span]:
    if "@" not in text:
        return
    for match in _EMAIL.finditer(text):
        user, domain = match.group(1).lower(), match.group(2).lower()
        top = domain.rsplit(".", 1)[-1]
        if top in _NOT_PUBLIC or _FILE_TYPE.fullmatch(top) or _EXAMPLE.search(domain):
            continue
        if _PLACEHOLDER_USER.fullmatch(user):
            continue
        before = text[max(0, match.start() - 200) : match.start()].rpartition("\n")[2]
        after = text[match.end() : match.end() + 2]
        if re.search(r"://[^\s/?#]*$", before):  # user:password@host of an address on the web
            continue
        if re.match(r":[\w~/.]", after) or _REMOTE_LOGIN.search(before):  # an account on a machine
            continue
        yield match.span()


# ---------------------------------------------------------------- phone numbers

_PLUS = re.compile(r"[+\uff0b][\s(]{0,2}\d")
# Kept free for films and books: +1 xxx 555 01xx; the United Kingdom's 020 7946 0xxx and 07700 900xxx.
_FICTION = re.compile(r"\+(?:1\d{3}55501\d\d|442079460\d{3}|447700900\d{3})")


def _phones(text: str, regions: Sequence[str]) -> Iterator[Span]:
    if not (regions and any(map(str.isdigit, text))) and not _PLUS.search(text):
        return
    import phonenumbers

    for region in (None, *regions):
        for match in phonenumbers.PhoneNumberMatcher(
            text, region, leniency=phonenumbers.Leniency.VALID
        ):
            written = phonenumbers.format_number(match.number, phonenumbers.PhoneNumberFormat.E164)
            found = match.raw_string
            bracketed = found.startswith("(") and found.count("(") > found.count(")")
            if not _FICTION.fullmatch(written):
                yield match.start + bracketed, match.end


# ---------------------------------------------------------------- account numbers

_IBAN = re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,4})?\b", re.ASCII)
# Those that the standard's own pages and banks print as examples.
_EXAMPLE_IBANS = frozenset(
    {
        "GB82WEST12345698765432",
        "GB29NWBK60161331926819",
        "GB33BUKB20201555555555",
        "DE89370400440532013000",
        "FR1420041010050500013M02606",
        "ES9121000418450200051332",
        "NL91ABNA0417164300",
        "CH9300762011623852957",
        "BE68539007547034",
        "AT611904300234573201",
    }
)


def _ibans(text: str) -> Iterator[Span]:
    for match in _IBAN.finditer(text):
        from stdnum import iban

        start, end = match.span()
        while end - start >= 15:  # words in capitals may follow
            written = text[start:end].replace(" ", "")
            if iban.is_valid(written):
                if written not in _EXAMPLE_IBANS:
                    yield start, end
                break
            end = text.rfind(" ", start, end)


_CARD = re.compile(
    r"(?<![\w.-])(?:(?:4\d{3}|5[1-5]\d\d|2[2-7]\d\d|6011|65\d\d|35\d\d)([ -]?)\d{4}\1\d{4}\1\d{4}"
    r"|3[47]\d\d([ -]?)\d{6}\2\d{5})(?![\w-]|\.\d)",
    re.ASCII,
)
_ABOUT_CARDS = re.compile(
    r"card|visa|master|amex|american express|karte|tarjeta|carte|cart[aã]o|\u5361", re.IGNORECASE
)
# Payment providers publish these for tests.
_TEST_CARD = re.compile(
    r"4242424242424242|4000\d{12}|4111111111111111|4012888888881881|4222222222222|5555555555554444"
    r"|5105105105105100|2223003122003222|5200828282828210|378282246310005|371449635398431|6011111111111117"
    r"|6011000990139424|3566002020360505|3530111333300000"
)


def _cards(text: str) -> Iterator[Span]:
    for match in _CARD.finditer(text):
        from stdnum import luhn

        digits = re.sub("[ -]", "", match.group())
        # One in ten numbers passes the check, and 16 digits in a row can be anyone's id.
        grouped = bool(match.group(1) or match.group(2))
        near = text[max(0, match.start() - 60) : match.start()]
        if not grouped and not _ABOUT_CARDS.search(near):
            continue
        if luhn.is_valid(digits) and not _TEST_CARD.fullmatch(digits):
            yield match.span()


# ---------------------------------------------------------------- keys

# Of each provider the form that it documents. Not by entropy: hashes and encoded images have as much.
# detect-secrets is the library for this, but had no release since May 2024 and knows no keys of Anthropic,
# Hugging Face or Google; its fork bc-detect-secrets is kept, and knows neither these nor OpenAI's.
_KEYS: Sequence[tuple[str, str]] = (
    # What the text must have at all, which is looked for first -> what is a key, after the prefix
    # that makes it one (the group is what could be a placeholder).
    ("sk-ant-", r"(?<![\w-])sk-ant-[a-z]{2,8}\d\d-([\w-]{24,})"),
    ("sk-", r"(?<![\w-])sk-(?:proj|svcacct|admin|or-v1)-([\w-]{32,})"),
    ("sk-", r"\bsk-([A-Za-z0-9]{32,})\b"),
    ("hf_", r"\bhf_([A-Za-z]{34})\b"),
    ("AIza", r"(?<![\w-])AIza([\w-]{35})(?![\w-])"),
    ("GOCSPX-", r"(?<![\w-])GOCSPX-([\w-]{28})(?![\w-])"),
    ("AKIA", r"\bAKIA([A-Z2-7]{16})\b"),
    ("ASIA", r"\bASIA([A-Z2-7]{16})\b"),
    *((f"gh{kind}_", rf"\bgh{kind}_([A-Za-z0-9]{{36,}})\b") for kind in "pousr"),
    ("github_pat_", r"\bgithub_pat_([A-Za-z0-9]{22}_[A-Za-z0-9]{59})\b"),
    ("glpat-", r"(?<![\w-])glpat-([\w-]{20,})"),
    ("xox", r"(?<![\w-])xox[abeoprs]-(\d{9,}-[\w-]{20,})"),
    ("hooks.slack.com", r"\bhooks\.slack\.com/services/(T\w{8,}/B\w{8,}/\w{24})\b"),
    ("_live_", r"\b[sr]k_live_([A-Za-z0-9]{24,})\b"),
    ("SG.", r"(?<![\w-])SG\.([\w-]{22}\.[\w-]{43})(?![\w-])"),
    ("npm_", r"\bnpm_([A-Za-z0-9]{36})\b"),
    ("pypi-AgE", r"(?<![\w-])pypi-AgE([\w-]{60,})"),
    ("dop_v1_", r"\bdop_v1_([a-f0-9]{64})\b"),
    ("dapi", r"\bdapi([a-f0-9]{32})\b"),
    (":AA", r"\b\d{8,10}:AA([\w-]{33})(?![\w-])"),
    ("AccountKey=", r"\bAccountKey=([A-Za-z0-9+/]{86}==)"),
    ("eyJ", r"(?<![\w-])eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.([\w-]{20,})"),
    ("PRIVATE KEY", r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY-----\s*([A-Za-z0-9+/=\s\\]{64,})"
                    r"(?:-----END (?:[A-Z0-9]+ )*PRIVATE KEY-----)?"),
    ("://", r"(?<=://)[^\s/:@\"'<>{}$]+:([^\s/:@\"'<>{}$]{8,})(?=@(?!localhost\b|127\.|(?:[\w-]+\.)*example\b)"
            r"[\w-]+\.)"),
)  # fmt: skip
_COMPILED = tuple((needle, re.compile(pattern, re.ASCII)) for needle, pattern in _KEYS)
_PLACEHOLDER = re.compile(
    r"example|your|placeholder|dummy|fake|sample|secret|passw|change|redacted|insert|replace|xxxx|\.\.\."
    r"|0123456|1234567|abcdef|(.)\1{5}",
    re.IGNORECASE,
)
# The token that jwt.io and half of all tutorials show.
_EXAMPLE_TOKENS = ("SflKxwRJSMeKKF2QT4fwpMeJf36POk6yJV_adQssw5c",)


def _keys(text: str) -> Iterator[Span]:
    for needle, pattern in _COMPILED:
        if needle not in text:
            continue
        for match in pattern.finditer(text):
            secret = match.group(1)
            if _PLACEHOLDER.search(secret[:100]) or secret in _EXAMPLE_TOKENS:
                continue
            if len(set(secret)) < 6 + (needle != "://") * 2:
                continue
            # Words: `user:password`, or a long name after a short prefix.
            if needle in ("://", "sk-") and not re.search(r"\d", secret):
                continue
            yield match.span()


# ---------------------------------------------------------------- addresses of machines

_IP = re.compile(
    r"(?<![\w.:/-])(?:\d{1,3}(?:\.\d{1,3}){3}|[0-9a-f]{1,4}(?::[0-9a-f]{0,4}){2,7})(?![\w:/-]|\.\d)",
    re.IGNORECASE | re.ASCII,
)


def _ips(text: str) -> Iterator[Span]:
    for match in _IP.finditer(text):
        try:
            address = ipaddress.ip_address(match.group())
        except ValueError:
            continue
        if address.is_global:  # neither private nor reserved for documentation
            yield match.span()


_ORDER: tuple[PersonalKind, ...] = ("key", "email", "iban", "card", "phone", "ip")
_FIND: Mapping[PersonalKind, Callable[[str], Iterator[Span]]] = MappingProxyType(
    {"key": _keys, "email": _emails, "iban": _ibans, "card": _cards, "ip": _ips}
)
