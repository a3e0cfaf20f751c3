"""Packages that membench is installed without: an extra of pyproject.toml brings those that a feature needs."""

from importlib.util import find_spec

from membench.core.errors import MembenchError

PACKAGES = {
    "app": {"panel": "panel"},
    "dataframes": {"pandas": "pandas"},
    "figures": {"jinja2": "jinja2", "matplotlib": "matplotlib"},
    "lab": {"pillow": "PIL", "scikit-learn": "sklearn", "seaborn": "seaborn"},
    "rows": {"fastjsonschema": "fastjsonschema"},
    "tensorboard": {"tensorboard": "tensorboard"},
    "wandb": {"wandb": "wandb"},
}
"""What each extra brings itself: the module that is imported, by the name under which it is installed."""
WITH = {
    "app": ("figures",),
    "lab": ("dataframes", "figures", "wandb"),
    "tensorboard": ("figures",),
    "wandb": ("dataframes", "figures"),
}
"""Extras that an extra brings as well."""


def require(extra: str, what: str) -> None:
    """Refuse what needs an extra, before anything takes its time; nothing is imported.

    Args:
        what: begins the sentence, such as ``"a picture"``.

    Raises:
        MembenchError: a package of the extra is not installed.
    """
    of_extra = {name: module for each in (extra, *WITH.get(extra, ())) for name, module in PACKAGES[each].items()}
    missing = sorted(name for name, module in of_extra.items() if not _is_installed(module))
    if missing:
        raise MembenchError(f"{what} needs {', '.join(missing)}: pip install 'membench[{extra}]'")


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):  # None in `sys.modules`, by which a program forbids an import
        return False
