"""What is shown of new tokens: the text that they add to the prompt's."""

import io

import jax
import jax.numpy as jnp
import pytest
import sentencepiece

from maxtext.data.sentencepiece_tokenizer import SentencePieceTokenizer
from maxtext.data.tokenizer import ByteTokenizer, Tokenizer
from maxtext.decoding.generate import Generator
from tiny import tiny_setup

WORDS = ["to be or not to be", "that is the question", "whether tis nobler in the mind"]


class Scripted(Generator):
    """Says what it was told to, after a prompt of a known length."""

    def _step(self, params, row, count) -> jax.Array:
        return jnp.asarray(params)[count]


def said(tokenizer: Tokenizer, prompt: str, ids: list[int]) -> list[str]:
    setup = tiny_setup("add_bos=false", f"max_new_tokens={len(ids)}")
    script = [0] * len(tokenizer.encode(prompt)) + ids
    return list(
        Scripted(setup.config, setup.layout, setup.architecture, script, tokenizer).stream(prompt)
    )


@pytest.fixture(scope="module")
def pieces() -> SentencePieceTokenizer:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(WORDS), model_writer=model, vocab_size=28, minloglevel=2
    )
    made = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    return SentencePieceTokenizer(made, name="pieces")


def test_a_word_keeps_the_space_before_it(pieces: SentencePieceTokenizer) -> None:
    whole = pieces.encode("to be or not")
    prompt = pieces.encode("to be")
    assert whole[: len(prompt)] == prompt
    assert "".join(said(pieces, "to be", whole[len(prompt) :])) == " or not"


def test_a_character_is_shown_once_all_of_its_bytes_are_there() -> None:
    shown = said(ByteTokenizer(), "a", list("漢b".encode()))
    assert shown == ["", "", "漢", "b", ""]
    assert "".join(said(ByteTokenizer(), "a", list("漢".encode())[:2])) == "\ufffd"
