"""Networks of Hugging Face's transformers from configurations, with random weights and no downloads."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from membench.core import configuration
from membench.core.errors import MembenchError, near

PUBLISHED = {
    "gpt2-medium": "gpt2_medium",
    "gpt2-large": "gpt2_large",
    "gpt2-xl": "gpt2_xl",
    "bert-base-uncased": "bert_base",
    "bert-large-uncased": "bert_large",
    "t5-small": "t5_small",
    "opt-1.3b": "opt_1_3b",
    "llama-3.2-1b": "llama_1b",
    "llama-2-7b-hf": "llama_7b",
    "llama-2-13b-hf": "llama_13b",
    "llama-2-70b-hf": "llama_70b",
    "llama-3.1-8b": "llama_8b",
    "qwen2.5-14b": "qwen2_14b",
    "qwen3-14b": "qwen3_14b",
}
"""Files of ``conf/model`` by the names under which weights of these sizes are published, in small letters."""


def network(model_type: str, **options: Any) -> nn.Module:
    """Return a network in training mode, with the head for which its type has been published.

    Sequence to sequence, else masked tokens, else the next token, else the class of an image: the module's output is a
    ``ModelOutput``, with the loss in it if labels are among the inputs. It keeps no keys and values for generation, as
    in transformers' own trainer.

    Args:
        model_type: a type of transformers' configurations, ``"gpt2"``.
        options: options of that configuration, by their names there; the others have their defaults.

    Raises:
        MembenchError: transformers is not installed, or has no such type with one of these heads.
    """
    described, head = _configuration(model_type, options)
    module: nn.Module = head.from_config(described)
    return module.train()


def options_of(name: str) -> dict[str, Any]:
    """Return the options of ``conf/model`` for a published network, or for a type with its default sizes.

    Args:
        name: ``"gpt2-medium"``, also with an organisation before it, or a type, ``"gpt2"``.

    Raises:
        MembenchError: see `network`; names the published ones that there are.
    """
    published = name.rpartition("/")[2].lower()
    if published in PUBLISHED:
        return configuration.read("model", PUBLISHED[published])
    described, _ = _configuration(name, {})
    tokens = getattr(described, "vocab_size", None)
    sizes, inputs = _of_tokens(described) if tokens else _of_images(described)
    return {
        "name": name,
        "module": {"_target_": "membench.models.hugging_face.network", "model_type": name},
        "loss": {"_target_": "membench.models.hugging_face.OwnLoss"},
        **sizes,
        "inputs": inputs,
        "batch_size": 8,
    }


_LONGEST = 1024
"""Tokens of the example batch, unless a network takes fewer."""


def _of_tokens(described: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    length = getattr(described, "max_position_embeddings", None) or _LONGEST
    tokens = {"shape": ["sequence_length"], "below": "vocabulary"}
    sizes = {"sequence_length": min(length, _LONGEST), "vocabulary": described.vocab_size}
    return sizes, {"input_ids": tokens, "labels": tokens}


def _of_images(described: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    size = getattr(described, "image_size", None)
    side = size if isinstance(size, int) else 224
    channels = getattr(described, "num_channels", 3)
    images = {"shape": [channels, "image_size", "image_size"]}
    labels = {"shape": [], "below": "classes"}
    sizes = {"image_size": side, "classes": described.num_labels}
    return sizes, {"pixel_values": images, "labels": labels}


def _configuration(model_type: str, options: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return a configuration, and the class of transformers' that builds a network with a head from it."""
    transformers = _transformers()
    known = list(transformers.CONFIG_MAPPING.keys())
    if model_type not in known:
        raise MembenchError(
            f"{model_type!r} is neither a model type of transformers {transformers.__version__} nor one of the "
            f"published networks {', '.join(PUBLISHED)}{near(model_type, [*known, *PUBLISHED])}"
        )
    described = transformers.CONFIG_MAPPING[model_type](**{"use_cache": False, **options})
    heads = transformers.models.auto.modeling_auto
    if type(described) in heads.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING:
        if getattr(described, "decoder_start_token_id", None) is None:  # the labels are shifted by one token
            described.decoder_start_token_id = described.pad_token_id
        return described, transformers.AutoModelForSeq2SeqLM
    for mapping, head in (
        (heads.MODEL_FOR_MASKED_LM_MAPPING, transformers.AutoModelForMaskedLM),
        (heads.MODEL_FOR_CAUSAL_LM_MAPPING, transformers.AutoModelForCausalLM),
        (heads.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING, transformers.AutoModelForImageClassification),
    ):
        if type(described) in mapping:
            return described, head
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
        raise MembenchError("networks of Hugging Face need transformers: pip install 'membench[zoo]'") from error
    return transformers
