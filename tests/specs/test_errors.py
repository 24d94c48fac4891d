"""The one exception for bad input."""

from meshwright.specs.errors import SpecError, nearest


def test_a_sentence_of_field_value_and_remedy():
    error = SpecError("model.heads", 33, "a divisor of 4096 is expected")
    assert str(error) == "model.heads = 33: a divisor of 4096 is expected"
    assert (error.field, error.value) == ("model.heads", 33)


def test_always_one_line_of_bounded_length():
    assert "\n" not in str(SpecError("a\nb", "x\ny", "z\n"))
    assert len(str(SpecError("a", "x" * 10_000, "z"))) < 200


def test_nearest_names_or_the_list():
    assert nearest("h10", ["h100", "a100", "cpu"]).startswith("did you mean h100")
    assert nearest("zzz", ["h100", "a100"]) == "known: a100, h100"
