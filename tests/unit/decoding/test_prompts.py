from pathlib import Path

import pytest

from maxtext.config.load import load
from maxtext.data.tokenizer import ByteTokenizer
from maxtext.decoding.prompts import read_prompts


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("p.jsonl", '{"prompt": "a\u2028b\x85c"}\r\n\n{"prompt": "d"}'),
        ("p.txt", "a\u2028b\x85c\n\nd\n"),
    ],
)
def test_a_line_of_a_file_ends_at_a_newline_and_nowhere_else(
    name: str, text: str, tmp_path: Path
) -> None:
    file = tmp_path / name
    file.write_bytes(text.encode())
    config = load([f"prompts_file={file}", "model_name=default"], {}).config
    found = read_prompts(config, ByteTokenizer())
    assert [one.text for one in found] == ["a\u2028b\x85c", "d"]
    assert [one.place for one in found] == [f"{file}:1", f"{file}:3"]
