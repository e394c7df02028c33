"""Chats as documents: what is rendered, and which tokens count."""

import json
import pickle

import numpy as np
import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from maxtext.data.batch import UNCOUNTED, Shard
from maxtext.data.chat import ChatColumns, encode_chat
from maxtext.data.chat_template import ChatTemplate, check_template
from maxtext.data.huggingface_tokenizer import load_chat_template
from maxtext.data.iterators import make_train_iterator
from maxtext.data.records import Chat
from maxtext.data.tokenizer import ByteTokenizer, load_tokenizer

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA3 = (
    "{{- bos_token }}{%- for message in messages %}"
    "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}"
    "{{- message['content'] | trim + '<|eot_id|>' }}{%- endfor %}"
    "{%- if add_generation_prompt %}"
    "{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"
)
# The last answer gets an empty thought, earlier ones do not, as in Qwen 3.
THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.last %}<think>\n\n</think>\n\n{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MARKED = (
    "{% for m in messages %}[{{ m.role }}]{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }}{{ eos_token }}\n{% endgeneration %}"
    "{% else %}{{ m.content }}{% endif %}{% endfor %}"
)
TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "2 + 2?"},
    {"role": "assistant", "content": "4"},
    {"role": "user", "content": "why?"},
    {"role": "assistant", "content": " 漢 is why\n"},
]


def template(source: str) -> ChatTemplate:
    tokens = (("bos_token", "<s>"), ("eos_token", "</s>"))
    return check_template(ChatTemplate(source, "t.jinja", tokens))


@pytest.mark.parametrize(
    ("source", "answers"),
    [
        (CHATML, ["4<|im_end|>", " 漢 is why\n<|im_end|>"]),
        (LLAMA3, ["4<|eot_id|>", "漢 is why<|eot_id|>"]),
        (THINKING, ["4<|im_end|>", "<think>\n\n</think>\n\n 漢 is why\n<|im_end|>"]),
        (MARKED, ["4</s>", " 漢 is why\n</s>"]),
    ],
)
def test_answers_begin_after_the_prompt_for_them_and_end_with_their_mark(source, answers):
    text, spans = template(source).answers(TALK)
    assert [text[start:end] for start, end in spans] == answers
    assert text == template(source)._render(TALK).replace("\ufdd0", "").replace("\ufdd1", "")
    _, last = template(source).answers(TALK, first=3)
    assert last == spans[1:]


def test_an_answer_that_is_part_of_its_mark_is_whole():
    talk = [{"role": "user", "content": "say e"}, {"role": "assistant", "content": "end"}]
    text, ((start, end),) = template(CHATML).answers(talk)
    assert text[start:end] == "end<|im_end|>"


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("{% for m in messages %}", "no Jinja template"),
        ("{{ raise_exception('no systems') }}", "t.jinja says: no systems"),
        ("{{ messages[9].role }}", "t.jinja says: .*"),
        ("{{ 1 / 0 }}", "t.jinja fails: division by zero"),
        ("all the same", "does not show where message 3 is generated"),
        ("{% for m in messages | reverse %}{{ m.content }}{% endfor %}", "message 3 is generated"),
        ("{{ messages.__class__ }}{% for x in ''.__class__.mro() %}{% endfor %}", "says: .*unsafe"),
    ],
)
def test_a_template_that_does_not_work_says_why(source, says):
    with pytest.raises(ValueError, match=says):
        template(source).answers(TALK)


def columns(*names, source=CHATML, answers_only=True):
    made = None if source is None else template(source)
    return ChatColumns(names or ("messages",), "train_data_columns", made, answers_only)


def where():
    return "a.jsonl:7"


def answers_of(chat: Chat) -> list[str]:
    return [chat.text[start:end] for start, end in chat.answers]


def test_prompt_and_completion_are_texts_as_they_are_or_messages():
    form = columns("prompt", "completion")
    chat = form.document({"prompt": "a b", "completion": " c"}, where)
    assert (chat.text, answers_of(chat), chat.templated) == ("a b c", [" c"], False)
    chat = form.document({"prompt": TALK[:4], "completion": TALK[4:]}, where)
    assert answers_of(chat) == [" 漢 is why\n<|im_end|>"]
    assert chat.templated
    everything = columns(answers_only=False).document({"messages": TALK}, where)
    assert answers_of(everything) == [everything.text]


@pytest.mark.parametrize(
    ("record", "says"),
    [
        ({"text": "a"}, "no column 'messages'; there are text; set train_data_columns"),
        (["a"], "must be a JSON object, not list"),
        ({"messages": "hi"}, "'messages' must be a list of messages, not str"),
        ({"messages": []}, "'messages' has no messages"),
        ({"messages": ["hi"]}, "message 1 of 'messages' must be an object, not str"),
        ({"messages": [TALK[0], {"role": "user"}]}, "message 2 .*: 'content' must be text, and is"),
        ({"messages": [{"role": 5, "content": ""}]}, "'role' must be text, and is int"),
        ({"messages": [{"role": "user", "content": None}]}, "'content' must be text, and is None"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "half a surrogate pair"),
        ({"messages": [{"role": "user", "content": "\ufdd0"}]}, "noncharacter"),
    ],
)
def test_messages_that_are_none_are_named_with_file_and_line(record, says):
    with pytest.raises(ValueError, match=f"a.jsonl:7: .*{says}"):
        columns().document(record, where)


def test_messages_without_a_template_are_refused_with_the_remedy():
    with pytest.raises(ValueError, match=r"a.jsonl:7: messages need a chat template.*emplate=FILE"):
        columns(source=None).document({"messages": TALK}, where)
    with pytest.raises(ValueError, match=r"a.jsonl:7: use_sft=true needs records with messages"):
        columns().text_document("plain", where)


def counted(tokenizer, chat: Chat) -> bytes:
    ids = encode_chat(chat, tokenizer)
    assert np.maximum(ids, ~ids).tolist() == tokenizer.encode(chat.text)
    return bytes(ids[ids >= 0].tolist())


def test_bytes_that_count_are_those_of_the_answers():
    chat = columns().document({"messages": TALK}, where)
    assert counted(ByteTokenizer(), chat).decode() == "".join(answers_of(chat))


@pytest.fixture
def folder(tmp_path):
    """A byte-level tokenizer whose marks are one token each, with a template beside it."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: number for number, letter in enumerate(alphabet)}
    model = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    marks = ["<|im_start|>", "<|im_end|>"]
    model.add_special_tokens([AddedToken(one, special=True) for one in marks])
    model.save(str(tmp_path / "tokenizer.json"))
    names = {"eos_token": "<|im_end|>", "chat_template": CHATML}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(names))
    return tmp_path


def test_tokens_that_count_are_those_of_the_answers_with_the_mark_of_their_end(folder, make_config):
    config = make_config(
        tokenizer_type="huggingface", tokenizer_path=str(folder), add_bos=False, add_eos=False
    )
    tokenizer = load_tokenizer(config, vocab_size=300)
    form = ChatColumns(("messages",), "k", load_chat_template("", folder), answers_only=True)
    ids = encode_chat(form.document({"messages": TALK}, where), tokenizer)
    assert np.maximum(ids, ~ids).tolist() == tokenizer.encode(template(CHATML)._render(TALK))
    model = tokenizer.model
    answers = [model.encode(text).ids for text in ("4<|im_end|>", " 漢 is why\n<|im_end|>")]
    assert ids[ids >= 0].tolist() == [token for one in answers for token in one]
    assert ids[ids >= 0].tolist().count(tokenizer.eos_id) == 2


def test_a_template_is_found_beside_the_tokenizer_or_by_its_key(folder, tmp_path):
    assert load_chat_template("", folder).source == CHATML
    several = [{"name": "tools", "template": "x"}, {"name": "default", "template": "y"}]
    config = folder / "tokenizer_config.json"
    config.write_text(json.dumps({"chat_template": several}))
    assert load_chat_template("", folder).source == "y"
    (folder / "chat_template.jinja").write_text("z")
    assert load_chat_template("", folder).source == "z"
    own = tmp_path / "own.jinja"
    own.write_text("own")
    assert load_chat_template(str(own), folder).source == "own"
    assert load_chat_template(str(own), None).tokens == ()
    config.write_text(json.dumps({"chat_template": 5}))
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(ValueError, match=r"tokenizer_config.json: chat_template must be text"):
        load_chat_template("", folder)
    own.write_bytes(b"\xff")
    with pytest.raises(ValueError, match=r"own\.jinja: the chat template cannot be read"):
        load_chat_template(str(own), None)


def test_a_template_survives_the_way_to_a_worker():
    form = pickle.loads(pickle.dumps(columns()))
    assert form.document({"messages": TALK}, where) == columns().document({"messages": TALK}, where)


def test_batches_of_chats_count_answers_alone_and_pairs_get_bos_and_eos(make_config, tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text('{"prompt": "abc", "completion": "de"}\n{"prompt": "f", "completion": ""}\n')
    config = make_config(
        dataset_type="grain",
        grain_train_files=str(path),
        train_data_columns=("prompt", "completion"),
        enable_data_shuffling=False,
        num_epoch=1,
        use_sft=True,
        max_target_length=16,
    )
    (batch,) = make_train_iterator(config, rows=1, shard=Shard(0, 1), vocab_size=256)
    assert batch.inputs[0, :8].tolist() == [254, *b"abcde", 254, ord("f")]
    no = UNCOUNTED
    assert batch.targets[0, :8].tolist() == [no, no, no, *b"de", 255, no, 255]


def test_chats_without_an_answer_are_an_error_and_no_endless_loop(make_config, tmp_path):
    path = tmp_path / "chats.jsonl"
    path.write_text(json.dumps({"messages": TALK[:2]}) + "\n")
    file = tmp_path / "t.jinja"
    file.write_text(CHATML)
    config = make_config(
        dataset_type="grain",
        grain_train_files=str(path),
        train_data_columns=("messages",),
        use_sft=True,
        chat_template=str(file),
    )
    iterator = make_train_iterator(config, rows=1, shard=Shard(0, 1), vocab_size=256)
    with pytest.raises(ValueError, match="none of the 1 documents has a token to predict"):
        next(iterator)
