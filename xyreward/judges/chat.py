"""Any OpenAI-compatible server as a judge: vLLM, SGLang, llama.cpp, a gateway, OpenAI itself.

It POSTs to `/v1/chat/completions` with httpx2 and sends once. Structured output is asked for as
`response_format: json_schema`, the one form that these servers share; where a server refuses it,
the prompt alone asks for JSON. `settle()` finds out which, before any key of the store is made.

Not here: retries, limits and budget (`dispatch.py`).
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeGuard
from urllib.parse import urlsplit

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
    without_credentials,
)
from xyreward.verdict import Usage

if TYPE_CHECKING:
    import httpx2

LimitName = Literal["max_tokens", "max_completion_tokens"]


class ChatEndpoint:
    """Chat completions at one address, asked for one model.

    Args:
        model: as the server names it (`GET /v1/models`).
        base_url: with or without /v1.
        temperature: None: the server's default.
        top_p: likewise.
        max_tokens: in place of the limit that a call brings.
        api_key: default: XYREWARD_CHAT_KEY, else OPENAI_API_KEY. None is sent to another machine without
            https (`transport.HTTP_KEY_HOSTS`); OPENAI_API_KEY is then taken for absent. On this machine none
            is needed.
        schema: "json_schema" asks for structured output, "plain" leaves the form to the prompt,
            "auto" is what `settle` finds.

    Raises:
        JudgeError: an impossible argument.
    """

    def __init__(
        self,
        model: str,
        base_url: str,
        *,
        temperature: float | None = None,
        top_p: float | None = None,
        max_tokens: int | None = None,
        api_key: str | None = None,
        schema: Literal["auto", "json_schema", "plain"] = "auto",
    ) -> None:
        if not model or model != model.strip():
            raise JudgeError(f"model is {model!r}, expected a name of GET /v1/models")
        number = isinstance(temperature, int | float) and not isinstance(temperature, bool)
        if temperature is not None and not (number and 0 <= temperature <= 2):
            raise JudgeError(f"temperature is {temperature!r}, expected a number in [0, 2]")
        if top_p is not None and not 0 < top_p <= 1:
            raise JudgeError(f"top_p is {top_p!r}, expected a number in (0, 1]")
        if schema not in ("auto", "json_schema", "plain"):
            raise JudgeError(f"schema is {schema!r}, expected auto, json_schema or plain")
        check_max_tokens(max_tokens)
        self._model = model
        self._base_url = check_url(base_url)
        self._root = api_root(self._base_url)
        self._temperature = temperature
        self._top_p = top_p
        self._max_tokens = max_tokens
        self._api_key = given_key(api_key)
        self._schema: SchemaMode | None = schema if schema != "auto" else None
        # OpenAI's newest models refuse the old name of the limit, and most servers know no other.
        # It means the same, so it is no parameter.
        self._limit: LimitName = "max_tokens"
        self._clients: LoopClients[_Client] = LoopClients()

    @classmethod
    def from_name(cls, rest: str, **arguments: Any) -> ChatEndpoint:
        """The endpoint of `<model>@<base_url>`, as it stands behind `chat:` in a judge's name.

        Raises:
            JudgeError: the text is not of this form.
        """
        # A model's name may have an @ of its own.
        found = re.fullmatch(r"(.+)@(https?://.+)", rest)
        if found is None:
            raise JudgeError(
                f"judge 'chat:{without_credentials(rest):.200}' names no server; expected "
                "chat:<model>@<base_url>, such as chat:qwen3.5-9b@http://127.0.0.1:8000"
            )
        return cls(found[1], found[2], **arguments)

    # ------------------------------------------------------------ identity

    @property
    def name(self) -> str:
        """`chat:<model>@<base_url>`."""
        return f"chat:{self._model}@{self._base_url}"

    @property
    def model(self) -> str:
        """As it is asked for."""
        return self._model

    @property
    def base_url(self) -> str:
        """As given. Without credentials: one that holds any is refused."""
        return self._base_url

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
        parameters = {
            "api": "chat",
            "temperature": self._temperature,
            "max_tokens": self._max_tokens,
            "schema": schema,
        }
        # Left out where it is not set, so that verdicts from before there was a top_p keep their keys.
        return parameters if self._top_p is None else {**parameters, "top_p": self._top_p}

    def __repr__(self) -> str:
        return f"ChatEndpoint({self._model!r}, {self._base_url!r})"

    # ------------------------------------------------------------ sending

    def body(self, call: Call) -> dict[str, Any]:
        """The request as it is sent."""
        return self._body(call, self.parameters["schema"])

    def _body(self, call: Call, schema: SchemaMode) -> dict[str, Any]:
        messages = [{"role": role, "content": text} for role, text in call.turns]
        messages.append({"role": "user", "content": call.text})
        if call.prefix:
            messages.insert(0, {"role": "system", "content": call.prefix})
        body: dict[str, Any] = {
            "model": self._model,
            "messages": messages,
            self._limit: self._max_tokens or call.max_tokens,
        }
        if self._temperature is not None:
            body["temperature"] = self._temperature
        if self._top_p is not None:
            body["top_p"] = self._top_p
        if call.seed is not None:
            body["seed"] = call.seed
        if schema == "json_schema":
            form = {"name": "reply", "schema": call.schema, "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": form}
        return body

    async def send(self, call: Call, *, timeout: float) -> Reply:
        """Send once and wait at most `timeout` seconds.

        Raises:
            CallError: no reply; says whether another try may help.
            JudgeStopped: no further call can succeed.
        """
        schema: SchemaMode = self.parameters["schema"]
        return await self._send(call, schema, timeout)

    async def _send(self, call: Call, schema: SchemaMode, timeout: float) -> Reply:
        response = await self._request(
            "/chat/completions",
            self._body(call, schema),
            timeout,
            private=call.prefix + call.text,
            schema=schema,
        )
        reply = read_completion(json_body(response), response.headers.get("x-request-id", ""))
        if reply is None:
            raise unreadable(response.status_code, "its body is no complete chat completion")
        return reply

    async def _request(
        self,
        path: str,
        body: Mapping[str, Any] | None,
        timeout: float,
        *,
        private: str = "",
        schema: SchemaMode | None = None,
    ) -> httpx2.Response:
        """POST the body, or GET where there is none; what comes back with a status of 2xx."""
        import httpx2

        client = (await self._clients.get(self._new_client)).http
        failure: CallError | JudgeStopped
        try:
            # One clock for the whole sending; httpx2's own count from byte to byte.
            async with asyncio.timeout(timeout):
                response = await client.request(
                    "GET" if body is None else "POST", self._root + path, json=body
                )
        except TimeoutError:
            failure = timed_out(timeout)
        except UnicodeError:
            failure = unsendable()
        except (httpx2.HTTPError, RuntimeError) as error:
            failure = of_connection(error, endpoint=self.name)
        else:
            if response.is_success:
                return response
            failure = self._failure(response, private=private, schema=schema)
            if body is not None and "max_tokens" in body and wants_new_limit(failure):
                self._limit = "max_completion_tokens"
                failure = CallError("transport", failure.detail, retry=True)
        # Raised here and not above, where httpx2's exception, which holds the request with its key
        # and its text, would hang on ours as context.
        raise failure

    def _failure(
        self, response: httpx2.Response, *, private: str, schema: SchemaMode | None
    ) -> CallError | JudgeStopped:
        told = json_body(response)
        if told is None:
            told = response.text
        error = ServerError.of_body(response.status_code, response.headers, told)
        key, source = self._key()
        failure = of_status(
            error,
            endpoint=self.name,
            model=self._model,
            key_source=source,
            secrets=[key] if key else [],
            private=private,
        )
        if schema == "json_schema" and refuses_schema(error, private):
            return SchemaRefused(
                f"{self.name}: no structured output here ({failure}); use schema='plain'",
                error.status,
            )
        return failure

    def check_key(self) -> None:
        """A server may do without a key; one that is there must be fit to be sent."""
        key, source = self._key()
        if key is not None:
            check_encrypted(self._root, source, self.name)

    def _key(self) -> tuple[str | None, str]:
        """The key, and in words where it comes from."""
        if self._api_key:
            return clean_key(self._api_key, "the api_key that was given"), "the api_key given"
        key = clean_key(os.environ.get("XYREWARD_CHAT_KEY"), "XYREWARD_CHAT_KEY")
        if key is not None:
            return key, "the key of XYREWARD_CHAT_KEY"
        if urlsplit(self._root).scheme == "https" or is_loopback(self._root):
            key = clean_key(os.environ.get("OPENAI_API_KEY"), "OPENAI_API_KEY")
            if key is not None:
                return key, "the key of OPENAI_API_KEY"
        return None, "a request without a key (set XYREWARD_CHAT_KEY)"

    def _new_client(self) -> _Client:
        import httpx2

        key, source = self._key()
        if key is not None:
            check_encrypted(self._root, source, self.name)
        settings = bounded()
        if key is not None:
            settings["headers"]["Authorization"] = f"Bearer {key}"
        with of_environment(self.name):
            http = httpx2.AsyncClient(
                # A proxy variable holds for the world outside, and would swallow this machine.
                trust_env=not is_loopback(self._root),
                # The dispatcher alone decides how many calls are in flight. A pool that is smaller than
                # that makes calls wait unseen, with their clocks running.
                limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None),
                follow_redirects=False,
                timeout=httpx2.Timeout(None, connect=CONNECT_TIMEOUT_S),
                **settings,
            )
        return _Client(http)

    async def aclose(self) -> None:
        """Close the connections of this event loop. Done by itself where the loop ends."""
        await self._clients.aclose()

    # ------------------------------------------------------------ before a long job

    async def settle(self, *, timeout: float = 60.0) -> Usage:
        """Find out, once, whether the server takes a schema. Returns the tokens it cost.

        It costs one request of a few tokens where `schema` is "auto", two where a schema is refused.
        Afterwards `parameters` can be read and do not change any more.

        Raises:
            CallError: no answer within `timeout` seconds.
            JudgeStopped: no call can succeed.
        """
        if self._schema is not None:
            return Usage()

        async def probe(schema: SchemaMode, seconds: float) -> Usage:
            return (await self._send(PROBE, schema, seconds)).usage

        found, usage = await settle_schema(probe, timeout=timeout)
        # Two may ask at once. Keys are made from what the first one found.
        self._schema = self._schema or found
        return usage

    async def check(self, call: Call, *, timeout: float = 60.0) -> EndpointCheck:
        """Look for the model, and send a call twice. Never raises for a failure.

        Args:
            call: a call of the rubric, as it will be sent many times.
            timeout: seconds for each request.
        """
        try:
            served = await self._served(timeout)
        except JudgeStopped as error:
            return EndpointCheck(self.name, self.base_url, problems=(str(error),))
        if served and self._model not in served:
            shown = ", ".join(repr(name) for name in served[:5])
            problem = f"{self.name}: the server has no model {self._model!r}, but {shown}"
            if len(served) > 5:
                problem += f" and {len(served) - 5} more"
            return EndpointCheck(self.name, self.base_url, problems=(problem,))
        return await check_sending(self, call, timeout=timeout)

    async def _served(self, timeout: float) -> list[str]:
        """Names of the server's models; none where it has no such list.

        Raises:
            JudgeStopped: the key cannot be sent.
        """
        try:
            data = json_body(await self._request("/models", None, timeout))["data"]
            return [scrub(str(model["id"])) for model in data]
        except (CallError, ServerStopped, KeyError, TypeError):
            return []  # not every gateway lists; what else is wrong shows when a call is sent


class _Client:
    """httpx2's client under the name that `LoopClients` closes by."""

    def __init__(self, http: httpx2.AsyncClient) -> None:
        self.http = http

    async def close(self) -> None:
        await self.http.aclose()


def wants_new_limit(failure: CallError | JudgeStopped) -> TypeGuard[CallError]:
    """Whether a server refuses `max_tokens` and names the parameter that has its place."""
    return (
        isinstance(failure, CallError)
        and failure.detail.startswith("400")
        and "max_completion_tokens" in failure.detail
    )


def api_root(base_url: str) -> str:
    """The address that `/chat/completions` is appended to: with a version in its path."""
    path = urlsplit(base_url).path
    if re.search(r"/v\d\w*(/|$)", path):
        return base_url.removesuffix("/chat/completions")
    return f"{base_url}/v1"


def read_completion(completion: object, request_id: str = "") -> Reply | None:
    """A reply out of a chat completion; None where it is none (an error, half a one).

    A reasoning model's thoughts are no part of the verdict: neither `reasoning_content` beside the
    text, nor a block <think>...</think> at its beginning, where a server has no parser for it.
    """
    choice = _first(completion, "choices")
    message = choice.get("message") if isinstance(choice, Mapping) else None
    if not isinstance(completion, Mapping) or not isinstance(message, Mapping):
        return None
    content, refusal = message.get("content"), message.get("refusal")
    if isinstance(content, list):  # parts, as some gateways send them
        content = "".join(_text_part(part) for part in content)
    text = content if isinstance(content, str) else ""
    if text.lstrip().startswith("<think>"):
        _, closed, after = text.partition("</think>")
        text = after.lstrip() if closed else text
    usage, reason = completion.get("usage"), choice.get("finish_reason")
    stop: Literal["end", "truncated", "refused"] = "end"
    detail = ""
    if reason == "content_filter" or (isinstance(refusal, str) and refusal):
        stop = "refused"
        detail = "content_filter" if reason == "content_filter" else "refusal"
        detail += f": {scrub(refusal)}" if isinstance(refusal, str) and refusal else ""
    elif reason == "length":
        stop, detail = "truncated", f"length after {tokens(usage, 'completion_tokens')} tokens"
    elif reason not in ("stop", None):
        detail = f"finish_reason {reason}"
    cached = tokens(usage, "prompt_tokens_details", "cached_tokens")
    return Reply(
        text=text,
        usage=Usage(
            # Other than Anthropic, these servers count cached tokens among those of the prompt.
            input_tokens=max(0, tokens(usage, "prompt_tokens") - cached),
            output_tokens=tokens(usage, "completion_tokens"),
            cache_read_tokens=cached,
        ),
        usage_reported=counted(usage, "prompt_tokens", "completion_tokens"),
        stop=stop,
        detail=detail,
        model=str(completion.get("model") or ""),
        request_id=request_id or str(completion.get("id") or ""),
        has_text=content is None or isinstance(content, str),  # null: the model said nothing
    )


def _first(value: object, key: str) -> Any:
    items = value.get(key) if isinstance(value, Mapping) else None
    return items[0] if isinstance(items, list) and items else None


def _text_part(part: object) -> str:
    text = part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None
    return text if isinstance(text, str) else ""
