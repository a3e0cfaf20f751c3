import torch
from hypothesis import given
from hypothesis import strategies as st

from membench.data.splits import TEST_EVERY, split_each_class


@given(st.lists(st.integers(0, 4)))
def test_every_image_is_in_one_split_and_a_fifth_of_each_class_tests(labels: list[int]) -> None:
    training, test = split_each_class(torch.tensor(labels, dtype=torch.int64))
    assert sorted([*training.tolist(), *test.tolist()]) == list(range(len(labels)))
    for label in set(labels):
        assert sum(labels[i] == label for i in test.tolist()) == labels.count(label) // TEST_EVERY


def test_images_of_other_classes_change_nothing() -> None:
    _, test = split_each_class(torch.tensor([0, 1] * 10))
    assert test.tolist() == [8, 9, 18, 19]
