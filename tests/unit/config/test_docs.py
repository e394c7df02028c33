"""The committed documentation of the keys is current."""

from pathlib import Path

from maxtext.config.docs import DIFFERENCES, config_page
from maxtext.config.keys import keys


def test_docs_config_md_is_current() -> None:
    committed = Path(__file__).parents[3] / "docs" / "config.md"
    assert committed.read_text("utf-8") == config_page(), (
        "run: python -m maxtext.config.docs > docs/config.md"
    )


def test_every_difference_from_upstream_is_of_a_key() -> None:
    assert set(DIFFERENCES) <= set(keys())
