"""Networks of timm: built by name with random weights, so nothing is downloaded."""

from typing import Any

from torch import nn

from membench.core.errors import MembenchError, near


def network(architecture: str, **options: Any) -> nn.Module:
    """Return a network in training mode.

    Args:
        architecture: a name of timm's, ``"vit_small_patch16_224"``.
        options: for ``timm.create_model``, above all ``num_classes``.

    Raises:
        MembenchError: timm is not installed, or has no such network.
    """
    module: nn.Module = known_timm(architecture).create_model(architecture, pretrained=False, **options)
    return module.train()


def options_of(architecture: str) -> dict[str, Any]:
    """Return the options of ``conf/model`` for a network, with the images and classes of its published weights.

    Raises:
        MembenchError: see `network`.
    """
    published = known_timm(architecture).get_pretrained_cfg(architecture)
    classes = (published and published.num_classes) or 1000
    return {
        "name": architecture,
        "module": {
            "_target_": "membench.models.timm_networks.network",
            "architecture": architecture,
            "num_classes": classes,
        },
        "loss": {"_target_": "torch.nn.CrossEntropyLoss"},
        "input_shape": list(published.input_size if published else (3, 224, 224)),
        "classes": classes,
        "batch_size": 32,
    }


def known_timm(architecture: str) -> Any:
    """Return the package, which takes seconds to import, if it has a network of that name.

    Raises:
        MembenchError: see `network`.
    """
    try:
        import timm
    except ImportError as error:
        raise MembenchError("networks of timm need timm: pip install 'membench[zoo]'") from error
    if not timm.is_model(architecture):  # create_model would look on the hub for names such as hf_hub:...
        raise MembenchError(
            f"timm {timm.__version__} has no network {architecture!r}{near(architecture, timm.list_models())}"
        )
    return timm
