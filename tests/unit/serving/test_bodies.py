"""What clients may ask for, and what they are told of what they may not."""

import json

import pytest

from maxtext.serving.bodies import ChatBody, CompletionBody, parse
from maxtext.serving.errors import ApiError

COMPLETION = {"model": "m", "prompt": "a"}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "a"}]}

BAD_COMPLETIONS = {
    "an unknown field": ({"colour": 1}, "colour", "Unrecognized request argument supplied: colour"),
    "a field of chats": ({"messages": []}, "messages", "Unrecognized request argument"),
    "no model": ({"model": None}, "model", "model is missing"),
    "no prompt": ({"prompt": None}, "prompt", "prompt is missing"),
    "an empty list": ({"prompt": []}, "prompt", "prompt: "),
    "a prompt that is a number": ({"prompt": 5}, "prompt", "must be a text, a list of tokens"),
    "mixed prompts": ({"prompt": ["a", 5]}, "prompt", "must be a text, a list of tokens"),
    "a text for a number": (
        {"temperature": "1"},
        "temperature",
        "must be a valid number, and is '1'",
    ),
    "a truth for a number": ({"n": True}, "n", "n: must be a valid integer, and is True"),
    "too hot": ({"temperature": 2.1}, "temperature", "less than or equal to 2, and is 2.1"),
    "no probability": ({"top_p": 0}, "top_p", "must be greater than 0, and is 0"),
    "no tokens": ({"max_tokens": 0}, "max_tokens", "must be greater than 0, and is 0"),
    "many answers": ({"n": 129}, "n", "less than or equal to 128"),
    "many stops": ({"stop": list("abcde")}, "stop", "at most 4 items"),
    "an empty stop": ({"stop": ""}, "stop.0", "at least 1 character"),
    "many probabilities": ({"logprobs": 6}, "logprobs", "less than or equal to 5"),
    "probabilities of an echo": ({"echo": True, "logprobs": 0}, "logprobs", "is not supported"),
    "a presence penalty": ({"presence_penalty": 0.5}, "presence_penalty", "is not supported"),
    "a frequency penalty": ({"frequency_penalty": -1}, "frequency_penalty", "is not supported"),
    "biases": ({"logit_bias": {"5": 1}}, "logit_bias", "is not supported"),
    "a suffix": ({"suffix": "b"}, "suffix", "is not supported"),
    "options of no stream": (
        {"stream_options": {"include_usage": True}},
        "stream_options",
        "needs stream=true",
    ),
}
BAD_CHATS = {
    "no messages": ({"messages": []}, "messages", "at least 1 item"),
    "an unknown role": (
        {"messages": [{"role": "king", "content": ""}]},
        "messages.0.role",
        "must be 'system', 'developer', 'user', 'assistant' or 'tool', and is 'king'",
    ),
    "no content": ({"messages": [{"role": "user"}]}, "messages.0.content", "is missing"),
    "a picture": (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages.0.content",
        "parts must be texts",
    ),
    "tools": ({"tools": [{"type": "function"}]}, "tools", "tools is not supported"),
    "JSON": ({"response_format": {"type": "json_object"}}, "response_format", "not supported"),
    "top_logprobs alone": ({"top_logprobs": 2}, "top_logprobs", "needs logprobs=true"),
    "a field of completions": ({"echo": True}, "echo", "Unrecognized request argument"),
}
NO_OBJECTS = {
    "nothing": (b"", "EOF while parsing a value"),
    "half": (b'{"model": ', "EOF while parsing a value"),
    "a list": (b"[]", "must be an object"),
    "no UTF-8": (b'{"model": "\xff"}', "invalid unicode code point"),
    "half a character": (b'{"model": "\\ud800"}', "hex escape"),
    "a tower": (b"[" * 100_000, "recursion limit exceeded"),
}


@pytest.mark.parametrize(("fields", "param", "says"), BAD_COMPLETIONS.values(), ids=BAD_COMPLETIONS)
def test_a_bad_completion_is_one_clear_error(fields, param, says) -> None:
    with pytest.raises(ApiError) as caught:
        parse(CompletionBody, json.dumps(COMPLETION | fields).encode())
    assert (caught.value.status, caught.value.param) == (400, param)
    assert says in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(("fields", "param", "says"), BAD_CHATS.values(), ids=BAD_CHATS)
def test_a_bad_chat_is_one_clear_error(fields, param, says) -> None:
    with pytest.raises(ApiError) as caught:
        parse(ChatBody, json.dumps(CHAT | fields).encode())
    assert (caught.value.status, caught.value.param) == (400, param)
    assert says in caught.value.message


@pytest.mark.parametrize(("content", "says"), NO_OBJECTS.values(), ids=NO_OBJECTS)
def test_what_is_no_object_is_refused(content, says) -> None:
    with pytest.raises(ApiError, match="must be a JSON object") as caught:
        parse(CompletionBody, content)
    assert (caught.value.status, caught.value.param) == (400, None)
    assert says in caught.value.message


def test_fields_that_ask_for_nothing_are_taken() -> None:
    harmless = {"user": "me", "logit_bias": {}, "presence_penalty": 0, "frequency_penalty": 0.0}
    harmless |= {"best_of": 1, "suffix": None, "stop": None, "seed": None, "stream": None}
    assert parse(CompletionBody, json.dumps(COMPLETION | harmless).encode()) == parse(
        CompletionBody, json.dumps(COMPLETION).encode()
    )
    harmless = {"tools": [], "tool_choice": "auto", "response_format": {"type": "text"}}
    answer = {"role": "assistant", "content": "b", "refusal": None, "tool_calls": None}
    chat = CHAT | {"messages": [*CHAT["messages"], answer]}
    body = parse(ChatBody, json.dumps(chat | harmless | {"metadata": {"a": "b"}}).encode())
    assert [one.content for one in body.messages] == ["a", "b"]


def test_prompts_come_in_four_forms() -> None:
    for prompt, want in (
        ("ab", ["ab"]),
        (["ab", "c"], ["ab", "c"]),
        ([1, 2], [[1, 2]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
    ):
        content = json.dumps(COMPLETION | {"prompt": prompt}).encode()
        assert parse(CompletionBody, content).prompt == want


def test_content_in_parts_is_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "developer", "content": parts, "name": "me"}]
    body = parse(ChatBody, json.dumps(CHAT | {"messages": messages}).encode())
    want = {"role": "system", "content": "ab", "name": "me"}
    assert [one.for_template for one in body.messages] == [want]


def test_each_answer_has_a_seed_of_its_own() -> None:
    content = json.dumps(COMPLETION | {"n": 3, "seed": 2**31 - 2, "stop": "x"}).encode()
    samplings = parse(CompletionBody, content).samplings(max_new_tokens=5, eos_ids=(1,))
    assert [one.seed for one in samplings] == [2**31 - 2, 2**31 - 1, 0]
    assert {(one.temperature, one.top_p, one.stop, one.eos_ids) for one in samplings} == {
        (1.0, 1.0, ("x",), (1,))
    }
    drawn = {
        parse(CompletionBody, json.dumps(COMPLETION).encode())
        .samplings(max_new_tokens=5, eos_ids=())[0]
        .seed
        for _ in range(5)
    }
    assert len(drawn) > 1


def test_next_to_no_temperature_is_greedy() -> None:
    for temperature, want in ((1e-300, 0.0), (0, 0.0), (1e-3, 1e-3)):
        body = parse(CompletionBody, json.dumps(COMPLETION | {"temperature": temperature}).encode())
        assert body.samplings(max_new_tokens=1, eos_ids=())[0].temperature == want
