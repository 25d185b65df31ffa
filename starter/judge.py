"""Decides whether an answer is right, by the check that its task carries."""

import json
import re

from corpus.task import Task

TOOL_CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)


def is_right(task: Task, answer: dict) -> bool:
    """`answer` is an assistant message: `content`, `tool_calls` where the server parsed them, and `finish_reason`."""
    content = (answer.get("content") or "").strip()
    if answer["finish_reason"] not in ("stop", "tool_calls"):
        return False
    match task.check:
        case {"kind": "exact", "text": text}:
            return content == text
        case {"kind": "contains", "all": strings}:
            return all(string.lower() in content.lower() for string in strings)
        case {"kind": "any", "of": strings}:
            return any(string.lower() in content.lower() for string in strings)
        case {"kind": "number", "value": value}:
            numbers = re.findall(r"-?\d+", content)
            return bool(numbers) and int(numbers[-1]) == value
        case {"kind": "json", "value": value}:
            return parsed(content) == value
        case {"kind": "tool_call", "name": name, "arguments": arguments}:
            return called(answer) == (name, arguments)
        case {"kind": "story", "mentions": mentions}:
            return is_story(content, mentions)
    raise ValueError(f"no such check: {task.check}")


def parsed(text: str) -> object:
    """The value of a JSON text, or None."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def called(answer: dict) -> tuple[str, object] | None:
    """Name and arguments of the one tool call of an answer, parsed by the server or still in the text."""
    if answer.get("tool_calls"):
        function = answer["tool_calls"][0]["function"]
        return (function["name"], parsed(function["arguments"])) if len(answer["tool_calls"]) == 1 else None
    calls = TOOL_CALL.findall(answer.get("content") or "")
    call = parsed(calls[0]) if len(calls) == 1 else None
    return (
        (call["name"], call["arguments"]) if isinstance(call, dict) and {"name", "arguments"} <= call.keys() else None
    )


def is_story(text: str, mentions: list[str]) -> bool:
    """Several sentences, none of them twice, and everything that was asked for."""
    sentences = [sentence.strip().lower() for sentence in re.split(r"(?<=[.!?])\s+", text) if sentence.strip()]
    mentioned = all(re.search(rf"\b{re.escape(word)}", text, re.IGNORECASE) for word in mentions)
    return len(sentences) >= 3 and len(set(sentences)) == len(sentences) and mentioned
