"""Claude, and whatever else speaks the Messages API (vLLM, SGLang and llama.cpp do), as a judge.

It sends once. The SDK's own retries are off, because two layers of them multiply; the dispatcher
has the only one. Requests go out through the SDK's `client.post`, not `messages.create`: the reply
is read here, so that its usage survives whatever it says, and no warning of the SDK's ends a run.

Not here: retries, limits and budget (`dispatch.py`), Message Batches (`judges/batches.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, get_args
from urllib.parse import quote, urlsplit

from xyreward.errors import JudgeError
from xyreward.judges.calls import Call, CallError, JudgeStopped, Reply
from xyreward.judges.preflight import PROBE, EndpointCheck, check_sending, settle_schema
from xyreward.judges.transport import (
    CONNECT_TIMEOUT_S,
    LoopClients,
    SchemaMode,
    SchemaRefused,
    ServerError,
    ServerStopped,
    bounded,
    check_encrypted,
    check_max_tokens,
    check_url,
    clean_key,
    counted,
    given_key,
    is_loopback,
    json_body,
    of_connection,
    of_environment,
    of_status,
    refuses_schema,
    scrub,
    timed_out,
    tokens,
    unreadable,
    unsendable,
)
from xyreward.verdict import Usage

if TYPE_CHECKING:  # importing it takes over a second
    import httpx2
    from anthropic import AsyncAnthropic

Effort = Literal["low", "medium", "high", "xhigh", "max"]
Thinking = Literal["adaptive", "disabled"]

DEFAULT_MODEL = "claude-sonnet-5-5"
"""The Sonnet of late 2026."""
DEFAULT_URL = "https://api.anthropic.com"

END_OF_LIFE = {
    "claude-mythos-preview": "2026-06-30",
    "claude-sonnet-4-5": "2026-11-30",
    "claude-opus-4-5": "2027-01-22",
}
"""Days on which the vendor retires models, as the SDK 2.14 lists them. Dated names count too."""

_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_TEXT = "\0text"
"""Stands for the text of a call. No prompt has a null character, and JSON escapes it."""
_warned: set[str] = set()


class AnthropicEndpoint:
    """The Messages API at one address, asked for one model.

    Args:
        model: as the server names it; `claude-...` for Anthropic's own.
        effort: how much work the model puts into a reply. None: the model's default.
        thinking: "adaptive" or "disabled". None: the model's default. Thinking tokens count towards
            the limit of the reply.
        max_tokens: in place of the limit that a call brings.
        base_url: with or without /v1. Default: ANTHROPIC_BASE_URL, else Anthropic's.
        api_key: default: what the SDK finds (ANTHROPIC_API_KEY, ANTHROPIC_AUTH_TOKEN, a profile). None
            is sent to another machine without https; see `transport.HTTP_KEY_HOSTS`.
        schema: "json_schema" asks for structured output, "plain" leaves the form to the prompt;
            "auto" is structured output at Anthropic's, and elsewhere what `settle` finds.

    Raises:
        JudgeError: an impossible argument. A missing key is found at the first request and not
            before: a full store can be read without one.

    Warns:
        UserWarning: once per model, where its vendor retires it.
    """

    def __init__(
        self,
        model: str = DEFAULT_MODEL,
        *,
        effort: Effort | None = None,
        thinking: Thinking | None = None,
        max_tokens: int | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        schema: Literal["auto", "json_schema", "plain"] = "auto",
    ) -> None:
        if not model or model != model.strip():
            raise JudgeError(f"model is {model!r}, expected a name such as {DEFAULT_MODEL!r}")
        for what, value, allowed in (
            ("effort", effort, get_args(Effort)),
            ("thinking", thinking, get_args(Thinking)),
        ):
            if value is not None and value not in allowed:
                raise JudgeError(f"{what} is {value!r}, expected one of {', '.join(allowed)}")
        if schema not in ("auto", "json_schema", "plain"):
            raise JudgeError(f"schema is {schema!r}, expected auto, json_schema or plain")
        check_max_tokens(max_tokens)
        self._model = model
        self._effort = effort
        self._thinking = thinking
        self._max_tokens = max_tokens
        self._api_key = given_key(api_key)
        # A blank one that was given is a variable that was not set: nobody meant Anthropic's.
        given = os.environ.get("ANTHROPIC_BASE_URL") or None if base_url is None else base_url
        url = check_url(DEFAULT_URL if given is None else given)
        self._url = url.removesuffix("/v1")  # the SDK appends /v1/messages
        host = urlsplit(self._url).hostname or ""
        self._at_vendor = host == "anthropic.com" or host.endswith(".anthropic.com")
        self._schema: SchemaMode | None = schema if schema != "auto" else None
        if schema == "auto" and self._at_vendor:
            # Every model that is served there today has it: nothing to find out.
            self._schema = "json_schema"
        self._around: dict[tuple[str, int, SchemaMode], tuple[Mapping[str, Any], str, str]] = {}
        self._clients: LoopClients[AsyncAnthropic] = LoopClients()
        _warn_of_end(model)

    # ------------------------------------------------------------ identity

    @property
    def name(self) -> str:
        """`anthropic:<model>`."""
        return f"anthropic:{self._model}"

    @property
    def model(self) -> str:
        """As it is asked for."""
        return self._model

    @property
    def base_url(self) -> str:
        """Without credentials: one that holds any is refused."""
        return self._url

    @property
    def settled(self) -> bool:
        """Whether `parameters` can be read; else `settle()` comes first."""
        return self._schema is not None

    @property
    def parameters(self) -> Mapping[str, Any]:
        """What besides the call decides the reply. No URL, no key.

        Raises:
            RuntimeError: the schema mode is not settled yet. A key that was made from a guess would
                file verdicts under the wrong mode.
        """
        if self._schema is None:
            raise RuntimeError(f"{self.name}: await settle() before a key is made")
        return self._parameters(self._schema)

    @property
    def possible_parameters(self) -> tuple[Mapping[str, Any], ...]:
        """`parameters` if settled, else all that `settle` may lead to, likeliest first.

        With these a store can be searched before anything is sent: a full one needs no server.
        """
        if self._schema is not None:
            return (self._parameters(self._schema),)
        return self._parameters("json_schema"), self._parameters("plain")

    def _parameters(self, schema: SchemaMode) -> Mapping[str, Any]:
        return {
            "api": "messages",
            "effort": self._effort,
            "thinking": self._thinking,
            "max_tokens": self._max_tokens,
            "schema": schema,
            # What calls itself claude-... at another address (a gateway, a fake for tests) may be another
            # model, so its verdicts are kept apart; which address it is does not matter.
            **({} if self._at_vendor else {"elsewhere": True}),
        }

    def __repr__(self) -> str:
        return f"AnthropicEndpoint({self._model!r}, base_url={self._url!r})"

    # ------------------------------------------------------------ sending

    def body(self, call: Call) -> dict[str, Any]:
        """The request as it is sent, and as a batch takes it under `params`."""
        return self._body(call, self.parameters["schema"])

    def _body(self, call: Call, schema: SchemaMode) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._model,
            "max_tokens": self._max_tokens or call.max_tokens,
            "messages": [
                *({"role": role, "content": text} for role, text in call.turns),
                {"role": "user", "content": call.text},
            ],
        }
        if call.prefix:
            # The marker ends what all calls share. The API's automatic one would sit behind the
            # user's text, which no other call has, and nothing would ever be read from the cache.
            marker = {"type": "ephemeral"}
            body["system"] = [{"type": "text", "text": call.prefix, "cache_control": marker}]
        output: dict[str, Any] = {}
        if schema == "json_schema":
            output["format"] = {"type": "json_schema", "schema": call.schema}
        if self._effort is not None:
            output["effort"] = self._effort
        if output:
            body["output_config"] = output
        if self._thinking is not None:
            body["thinking"] = {"type": self._thinking}
        return body

    def _encoded(self, call: Call, schema: SchemaMode) -> str:
        """`_body` as JSON; what surrounds the text, most of it, is encoded once."""
        if call.turns:
            return _json(self._body(call, schema))
        key = call.prefix, call.max_tokens, schema
        known = self._around.get(key)
        if known is None or known[0] is not call.schema:
            whole = _json(self._body(replace(call, text=_TEXT), schema))
            head, _, tail = whole.partition(_json(_TEXT))
            known = self._around[key] = call.schema, head, tail
        _, head, tail = known
        return f"{head}{_json(call.text)}{tail}"

    async def send(self, call: Call, *, timeout: float) -> Reply:
        """Send once and wait at most `timeout` seconds.

        Raises:
            CallError: no reply; says whether another try may help.
            JudgeStopped: no further call can succeed.
        """
        schema: SchemaMode = self.parameters["schema"]
        return await self._send(call, schema, timeout)

    async def _send(self, call: Call, schema: SchemaMode, timeout: float) -> Reply:
        response = await self.request(
            "/v1/messages",
            self._encoded(call, schema),
            timeout=timeout,
            private=call.prefix + call.text,
            schema=schema,
        )
        reply = read_message(json_body(response), response.headers.get("request-id", ""))
        if reply is None:
            raise unreadable(response.status_code, "its body is no complete message")
        return reply

    async def request(
        self,
        path: str,
        body: Mapping[str, Any] | str | bytes | None = None,
        *,
        timeout: float,
        query: Mapping[str, str] | None = None,
        private: str = "",
        schema: SchemaMode | None = None,
    ) -> httpx2.Response:
        """POST the body, or GET where there is none, once; what comes back with a status of 2xx.

        Args:
            path: from `/v1/` on.
            body: to be sent as JSON, or JSON text already.
            timeout: seconds for all of it.
            query: parameters of the path.
            private: text of ours that no message may repeat.
            schema: the mode in which a reply is asked for, where it is.

        Raises:
            CallError, JudgeStopped: as in `send`.
        """
        import anthropic
        import httpx2

        client = await self._clients.get(self._new_client)
        failure: CallError | JudgeStopped
        try:
            # One clock for the whole sending; httpx2's own count from byte to byte.
            async with asyncio.timeout(timeout):
                if body is None:
                    options: Any = {"params": query} if query else {}
                    return await client.get(path, cast_to=httpx2.Response, options=options)
                # As bytes, since the SDK would first walk and copy whatever else it is given.
                text = _json(body) if isinstance(body, Mapping) else body
                content = text.encode() if isinstance(text, str) else text
                return await client.post(path, cast_to=httpx2.Response, content=content)
        except TimeoutError:
            failure = timed_out(timeout)
        except anthropic.APIStatusError as error:
            failure = self._failure(
                ServerError.of_body(error.status_code, error.response.headers, error.body),
                private=private,
                schema=schema,
            )
        except UnicodeError:
            failure = unsendable()
        except anthropic.APIConnectionError as error:
            failure = of_connection(error.__cause__, endpoint=self.name)
        except anthropic.AnthropicError as error:  # of a profile or an identity token
            failure = JudgeStopped(
                f"{self.name}: {type(error).__name__} where the SDK looks for credentials; set "
                "ANTHROPIC_API_KEY, or repair the profile that ANTHROPIC_PROFILE names"
            )
        # Raised here and not above, where the SDK's exception, which holds the request with its key
        # and its text, would hang on ours as context.
        raise failure

    def _failure(
        self, error: ServerError, *, private: str, schema: SchemaMode | None
    ) -> CallError | JudgeStopped:
        key, source = self._key()
        last_day = end_of_life(self._model)
        failure = of_status(
            error,
            endpoint=self.name,
            model=self._model,
            key_source=source,
            secrets=[s for s in (key, os.environ.get("ANTHROPIC_AUTH_TOKEN")) if s],
            private=private,
            retired=f"its vendor retires this one on {last_day}; " if last_day else "",
        )
        if schema == "json_schema" and refuses_schema(error, private):
            return SchemaRefused(
                f"{self.name}: no structured output here ({failure}); use schema='plain'",
                error.status,
            )
        return failure

    def _key(self) -> tuple[str | None, str]:
        """The key, and in words where it comes from."""
        if self._api_key:
            return clean_key(self._api_key, "the api_key that was given"), "the api_key given"
        key = clean_key(os.environ.get("ANTHROPIC_API_KEY"), "ANTHROPIC_API_KEY")
        if key is None:
            return None, "the credentials that the SDK found"
        return key, "the key of ANTHROPIC_API_KEY"

    def check_key(self) -> None:
        """See `Endpoint`."""
        self._new_client()

    def _new_client(self) -> AsyncAnthropic:
        import anthropic
        import httpx2

        key, source = self._key()
        timeout = httpx2.Timeout(None, connect=CONNECT_TIMEOUT_S)
        with of_environment(self.name):
            http = anthropic.DefaultAsyncHttpxClient(
                # A proxy variable holds for the world outside, and would swallow this machine.
                trust_env=not is_loopback(self._url),
                # The dispatcher alone decides how many calls are in flight. A pool that is smaller than
                # that makes calls wait unseen, with their clocks running.
                limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None),
                # A redirected POST becomes a GET, or carries the key to where nobody said it goes.
                follow_redirects=False,
                timeout=timeout,
                **bounded(),
            )
        with contextlib.suppress(anthropic.AnthropicError):  # a profile that cannot be read
            client = anthropic.AsyncAnthropic(
                api_key=key, base_url=self._url, max_retries=0, timeout=timeout, http_client=http
            )
            # The SDK itself says so only at the first request, with a TypeError.
            # It takes the environment's as they are: blank, or with the line end of a file.
            client.auth_token = clean_key(client.auth_token, "ANTHROPIC_AUTH_TOKEN")
            if (client.api_key or "").strip() or client.auth_token or client.credentials:
                check_encrypted(self._url, source, self.name)
                return client
        raise JudgeStopped(
            f'{self.name}: no key was found. Set ANTHROPIC_API_KEY, or use the judge "local", '
            "which needs none"
        )

    async def aclose(self) -> None:
        """Close the connections of this event loop. Done by itself where the loop ends."""
        await self._clients.aclose()

    # ------------------------------------------------------------ before a long job

    async def settle(self, *, timeout: float = 60.0) -> Usage:
        """Find out, once, whether the server has structured output. Returns the tokens it cost.

        Costs nothing at Anthropic's and where the server lists its models' capabilities, else a
        request of a few tokens. Afterwards `parameters` can be read and do not change any more.

        Raises:
            CallError: no answer within `timeout` seconds.
            JudgeStopped: no call can succeed.
        """
        if self._schema is not None:
            return Usage()

        async def probe(schema: SchemaMode, seconds: float) -> Usage:
            if schema == "json_schema":
                told = await self._told_capability(seconds)
                if told is not None:
                    if told:
                        return Usage()
                    raise SchemaRefused(f"{self.name}: {self._model} has no structured output")
            elif await self._told_capability(seconds) is not None:
                return Usage()
            return (await self._send(PROBE, schema, seconds)).usage

        found, usage = await settle_schema(probe, timeout=timeout)
        # Two may ask at once. Keys are made from what the first one found.
        self._schema = self._schema or found
        return usage

    async def _told_capability(self, timeout: float) -> bool | None:
        """What the server's list of models says of structured output; None where it says nothing."""
        info = await self._model_info(timeout)
        try:
            told = info["capabilities"]["structured_outputs"]["supported"]
        except (KeyError, TypeError):
            return None
        return told if isinstance(told, bool) else None

    async def _model_info(self, timeout: float) -> Mapping[str, Any]:
        """GET /v1/models/<model>; empty where the server has no such list.

        Raises:
            CallError: as in `send`.
            JudgeStopped: the key is not accepted.
        """
        try:
            response = await self.request(
                f"/v1/models/{quote(self._model, safe='')}", timeout=timeout
            )
        except ServerStopped as stopped:
            if stopped.status in (401, 402):
                raise
            return {}
        info = json_body(response)
        return info if isinstance(info, dict) else {}

    async def check(self, call: Call, *, timeout: float = 60.0) -> EndpointCheck:
        """Ask for the model, count the prefix, and send a call twice. Never raises for a failure.

        Args:
            call: a call of the rubric, as it will be sent many times.
            timeout: seconds for each request.
        """
        warnings_, prefix_tokens = [], None
        try:
            info = await self._model_info(timeout)
            if info.get("lifecycle") in ("deprecated", "retired"):
                day = str(info.get("retires_at"))[:10]
                warnings_.append(
                    f"{self.name}: the server calls this model {info['lifecycle']}, end of life "
                    f"{day}; {WHEN_A_JUDGE_RETIRES}"
                )
            prefix_tokens = await self._count(call.prefix, timeout)
        except (CallError, ServerStopped) as error:
            if isinstance(error, ServerStopped) and error.status in (401, 402):
                return EndpointCheck(self.name, self.base_url, problems=(str(error),))
            # What else these two say, the sending says better.
        except JudgeStopped as error:
            return EndpointCheck(self.name, self.base_url, problems=(str(error),))
        check = await check_sending(self, call, timeout=timeout)
        if check.ok and call.prefix and check.cache_read_tokens == 0:
            warnings_.append(
                f"{self.name}: the second of two equal calls read nothing from the prompt cache "
                f"(prefix of {prefix_tokens or 'unknown'} tokens; models ask for 512 to 4096), so "
                "the prefix is paid in full each time"
            )
        return replace(check, warnings=tuple(warnings_), prefix_tokens=prefix_tokens)

    async def _count(self, prefix: str, timeout: float) -> int | None:
        """Tokens of the prefix (and a handful around it); None where the server does not count."""
        if not prefix:
            return 0
        body = {
            "model": self._model,
            "system": [{"type": "text", "text": prefix}],
            "messages": [{"role": "user", "content": "."}],
        }
        response = await self.request("/v1/messages/count_tokens", body, timeout=timeout)
        return tokens(json_body(response), "input_tokens") or None


# ---------------------------------------------------------------- reading


STOP_TRUNCATED = ("max_tokens", "model_context_window_exceeded")


def read_message(message: object, request_id: str = "") -> Reply | None:
    """A reply out of a message as the API sends it; None where it is none (an error, half a one).

    Only blocks of type `text` are read: thinking is not part of the verdict, and the SDK makes
    empty text blocks of types that it does not know.
    """
    if not isinstance(message, Mapping) or not isinstance(message.get("content"), list):
        return None
    text = "".join(
        block["text"]
        for block in message["content"]
        if isinstance(block, Mapping)
        and block.get("type") == "text"
        and isinstance(block.get("text"), str)
    )
    usage, reason = message.get("usage"), message.get("stop_reason")
    stop: Literal["end", "truncated", "refused"] = "end"
    detail = ""
    if reason == "refusal":
        stop, detail = "refused", _refusal(message.get("stop_details"))
    elif reason in STOP_TRUNCATED:
        stop, detail = "truncated", f"{reason} after {tokens(usage, 'output_tokens')} tokens"
    elif reason not in ("end_turn", "stop_sequence"):
        detail = f"stop_reason {reason}"
    return Reply(
        text=text,
        usage=Usage(
            input_tokens=tokens(usage, "input_tokens"),
            output_tokens=tokens(usage, "output_tokens"),
            cache_read_tokens=tokens(usage, "cache_read_input_tokens"),
            cache_write_tokens=tokens(usage, "cache_creation_input_tokens"),
        ),
        usage_reported=counted(
            usage,
            "input_tokens",
            "output_tokens",
            ("cache_read_input_tokens", "cache_creation_input_tokens"),
        ),
        stop=stop,
        detail=detail,
        model=str(message.get("model") or ""),
        request_id=request_id,
    )


def _refusal(details: object) -> str:
    """`<category>: <explanation>`, the category first so that refusals can be counted by it."""
    category = explanation = None
    if isinstance(details, Mapping):
        category, explanation = details.get("category"), details.get("explanation")
    named = f"category {category}" if isinstance(category, str) else "no category"
    return f"{named}: {scrub(explanation)}" if isinstance(explanation, str) else named


# ---------------------------------------------------------------- end of life


WHEN_A_JUDGE_RETIRES = (
    "its stored verdicts stay usable (`xyreward store export`), but new answers need another judge, "
    "and numbers of two judges are not comparable before `xyreward judge compare` says so"
)


def end_of_life(model: str) -> str | None:
    """The day on which the vendor retires the model (YYYY-MM-DD), where one is known."""
    for name, day in END_OF_LIFE.items():
        if re.fullmatch(rf"{name}(-\d{{8}})?", model):
            return day
    return None


def _warn_of_end(model: str) -> None:
    day = end_of_life(model)
    if day is None or model in _warned:
        return
    _warned.add(model)
    warnings.warn(
        f"judge anthropic:{model}: its vendor retires this model on {day}, and no call succeeds "
        f"after that. {WHEN_A_JUDGE_RETIRES[:1].upper()}{WHEN_A_JUDGE_RETIRES[1:]}. The current "
        f"default is anthropic:{DEFAULT_MODEL}.",
        UserWarning,
        stacklevel=3,
    )
