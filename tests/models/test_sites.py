"""Sites, roles and targets over the architectures; all models are on the meta device, so nothing is computed."""

from __future__ import annotations

import warnings
from collections import Counter

import pytest
import torch
import transformers as t
from peft import LoraConfig, get_peft_model
from torch import nn

from budwood.errors import ConfigError
from budwood.models import find_sites, hit_table, matching_sites, resolve_targets

SMALL = dict(
    hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, vocab_size=64,
    pad_token_id=0, bos_token_id=1, eos_token_id=2,
)  # fmt: skip
GROUPED = SMALL | dict(num_key_value_heads=2)
BART = dict(
    d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
    encoder_ffn_dim=48, decoder_ffn_dim=48, vocab_size=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    decoder_start_token_id=1,
)  # fmt: skip
GPT2 = dict(n_embd=32, n_layer=2, n_head=4, vocab_size=64, bos_token_id=1, eos_token_id=2)
T5 = dict(d_model=32, d_ff=48, d_kv=8, num_layers=2, num_heads=4, vocab_size=64)
VIT = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4)

CONFIGS = {
    "llama": t.LlamaConfig(**GROUPED),
    "mistral": t.MistralConfig(**GROUPED),
    "qwen2": t.Qwen2Config(**GROUPED),
    "qwen3": t.Qwen3Config(**GROUPED, head_dim=8),
    "gemma3": t.Gemma3TextConfig(**GROUPED, head_dim=8),
    "smollm3": t.SmolLM3Config(**GROUPED),
    "phi3": t.Phi3Config(**GROUPED),
    "gpt2": t.GPT2Config(**GPT2),
    "neox": t.GPTNeoXConfig(**SMALL),
    "opt": t.OPTConfig(
        hidden_size=32, ffn_dim=48, num_hidden_layers=2, num_attention_heads=4, vocab_size=64, word_embed_proj_dim=16
    ),
    "gptj": t.GPTJConfig(**GPT2, rotary_dim=4),
    "falcon": t.FalconConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, vocab_size=64, bos_token_id=1, eos_token_id=2
    ),
    "bert": t.BertConfig(**SMALL),
    "roberta": t.RobertaConfig(**SMALL),
    "distilbert": t.DistilBertConfig(dim=32, hidden_dim=48, n_layers=2, n_heads=4, vocab_size=64),
    "albert": t.AlbertConfig(**SMALL, embedding_size=16),
    "modernbert": t.ModernBertConfig(**SMALL, cls_token_id=1, sep_token_id=2),
    "t5": t.T5Config(**T5),
    "t5-gated": t.T5Config(**T5, feed_forward_proj="gated-gelu"),
    "whisper": t.WhisperConfig(**BART, num_mel_bins=8, begin_suppress_tokens=None),
    "bart": t.BartConfig(**BART),
    "vit": t.ViTConfig(**VIT, image_size=28, patch_size=7),
    "mamba": t.MambaConfig(hidden_size=32, num_hidden_layers=2, vocab_size=64),
}
CLASSES = {
    "bert": t.BertForMaskedLM,
    "roberta": t.RobertaForMaskedLM,
    "vit": t.ViTForImageClassification,
    "whisper": t.WhisperForConditionalGeneration,
}

ENCODER = Counter(q=2, k=2, v=2, o=2, up=2, down=2)
FUSED = Counter(qkv=2, o=2, up=2, down=2)
ENCODER_DECODER = Counter(q=6, k=6, v=6, o=6, up=4, down=4)  # 2 self in the encoder, 2 self and 2 cross in the decoder
ROLES = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "gemma3", "smollm3"), ENCODER + Counter(gate=2)),
    **dict.fromkeys(("gpt2", "neox", "falcon"), FUSED),
    **dict.fromkeys(("opt", "gptj", "bert", "roberta", "distilbert", "vit"), ENCODER),
    **dict.fromkeys(("t5", "whisper", "bart"), ENCODER_DECODER),
    "t5-gated": ENCODER_DECODER + Counter(gate=4),
    "albert": Counter(q=1, k=1, v=1, o=1, up=1, down=1),  # one layer, used twice
    "modernbert": Counter(qkv=2, o=2, gate_up=2, down=2),
    "phi3": Counter(qkv=2, o=2, gate_up=2, down=2),
    "mamba": Counter({None: 8}),
}


def build(name: str) -> t.PreTrainedModel:
    config = CONFIGS[name]
    autos = (t.AutoModelForMaskedLM, t.AutoModelForCausalLM, t.AutoModelForSeq2SeqLM)
    with torch.device("meta"):
        if name in CLASSES:
            return CLASSES[name](config)
        auto = next(auto for auto in autos if type(config) in auto._model_mapping)
        return auto.from_config(config)


@pytest.mark.parametrize("name", CONFIGS)
def test_every_layer_has_its_role(name):
    assert Counter(site.role for site in find_sites(build(name))) == ROLES[name]


@pytest.mark.parametrize("name", CONFIGS)
def test_shapes_are_those_of_the_weights(name):
    model = build(name)
    for site in find_sites(model):
        module = model.get_submodule(site.name)
        weight = module.weight.T if isinstance(module, t.pytorch_utils.Conv1D) else module.weight
        assert (site.out_features, site.in_features) == weight.shape


@pytest.mark.parametrize("name", CONFIGS)
def test_heads_and_embeddings_are_no_sites(name):
    model = build(name)
    names = {site.name for site in find_sites(model)}
    left = {n for n, m in model.named_modules() if isinstance(m, nn.Linear) and n not in names}
    assert all("layers" not in n.split(".") and "layer" not in n.split(".") for n in left)
    assert not names & {"lm_head", "proj_out", "classifier", "cls.predictions.decoder", "model.decoder.project_in"}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("role", [*"qkvo", "gate", "up", "down", "qkv", "gate_up", "all"])
def test_peft_adapts_exactly_the_sites_of_a_role(name, role):
    model = build(name)
    wanted = {site.name for site in find_sites(model) if role in (site.role, "all")}
    if not wanted:
        with pytest.raises(ConfigError):
            resolve_targets(model, [role])
        return
    targets = resolve_targets(model, [role])
    assert {site.name for site in matching_sites(model, targets)} == wanted
    if name == "mamba":
        return  # PEFT refuses LoRA on its out_proj
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PEFT's own
        wrapped = get_peft_model(model, LoraConfig(r=1, target_modules=targets))
    assert {n.removeprefix("base_model.model.") for n, m in wrapped.named_modules() if hasattr(m, "lora_A")} == wanted


@pytest.mark.parametrize(
    ("name", "leaves"),
    [
        ("llama", ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]),
        ("gpt2", ["c_attn", "attn.c_proj", "c_fc", "mlp.c_proj"]),
        ("bert", ["query", "key", "value", "attention.output.dense", "intermediate.dense", "output.dense"]),
        ("neox", ["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"]),
        ("albert", ["query", "key", "value", "attention.dense", "ffn", "ffn_output"]),
        ("t5", ["q", "k", "v", "o", "wi", "wo"]),
        ("mamba", ["in_proj", "x_proj", "dt_proj", "out_proj"]),
    ],
)
def test_leaves(name, leaves):
    assert resolve_targets(build(name), ["all"]) == leaves


def test_where_no_leaf_is_exact_full_names_are_given():
    assert resolve_targets(build("bert"), ["down"]) == [f"bert.encoder.layer.{i}.output.dense" for i in range(2)]


def test_layers_are_numbered():
    sites = find_sites(build("t5"))
    assert {(s.name.split(".")[0], s.layer) for s in sites} == {(p, i) for p in ("encoder", "decoder") for i in (0, 1)}


@pytest.mark.parametrize(
    ("wanted", "targets"),
    [
        (["q", "v_proj"], ["q_proj", "v_proj"]),
        (["self_attn.o_proj"], ["o_proj"]),
        (["model.layers.1.mlp.up_proj"], ["model.layers.1.mlp.up_proj"]),
        (["q_proj", "q", "self_attn.q_proj"], ["q_proj"]),
        (["down", "q"], ["q_proj", "down_proj"]),
    ],
)
def test_roles_and_names_mix(wanted, targets):
    assert resolve_targets(build("llama"), wanted) == targets


@pytest.mark.parametrize(
    ("name", "word", "says"),
    [
        ("llama", "q_porj", "did you mean 'q_proj'?"),
        ("llama", "q_porj", "gate  gate_proj  2 x  32 -> 48"),
        ("llama", "lm_head", "no layer of this model answers to 'lm_head'"),
        ("llama", "embed_tokens", "no layer of this model answers to 'embed_tokens'"),
        ("llama", "proj", "no layer of this model answers to 'proj'"),
        ("gpt2", "q", "ask for 'qkv': this model has one matrix for them"),
        ("phi3", "up", "ask for 'gate_up'"),
        ("mamba", "q", "-  in_proj"),
    ],
)
def test_a_word_without_an_answer(name, word, says):
    with pytest.raises(ConfigError) as caught:
        resolve_targets(build(name), ["all", word])
    assert says in str(caught.value)


def test_nothing_asked_for():
    with pytest.raises(ConfigError, match="no layer was asked for"):
        resolve_targets(build("llama"), [])


def test_the_hit_table():
    model = build("llama")
    assert hit_table(model, resolve_targets(model, ["k", "down"])) == [
        ("k_proj", "k", 2, 32, 16),
        ("down_proj", "down", 2, 48, 32),
    ]
    bert = build("bert")
    assert hit_table(bert, resolve_targets(bert, ["down"])) == [("output.dense", "down", 2, 48, 32)]


class QuantisedLinear(nn.Module):
    """A quantised layer as backends write them: no `nn.Linear`, its weight packed."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.qweight = nn.Parameter(torch.zeros(1, dtype=torch.uint8), requires_grad=False)


def test_quantised_layers_are_sites():
    model = build("llama")
    model.model.layers[0].self_attn.q_proj = QuantisedLinear(32, 32)
    assert hit_table(model, ["q_proj"]) == [("q_proj", "q", 2, 32, 32)]
