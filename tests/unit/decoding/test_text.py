import io

import pytest
import sentencepiece

from maxtext.data.sentencepiece_tokenizer import SentencePieceTokenizer
from maxtext.data.tokenizer import ByteTokenizer
from maxtext.decoding.text import TextStream

DECODE = ByteTokenizer().decode


def pieces(text: str, *stop: str) -> tuple[list[str], str, bool]:
    """What is released at each byte, at the end, and whether a stop text was found."""
    stream = TextStream(DECODE, b"prompt", stop)
    found = [stream.push(byte) for byte in text.encode()]
    return found, stream.finish(), stream.stopped


def test_characters_come_whole() -> None:
    assert pieces("aé€") == (["a", "", "é", "", "", "€"], "", False)
    stream = TextStream(DECODE, [], ())
    assert (stream.push(0xE2), stream.finish()) == ("", "\ufffd")


def test_text_that_may_become_a_stop_text_is_held_back() -> None:
    assert pieces("abcx", "bcd") == (["a", "", "", "bcx"], "", False)
    assert pieces("abc", "bcd") == (["a", "", ""], "bc", False)
    assert pieces("aabcd", "abcd", "zz")[0] == ["", "a", "", "", ""]


@pytest.mark.parametrize("stop", [("cd",), ("cde", "cd"), ("bcdef", "cd")])
def test_nothing_comes_after_a_stop_text(stop: tuple[str, ...]) -> None:
    found, rest, stopped = pieces("abcdefg", *stop)
    assert ("".join(found) + rest, stopped) == ("ab", True)


def test_a_word_keeps_the_space_before_it() -> None:
    model = io.BytesIO()
    words = ["to be or not to be", "that is the question", "whether tis nobler in the mind"]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(words), model_writer=model, vocab_size=28, minloglevel=2
    )
    made = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    tokenizer = SentencePieceTokenizer(made, name="pieces")
    whole, prompt = tokenizer.encode("to be or not"), tokenizer.encode("to be")
    assert whole[: len(prompt)] == prompt
    stream = TextStream(tokenizer.decode, prompt, ())
    shown = [stream.push(token) for token in whole[len(prompt) :]]
    assert "".join(shown) + stream.finish() == " or not"
