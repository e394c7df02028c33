"""Tokens to text as they come."""

from collections.abc import Callable, Sequence

# Tokens before the first new one that its text may depend on, such as the space before a word.
CONTEXT = 5


class TextStream:
    """The text of a growing sequence of tokens, up to the first of its stop texts."""

    def __init__(
        self, decode: Callable[[Sequence[int]], str], prompt: Sequence[int], stop: Sequence[str]
    ) -> None:
        self._decode = decode
        self._stop = tuple(stop)
        self._tokens = list(prompt[-CONTEXT:])
        self._context, self._read = 0, len(self._tokens)
        self._held = ""
        self.stopped = False

    def push(self, token: int) -> str:
        """Text that is sure to belong to the result, now that `token` came."""
        self._tokens.append(token)
        return self._release(self._new_text(whole=False), last=False)

    def finish(self) -> str:
        """The rest, of which no more is to come."""
        return self._release(self._new_text(whole=True), last=True)

    def _new_text(self, *, whole: bool) -> str:
        """What the unread tokens add to the text; nothing while that ends in half a character.

        Text of one token may depend on those before it: so texts with and without the new
        tokens are compared, both from the same start.
        """
        before = self._decode(self._tokens[self._context : self._read])
        after = self._decode(self._tokens[self._context :])
        if not whole and (after.endswith("\ufffd") or len(after) <= len(before)):
            return ""
        self._context, self._read = self._read, len(self._tokens)
        return after[len(before) :]

    def _release(self, new: str, *, last: bool) -> str:
        if self.stopped:
            return ""
        text = self._held + new
        found = [at for at in map(text.find, self._stop) if at >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        keep = 0 if last else max((_overlap(text, stop) for stop in self._stop), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: str, stop: str) -> int:
    """Letters at the end of the text that may be the beginning of `stop`."""
    most = min(len(text), len(stop) - 1)
    return next((n for n in range(most, 0, -1) if text.endswith(stop[:n])), 0)
