import pytest
import tables


@pytest.mark.parametrize("name", tables.TABLES)
def test_a_table_is_what_it_was(name: str) -> None:
    assert tables.TABLES[name]() == (tables.FOLDER / name).read_text(), "`make golden` rewrites it"
