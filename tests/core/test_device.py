"""Names of devices and pictures as names of files."""

from hypothesis import given
from hypothesis import strategies as st

from membench.core.device import file_name


def test_usual_names_stay_readable() -> None:
    assert file_name("NVIDIA H200") == "nvidia_h200"
    assert file_name("../../a <b> $(c) `d`\n") == "a_b_c_d"


@given(name=st.text())
def test_any_name_is_one_short_file_in_its_folder(name: str) -> None:
    found = file_name(name)
    assert found.isascii() and found.replace("_", "a").isalnum()
    assert len(found) <= 210


@given(name=st.text(min_size=300), other=st.text())
def test_names_of_which_little_is_left_are_told_apart(name: str, other: str) -> None:
    assert name == other or file_name(f"{name}é") != file_name(f"{other}é")
