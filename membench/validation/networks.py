"""Networks of published measurements, as they were built there."""

from torch import nn

from membench.core.errors import MembenchError

_SAME_PARAMETERS = 0.01
"""Relative difference in the number of weights up to which a network counts as the published one."""


def timm_network(name: str, image_size: int, parameters_m: float) -> nn.Module:
    """Return the network that timm has under a name, without its pretrained weights.

    Args:
        name: of today or of an earlier release, which timm maps to today's.
        image_size: of the images' sides, for networks with a fixed one.
        parameters_m: million weights of the published network.

    Raises:
        MembenchError: timm has no network of that name any more, or another one.
    """
    import warnings

    import timm

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a name is deprecated, and that a network is not pretrained
        try:
            network: nn.Module = timm.create_model(name)
        except RuntimeError as error:
            raise MembenchError(f"today's timm has no network {name!r}") from error
        fixed = getattr(getattr(network, "patch_embed", None), "img_size", None)
        if fixed is not None and tuple(fixed) != (image_size, image_size):
            network = timm.create_model(name, img_size=image_size)
    found_m = sum(weight.numel() for weight in network.parameters()) / 1e6
    if abs(found_m - parameters_m) > max(
        _SAME_PARAMETERS * parameters_m, 0.006
    ):  # published with two decimals
        raise MembenchError(
            f"today's {name!r} of timm has {found_m:.2f} million weights, the published one {parameters_m}"
        )
    return network
