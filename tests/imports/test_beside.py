"""Which file a script means by a name."""

from meshwright.imports.beside import beside


def test_a_file_above_the_script_is_found_by_as_much_of_its_path_as_fits(tmp_path):
    script = tmp_path / "project" / "scripts"
    script.mkdir(parents=True)
    table = tmp_path / "project" / "configs" / "ds.json"
    table.parent.mkdir()
    table.write_text("{}")
    assert beside(script, "configs/ds.json") == table
    assert beside(script, "/data/me/project/configs/ds.json") == table
    assert beside(script, "other.json") is None


def test_nothing_above_a_checkout_is_taken_for_a_file_of_it(tmp_path):
    script = tmp_path / "project" / "scripts"
    script.mkdir(parents=True)
    (tmp_path / "ds.json").write_text("{}")
    assert beside(script, "ds.json") == tmp_path / "ds.json"
    (tmp_path / "project" / ".git").mkdir()
    assert beside(script, "ds.json") is None
