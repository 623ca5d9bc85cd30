"""What the Messages API refuses: the checks that a request meets before a model sees it.

Only those that a judge can trip over. Each returns what is wrong in one line, or None.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SAMPLING = ("temperature", "top_p", "top_k")
KNOWN = {
    *("model", "max_tokens", "messages", "system", "metadata", "stop_sequences", "stream"),
    *("thinking", "tools", "tool_choice", "output_config", "cache_control", "service_tier"),
    *("container", "context_management", "diagnostics", "inference_geo", "mcp_servers"),
    *("user_profile_id", "workspace_id", "speed"),
}
# Keywords that the SDK's own schema transformation moves into a description, because the API
# refuses them.
UNSUPPORTED = {
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength"),
    *("maxLength", "pattern", "maxItems", "uniqueItems", "minProperties", "maxProperties"),
    *("patternProperties", "oneOf", "not", "if", "then", "else"),
}


def message_problem(body: Mapping[str, Any], version: str, *, counting: bool = False) -> str | None:
    """What is wrong with the body of a message, or of a request to count its tokens."""
    for name in SAMPLING:
        if name in body and version != "2023-06-01":
            return f"{name}: Extra inputs are not permitted (sampling parameters were removed)"
    if unknown := sorted(set(body) - KNOWN - set(SAMPLING)):
        return f"{unknown[0]}: Extra inputs are not permitted"
    if not isinstance(body.get("model"), str) or not body["model"]:
        return "model: Field required"
    limit = body.get("max_tokens")
    if not counting and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 0):
        return "max_tokens: Field required, an integer of at least 0"
    if body.get("stream"):
        return "stream: this fake server does not stream"
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        return "messages: at least one message is required"
    for i, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") not in (
            "user",
            "assistant",
            "system",
        ):
            return f"messages.{i}.role: Input should be 'user', 'assistant' or 'system'"
        if not isinstance(message.get("content"), str | list):
            return f"messages.{i}.content: Input should be a string or a list of blocks"
    if messages[-1]["role"] == "assistant":
        return "messages: the conversation must end with a user message (no prefill)"
    return _output_problem(body.get("output_config") or {})


def _output_problem(config: Mapping[str, Any]) -> str | None:
    if config.get("effort") not in (None, "low", "medium", "high", "xhigh", "max"):
        return "output_config.effort: Input should be 'low', 'medium', 'high', 'xhigh' or 'max'"
    form = config.get("format")
    if form is None:
        return None
    if form.get("type") != "json_schema" or not isinstance(form.get("schema"), dict):
        return "output_config.format: expected type 'json_schema' and a schema"
    return _schema_problem(form["schema"], "output_config.format.schema")


def _schema_problem(schema: Mapping[str, Any], at: str) -> str | None:
    if found := UNSUPPORTED & schema.keys():
        return f"{at}: for '{schema.get('type')}' type, '{min(found)}' is not supported"
    if schema.get("minItems", 0) not in (0, 1):
        return f"{at}: 'minItems' values other than 0 or 1 are not supported"
    if "properties" in schema or schema.get("type") == "object":
        if schema.get("additionalProperties") is not False:
            return (
                f"{at}: for 'object' type, 'additionalProperties' must be explicitly set to false"
            )
        if missing := sorted(set(schema.get("required", [])) - set(schema.get("properties", {}))):
            return f"{at}: 'required' names '{missing[0]}', which is no property"
    inner = [(f"{at}.{name}", part) for name, part in schema.get("properties", {}).items()]
    inner += [(f"{at}.$defs.{name}", part) for name, part in schema.get("$defs", {}).items()]
    for several in ("anyOf", "allOf"):
        inner += [(f"{at}.{several}.{i}", part) for i, part in enumerate(schema.get(several, []))]
    if isinstance(schema.get("items"), dict):
        inner.append((f"{at}.items", schema["items"]))
    for name, part in inner:
        if problem := _schema_problem(part, name):
            return problem
    return None


def chat_problem(body: Mapping[str, Any]) -> str | None:
    """What is wrong with the body of a chat completion. These servers are lenient, so this is too."""
    if not isinstance(body.get("model"), str):
        return "model: Field required"
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        return "messages: at least one message is required"
    if body.get("stream"):
        return "stream: this fake server does not stream"
    return None
