"""Chat templates: messages to text, and where in it the assistant speaks."""

import dataclasses
import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

type Message = dict[str, Any]
type Spans = tuple[tuple[int, int], ...]

# Unicode's noncharacters: no text has a use for them.
_BEGIN, _END = "\ufdd0", "\ufdd1"
_MARKS = re.compile(f"[{_BEGIN}{_END}]")


@dataclasses.dataclass(frozen=True)
class ChatTemplate:
    """A Jinja template as tokenizers bring it.

    Attributes:
        source: Its text.
        place: Where it lies, for messages.
        tokens: `bos_token`, `eos_token` and others that it may write.
    """

    source: str
    place: str
    tokens: tuple[tuple[str, str], ...]

    def prompt(self, messages: Sequence[Message]) -> str:
        """The text of the messages, up to where the assistant begins its answer.

        Raises:
            ValueError: The template refuses the messages.
        """
        return _MARKS.sub("", self._render(messages, add_generation_prompt=True))

    def answers(self, messages: Sequence[Message], *, first: int = 0) -> tuple[str, Spans]:
        """The text of the messages, and from where to where the assistant speaks in it.

        An answer ends with what marks its end; blanks after that do not count. Where the template
        says what is generated (`{% generation %}`), that is taken; elsewhere an answer begins
        where the template would let the assistant begin, and ends with the mark that follows it
        where it is the last message.

        Args:
            messages: Each with a role and content.
            first: Answers before this message are passed over.

        Raises:
            ValueError: The template refuses the messages, or answers cannot be found in its text.
        """
        if any(_MARKS.search(one["content"]) for one in messages):
            raise ValueError("a message holds the noncharacter U+FDD0 or U+FDD1")
        marked = self._render(messages)
        text = _MARKS.sub("", marked)
        if marked != text:
            start = len(_MARKS.sub("", self._render(messages[:first]))) if first else 0
            return text, tuple(span for span in _marked_spans(marked) if span[0] >= start)
        found = [
            self._answer(messages, number, text)
            for number in range(first, len(messages))
            if messages[number]["role"] == "assistant"
        ]
        return text, tuple(found)

    def _answer(self, messages: Sequence[Message], number: int, text: str) -> tuple[int, int]:
        before = self._render(messages[:number], add_generation_prompt=True)
        alone = self._render(messages[: number + 1])
        start, content = len(before), messages[number]["content"].strip()
        # With what marks its end, where nothing else follows.
        answer = alone[max(0, alone.find(content, start)) :].rstrip()
        place = text.find(answer, start)
        end = place + len(answer)
        begins = text.startswith(before) and alone.startswith(before)
        if not begins or place < 0 or not answer.startswith(content):
            raise ValueError(
                f"the chat template {self.place} does not show where message {number + 1} is "
                "generated; put {% generation %} and {% endgeneration %} around it there, or name "
                "another template: chat_template=FILE"
            )
        return start, end

    def _render(self, messages: Sequence[Message], *, add_generation_prompt: bool = False) -> str:
        try:
            return _compiled(self.source).render(
                messages=list(messages),
                add_generation_prompt=add_generation_prompt,
                **dict(self.tokens),
            )
        except jinja2.TemplateError as error:
            raise ValueError(f"the chat template {self.place} says: {error.message}") from error
        except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
            raise ValueError(f"the chat template {self.place} fails: {error}") from error


def check_template(template: ChatTemplate) -> ChatTemplate:
    """The template, if it is one.

    Raises:
        ValueError: It is not.
    """
    try:
        _compiled(template.source)
    except jinja2.TemplateSyntaxError as error:
        raise ValueError(
            f"{template.place}: the chat template is no Jinja template: {error.message} "
            f"(its line {error.lineno})"
        ) from error
    return template


def _marked_spans(marked: str) -> Spans:
    """Start and end of each part between marks, in the text without them."""
    spans: list[tuple[int, int]] = []
    length, rest = 0, marked
    while _BEGIN in rest:
        before, _, rest = rest.partition(_BEGIN)
        inside, _, rest = rest.partition(_END)
        start = length + len(before)
        length = start + len(inside)
        spans.append((start, start + len(inside.rstrip())))
    return tuple(spans)


class _Generation(Extension):
    """`{% generation %}...{% endgeneration %}`: puts marks around what is inside."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own name and type

    def parse(self, parser: Parser) -> nodes.Node:
        """The block as a call that marks what it renders."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_marked"), [], [], body).set_lineno(line)

    def _marked(self, caller: Callable[[], str]) -> str:
        return f"{_BEGIN}{caller()}{_END}"


@functools.lru_cache(maxsize=8)
def _compiled(source: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, "jinja2.ext.loopcontrols"],
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    return environment.from_string(source)


def _to_json(value: object, **options: Any) -> str:
    """JSON as it is: Jinja's own filter writes for HTML."""
    return json.dumps(value, **{"ensure_ascii": False, **options})


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


def template_text(entry: object, place: str) -> str | None:
    """The template that `chat_template` of a tokenizer_config.json holds; None where there is none.

    Of several, the one called `default`.

    Raises:
        ValueError: It is something else.
    """
    if isinstance(entry, list):
        named = {one.get("name"): one.get("template") for one in entry if isinstance(one, Mapping)}
        entry = named.get("default")
    if entry is not None and not isinstance(entry, str):
        raise ValueError(f"{place}: chat_template must be text, not {type(entry).__name__}")
    return entry
