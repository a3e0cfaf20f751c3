import sys
from pathlib import Path
from typing import Any

import pytest
from torch import nn, optim

from membench.core.configuration import instantiate
from membench.core.errors import MembenchError
from membench.core.targets import find_function, find_target
from membench.strategies.base import Strategy

OF_THE_SYSTEM = [
    "os.system", "os.getcwd", "subprocess.run", "subprocess.Popen", "shutil.rmtree", "pathlib.Path", "builtins.eval",
    "builtins.open", "runpy.run_path", "tempfile.mkdtemp", "logging.FileHandler", "ctypes.CDLL",
    "importlib.import_module",
]  # fmt: skip
OF_TORCH = ["torch.save", "torch.load", "torch.hub.load", "torch.hub.download_url_to_file"]


@pytest.mark.parametrize("kind", [nn.Module, Strategy, optim.Optimizer, object])
@pytest.mark.parametrize("name", [*OF_THE_SYSTEM, *OF_TORCH])
def test_what_is_not_known_to_make_the_object_is_no_target(name: str, kind: type) -> None:
    with pytest.raises(MembenchError, match=f"^{name} is not known to make .*, and is not called; name that class"):
        find_target(name, kind)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("torch.nn.Linear", nn.Module),
        ("torchvision.models.resnet18", nn.Module),
        ("membench.models.hugging_face.network", nn.Module),
        ("timm.create_model", nn.Module),
        ("torch.optim.AdamW", optim.Optimizer),
        ("membench.strategies.layrub.LayrubHybrid", Strategy),
        (f"{__name__}.unannotated", nn.Module),
        (f"{__name__}.Config", object),
    ],
)
def test_classes_and_functions_of_the_kind_are_targets(name: str, kind: type) -> None:
    assert callable(find_target(name, kind))


def unannotated(width=3):  # type: ignore[no-untyped-def]
    return nn.Linear(width, width)


def number(width: int = 3) -> int:
    return width


class Config:
    def __init__(self, **values: Any) -> None:
        self.values = values


def liar(width: int = 3):  # type: ignore[no-untyped-def]
    return width


@pytest.mark.parametrize("name", ["number", "Config", "NOTE"])
def test_a_class_or_function_of_another_kind_is_refused(name: str) -> None:
    with pytest.raises(MembenchError, match="is not known to make an object of class Module|cannot be called"):
        find_target(f"{__name__}.{name}", nn.Module)


NOTE = "not a function"


def test_what_a_function_made_is_checked_too() -> None:
    with pytest.raises(MembenchError, match=r"liar makes an object of int, not of Module"):
        instantiate({"_target_": f"{__name__}.liar"}, nn.Module)


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_no_target_is_called_before_all_are_known_however_deep_the_wrong_one_is(depth: int, tmp_path: Path) -> None:
    described: Any = {"_target_": "os.mkdir", "path": str(tmp_path / "made")}
    for _ in range(depth):
        written = {"_target_": "os.mkdir", "path": str(tmp_path / "earlier")}
        described = {"_target_": f"{__name__}.Config", "first": [described], "second": written}
    with pytest.raises(MembenchError, match=r"os.mkdir is not known to make"):
        instantiate(described)
    assert not list(tmp_path.iterdir())


def test_a_metric_is_no_function_of_the_system() -> None:
    with pytest.raises(MembenchError, match="'os.system' is not a function for this option"):
        find_function("os.system")
    with pytest.raises(MembenchError, match="'nowhere.at_all' is not a function of any module"):
        find_function("nowhere.at_all")


def test_the_module_of_this_test_is_not_of_the_standard_library() -> None:
    assert __name__.partition(".")[0] not in sys.stdlib_module_names


def test_a_syntax_error_is_refused_with_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_nets.py").write_text("class Layer: pass\ndef broken(:\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(MembenchError, match=r"invalid syntax \(broken_nets.py, line 2\)"):
        find_target("broken_nets.Layer")
