"""Before training: what is refused, the Trainer's arguments, and the model made ready."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator

import torch
from peft import PeftModel, PeftType
from torch import nn
from transformers import PreTrainedModel, Trainer, TrainingArguments
from transformers.integrations import TensorBoardCallback

from budwood.errors import ConfigError, DataError, NotSupportedError
from budwood.training.attention import fastest_attention
from budwood.training.feed import Feed
from budwood.training.folder import RunFolder
from budwood.training.loss import IGNORED, language_model
from budwood.training.settings import TrainingSettings


def require_usable(model: nn.Module, feed: Feed, settings: TrainingSettings) -> None:
    """Refuse what cannot be trained, before anything is written.

    Raises:
        ConfigError: no learning rate, patience without evaluation rows, a tracker that is not installed, or no
            trainable parameter.
        DataError: no token has a weight.
        NotSupportedError: a model of another kind, or in float16; prefix tuning with gradient checkpointing.
    """
    language_model(model)
    if settings.learning_rate is None:
        raise ConfigError("no learning rate was given", action="set training.learning_rate")
    if settings.patience is not None and not feed.judges:
        raise ConfigError(
            f"training.patience is {settings.patience}, and there are no evaluation rows",
            action="hold rows out with data.evaluation_fraction, or give no patience",
        )
    for tracker in settings.trackers:
        if importlib.util.find_spec(tracker) is None:
            raise ConfigError(f"the tracker {tracker} is not installed", action=f"pip install {tracker}")
    if not any(p.requires_grad for p in model.parameters()):
        raise ConfigError("no parameter of the model requires gradients", action="attach an adapter first")
    if any(p.dtype == torch.float16 for p in model.parameters()):
        raise NotSupportedError(
            "the model is in float16, whose range is too small for gradients", action="load it in bfloat16 or float32"
        )
    if settings.gradient_checkpointing and _is_prefix(model):
        raise NotSupportedError(
            "prefix tuning with gradient checkpointing",  # which computes the layers again without the prefix's cache
            action="set training.gradient_checkpointing=false, or choose another tuner",
        )
    targets = (pair for row in feed.train for pair in zip(row.labels[1:], row.loss_weights[1:]))
    if not any(label != IGNORED and weight > 0 for label, weight in targets):
        raise DataError(f"none of {len(feed.train)} training rows has a token with a weight above 0")


def _is_prefix(model: nn.Module) -> bool:
    return isinstance(model, PeftModel) and model.active_peft_config.peft_type == PeftType.PREFIX_TUNING


def training_arguments(
    model: nn.Module, settings: TrainingSettings, folder: RunFolder, seed: int, *, evaluates: bool
) -> TrainingArguments:
    """Return the Trainer's arguments. Intervals are left out: `Flow` decides."""
    device = next(model.parameters()).device
    name = folder.path.resolve().name
    arguments = TrainingArguments(
        output_dir=str(folder.path),
        run_name=name,
        project=name,
        per_device_train_batch_size=settings.batch_size,
        gradient_accumulation_steps=settings.accumulate,
        num_train_epochs=settings.epochs,
        max_steps=settings.max_steps or -1,
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
        adam_beta1=settings.betas[0],
        adam_beta2=settings.betas[1],
        max_grad_norm=settings.max_grad_norm,
        logging_nan_inf_filter=False,  # it would put an average in place of a NaN
        eval_strategy="no",
        eval_on_start=evaluates,
        save_strategy="no",
        report_to=list(settings.trackers) or "none",
        disable_tqdm=True,
        seed=seed,
        use_cpu=device.type == "cpu",
        remove_unused_columns=False,
        ddp_find_unused_parameters=False,  # each trainable tensor gets a gradient, or the run is refused
    )
    arguments._n_gpu = min(1, arguments.n_gpu)  # never the deprecated DataParallel over all devices in sight
    if arguments.deepspeed or arguments.fsdp:
        raise NotSupportedError("sharded training is not supported", action="use one process a device (DDP)")
    return arguments


def name_logs(trainer: Trainer, folder: RunFolder) -> None:
    """Let TensorBoard's log lie in the run folder itself: TensorBoard calls a run by the folder of its log."""
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, TensorBoardCallback) and callback.logging_dir is None:
            callback.logging_dir = str(folder.path)


@contextlib.contextmanager
def ready(model: nn.Module, settings: TrainingSettings, longest: int) -> Iterator[None]:
    """Set the model up for training, and put it into evaluation mode at the end, its configuration as it was.

    Args:
        longest: tokens of the longest row.
    """
    core = language_model(model)
    use_cache = core.config.use_cache
    checkpointed = _checkpointed(core) if settings.gradient_checkpointing else contextlib.nullcontext()
    try:
        with checkpointed, fastest_attention(core, settings.batch_size, longest):
            yield
    finally:
        core.config.use_cache = use_cache
        model.eval()


@contextlib.contextmanager
def _checkpointed(core: PreTrainedModel) -> Iterator[None]:
    """Compute activations a second time in the backward pass. Never re-entrant: shared parameters would fire twice.

    The output of the frozen embedding is made to require gradients, or nothing behind it would get any.
    """
    if hasattr(core, "activation_checkpointing_enable"):  # its name in newer versions of transformers
        enable, disable = core.activation_checkpointing_enable, core.activation_checkpointing_disable
    else:
        enable, disable = core.gradient_checkpointing_enable, core.gradient_checkpointing_disable
    enable({"use_reentrant": False})
    core.enable_input_require_grads()
    try:
        yield
    finally:
        disable()
        core.disable_input_require_grads()
