import torch
from sklearn.datasets import load_digits

from membench.core import configuration
from membench.data.dataset import Dataset


def test_digits_are_those_of_scikit_learn() -> None:
    digits: Dataset = configuration.load("data", "digits")
    assert len(digits.training) + len(digits.test) == 1797
    assert digits.classes == 10
    images, labels = digits.test.batch(torch.tensor([0, 1]))
    assert images.shape == (2, *digits.image_shape)
    assert images.dtype == torch.float32
    found = load_digits()
    of_zero = (found.target == 0).nonzero()[0][4]  # the fifth zero is the first of them that tests
    first = (digits.test.labels == 0).nonzero()[0]
    levels = digits.test.batch(first)[0][0, 0] * 16
    assert torch.allclose(levels, torch.tensor(found.images[of_zero], dtype=torch.float32), atol=0.04)
    assert labels.tolist() == digits.test.labels[:2].tolist()


def test_every_fifth_of_each_class_tests() -> None:
    digits: Dataset = configuration.load("data", "digits")
    for label in range(10):
        of_test, of_training = ((s.labels == label).sum().item() for s in (digits.test, digits.training))
        assert of_test == (of_test + of_training) // 5
