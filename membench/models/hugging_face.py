"""Networks of Hugging Face's transformers: built from a configuration, with random weights, so nothing is downloaded."""

from typing import Any

from torch import Tensor, nn

from membench.core.errors import MembenchError, near


def network(model_type: str, **options: Any) -> nn.Module:
    """Return a network in training mode, with the head for which its type has been published.

    Sequence to sequence, else masked tokens, else the next token, else the class of an image: the module's output is a
    ``ModelOutput``, with the loss in it if labels are among the inputs.

    Args:
        model_type: a type of transformers' configurations, ``"gpt2"``.
        options: of that configuration, by their names there; the others have their defaults.

    Raises:
        MembenchError: transformers is not installed, or has no such type with one of these heads.
    """
    transformers = _transformers()
    if model_type not in transformers.CONFIG_MAPPING.keys():  # noqa: SIM118 (a mapping that loads its values)
        known = list(transformers.CONFIG_MAPPING.keys())
        raise MembenchError(f"transformers has no model type {model_type!r}{near(model_type, known)}")
    configuration = transformers.CONFIG_MAPPING[model_type](**options)
    heads = transformers.models.auto.modeling_auto
    for mapping, head in (
        (heads.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING, transformers.AutoModelForSeq2SeqLM),
        (heads.MODEL_FOR_MASKED_LM_MAPPING, transformers.AutoModelForMaskedLM),
        (heads.MODEL_FOR_CAUSAL_LM_MAPPING, transformers.AutoModelForCausalLM),
        (heads.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING, transformers.AutoModelForImageClassification),
    ):
        if type(configuration) in mapping:
            module: nn.Module = head.from_config(configuration)
            return module.train()
    raise MembenchError(
        f"transformers has no head for tokens or images on a {model_type!r}; build the module yourself: "
        "model._target_=mypackage.MyNet"
    )


class OwnLoss(nn.Module):
    """The loss that a network of transformers computes itself, from labels among its inputs."""

    def forward(self, output: Any) -> Tensor:
        """Return the loss in a module's output.

        Raises:
            MembenchError: the output has none.
        """
        loss = getattr(output, "loss", None)
        if loss is None:
            raise MembenchError("the module's output has no loss; give labels among its inputs")
        return loss


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise MembenchError(
            "networks of Hugging Face need transformers: pip install 'membench[zoo]'"
        ) from error
    return transformers
